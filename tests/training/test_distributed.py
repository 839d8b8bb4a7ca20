"""Several processes give what one gives, and end together with one clear message."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.runs import Run, train
from dragoman.training import runtime
from dragoman.training.checkpoints import Checkpoints, read_tensors
from dragoman.training.runtime import ProcessGroup
from tests.processes import two_processes
from tests.training.conftest import Configure
from tests.training.kill_driver import SMALL, STEPS, leftovers, result, table, write_config, write_pairs

ROOT = Path(dragoman.__file__).parents[1]
pytestmark = pytest.mark.timeout(300)


def torchrun(config: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a job of two processes; --standalone takes a free port."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "--", "dragoman", "train", str(config), "--quiet", "--run", str(folder),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | here(config),
    )  # fmt: skip


def here(config: Path) -> dict[str, str]:
    """Variables that keep the files of a job beside its configuration."""
    return {"DRAGOMAN_CACHE": str(config.parent / "cache"), "TMPDIR": str(config.parent)}


def process_of(job: subprocess.Popen[str], rank: int) -> int:
    """The process of one rank of a running job."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == job.pid and f"RANK={rank}".encode() in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:  # ended meanwhile
            continue
    raise AssertionError(f"no process of rank {rank}")


def wait_for(step: int, run: Path, job: subprocess.Popen[str]) -> None:
    """Until a run has saved a step."""
    end = time.monotonic() + 120
    while max(Checkpoints(run).steps(), default=0) < step:
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)


