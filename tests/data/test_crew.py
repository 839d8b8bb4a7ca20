"""A corpus that several processes prepare in shards is that of one process, also after a kill."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import DataError
from dragoman.data import corpus as corpora
from dragoman.data import workers as crews
from dragoman.data.config import DataConfig, TokenizersConfig, file_list
from dragoman.data.corpus import fingerprint, prepare_corpus
from dragoman.data.examples import Pairs
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.data.shards import Shard, cut_shards, read_shard
from dragoman.data.split import read_examples
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.subwords import SubwordsConfig, SubwordTokenizer, _sample, sampled_numbers
from dragoman.data.workers import WORK, Jobs, WorkerPool, pool_for, remove_shard

SIZE = 900  # bytes of a shard
SUBWORDS = TokenizersConfig(SubwordsConfig(vocab_size=400, sample=300))
SEPARATE = TokenizersConfig(SubwordsConfig(vocab_size=400, algorithm="unigram"), SubwordsConfig(vocab_size=380))
# Faults, blank lines, spaces of all kinds, the space mark of sentencepiece, a byte order mark in the middle.
ODD = [
    "",
    "one column",
    "a\tb\tc",
    " \tx",
    "  two  spaces \t z ",
    "café \u2581x\tn\u3000y",
    "\ufeffq w\tr t",
    "\u00a0",
    "\r",
]
WORDS = [f"{first}{vowel}{last}" for first in "bdgk" for vowel in "aeiou" for last in ("", "n", "rt", "nd")]


class Here(WorkerPool):
    """A pool whose jobs this process does, through the same messages and files; after some jobs it is killed."""

    left = 10**9

    def _start(self) -> None:
        pass

    def _ask(self, job: str) -> str:
        if not Here.left:
            raise KeyboardInterrupt
        Here.left -= 1
        return self.jobs.answer(job)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    draw = random.Random(1)
    pairs = [tuple(" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(2)) for _ in range(400)]
    lines = ["\t".join(pair) for pair in pairs]
    for place in range(5, 400, 31):
        lines[place] = ODD[place % len(ODD)]
    texts = {
        "odd.tsv": "\n".join(lines) + "\n\n \n",
        "a.txt": "".join(f"{pair[0]}\n" for pair in pairs),
        "b.txt": "".join(f"{pair[1]}\n" for pair in pairs),
        "c.csv": "source,target\n" + "\n".join(",".join(pair) for pair in pairs),
        "d.jsonl": "".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with gzip.open(tmp_path / "e.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join("\t".join(pair) for pair in pairs[:50]))
    return {name: str(tmp_path / name) for name in (*texts, "e.tsv.gz")}


def small(config: DataConfig, example_format: Any, size: int = SIZE) -> list[Shard]:
    return cut_shards(config, example_format, SIZE)


def contents(tmp_path: Path, name: str, tokenizers: TokenizersConfig, data: dict[str, Any]) -> dict[str, bytes]:
    """All files of the prepared corpus."""
    folder = prepare_corpus(DataConfig(**data, cache=str(tmp_path / name)), tokenizers).train.folder.parent
    assert [entry.name for entry in (tmp_path / name).iterdir()] == [folder.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small corpus is cut into shards, whose jobs this process does."""
    monkeypatch.setattr(crews, "LARGE", 0)
    monkeypatch.setattr(crews, "WorkerPool", Here)
    monkeypatch.setattr(crews, "cut_shards", small)


