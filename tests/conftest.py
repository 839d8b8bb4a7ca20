"""A trained_folder: a folder with pairs and a small trained run, and the command line called inside this process."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import cli

with contextlib.suppress(ImportError):  # a machine with a GPU may lack it
    from hypothesis import HealthCheck, settings

    # The same examples in every run, and no failure because the machine is busy. Campaigns draw others.
    settings.register_profile("dragoman", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("dragoman")

# Nothing waits for the disk: a tiny training syncs 75 files, and no test pulls the plug. Other processes do sync.
os.fsync = lambda fd, /: None

# One layer a side, 32 wide.
SMALL = tuple(
    f"model.{side}.{name}"
    for side in ("encoder", "decoder")
    for name in ("layers=1", "width=32", "heads=2", "feedforward=64", "dropout=0")
)
# In three seconds it is right about most words, and wrong about some.
QUICK = (
    "train.steps=100",
    "train.validate_every=50",
    "train.optimizer.learning_rate=1e-2",
    "train.optimizer.warmup=20",
    "train.average.kind=none",
)

# Those that take longest must not come last, when the other processes have nothing left to steal.
LONGEST = (
    "auto/test_search_signals.py",
    "runs/tasks/test_media_end_to_end.py",
    "training/test_resume.py",
    "base/test_plugins.py",
    "test_campaign.py",
    "test_tutorials.py",
    "contract/test_learning.py",
    "training/test_distributed.py",
    "commands/test_progress.py",
    "runs/tasks/test_language_model.py",
    "test_library_page.py",
    "runs/tasks/test_labels_end_to_end.py",
    "serving/test_load.py",
    "inference/test_decoding_options.py",
    "inference/test_ensemble_commands.py",
    "auto/test_search_state.py",
    "test_extending.py",
    "exchange/test_huggingface_import.py",
    "training/test_trainer.py",
    "models/test_non_autoregressive_learning.py",
    "test_invariance.py",
    "test_readme.py",
)
READS_TYPES = "test_public_api.py"  # reads the cache that mypy writes beside the tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the reader of types last; tests marked `gpu` are skipped without a GPU."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    items.sort(key=lambda item: (not str(item.path).endswith(LONGEST), str(item.path).endswith(READS_TYPES)))


def pytest_collection_finish() -> None:
    """Collections of garbage need not look through ten thousand tests and all modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def onednn_stays_on() -> Iterator[None]:
    """On CPUs without bfloat16 torch turns oneDNN off at the first such product: all others then round otherwise."""
    yield
    torch.backends.mkldnn.enabled = True


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind: its exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output, cut at line feeds only."""
        assert not self.out or self.out.endswith("\n")
        return self.out.split("\n")[:-1]


def call(*arguments: str | Path, stdin: bytes = b"", encoding: str = "utf-8") -> CommandResult:
    """Run a command as a shell would, without the price of a process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = cli.guarded([str(argument) for argument in arguments])
    out.flush(), err.flush()
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    return CommandResult(code, *texts)


def words(count: int, seed: int = 1, shortest: int = 2, longest: int = 7, letters: str = "abcdefghij") -> list[str]:
    """So many different made-up words."""
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(draw.choice(letters) for _ in range(draw.randint(shortest, longest)))] = None
    return list(found)


def write_rows(path: Path, rows: list[tuple[str, ...]]) -> Path:
    """A tab-separated file."""
    path.write_bytes("".join("\t".join(row) + "\n" for row in rows).encode())
    return path


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one process of the tests makes, and all of them read: only new names may be written to it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all processes
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / f"{name}.made").exists():
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir()
            make(root / name)
            (root / f"{name}.made").touch()
    return root / name


def own_copy(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A copy for this process, which its tests may change, of what one process makes for all."""
    copy, made = factory.mktemp(name) / name, made_once(factory, name, make)
    shutil.copytree(made, copy, symlinks=True)
    for config in copy.rglob("config.toml"):  # a run names its data by absolute paths
        config.write_text(config.read_text(encoding="utf-8").replace(str(made), str(copy)), encoding="utf-8")
    return copy


@contextlib.contextmanager
def quiet_machine(cache: Path) -> Iterator[None]:
    """One thread, a token store of our own, no torchrun around us."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAGOMAN_CACHE", str(cache))
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            patch.delenv(name, raising=False)
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TrainedFolder:
    """A folder with pairs.tsv, test.tsv (two references a line) and a run."""

    folder: Path
    run: Path
    training: CommandResult

    def write(self, name: str, content: bytes | str) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> TrainedFolder:
    """Trained once for all tests, with no configuration but what makes it small."""

    def make(folder: Path) -> None:
        names = words(330)
        write_rows(folder / "pairs.tsv", [(word, word.upper()) for word in names[:300]])
        write_rows(folder / "test.tsv", [(word, word.upper(), word[::-1].upper()) for word in names[300:]])
        with quiet_machine(folder / "cache"), contextlib.chdir(folder):
            result = call("train", "pairs.tsv", *SMALL, *QUICK)
        (folder / "training.json").write_text(json.dumps(asdict(result)), encoding="utf-8")

    folder = own_copy(tmp_path_factory, "with a space ü", make)
    training = CommandResult(**json.loads((folder / "training.json").read_text(encoding="utf-8")))
    return TrainedFolder(folder, folder / "runs" / "pairs", training)


@pytest.fixture
def inside(trained_folder: TrainedFolder) -> Iterator[TrainedFolder]:
    """The trained folder as the working directory."""
    with quiet_machine(trained_folder.folder / "cache"), contextlib.chdir(trained_folder.folder):
        yield trained_folder


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Path]:
    """A token store that lives as long as the test."""
    with quiet_machine(tmp_path / "cache"):
        yield tmp_path / "cache"


def tree(folder: Path) -> dict[str, Any]:
    """Every file below a folder with its size and time of change, the token store left out."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not name.startswith("cache"):
            stat = path.lstat()  # other tests leave links that lead nowhere
            found[name] = None if path.is_dir() else (stat.st_size, stat.st_mtime_ns)
    return found
