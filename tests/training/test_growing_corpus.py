"""Training that starts on the first shards sees the batches of a corpus that was prepared before."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.data import corpus as corpora
from dragoman.data import crew as crews
from dragoman.data import windows
from dragoman.data.batching import BatchPlan
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import Corpus, prepare_corpus
from dragoman.data.crew import WORK, Jobs, ProcessCrew, WorkerLostError
from dragoman.data.examples import Pairs
from dragoman.data.shards import Shard, cut_shards
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.windows import GrowingWindows, StoredWindows, window_shards, windowed_epoch
from dragoman.errors import ConfigError, DataError
from dragoman.runs import train
from dragoman.tasks import config as configs
from dragoman.tasks.config import Config
from dragoman.training.checkpoints import TrainingState, read_tensors
from tests.processes import two_processes
from tests.training.kill_driver import result, table, write_config

SHARDS = 8
CHARACTERS = TokenizersConfig(CharactersConfig())


class SlowCrew(ProcessCrew):
    """A crew whose jobs this process does; it writes a shard, from the second one on, only when a test lets it.

    A test allows shards by their numbers: which of several threads is first must not decide which shard is written.
    """

    allowed = 0  # the last shard that may be written
    over = threading.Event()
    fails = False

    def __init__(self, jobs: Jobs, processes: int) -> None:
        self.killed = threading.Event()
        super().__init__(jobs, processes)

    def _start(self) -> None:
        pass

    def kill(self) -> None:
        self.killed.set()
        super().kill()

    def _ask(self, job: str) -> str:
        kind, arguments = json.loads(job)
        if kind == "write" and arguments["number"]:
            while arguments["number"] > SlowCrew.allowed:
                if self.killed.wait(0.01) or SlowCrew.over.is_set():
                    return ""
            if SlowCrew.fails:
                return json.dumps({"error": "DataError", "arguments": ["a bad shard"]})
        return self.jobs.answer(job)


@pytest.fixture(autouse=True)
def shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def small(config: DataConfig, example_format: Any, size: int = 0) -> list[Shard]:
        return cut_shards(config, example_format, 700)

    monkeypatch.setattr(crews, "LARGE", 0)
    monkeypatch.setattr(crews, "ProcessCrew", SlowCrew)
    monkeypatch.setattr(crews, "cut_shards", small)
    monkeypatch.setattr(SlowCrew, "allowed", 0)
    monkeypatch.setattr(SlowCrew, "over", threading.Event())
    monkeypatch.setattr(SlowCrew, "fails", False)
    yield
    SlowCrew.over.set()  # threads of a test that failed must not keep pytest from exiting


@pytest.fixture
def words(tmp_path: Path) -> Path:
    draw = random.Random(0)
    words = dict.fromkeys("".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(500))
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return path


def settings(words: Path, cache: Path) -> Config:
    content = table(words, "best")
    content["data"] |= {"shuffle": "shards", "cache": str(cache)}
    content["train"] |= {"accumulate": 1, "steps": 30, "validate_every": 30, "save_every": 5, "decode": 2}
    content["train"]["optimizer"]["warmup"] = 5
    return configs.build(content)


def allow(count: int) -> None:
    SlowCrew.allowed += count


def rows_of(corpus: Corpus, epoch: int) -> list[list[tuple[int, ...]]]:
    assert corpus.windows is not None
    batches = windowed_epoch(corpus.windows, epoch, lambda store: BatchPlan(store, 60, 1))
    return [[tuple(row.tolist()) for row in store.source.rows(rows)] for store, _, rows in batches]


def test_the_batches_of_an_epoch_do_not_depend_on_when_its_shards_are_ready(words: Path, tmp_path: Path) -> None:
    entries = (Pairs(file=str(words), weight=1.5),)
    config = DataConfig(train=entries, holdout=30, shuffle="shards", cache=str(tmp_path / "late"))
    corpus = prepare_corpus(config, CHARACTERS, early=True)
    assert corpus.report["unfinished"] == SHARDS
    growing = corpus.growing
    assert isinstance(growing, GrowingWindows)
    assert (growing.ready(0), growing.ready(1)) == (True, False)
    assert window_shards(SHARDS) == [range(1), range(1, 3), range(3, 7), range(7, 8)]
    other = prepare_corpus(config, CHARACTERS, building=growing.building)  # of another process of the job
    threading.Timer(0.05, allow, [2]).start()
    threading.Timer(0.15, allow, [SHARDS]).start()
    late = rows_of(corpus, 0)
    assert rows_of(other, 0) == late
    whole = corpus.train.source.lengths()  # waits for the rest
    again = rows_of(corpus, 0), rows_of(other, 0), rows_of(corpus, 1)
    ready = prepare_corpus(config, CHARACTERS, early=True)
    assert isinstance(ready.windows, StoredWindows)
    assert (rows_of(ready, 0), rows_of(ready, 0), rows_of(ready, 1)) == again
    assert again[0] == late
    assert ready.report == growing.corpus().report
    assert ready.report["length_ratio"] == corpus.report["length_ratio"]
    assert ready.train.source.lengths().tolist() == whole.tolist()
    assert late != again[2]
    assert not list((tmp_path / "late").glob("*.*"))
    # Every pair is read once, and by its weight half of them once more.
    times = Counter(row for batch in late for row in batch)
    assert len(times) == len(ready.train)
    assert set(times.values()) == {1, 2}
    plain = prepare_corpus(DataConfig(train=entries, holdout=30, cache=str(tmp_path / "late")), CHARACTERS)
    assert plain.windows is None


def test_losses_are_the_same_after_kills_and_when_shards_come_late(words: Path, tmp_path: Path) -> None:
    allow(SHARDS)
    train(settings(words, tmp_path / "first"), tmp_path / "ready")
    expected = result(tmp_path / "ready")
    assert max(row.get("epoch", 0) for row in expected["metrics"]) > 0

    def stops(step: int) -> Any:
        def look(state: TrainingState) -> bool:
            if state.step == step:
                raise KeyboardInterrupt
            return False

        return look

    config, run = settings(words, tmp_path / "late"), tmp_path / "run"
    SlowCrew.allowed = 0
    for step in (3, 7):  # in the first epoch, both times
        allow(2)
        with pytest.raises(KeyboardInterrupt):
            train(config, run, pause=stops(step))
        assert json.loads((run / "data.json").read_text(encoding="utf-8"))["train"] == {}
        finished = list((tmp_path / "late").glob(f"*/{WORK}/write-*.json"))
        assert 1 <= len(finished) < SHARDS
    allow(SHARDS)
    train(config, run)
    found = result(run)
    assert found == expected
    assert (run / "data.json").read_bytes() == (tmp_path / "ready" / "data.json").read_bytes()
    name = "checkpoints/00000030/weights.safetensors"
    left, right = read_tensors(run / name), read_tensors(tmp_path / "ready" / name)
    assert all(torch.equal(left[key], right[key]) for key in right)


def test_what_is_wrong_with_a_late_shard_ends_training(words: Path, tmp_path: Path) -> None:
    SlowCrew.fails = True
    allow(SHARDS)
    with pytest.raises(DataError, match="a bad shard"):
        train(settings(words, tmp_path / "cache"), tmp_path / "run")
    assert not list((tmp_path / "cache").glob("*"))
    corpus = prepare_corpus(
        DataConfig(train=str(words), shuffle="shards", cache=str(tmp_path / "cache")), CHARACTERS, early=True
    )
    corpus.close()
    growing = corpus.growing
    assert growing is not None
    assert growing.preparation is not None
    assert isinstance(growing.preparation.error, WorkerLostError | DataError)


@pytest.mark.timeout(60)
def test_the_other_processes_of_a_job_notice_that_the_main_process_was_lost(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "LATE", 0.2)
    config = DataConfig(train=str(words), shuffle="shards", cache=str(tmp_path / "cache"))
    corpus = prepare_corpus(config, CHARACTERS, early=True)
    assert corpus.growing is not None
    others = [prepare_corpus(config, CHARACTERS, building=corpus.growing.building) for _ in range(2)]
    threading.Timer(0.6, corpus.close).start()
    started = time.monotonic()
    with pytest.raises(DataError, match="the process that tokenises the data was lost"):
        rows_of(others[0], 0)
    assert time.monotonic() > started + 0.6
    with pytest.raises(DataError, match="the process that tokenises the data was lost"):
        others[1].train.source.lengths()


class MortalCrew(ProcessCrew):
    """A crew of real processes; the one that is asked for a shard, from the second one on, is killed."""

    def _ask(self, job: str) -> str:
        kind, arguments = json.loads(job)
        if kind == "write" and arguments["number"]:
            os.kill(self._mine.worker.pid, signal.SIGKILL)
        return super()._ask(job)


@pytest.mark.timeout(60)
def test_a_killed_worker_ends_training(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(words, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(crews, "ProcessCrew", MortalCrew)
        with pytest.raises(WorkerLostError, match="run the same command again"):
            train(config, tmp_path / "run")
    assert len(list((tmp_path / "cache").glob(f"*/{WORK}/write-*.json"))) == 1
    allow(SHARDS)
    assert train(config, tmp_path / "run").step == config.train.steps


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["a shard", "the whole corpus"])
def test_a_full_disk_ends_training(place: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when training has all shards already and waits only for the corpus that they are joined to."""

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write = Jobs.write
    config = settings(words, tmp_path / "cache")
    allow(SHARDS)
    with monkeypatch.context() as patch:
        if place == "a shard":
            patch.setattr(Jobs, "write", lambda jobs, number, **job: (full if number else write)(jobs, number, **job))
        else:
            patch.setattr(corpora, "join_stores", full)
        with pytest.raises(DataError, match=r"cannot write the token store here \(No space left"):
            train(config, tmp_path / "run")
    assert train(config, tmp_path / "run").step == config.train.steps


