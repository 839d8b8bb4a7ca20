"""The run folder: configuration, tokenizers, data report, weights, checkpoints and metrics of one model."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.base import (
    ConfigError,
    Plugin,
    RunError,
    __version__,
    check_no_pipes,
    digest,
    is_run_file,
    lock,
    make_folder,
    move,
    nearest,
    open_handle,
    remove_folder,
    write_bytes,
    write_text,
)
from dragoman.base import config as settings
from dragoman.data import MAX_LENGTH_RATIO, SourceReader, remote_places
from dragoman.data.tokenizers import Tokenizer, load_tokenizers
from dragoman.runs.plugins import check_plugins, needed_plugins
from dragoman.runs.tasks.base import Task
from dragoman.runs.tasks.config import Config, from_table, with_absolute_paths
from dragoman.runs.tasks.table import task_of
from dragoman.training import Checkpoints, parts_of, read_arrays, read_rows, read_tensors

if TYPE_CHECKING:
    import torch

    from dragoman.data import Corpus

T = TypeVar("T")

IMPORTED = "imported.json"  # family and licence of an imported model
BEGUN = {"lock", "trials", "data", "curve.json"}  # what a command writes into its folder before its first training
TRIALS = "trials"  # the folder of a search with its trials
SEARCH = "search.json"  # the state of a search, which makes the folder a run at its end
MEMBERS_FILE = "ensemble.json"  # makes a run folder an ensemble
RUN_FORMAT = 2  # raise it when settings, files or weights of older runs can no longer be read


class Run:
    """An existing run folder: one model, or an ensemble of its own model and those of other run folders inside it.

    `model` opens the one model of a folder and refuses an ensemble, so nothing takes a member for the whole. What works
    with an ensemble opens the folder with `inference.loaded.LoadedRun`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.toml").is_file():
            raise RunError(missing_run_message(self.folder))
        check_no_pipes(self.folder, is_run_file)
        self.plugins = check_format(self.folder)
        try:
            table = settings.read_toml(self.folder / "config.toml")
            for place, address in remote_places(table):  # it may come from anybody
                raise RunError(
                    f"{self.folder}/config.toml: {place}: found the address {address!r}, expected a local file: "
                    "nothing is downloaded for a run folder"
                )
            with settings.errors_in(self.folder / "config.toml"):
                self.config = from_table(table)
        except ConfigError:
            check_plugins(self.folder, self.plugins)  # a missing one says more than a kind that does not exist
            raise

    @property
    def task(self) -> Task:
        return task_of(self.config)

    @property
    def data(self) -> dict[str, Any]:
        """The report of data preparation: counts, faults, fingerprint."""
        try:
            report: dict[str, Any] = json.loads((self.folder / "data.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.folder}/data.json: damaged ({error})") from None
        missing = {"train", "valid", "length_ratio", "fingerprint"} - set(report if isinstance(report, dict) else ())
        if missing:
            raise RunError(f"{self.folder}/data.json: damaged (it lacks {', '.join(sorted(missing))})")
        ratio = report["length_ratio"]
        if not isinstance(ratio, int | float) or not 0 <= ratio <= MAX_LENGTH_RATIO:
            expected = f"expected 0 to {MAX_LENGTH_RATIO:,.0f}"
            raise RunError(f"{self.folder}/data.json: damaged (length_ratio: found {ratio!r}, {expected})")
        lengths = report.get("source_lengths") or {"p99": 0, "correlation": 0}  # runs of earlier versions have none
        numbers = map(lengths.get, ("p99", "correlation")) if isinstance(lengths, dict) else [None]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            expected = "expected numbers p99 and correlation"
            raise RunError(f"{self.folder}/data.json: damaged (source_lengths: found {lengths!r}, {expected})")
        return report

    def tokenizers(self) -> tuple[SourceReader, Tokenizer]:
        return load_tokenizers(self.folder / "tokenizer")

    @property
    def other_members(self) -> list[Run]:
        """The runs inside this one that are averaged with its own model; none for an ordinary run."""
        return [Run(folder) for folder in member_folders(self.folder)]

    @property
    def member_weights(self) -> tuple[float, ...]:
        """The weights of the votes of all members, its own first; none: equal ones."""
        path = self.folder / MEMBERS_FILE
        weights = table_in(path).get("weights") or []
        proper = isinstance(weights, list) and all(type(weight) is float and 0 <= weight <= 1 for weight in weights)
        if not proper or (weights and len(weights) != 1 + len(self.other_members)):
            raise RunError(f"{path}: found the weights {weights}, expected one from 0 to 1 for each member")
        return tuple(weights)

    def check_single(self, purpose: str = "") -> None:
        """Raise RunError if this run is an ensemble; `purpose` says what needs one model."""
        if others := member_folders(self.folder):
            raise RunError(
                f"{self.folder}: found an ensemble of {len(others) + 1} models, expected one model"
                f"{f' ({purpose})' if purpose else ''}; name one of its members, such as {others[0]}, or make one "
                f"model of them: dragoman distil {self.folder}"
            )

    def model(self, device: torch.device | None, weights: Path | None = None) -> Any:
        """The trained model in evaluation mode, a fitted one on no device; an ensemble is refused."""
        self.check_single()
        return self.own_model(device, weights)

    def own_model(self, device: torch.device | None, weights: Path | None = None) -> Any:
        """The trained model of this folder in evaluation mode, which may be the first member of an ensemble."""
        if self.is_fitted:
            return self.fitted_model(weights)
        assert device is not None, "a network computes on a device"
        from dragoman.runs.network import open_network

        tensors = read_tensors(weights) if weights is not None else self._own_weights(read_tensors)
        source, target = self.tokenizers()
        build = partial(self.task.model, self.config, source, target)
        return open_network(build, tensors, device, f"{self.folder}/config.toml")

    @property
    def is_fitted(self) -> bool:
        """Whether its model was computed from the data without gradients (`classical.model.FittedModel`)."""
        return getattr(self.config.model, "fitted", False)

    def fitted_model(self, weights: Path | None = None) -> Any:
        """The model of a run that `is_fitted`; it needs no torch."""
        source, target = self.tokenizers()
        model: Any = self.task.model(self.config, source, target)
        arrays = read_arrays(weights) if weights is not None else self._own_weights(read_arrays)
        try:
            model.load(arrays)
        except RunError as error:
            raise RunError(f"{weights or self.weights_path()}: {error}") from None
        return model

    def weights_path(self) -> Path:
        """The weights for prediction: the best validated ones, else those of the newest checkpoint."""
        best = self.folder / "weights.safetensors"
        if best.exists():
            return best
        steps = Checkpoints(self.folder).steps()
        if any((self.folder / "best").glob("*.safetensors")):  # validation chose others than the newest
            raise RunError(
                f"{best}: no such file, but the run was validated; write it again with: dragoman train {self.folder}"
            )
        if not steps:
            raise RunError(f"{self.folder}: not trained yet; start with: dragoman train {self.folder}")
        path = Checkpoints(self.folder).path(steps[-1]) / "weights.safetensors"
        return next(iter(parts_of(path)), path)  # of a checkpoint in parts the first: `read_tensors` finds the others

    def weights_digest(self) -> str:
        """A hash of all weights that predictions depend on: of an ensemble those of every member."""
        paths = [run.weights_path() for run in (self, *self.other_members)]
        hashes = [digest(part) for path in paths for part in parts_of(path) or [path]]
        return hashes[0] if len(hashes) == 1 else hashlib.blake2b("".join(hashes).encode(), digest_size=16).hexdigest()

    def _own_weights(self, read: Callable[[Path], T]) -> T:
        """The weights for prediction; the error for damaged ones says how to write them again, if that is possible."""
        path = self.weights_path()
        try:
            return read(path)
        except RunError as error:
            if not any((self.folder / "best").glob("*.safetensors")):
                raise
            raise RunError(
                f"{error}; best/ has the weights of the best validations: write the file again with: dragoman train "
                f"{self.folder}"
            ) from None

    def metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.folder / "metrics.jsonl")


