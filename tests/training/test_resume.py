"""However a run was interrupted, it ends with the same bits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError, Interrupted, RunError
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD
from dragoman.models.contracts import Loss
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.runs import Run, resume_config, train
from dragoman.runs.tasks import config
from dragoman.training import trainer as loop
from dragoman.training.checkpoints import Checkpoints
from dragoman.training.display import Display
from dragoman.training.signals import recorded_signals, stop_signals
from tests.processes import Command
from tests.training.conftest import Configure
from tests.training.kill_driver import STEPS, leftovers, result, table, write_config, write_pairs

ROOT = Path(dragoman.__file__).parents[1]


Straight = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """What a run gives that nothing interrupts, each made once."""
    folder = tmp_path_factory.mktemp("straight")
    pairs = write_pairs(folder / "pairs.tsv")

    @cache
    def of(case: str = "ema") -> dict[str, Any]:
        train(config.build(table(pairs, case)), folder / case)
        return result(folder / case)

    return of


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow  # the campaign kills a thousand times
@pytest.mark.timeout(600)
def test_random_kills_leave_no_trace() -> None:
    script = ROOT / "benchmarks" / "campaign" / "kills.py"
    command = [sys.executable, script, "3", "--tasks", "ema"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^kills: [3-9] kills in \d+ cases, 0 failures, \d+ s$", done.stdout, re.MULTILINE)


# The others take the same way through the trainer.
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((signal.SIGINT, 130), (signal.SIGHUP, 129))),
    ],
)
def test_a_signal_saves_and_the_same_command_goes_on(
    number: signal.Signals, code: int, tmp_path: Path, pairs: Path, straight: Straight
) -> None:
    path = write_config(tmp_path / "tiny.toml", table(pairs))
    process = Command(["train", path, "--run", tmp_path / "run"])
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 8/"):
            break
    process.send_signal(number)
    ended, rest = process.finish()
    assert ended == code
    told = re.search(r"^stopped and saved at step (\d+); the same command resumes from there$", rest, re.MULTILINE)
    assert told, rest
    step = int(told[1])
    assert 8 <= step < STEPS
    assert Checkpoints(tmp_path / "run").steps()[-1] == step
    said = io.StringIO()
    train(resume_config(tmp_path / "run"), tmp_path / "run", Display(said))
    assert f"resuming from step {step}\n" in said.getvalue()
    assert result(tmp_path / "run") == straight()
    assert leftovers(tmp_path) == []


def test_a_signal_before_the_first_step_leaves_nothing_half_written(tmp_path: Path, cache: Path) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("".join(f"{number}\t{number}\n" for number in range(400_000)), encoding="utf-8")
    path = write_config(tmp_path / "tiny.toml", table(long))
    process = Command(["train", path, "--run", tmp_path / "run"])
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("tokenising"):
            break
    assert len(list(cache.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    code, said = process.finish()
    assert code == 143
    assert "stopped before anything was saved; the same command begins anew" in said
    assert list(cache.iterdir()) == []
    assert not (tmp_path / "run").exists()
    assert leftovers(tmp_path) == []


def interrupt_during(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: set[int]) -> None:
    """Raise SIGTERM inside some calls of a method, counted over all lives of the run."""
    method, count = getattr(owner, name), iter(range(1, 1000))

    def watched(self: Any, *rest: Any) -> Any:
        if next(count) in calls:
            signal.raise_signal(signal.SIGTERM)
        return method(self, *rest)

    monkeypatch.setattr(owner, name, watched)


def test_parts_of_the_corpus_with_their_own_vocabularies_resume_exactly(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(3)
    lines = [" ".join(f"w{draw.randrange(60)}" for _ in range(draw.randint(1, 4))) for _ in range(200)]
    (tmp_path / "words.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines), encoding="utf-8")
    config = configure(
        f"data.train={tmp_path / 'words.tsv'}", "tokenizer.source.kind=words", "model.softmax.kind=partitioned",
        "model.softmax.size=20", "train.steps=6", "train.validate_every=3", "train.save_every=2",
    )  # fmt: skip
    seen: list[set[int]] = []
    forward = EncoderDecoder.forward

    def watched(self: EncoderDecoder, batch: Batch) -> Loss:
        if self.training:
            assert batch.words is not None
            words = set(batch.words.tolist())
            assert len(words) <= 20
            assert set(batch.target.flatten().tolist()) <= words | {PAD}
            seen.append(words)
        return forward(self, batch)

    monkeypatch.setattr(EncoderDecoder, "forward", watched)
    small = replace(config, model=replace(config.model, softmax=replace(config.model.softmax, size=3)))
    with pytest.raises(ConfigError, match=r"softmax\.size: found 3"):
        train(small, tmp_path / "straight")
    assert not (tmp_path / "straight").exists()  # a folder would block the corrected command
    train(config, tmp_path / "straight")
    assert len({frozenset(words) for words in seen}) > 5
    interrupt_during(monkeypatch, loop.Trainer, "_step", {1, 3})
    for _ in range(3):
        with contextlib.suppress(Interrupted):
            train(config, tmp_path / "run")
    assert result(tmp_path / "run") == result(tmp_path / "straight")


def test_a_lost_terminal_ends_no_run_and_nohup_is_respected() -> None:
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    display = Display(Lost())
    display.info("a line")
    display.show_step(1, 2, 1.0, 1.0, 1.0, 1.0)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == [signal.SIGTERM]
        with recorded_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.code == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with recorded_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.code == 129
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_is_obeyed_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)  # a shell's background job ignores it
    with recorded_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("case", ["best"])
def test_a_run_without_checkpoints_goes_on_from_its_best_weights(
    case: str, configure: Configure, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(configure(case=case), run)
    weights, metrics = (run / "weights.safetensors").read_bytes(), (run / "metrics.jsonl").read_text()
    shutil.rmtree(run / "checkpoints")
    train(configure(case=case), run)  # finished: nothing to train, nothing overwritten
    assert (run / "weights.safetensors").read_bytes() == weights
    assert (run / "metrics.jsonl").read_text() == metrics
    said = io.StringIO()
    state = train(configure(f"train.steps={STEPS + 10}", case=case), run, Display(said))
    assert state.step == STEPS + 10
    assert re.search(r"warning: found no checkpoint; continuing from the best weights, of step \d+\.", said.getvalue())
    assert Run(run).metrics()[0]["step"] == 1
    steps = [row["step"] for row in Run(run).metrics() if "valid" in row]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS + 10


def test_trained_weights_are_overwritten_only_when_asked(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(configure(), run)
    before = result(run)
    shutil.rmtree(run / "checkpoints")
    for path in ("metrics.jsonl", "lock"):
        (run / path).unlink()
    with pytest.raises(RunError, match=r"no checkpoint to resume from.*restart=…"):
        train(configure(), run)
    (run / "notes.txt").write_text("mine")
    train(configure(), run, restart=True)
    assert result(run) == before
    assert (run / "notes.txt").read_text() == "mine"
    assert leftovers(tmp_path) == []


def test_files_of_a_run_killed_after_its_last_checkpoint_are_cleared(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(configure(), run)
    before = result(run)
    newest = max(run.glob("best/*.safetensors"))
    shutil.copy(newest, run / "best" / "00000001.safetensors")
    shutil.copytree(max(run.glob("checkpoints/*")), run / "checkpoints" / "00000001")
    train(configure(), run)
    assert result(run) == before
    assert not (run / "checkpoints" / "00000001").exists()


def test_more_steps_continue_a_run_that_stopped_early(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Trainer, "_score", lambda self, result: -self.state.step)  # ever worse
    early = ("train.patience=1", "train.validate_every=4")
    assert train(configure(*early), tmp_path / "run").step == 8
    assert train(configure(*early), tmp_path / "run").step == 8
    said = io.StringIO()
    assert train(configure(*early, f"train.steps={STEPS + 10}"), tmp_path / "run", Display(said)).step == 12
    assert "the run had stopped early at step 8; train.steps is higher now, so it continues" in said.getvalue()


def test_the_configuration_is_never_half_written(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_during(monkeypatch, loop.Trainer, "_step", {5})
    with pytest.raises(Interrupted):
        train(configure(), tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_bytes()

    def killed(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train(configure("train.steps=50"), tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


@pytest.mark.parametrize("content", ["a\tb\nc\n", "", "a\tb\n\n", "a\tb\n"], ids=["column", "empty", "blank", "one"])
def test_a_data_error_leaves_nothing_half_written(
    content: str, configure: Configure, tmp_path: Path, cache: Path
) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"bad\.tsv"):
        train(configure(data=bad), tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()
    assert list(cache.iterdir()) == []


def test_the_remains_of_a_killed_start_are_cleared(configure: Configure, tmp_path: Path, cache: Path) -> None:
    (tmp_path / ".run.part" / "tokenizer").mkdir(parents=True)
    abandoned = cache / ("0" * 32 + ".abandoned") / "train"
    abandoned.mkdir(parents=True)
    (cache / "mine.txt").touch()  # nothing of ours
    train(configure("train.steps=1"), tmp_path / "run")
    assert leftovers(tmp_path) == ["cache/mine.txt"]


FORBIDDEN = re.compile(r"\b(pickle|cPickle|dill|joblib|shelve|marshal)\b|torch\.(load|save)\b|allow_pickle|np\.load\b")


def test_nothing_is_pickled_or_unpickled() -> None:
    sources = sorted(Path(dragoman.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


def test_a_run_reads_and_writes_without_pickle(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even through a library: training, resuming and predicting never reach the pickle machine."""
    import pickle

    import torch

    def refuse(*rest: Any, **named: Any) -> Any:
        raise AssertionError("pickle was used")

    for owner, name in [
        (pickle, "load"), (pickle, "loads"), (pickle, "dump"), (pickle, "dumps"), (pickle, "Unpickler"),
        (pickle, "Pickler"), (torch, "load"), (torch, "save"),
    ]:  # fmt: skip
        monkeypatch.setattr(owner, name, refuse)
    interrupt_during(monkeypatch, loop.Trainer, "_step", {5})
    with pytest.raises(Interrupted):
        train(configure(), tmp_path / "run")
    train(configure("train.steps=12"), tmp_path / "run")
    assert dragoman.load(tmp_path / "run").predict(["abc"])


def test_the_run_folder_tells_how_far_it_came(configure: Configure, tmp_path: Path) -> None:
    started = time.monotonic()
    progress = train(configure("train.steps=7"), tmp_path / "run")
    assert progress.step == 7
    assert 0 < progress.seconds < time.monotonic() - started
    content = json.loads((tmp_path / "run" / "checkpoints" / "00000007" / "state.json").read_text())
    assert (content["step"], content["validated_step"], content["tokens"]) == (7, 7, progress.tokens)