def test_what_needs_the_whole_corpus_is_refused(words: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='found "shards", expected "corpus": only pairs'):
        prepare_corpus(DataConfig(train=str(words), shuffle="shards", context=1), CHARACTERS)
    content = table(words)
    content["data"] |= {"shuffle": "shards", "cache": str(tmp_path / "cache")}
    content["tokenizer"] = {"source": {"kind": "subwords", "vocab_size": 270, "dropout": 0.1}}
    allow(SHARDS)
    with pytest.raises(ConfigError, match="BPE-dropout"):
        train(configs.build(content), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # two processes, each of which starts others
def test_two_processes_read_late_shards_like_one(words: Path, tmp_path: Path) -> None:
    content = table(words, "best")
    content["data"] |= {"shuffle": "shards", "cache": str(tmp_path / "cache")}
    content["train"] |= {"accumulate": 1, "steps": 15, "validate_every": 15, "save_every": 15, "decode": 2}
    content["train"]["optimizer"]["warmup"] = 5
    config = write_config(tmp_path / "two.toml", content)
    variables = {"DRAGOMAN_IMPORT": "tests.training.small_shards", "TMPDIR": str(tmp_path)}
    for code, said in two_processes(["train", config, "--quiet", "--run", tmp_path / "two"], variables):
        assert code == 0, said
    content["train"]["accumulate"], content["data"]["cache"] = 2, str(tmp_path / "other")
    allow(SHARDS)
    train(configs.build(content), tmp_path / "one")
    two, one = (result(tmp_path / name)["metrics"] for name in ("two", "one"))
    assert [row.get("tokens") for row in two] == [row.get("tokens") for row in one]
    data = [json.loads((tmp_path / name / "data.json").read_text(encoding="utf-8")) for name in ("two", "one")]
    assert data[0] == data[1]
    assert len(data[0]["shards"]) == SHARDS
    name = "checkpoints/00000015/weights.safetensors"
    left, right = read_tensors(tmp_path / "two" / name), read_tensors(tmp_path / "one" / name)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=1e-3, atol=1e-4)