@pytest.mark.parametrize(("case", "tokenizers"), [("lines", SUBWORDS), ("parallel", SEPARATE), ("many", SUBWORDS)])
def test_shards_give_the_corpus_of_one_process(
    case: str,
    tokenizers: TokenizersConfig,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = Pairs(file=files["odd.tsv"], tag="de"), Pairs(file=files["d.jsonl"], tag="fr", weight=2.0)
    data: dict[str, Any] = {
        "lines": {"train": files["odd.tsv"], "max_length": 12},
        "parallel": {"train": Pairs(source=files["a.txt"], target=files["b.txt"]), "valid": files["c.csv"]},
        "many": {"train": (*tagged, Pairs(file=files["e.tsv.gz"], tag="de"), Pairs(file=files["c.csv"], tag="de"))},
    }[case] | {"faults": "skip", "holdout": 30}
    expected = contents(tmp_path, "alone", tokenizers, data)
    monkeypatch.setattr(crews, "LARGE", 0)
    monkeypatch.setattr(crews, "WorkerPool", Here)
    monkeypatch.setattr(crews, "cut_shards", small)
    monkeypatch.setattr(Here, "left", 9)
    with pytest.raises(KeyboardInterrupt):
        contents(tmp_path, "shared", tokenizers, data)
    finished = list((tmp_path / "shared").glob(f"*/{WORK}/*.json"))
    assert len(finished) == 9
    monkeypatch.setattr(Here, "left", 10**9)
    assert contents(tmp_path, "shared", tokenizers, data) == expected
    shards = len(small(DataConfig(**data), PAIR_FORMAT))
    assert shards > 5
    assert 10**9 - Here.left <= 3 * shards - 9  # scan, sample, write


@pytest.mark.usefixtures("small_shards")
def test_a_kill_while_joined_shards_are_removed_loses_nothing(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: dict[str, Any] = {"train": files["d.jsonl"]}
    tokenizers = TokenizersConfig(CharactersConfig())
    expected = contents(tmp_path, "expected", tokenizers, data)

    rmtree = crews.shutil.rmtree

    def killed(path: Path, *arguments: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt
        rmtree(path, ignore_errors=True)  # what an earlier process left

    for module, place in ((Path, "unlink"), (crews.shutil, "rmtree")):

        def remove(folder: Path, number: int, module: Any = module, place: str = place) -> None:
            with monkeypatch.context() as patch:
                if number == 2:
                    patch.setattr(module, place, killed)
                remove_shard(folder, number)

        with monkeypatch.context() as patch:
            patch.setattr(corpora, "remove_shard", remove)
            for _ in range(2):  # the second kill finds what the first has left
                with pytest.raises(KeyboardInterrupt):
                    contents(tmp_path, place, tokenizers, data)
        assert contents(tmp_path, place, tokenizers, data) == expected


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("place", ["a shard", "the whole corpus"])
def test_a_full_disk_loses_no_finished_shard(
    place: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data: dict[str, Any] = {"train": files["d.jsonl"]}
    tokenizers = TokenizersConfig(CharactersConfig())
    expected, write = contents(tmp_path, "expected", tokenizers, data), Jobs.write
    with monkeypatch.context() as patch:
        if place == "a shard":
            patch.setattr(Jobs, "write", lambda jobs, number, **job: (full if number else write)(jobs, number, **job))
        else:
            patch.setattr(corpora, "join_stores", full)
        with pytest.raises(DataError, match=r"cannot write the token store here \(No space left"):
            contents(tmp_path, "full", tokenizers, data)
    finished = len(list((tmp_path / "full").glob(f"*/{WORK}/write-*.json")))
    shards = len(small(DataConfig(**data), PAIR_FORMAT))
    assert finished == (1 if place == "a shard" else shards)
    monkeypatch.setattr(Here, "left", shards - finished)  # scanned and sampled before
    assert contents(tmp_path, "full", tokenizers, data) == expected


class MortalPool(WorkerPool):
    """The worker that is asked to write a shard, from the second one on, is killed."""

    def _ask(self, job: str) -> str:
        kind, arguments = json.loads(job)
        if kind == "write" and arguments["number"]:
            os.kill(self._mine.worker.pid, signal.SIGKILL)
        return super()._ask(job)


@pytest.mark.usefixtures("small_shards")
def test_a_killed_worker_loses_no_finished_shard(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: dict[str, Any] = {"train": files["d.jsonl"]}
    tokenizers = TokenizersConfig(CharactersConfig())
    with monkeypatch.context() as patch:
        patch.setattr(crews, "WorkerPool", MortalPool)
        patch.setattr(crews, "usable_cores", lambda: 1)
        with pytest.raises(crews.WorkerLostError, match="run the same command again"):
            contents(tmp_path, "killed", tokenizers, data)
    assert len(list((tmp_path / "killed").glob(f"*/{WORK}/write-*.json"))) == 1
    expected = contents(tmp_path, "expected", tokenizers, data)
    assert contents(tmp_path, "killed", tokenizers, data) == expected


WORKER = """
import os, time
from dragoman.data.workers import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow  # starts two processes
@pytest.mark.timeout(120)
def test_a_worker_ends_in_the_middle_of_a_job_when_its_parent_is_killed() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the worker runs
        parent.kill()
        assert parent.stdout.read() == b""  # it has ended, or the test's limit ends an endless wait


class DyingPool(WorkerPool):
    """Its processes end in the middle of their answer, or do not even start."""

    program = ""

    def _start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crews.sys, "executable", self.program)
            super()._start()


@pytest.mark.parametrize("answer", ['{"result": ', None])
def test_a_process_that_does_not_answer_is_reported(
    answer: str | None, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    if answer is not None:
        program.write_text(f"#!/bin/sh\nread setup\nread job\nprintf '%s' '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setattr(DyingPool, "program", str(program))
    config = DataConfig(train=files["d.jsonl"])
    with (
        DyingPool(Jobs(config, PAIR_FORMAT, tmp_path, small(config, PAIR_FORMAT)), 1) as pool,
        pytest.raises(crews.WorkerLostError, match="run the same command again"),
    ):
        list(pool.run("scan", [{}]))


def test_shards_have_every_line_once(files: dict[str, str]) -> None:
    for train in (files["odd.tsv"], Pairs(source=files["a.txt"], target=files["b.txt"]), files["c.csv"]):
        config = DataConfig(train=train, faults="skip")
        whole = list(read_examples(config, config.train))
        for size in (1, 50, 1500, 10**6):
            shards = cut_shards(config, PAIR_FORMAT, size)
            assert [item for shard in shards for item in read_shard(config, PAIR_FORMAT, shard)] == whole
    Path(files["b.txt"]).write_text("x\n" * 50, encoding="utf-8")  # the second file is shorter
    config = DataConfig(train=Pairs(source=files["a.txt"], target=files["b.txt"]))
    shards = cut_shards(config, PAIR_FORMAT, 100)
    assert len(shards) > 3
    items = [item for shard in shards for item in read_shard(config, PAIR_FORMAT, shard)]
    assert items == list(read_examples(config, config.train))


def test_words_from_the_cache_are_what_sentencepiece_gives(files: dict[str, str]) -> None:
    texts = Path(files["odd.tsv"]).read_text(encoding="utf-8").replace("\t", "\n").split("\n")
    texts = [text for text in texts if text] + [" ", "  ", " a", "a ", "日本 語", "\u2581", "\U0010fffe b"]
    tokenizer = SubwordTokenizer.train(SubwordsConfig(vocab_size=400), texts)
    for _ in range(2):  # the second time from the cache
        values, lengths = tokenizer.encode_flat(texts, "uint16")
        assert lengths.tolist() == [len(row) for row in tokenizer.encode_batch(texts)]
        assert values.tolist() == [index for row in tokenizer.encode_batch(texts) for index in row]


@pytest.mark.parametrize(("count", "size"), [(5, 10), (10, 10), (1000, 10), (3000, 700)])
def test_the_numbers_of_a_sample_are_those_of_the_reservoir(count: int, size: int) -> None:
    texts = [f"text {number}" for number in range(count)]
    assert [texts[number] for number in sampled_numbers(count, size)] == _sample(texts, size)


def test_a_pattern_names_many_files(files: dict[str, str], tmp_path: Path) -> None:
    folder = Path(files["a.txt"]).parent
    assert file_list((f"{folder}/[ab].txt", files["c.csv"])) == [files["a.txt"], files["b.txt"], files["c.csv"]]
    parallel = Pairs(source=f"{folder}/a*.txt", target=f"{folder}/b*.txt", tag="de")
    assert file_list(parallel) == [Pairs(source=files["a.txt"], target=files["b.txt"], tag="de")]
    (folder / "a2.txt").write_text("x\n", encoding="utf-8")
    with pytest.raises(DataError, match="2 files of sources and 1 of targets"):
        file_list(parallel)
    cache = str(tmp_path / "cache")
    keys = [
        fingerprint(DataConfig(train=train, cache=cache), SUBWORDS)
        for train in (f"{folder}/[cd].*", (files["c.csv"], files["d.jsonl"]))
    ]
    assert keys[0] == keys[1]
    with pytest.raises(DataError, match=r"none\*\.tsv: no file matches"):
        prepare_corpus(DataConfig(train=f"{folder}/none*.tsv", cache=cache), SUBWORDS)


@pytest.mark.slow
def test_processes_report_faulty_data_and_lost_workers(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "LARGE", 0)
    with pytest.raises(DataError, match=r"odd\.tsv:37: blank"):
        contents(tmp_path, "cache", SUBWORDS, {"train": files["odd.tsv"]})
    assert not list((tmp_path / "cache").iterdir())
    broken = Path(files["e.tsv.gz"])
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged or cut short"):
        contents(tmp_path, "cache", SUBWORDS, {"train": (files["c.csv"], str(broken))})
    data: dict[str, Any] = {"train": files["odd.tsv"], "faults": "skip"}
    pool = pool_for(DataConfig(**data), PAIR_FORMAT, tmp_path)
    assert pool is not None
    with pool, monkeypatch.context() as patch:
        patch.setattr(Jobs, "scan", None)
        assert len(list(pool.run("scan", [{}]))) == 1
        for worker in pool._workers:
            worker.kill()
            worker.wait()
        with pytest.raises(crews.WorkerLostError, match="run the same command again"):
            list(pool.run("write", [{"start": 0, "part": [0, 0, None]}]))
    with monkeypatch.context() as patch:
        patch.setattr(corpora, "pool_for", lambda *arguments: None)
        expected = contents(tmp_path, "alone", SUBWORDS, data)
    assert contents(tmp_path, "shared", SUBWORDS, data) == expected