def write_members(folder: Path, members: Sequence[str], weights: Sequence[float] = ()) -> None:
    """Make a run folder an ensemble: its own model and those of these run folders inside it.

    `weights` are those of the votes of all, its own first; none: equal ones.
    """
    write_text(folder / MEMBERS_FILE, json.dumps({"members": list(members), "weights": list(weights)}))


def member_folders(folder: Path) -> tuple[Path, ...]:
    """The other runs of a run folder that is an ensemble; none for an ordinary one."""
    path = folder / MEMBERS_FILE
    if not path.is_file():
        return ()
    try:
        members = [folder / str(name) for name in json.loads(path.read_text(encoding="utf-8"))["members"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    for member in members:
        if not member.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{path}: found the member {member}, expected folders inside {folder}")
        if member.resolve() == folder.resolve() or (member / MEMBERS_FILE).exists():
            raise RunError(f"{path}: found the ensemble {member} as a member, expected runs with one model")
    return tuple(members)


def table_in(path: Path) -> dict[str, Any]:
    """The table of a JSON file; empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(content := json.loads(path.read_text(encoding="utf-8")), dict):
            return content
    return {}


def import_record(folder: str | Path) -> dict[str, str]:
    """Family and licence of an imported model, or of the one that a run was fine-tuned from; else empty."""
    record = table_in(Path(folder) / IMPORTED)
    return {name: str(record[name]) for name in ("family", "licence")} if {"family", "licence"} <= record.keys() else {}


def missing_run_message(folder: Path) -> str:
    """Why a path is no run folder, what to do with what is in it, or the nearest name that exists."""
    if not folder.exists():
        return f"{folder}: no such run folder." + (f" Did you mean '{near}'?" if (near := nearest_run(folder)) else "")
    if folder.is_file():
        return f"{folder}: found a file, expected a run folder"
    if is_unfinished_search(folder):
        best = f"; use its best trial so far: dragoman predict {run} FILE" if (run := best_trial(folder)) else ""
        return f"{folder}: found a search that is not finished; it goes on with: dragoman train {folder}{best}"
    if runs := sorted(path.parent for path in folder.glob("[!.]*/config.toml")):
        return (
            f"{folder}: not a run folder (it has no config.toml), but {runs[0]} is one; what trains in this folder "
            "goes on with the same command again"
        )
    if {path.name for path in folder.iterdir() if path.name[0] != "."} <= BEGUN:
        return f"{folder}: nothing is trained yet; what was stopped here begins with the same command again"
    return f"{folder}: not a run folder (it has no config.toml)"


def search_of(folder: Path) -> Path | None:
    """The folder of the search that a run is a trial of."""
    search = folder.absolute().parent.parent
    return search if folder.absolute().parent.name == TRIALS and (search / SEARCH).is_file() else None


def is_unfinished_search(folder: Path) -> bool:
    return (folder / SEARCH).is_file() and not (folder / "config.toml").is_file()


def best_trial(folder: Path) -> Path | None:
    """The run of a search that is not finished which predicts best so far; None if none can predict."""
    name = str(table_in(folder / SEARCH).get("best", ""))
    is_trial = re.fullmatch(r"trials/[\w.-]+", name) and (folder / name / "config.toml").is_file()
    return folder / name if is_trial else None


def nearest_run(folder: Path) -> Path | None:
    """The run folder that a name most likely means: beside it, or in runs/, where `train` puts them."""
    places = [folder.parent] if folder.parent.name == "runs" else [folder.parent, folder.parent / "runs"]
    runs = [path for place in places if place.is_dir() for path in place.iterdir() if (path / "config.toml").is_file()]
    same = [path for path in runs if path.name == folder.name]
    near = nearest(folder.name, [path.name for path in runs])
    return next(iter(same or [path for path in runs if path.name == near]), None)


def hardware(config: Config) -> str:
    """The processor or the GPU that trains with these settings, in words."""
    import torch

    from dragoman.training import resolve_device

    device = resolve_device(config.train.device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        if names:
            return f"{names[0]}, {torch.get_num_threads()} threads"
    return f"{platform.machine()} processor, {torch.get_num_threads()} threads"


def hardware_of(folder: Path) -> str:
    """The hardware on which a run folder was made; empty where an earlier version did not write it down."""
    return str(table_in(folder / "run.json").get("hardware", ""))


def check_format(folder: Path) -> list[Plugin]:
    """Refuse a run that another version wrote in another format; return the plug-ins that it needs."""
    path = folder / "run.json"
    version, needed = "", []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written, version = int(content["format"]), str(content["version"])
        needed = [Plugin(*(str(plugin[name]) for name in Plugin._fields)) for plugin in content.get("plugins", ())]
    except FileNotFoundError:
        written = 1  # had no run.json
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:  # Infinity is JSON, too
        raise RunError(f"{path}: damaged ({error})") from None
    if written < RUN_FORMAT:
        raise RunError(
            f"{folder}: an earlier version of Dragoman made this run (format {written}, expected {RUN_FORMAT}); "
            "train it anew in a new folder"
        )
    if written > RUN_FORMAT:
        raise RunError(
            f"{folder}: Dragoman {version} made this run (format {written}), but this is Dragoman {__version__} "
            f"(format {RUN_FORMAT}); upgrade Dragoman"
        )
    return needed


def create_run(folder: Path, config: Config, corpus: Corpus) -> None:
    """Create a run folder atomically: write a temporary folder, then rename it."""
    with new_run(folder, config, corpus.source_tokenizer, corpus.target_tokenizer, corpus.report) as temporary:
        if folder.exists():  # empty
            folder.rmdir()
        move(temporary, folder)


def replace_run(folder: Path, config: Config, corpus: Corpus) -> None:
    """Discard all that training wrote to an existing run folder and start anew; other files in it stay."""
    with new_run(folder, config, corpus.source_tokenizer, corpus.target_tokenizer, corpus.report) as temporary:
        for name in run_files(folder):
            path = folder / name
            if name != "config.toml":  # replaced last: without it the folder would be no run
                remove_folder(path)
        for path in sorted(temporary.iterdir(), key=lambda path: path.name == "config.toml"):
            move(path, folder / path.name)


def run_files(folder: Path) -> list[str]:
    """The names of the files and folders in a run folder that Dragoman wrote and reads, the lock left out."""
    return sorted(path.name for path in folder.iterdir() if is_run_file(path.name) and path.name != "lock")


@contextmanager
def new_run(
    folder: Path, config: Config, source: SourceReader, target: Tokenizer, report: dict[str, Any]
) -> Iterator[Path]:
    """A temporary folder beside `folder` with the files of an untrained run; removed at the end of the block."""
    temporary = folder.with_name(f".{folder.name}.part")
    try:
        remove_folder(temporary)  # a killed process may have left one
        make_folder(temporary / "tokenizer")
        source.save(temporary / "tokenizer", "source")
        target.save(temporary / "tokenizer", "target")
        write_bytes(temporary / "data.json", json.dumps(report, indent=2).encode())
        about: dict[str, Any] = {"format": RUN_FORMAT, "version": __version__, "hardware": hardware(config)}
        if needed := needed_plugins(config):
            about["plugins"] = [plugin._asdict() for plugin in needed]
        write_bytes(temporary / "run.json", json.dumps(about).encode())
        write_bytes(temporary / "config.toml", settings.dump(with_absolute_paths(config)).encode())
        yield temporary
    except OSError as error:
        raise RunError(f"{folder}: cannot make the run folder ({error.strerror})") from None
    finally:
        remove_folder(temporary)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run; False if a run can be created there, RunError if it holds something else."""
    if not folder.exists():
        return False
    if (folder / "config.toml").is_file():
        return True
    if folder.is_dir() and not any(folder.iterdir()):
        return False
    raise RunError(missing_run_message(folder) + "; name another with --run")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a run folder inside the block; RunError if another training holds it.

    The kernel releases the lock when the process ends, however it ends. The file `lock` itself stays.
    """
    path = folder / "lock"
    try:
        handle = open_handle(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RunError(f"{path}: cannot lock the run folder ({error.strerror})") from None
    try:
        if lock(handle) is False:
            raise RunError(
                f"{folder}: another process is training this run; wait for it, or name another folder with --run"
            )
        yield
    finally:
        os.close(handle)