def ours(said: str) -> list[str]:
    """The lines that are not torchrun's."""
    return [line for line in said.splitlines() if line.startswith(("dragoman:", "stopped", "interrupted", "warning:"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    content = table(write_pairs(folder / "pairs.tsv"))
    content["train"]["accumulate"] = 1
    write_config(folder / "tiny.toml", content)
    return folder


@pytest.mark.parametrize("lost", [pytest.param([(1, 6), (0, 15)], id="both"), pytest.param([], id="none")])
@pytest.mark.slow  # it starts three or five jobs
def test_two_processes_train_like_one_after_losses_and_a_stop(
    lost: list[tuple[int, int]], folder: Path, configure: Configure, tmp_path: Path
) -> None:
    config, run = folder / "tiny.toml", folder / f"run-{len(lost)}"
    for rank, step in lost:
        job = torchrun(config, run)
        wait_for(step, run, job)
        os.kill(process_of(job, rank), signal.SIGKILL)
        said = job.communicate(timeout=240)[1]
        assert job.returncode != 0
        assert len(ours(said)) == 1, said
        assert ours(said)[0].startswith(f"dragoman: a process of this job was lost (seen by process {2 - rank} of 2)")
        assert "/dragoman/" not in said, "a traceback of ours"
        assert step <= max(Checkpoints(run).steps()) < STEPS
    # A clean stop of the whole job.
    job = torchrun(config, run)
    wait_for(27, run, job)
    job.terminate()
    said = job.communicate(timeout=240)[1]
    reached = max(Checkpoints(run).steps())
    assert ours(said) == [f"stopped and saved at step {reached}; the same command resumes from there"], said
    assert 27 <= reached < STEPS
    job = torchrun(config, run)
    said = job.communicate(timeout=240)[1]
    assert (job.returncode, ours(said)) == (0, [])
    assert leftovers(folder) == []

    # One process with twice the batches a step does the same sums, dropout included.
    train(configure("train.accumulate=2"), tmp_path / "one")
    many, one = result(run)["metrics"], result(tmp_path / "one")["metrics"]
    assert [row["step"] for row in many] == [row["step"] for row in one]
    assert [row.get("tokens") for row in many] == [row.get("tokens") for row in one]
    for name in ("weights.safetensors", f"checkpoints/{STEPS:08d}/optimizer.safetensors"):
        left, right = read_tensors(run / name), read_tensors(tmp_path / "one" / name)
        assert left.keys() == right.keys()
        for key, value in left.items():
            torch.testing.assert_close(value, right[key], rtol=1e-4, atol=1e-6)


def test_rows_beyond_the_position_table_on_one_process_alone(tmp_path: Path) -> None:
    """Processes meet lengths of their own, and only the first one validates: nothing that grows may be shared."""
    sizes = [3, 5, 8] * 6 + [300, 290, 310]
    (tmp_path / "pairs.tsv").write_text("".join(f"{'ab' * size}\t{'ba' * size}\n" for size in sizes), encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("".join(f"{'ab' * size}\t{'ba' * size}\n" for size in (4, 600)), "utf-8")
    runs = {}
    for processes, accumulate in ((2, 1), (1, 2)):
        content = table(tmp_path / "pairs.tsv")
        content["data"] = {
            "train": str(tmp_path / "pairs.tsv"),
            "valid": str(tmp_path / "valid.tsv"),
            "max_length": 1500,
        }
        content["train"] |= {
            "steps": 4,
            "accumulate": accumulate,
            "validate_every": 2,
            "decode": 0,
            "batch_tokens": 700,
        }
        config = write_config(tmp_path / f"{processes}.toml", content)
        runs[processes] = tmp_path / f"run-{processes}"
        if processes == 1:
            train(dragoman.runs.tasks.config.load(config), runs[1])
        else:
            for code, said in two_processes(["train", config, "--quiet", "--run", runs[2]], here(config)):
                assert code == 0, said
    left, right = (
        read_tensors(runs[processes] / "checkpoints" / f"{4:08d}" / "weights.safetensors") for processes in (1, 2)
    )
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=1e-4, atol=1e-6)


def test_a_run_resumes_with_as_many_batches_in_a_step_as_before(tmp_path: Path) -> None:
    """Two processes with the train.accumulate of one would silently double every step."""
    content = table(write_pairs(tmp_path / "pairs.tsv"))
    content["train"] |= {"steps": 6, "accumulate": 2, "validate_every": 6, "decode": 0}
    content["train"]["optimizer"]["warmup"] = 6  # more than the steps would be warned of
    train(dragoman.runs.tasks.config.build(content), tmp_path / "run")
    content["train"]["steps"] = 9
    config = write_config(tmp_path / "two.toml", content)
    found = two_processes(["train", config, "--quiet", "--run", tmp_path / "run"], here(config))
    assert all(code != 0 for code, _ in found)
    assert ours("".join(said for _, said in found)) == [
        f"dragoman: {tmp_path / 'run'}: a step was 2 batches (train.accumulate 2 × 1 process), but would be 4 "
        "(train.accumulate 2 × 2 processes); set train.accumulate=1 or start 1 process"
    ]
    assert max(Checkpoints(tmp_path / "run").steps()) == 6
    content["train"]["accumulate"] = 1
    config = write_config(tmp_path / "two.toml", content)
    found = two_processes(["train", config, "--quiet", "--run", tmp_path / "run"], here(config))
    assert [(code, ours(said)) for code, said in found] == [(0, [])] * 2
    content["train"]["accumulate"] = 2
    train(dragoman.runs.tasks.config.build(content), tmp_path / "one")
    assert [row.get("tokens") for row in result(tmp_path / "run")["metrics"] if row["step"] == 9] == [
        row.get("tokens") for row in result(tmp_path / "one")["metrics"] if row["step"] == 9
    ]
    left, right = (
        read_tensors(tmp_path / name / "checkpoints/00000009/weights.safetensors") for name in ("run", "one")
    )
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=1e-4, atol=1e-6)


@pytest.mark.slow  # it starts three jobs
def test_sharded_processes_train_and_resume_like_one(tmp_path: Path) -> None:
    """FSDP2 with activations computed again; one process goes on from its checkpoint, and it from that of one."""
    content = table(write_pairs(tmp_path / "pairs.tsv"))
    content["train"] |= {"validate_every": 3, "save_every": 3, "decode": 4, "average": {"kind": "last"}}
    content["train"]["optimizer"]["warmup"] = 3
    content["model"]["encoder"] = content["model"]["decoder"] = {**SMALL, "layers": 2}
    sharded = content | {"train": content["train"] | {"accumulate": 1, "shard": "on", "checkpoint_activations": True}}

    def alone(name: str, steps: int) -> None:
        train(
            dragoman.runs.tasks.config.build(content | {"train": content["train"] | {"steps": steps}}), tmp_path / name
        )

    def both(name: str, **changes: object) -> list[tuple[int, list[str]]]:
        config = write_config(tmp_path / f"{name}.toml", sharded | {"train": sharded["train"] | changes})
        found = two_processes(["train", config, "--quiet", "--run", tmp_path / name], here(config))
        return [(code, ours(said)) for code, said in found]

    assert both("two", steps=6) == [(0, [])] * 2
    saved = tmp_path / "two/checkpoints/00000006"
    parts = [saved / f"{name}-0000{rank}-of-00002.safetensors" for name in ("weights", "optimizer") for rank in (1, 2)]
    assert sorted(path.name for path in saved.iterdir()) == sorted(["state.json", *(path.name for path in parts)])
    assert max(path.stat().st_size for path in parts[:2]) < 0.7 * sum(path.stat().st_size for path in parts[:2])
    whole, best = read_tensors(saved / "weights.safetensors"), read_tensors(tmp_path / "two/best/00000006.safetensors")
    assert all(torch.equal(whole[name], best[name]) for name in best)
    # Without validated weights predictions take those of the newest checkpoint.
    shutil.copytree(tmp_path / "two", tmp_path / "unvalidated", ignore=shutil.ignore_patterns("best", "weights.*"))
    found = Run(tmp_path / "unvalidated").model(torch.device("cpu"))
    assert all(torch.equal(tensor, best[name]) for name, tensor in found.named_parameters())
    # Another product of processes and train.accumulate is refused; without one of its files it falls back.
    refused = both("two", steps=9, accumulate=2)
    assert any("a step was 2 batches" in line for _, said in refused for line in said)
    parts[0].rename(parts[0].with_suffix(".lost"))
    shutil.copytree(tmp_path / "two", tmp_path / "damaged")
    parts[0].with_suffix(".lost").rename(parts[0])
    alone("damaged", 9)
    alone("two", 9)
    left, right = (
        read_tensors(tmp_path / name / "checkpoints/00000009/weights.safetensors") for name in ("two", "damaged")
    )
    assert all(torch.allclose(left[name], right[name], rtol=1e-3, atol=1e-4) for name in left)
    alone("one", 6)
    assert both("one", steps=9) == [(0, [])] * 2
    for name in ("weights.safetensors", "checkpoints/00000009/optimizer.safetensors"):
        left, right = read_tensors(tmp_path / "two" / name), read_tensors(tmp_path / "one" / name)
        assert left.keys() == right.keys()
        for key, value in left.items():  # the gradient of a key's bias is rounding alone, which Adam scales up
            torch.testing.assert_close(value, right[key], rtol=1e-3, atol=1e-4)
    refused = both("three", average={"kind": "ema"}, compile="graphs")
    assert all(code != 0 for code, _ in refused)
    lines = [line for _, said in refused for line in said]
    assert len(lines) == 1
    assert 'train.average.kind = "ema"' in lines[0]
    assert "CUDA graph" in lines[0]
    with pytest.raises(ConfigError, match="one process trains"):
        train(dragoman.runs.tasks.config.build(sharded), tmp_path / "four")


def test_a_user_mistake_is_told_once(folder: Path) -> None:
    (folder / "bad.tsv").write_text("a\tb\nc\n", encoding="utf-8")
    config = write_config(folder / "bad.toml", table(folder / "bad.tsv"))
    job = torchrun(config, folder / "bad-run")
    said = job.communicate(timeout=240)[1]
    assert job.returncode != 0
    assert len(ours(said)) == 1, said
    assert "bad.tsv:2: found 1 column, expected 2 with a tab between them" in ours(said)[0]
    assert not (folder / "bad-run").exists()


def test_alone_nothing_is_asked_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = ProcessGroup()
    assert not alone.is_distributed
    assert alone.is_main
    assert alone.all_reduce_max(3) == 3
    assert alone.all_reduce_sum([1.5, 2.0]) == [1.5, 2.0]
    with pytest.raises(DataError), alone.initialized(torch.device("cpu")):
        raise DataError("as it was")


def test_only_the_first_to_report_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.tempfile, "gettempdir", lambda: str(tmp_path))
    assert runtime.first_to_report()
    assert not runtime.first_to_report()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert runtime.first_to_report()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3381", True),
        ("NCCL error: remote process exited", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
        ("Trying to create tensor with negative dimension", False),
    ],
)
def test_a_lost_connection_is_told_from_other_errors(text: str, expected: bool) -> None:
    assert runtime.is_connection_error(RuntimeError(text)) == expected
