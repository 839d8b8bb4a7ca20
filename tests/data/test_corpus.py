"""Preparing a corpus: token stores, the validation split, faults, and the cache."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import dragoman
from dragoman.base.errors import DataError
from dragoman.data import split as splits
from dragoman.data import tokenise
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import Corpus, fingerprint, prepare_corpus
from dragoman.data.corpus_cache import SIZES, build_folder, cache_folder
from dragoman.data.examples import Example, Pairs
from dragoman.data.formats import pairs as pair_format
from dragoman.data.readers import lines as line_reader
from dragoman.data.split import TrainValidSplit, source_hash
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.runs.data_report import unknown_token_report
from tests.processes import CONTEXT

CHARACTERS = TokenizersConfig(source=CharactersConfig())
SPACES = TokenizersConfig(source=WordsConfig(split="spaces"), target=WordsConfig(split="spaces"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, pairs: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    return path


def numbers(count: int, start: int = 0) -> list[tuple[str, ...]]:
    return [(f"s{number}", f"t{number}") for number in range(start, start + count)]


def texts(corpus: Corpus, part: str) -> list[tuple[str, str]]:
    """The decoded pairs of the training or validation store."""
    store = getattr(corpus, part)
    every = range(len(store))
    sources = [corpus.source_tokenizer.decode(row.tolist()) for row in store.source.rows(every)]
    targets = [corpus.target_tokenizer.decode(row.tolist()) for row in store.target.rows(every)]
    return list(zip(sources, targets, strict=True))


def split(path: Path, **named: Any) -> tuple[set[str], set[str]]:
    """The training sources and the validation sources."""
    split = TrainValidSplit(DataConfig(train=str(path), **named), lambda doing, count: None)
    return {example.source for example in split.train("")}, {example.source for example in split.valid("")}


@pytest.mark.parametrize(("count", "holdout"), [(3, 1), (40, 5), (3000, 7), (3000, 400)])
def test_validation_pairs_that_are_kept_are_those_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, holdout: int
) -> None:
    path = write(tmp_path / "a.tsv", [*numbers(count), *numbers(count // 3)])
    found = []
    for limit in (10_000, 500, 0):
        monkeypatch.setattr(splits, "MAX_KEPT", limit)
        one = TrainValidSplit(DataConfig(train=str(path), holdout=holdout), lambda doing, count: None)
        found.append((list(one.train("")), list(one.valid(""))))
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) == count + count // 3


# ---------------------------------------------------------------------- what is prepared


def test_a_corpus_holds_every_pair_once(tmp_path: Path) -> None:
    pairs = numbers(500)
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", pairs))), CHARACTERS)
    assert sorted(texts(corpus, "train") + texts(corpus, "valid")) == sorted(pairs)
    report = corpus.report
    assert report["examples"] == 500
    assert report["train"]["pairs"] + report["valid"]["pairs"] == 500
    assert report["train"]["pairs"] == len(corpus.train)
    assert report["train"]["source_tokens"] == corpus.train.source.lengths().sum()
    assert report["train"]["target_tokens"] == corpus.train.target.lengths().sum()
    assert report["faults"] == {}
    rows = [json.loads(line) for line in corpus.valid_texts.read_text().splitlines()]
    assert [(row["source"], row["references"][0]) for row in rows] == texts(corpus, "valid")


def test_several_files_and_parallel_files_give_the_same_pairs(tmp_path: Path) -> None:
    pairs = numbers(60)
    parts = (str(write(tmp_path / "a.tsv", pairs[:25])), str(write(tmp_path / "b.tsv", pairs[25:])))
    (tmp_path / "s.txt").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "t.txt").write_text("".join(f"{target}\n" for _, target in pairs))
    parallel = Pairs(str(tmp_path / "s.txt"), str(tmp_path / "t.txt"))
    whole = prepare_corpus(DataConfig(train=str(write(tmp_path / "c.tsv", pairs))), CHARACTERS)
    for files in (parts, parallel):
        corpus = prepare_corpus(DataConfig(train=files), CHARACTERS)
        assert texts(corpus, "train") == texts(whole, "train")
        assert texts(corpus, "valid") == texts(whole, "valid")


def test_the_vocabulary_is_learned_from_the_training_part_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", numbers(200))
    train, valid = split(path)
    corpus = prepare_corpus(DataConfig(train=str(path)), SPACES)
    known = set(corpus.source_tokenizer.pieces(range(4, len(corpus.source_tokenizer))))
    assert known == train
    assert not known & valid


def test_source_and_target_share_a_vocabulary_by_default(tmp_path: Path) -> None:
    data = DataConfig(train=str(write(tmp_path / "a.tsv", numbers(50))))
    joint = prepare_corpus(data, CHARACTERS)
    assert joint.source_tokenizer.fingerprint() == joint.target_tokenizer.fingerprint()
    apart = prepare_corpus(data, replace(CHARACTERS, target=CharactersConfig()))
    assert apart.source_tokenizer.fingerprint() != apart.target_tokenizer.fingerprint()


def test_long_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    pairs = [*numbers(50), ("x" * 30, "y"), ("x", "y" * 30)]
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", pairs)), max_length=10), CHARACTERS)
    assert corpus.report["train"]["too_long"] + corpus.report["valid"]["too_long"] == 2
    assert len(corpus.train) + len(corpus.valid) == 50


def test_the_length_ratio_follows_from_the_longest_targets(tmp_path: Path) -> None:
    pairs = [(f"s{number % 10}", "t" * (8 if number % 2 else 2)) for number in range(100)]
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", pairs))), CHARACTERS)
    assert corpus.report["length_ratio"] == pytest.approx(1.2 * 9 / 3)


# ---------------------------------------------------------------------- the split


def test_all_pairs_of_a_source_are_on_the_same_side(tmp_path: Path) -> None:
    pairs = [(f"s{number % 97}", f"t{number}") for number in range(1000)]
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", pairs))), CHARACTERS)
    train, valid = ({source for source, _ in texts(corpus, part)} for part in ("train", "valid"))
    assert valid
    assert not train & valid
    assert len(train | valid) == 97


def test_the_split_does_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    pairs = numbers(1000)
    expected = split(write(tmp_path / "a.tsv", pairs))
    random.Random(1).shuffle(pairs)
    assert split(write(tmp_path / "a.tsv", pairs)) == expected


def test_the_holdout_has_about_the_size_of_its_setting(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", numbers(5000))
    assert 60 < len(split(path, holdout=100)[1]) < 140
    assert 430 < len(split(path, holdout=4000)[1]) < 570  # never more than a tenth


def test_more_lines_move_only_sources_at_the_threshold(tmp_path: Path) -> None:
    """With a tenth as holdout no source moves; with a fixed number, validation sources may become training sources."""
    few, many = write(tmp_path / "a.tsv", numbers(1000)), write(tmp_path / "b.tsv", numbers(1500))
    before, after = split(few), split(many)
    assert before[0] <= after[0]
    assert before[1] <= after[1]
    before, after = split(few, holdout=50), split(many, holdout=50)
    assert before[0] <= after[0]
    moved = before[1] - after[1]
    assert moved
    assert moved <= after[0]
    threshold = max(source_hash(Example(source, (), "", 0)) for source in after[1])
    assert all(source_hash(Example(source, (), "", 0)) > threshold for source in moved)


@hypothesis_settings(max_examples=60, deadline=None)
@given(sources=st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=8, unique=True))
def test_both_parts_of_a_small_corpus_have_a_source(
    tmp_path_factory: pytest.TempPathFactory, sources: list[str]
) -> None:
    path = write(tmp_path_factory.mktemp("tiny") / "a.tsv", [(source, "t") for source in sources])
    train, valid = split(path)
    assert train
    assert valid
    assert train | valid == set(sources)
    assert not train & valid


def test_two_pairs_are_enough_even_if_both_hash_low(tmp_path: Path) -> None:
    low = [f"s{number}" for number in range(200) if source_hash(Example(f"s{number}", (), "", 0)) < 0.1 * 2**64]
    corpus = prepare_corpus(
        DataConfig(train=str(write(tmp_path / "a.tsv", [(low[0], "x"), (low[1], "y")]))), CHARACTERS
    )
    assert len(corpus.train) == len(corpus.valid) == 1


def test_one_source_is_not_enough_without_a_validation_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("s", "t"), ("s", "u")])
    with pytest.raises(DataError, match=r"a\.tsv: found one source only, expected two or more.*data\.valid"):
        prepare_corpus(DataConfig(train=str(path)), CHARACTERS)
    corpus = prepare_corpus(DataConfig(train=str(path), valid=str(path)), CHARACTERS)
    assert len(corpus.train) == len(corpus.valid) == 2


def test_a_validation_file_keeps_all_of_train_and_may_hold_several_references(tmp_path: Path) -> None:
    train = write(tmp_path / "train.tsv", numbers(100))
    valid = write(tmp_path / "valid.tsv", [("a", "b", "c", "d"), ("e", "f")])
    corpus = prepare_corpus(DataConfig(train=str(train), valid=str(valid)), CHARACTERS)
    assert len(corpus.train) == 100
    rows = [json.loads(line) for line in corpus.valid_texts.read_text().splitlines()]
    assert rows == [{"source": "a", "references": ["b", "c", "d"]}, {"source": "e", "references": ["f"]}]
    assert len(corpus.valid) == 2


# ---------------------------------------------------------------------- faults


BAD = [*numbers(30), ("alone",), (" ", "t"), ("bad\x01", "t"), *numbers(30, 30), ("one", "two", "three")]


def test_faults_stop_with_their_lines_and_leave_no_files(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.tsv", BAD)
    with pytest.raises(DataError) as stopped:
        prepare_corpus(DataConfig(train=str(path)), CHARACTERS)
    message = str(stopped.value)
    for line in (31, 32, 33):
        assert f"a.tsv:{line}: " in message
    assert "(and 1 more)" in message
    assert 'data.faults="skip"' in message
    assert list(cache.iterdir()) == []


def test_few_faults_among_thousands_are_skipped_and_named(tmp_path: Path) -> None:
    good = [f"word{number}\tdrow{number}\n" for number in range(2000)]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join([*good[:500], "lonely\n", *good[500:], "two\u008a words\there\n", "also alone\n\n\n"]))
    data = DataConfig(train=str(path))
    corpus = prepare_corpus(data, CHARACTERS)
    assert corpus.report["faults"] == {"wrong-columns": 2}
    assert [line.rpartition(": ")[0] for line in corpus.report["skipped"]] == [f"{path}:501", f"{path}:2003"]
    assert corpus.report["normalised"] == 1
    for faults in ("refuse", "stop"):  # though the cache has a store now
        with pytest.raises(DataError, match=r"pairs\.tsv:501: found 1 column"):
            prepare_corpus(replace(data, faults=faults), CHARACTERS)
    path.write_text("".join([*good[:500], "lonely\n" * 3, *good[500:]]))
    with pytest.raises(DataError, match=r"pairs\.tsv:501: found 1 column"):
        prepare_corpus(data, CHARACTERS)
    sides = [tmp_path / name for name in ("a", "b")]
    for side, count in zip(sides, (2000, 2001), strict=True):
        side.write_text("word\n" * count)
    with pytest.raises(DataError, match="2000 source lines and 2001 target lines"):  # all pairs may be shifted
        prepare_corpus(DataConfig(train=Pairs(*map(str, sides))), CHARACTERS)


def test_faults_can_be_skipped_and_are_counted_once(tmp_path: Path) -> None:
    train, valid = write(tmp_path / "a.tsv", BAD), write(tmp_path / "v.tsv", [("a", "b"), ("alone",), ("", "x")])
    corpus = prepare_corpus(DataConfig(train=str(train), faults="skip"), CHARACTERS)
    assert len(corpus.train) + len(corpus.valid) == 60
    assert corpus.report["faults"] == {"wrong-columns": 2, "empty-side": 1, "control-characters": 1}
    corpus = prepare_corpus(DataConfig(train=str(train), valid=str(valid), faults="skip"), CHARACTERS)
    assert corpus.report["faults"] == {"wrong-columns": 3, "empty-side": 2, "control-characters": 1}


@pytest.mark.parametrize(
    ("content", "named", "expected"),
    [
        ("", {}, r"a\.tsv: no usable pair found"),
        ("\n\n", {"faults": "skip"}, r"a\.tsv: no usable pair found"),
        ("abc\tdef\nghi\tjkl\n", {"max_length": 2}, r"no pair is left for the train part \(2 usable, 1 longer"),
    ],
)
def test_a_corpus_without_pairs_is_an_error(
    content: str, named: dict[str, Any], expected: str, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError, match=expected):
        prepare_corpus(DataConfig(train=str(tmp_path / "a.tsv"), **named), CHARACTERS)
    assert list(cache.iterdir()) == []


def test_an_empty_validation_file_is_named_itself(tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", numbers(3))
    (tmp_path / "none.tsv").write_text("")
    with pytest.raises(DataError, match=r"none\.tsv: no pair is left for the valid part \(0 longer") as found:
        prepare_corpus(DataConfig(train=str(tmp_path / "pairs.tsv"), valid=str(tmp_path / "none.tsv")), CHARACTERS)
    assert "pairs.tsv" not in str(found.value)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", numbers(3))
    with pytest.raises(DataError, match=r"pears\.tsv: no such file\. Did you mean 'pairs\.tsv'"):
        prepare_corpus(DataConfig(train=str(tmp_path / "pears.tsv")), CHARACTERS)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    data = DataConfig(train=str(write(tmp_path / "a.tsv", numbers(3))), cache=str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file: cannot write the token store here"):
        prepare_corpus(data, CHARACTERS)


# ---------------------------------------------------------------------- the cache


def test_a_prepared_corpus_is_used_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataConfig(train=str(write(tmp_path / "a.tsv", numbers(100))))
    first = prepare_corpus(data, CHARACTERS)

    def never(*rest: Any, **named: Any) -> Any:
        raise AssertionError("the text was read again")

    monkeypatch.setattr(pair_format, "train_tokenizer", never)
    monkeypatch.setattr(pair_format, "read_pairs", never)
    again = prepare_corpus(data, CHARACTERS)
    assert texts(again, "train") == texts(first, "train")
    assert again.report == first.report
    write(tmp_path / "elsewhere.tsv", numbers(100))
    assert len(prepare_corpus(replace(data, train=str(tmp_path / "elsewhere.tsv")), CHARACTERS).train) == len(
        first.train
    )
    assert len(list(cache.iterdir())) == 1
    write(tmp_path / "a.tsv", numbers(101))
    with pytest.raises(AssertionError, match="read again"):
        prepare_corpus(data, CHARACTERS)


def test_the_fingerprint_changes_with_all_that_changes_tokens(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.tsv", numbers(10)), write(tmp_path / "b.tsv", numbers(11))
    data = DataConfig(train=str(path))
    keys = [
        fingerprint(config, tokenizers)
        for config, tokenizers in [
            (data, CHARACTERS),
            (replace(data, train=str(other)), CHARACTERS),
            (replace(data, train=(str(path), str(other))), CHARACTERS),
            (replace(data, train=(str(other), str(path))), CHARACTERS),
            (replace(data, valid=str(other)), CHARACTERS),
            (replace(data, columns=("2", "1")), CHARACTERS),
            (replace(data, holdout=5), CHARACTERS),
            (replace(data, faults="skip"), CHARACTERS),
            (replace(data, max_length=50), CHARACTERS),
            (replace(data, max_characters=50), CHARACTERS),
            (data, replace(CHARACTERS, target=CharactersConfig())),
            (data, TokenizersConfig(source=WordsConfig())),
            (data, TokenizersConfig(source=WordsConfig(split="spaces"))),
            (data, TokenizersConfig(source=SubwordsConfig())),
            (data, TokenizersConfig(source=SubwordsConfig(vocab_size=300))),
        ]
    ]
    assert len(set(keys)) == len(keys)
    moved = write(tmp_path / "c.tsv", numbers(10))
    assert fingerprint(replace(data, train=str(moved), cache="elsewhere", units="phonemes"), CHARACTERS) == keys[0]


def test_a_file_that_reads_otherwise_by_its_name_has_a_store_of_its_own(tmp_path: Path) -> None:
    text = "".join(f"word{number}\tTAG{number % 3}\n" * 2 + "\n" for number in range(20))
    keys = set()
    for name in ("a.tsv", "a.conllu", "a.txt"):
        (tmp_path / name).write_text(text)
        keys.add(fingerprint(DataConfig(train=str(tmp_path / name)), CHARACTERS))
        keys.add(fingerprint(DataConfig(train=str(tmp_path / "a.tsv"), valid=str(tmp_path / name)), CHARACTERS))
    assert len(keys) == 6


@pytest.mark.parametrize(
    "name", ["train/source.tokens", "train/target.offsets", "valid/source.tokens", "valid.jsonl", "report.json", SIZES]
)
@pytest.mark.parametrize("how", ["cut", "removed"])
def test_a_damaged_store_is_reported_and_built_anew(
    name: str, how: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataConfig(train=str(write(tmp_path / "a.tsv", numbers(100))))
    whole = texts(prepare_corpus(data, CHARACTERS), "train")
    (folder,) = cache.iterdir()
    if how == "cut":
        os.truncate(folder / name, (folder / name).stat().st_size // 2)
    else:
        (folder / name).unlink()
    capsys.readouterr()
    assert texts(prepare_corpus(data, CHARACTERS), "train") == whole
    said = capsys.readouterr().err
    assert said.startswith(f"{folder}: the token store is damaged ({name}: ")
    assert said.count("\n") == 1
    assert list(cache.iterdir()) == [folder]
    assert texts(prepare_corpus(data, CHARACTERS), "train") == whole
    assert not capsys.readouterr().err


def test_a_store_that_is_cut_while_it_is_open_raises_an_error(tmp_path: Path, cache: Path) -> None:
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", numbers(100)))), CHARACTERS)
    for path in cache.rglob("source.tokens"):
        os.truncate(path, 8)
    with pytest.raises(DataError, match=r"token store: found . bytes of a row, expected .; another process has cut"):
        corpus.train.source.rows(range(len(corpus.train)))


def test_the_cache_folder_can_be_chosen(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataConfig(train="a.tsv")
    assert cache_folder(data) == cache
    assert cache_folder(replace(data, cache="mine")) == Path("mine")
    monkeypatch.delenv("DRAGOMAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder(data) == Path("/xdg/dragoman")


def _prepare_together(data: DataConfig, all_ready: Any, results: Any) -> None:
    all_ready.wait(240)
    corpus = prepare_corpus(data, CHARACTERS)
    results.put((len(corpus.train), len(corpus.valid)))


def test_several_processes_may_prepare_the_same_text_at_once(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.tsv", numbers(20_000))
    results, all_ready = CONTEXT.Queue(), CONTEXT.Barrier(4)
    asked = (DataConfig(train=str(path), cache=str(cache)), all_ready, results)
    workers = [CONTEXT.Process(target=_prepare_together, args=asked, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = {results.get(timeout=240) for _ in workers}
    for worker in workers:
        worker.join(240)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(found) == 1
    assert len(list(cache.iterdir())) == 1
    corpus = prepare_corpus(DataConfig(train=str(path)), CHARACTERS)
    assert sorted(texts(corpus, "train") + texts(corpus, "valid")) == sorted(numbers(20_000))


def test_a_folder_in_use_is_not_taken_for_abandoned(cache: Path) -> None:
    key = "0" * 32
    with build_folder(cache, key) as first:
        with build_folder(cache, key) as second:
            assert first != second
            assert first.exists()
        assert not second.exists()
        assert first.exists()
    assert list(cache.iterdir()) == []


def test_other_users_can_read_a_shared_cache_as_the_umask_says(tmp_path: Path, cache: Path) -> None:
    before = os.umask(0o027)
    try:
        prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", numbers(50)))), CHARACTERS)
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (*cache.iterdir(), *cache.rglob("*"))}
    assert modes == {True: 0o750, False: 0o640}


def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.tsv", numbers(100_000))
    script = (
        "import sys; from dragoman.data.corpus import *; from dragoman.data.config import *;"
        "from dragoman.data.tokenizers.characters import CharactersConfig;"
        "prepare_corpus(DataConfig(train=sys.argv[1]), TokenizersConfig(source=CharactersConfig()))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(dragoman.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], env=environment)
    while not list(cache.glob("*.*/train/source.tokens")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert len(list(cache.iterdir())) == 1
    write(path, numbers(50))  # other text: the remains go all the same
    prepare_corpus(DataConfig(train=str(path)), CHARACTERS)
    assert [entry.name for entry in cache.iterdir()] == [fingerprint(DataConfig(train=str(path)), CHARACTERS)]


@pytest.mark.parametrize("tokenizers", [CHARACTERS, SPACES], ids=["characters", "words"])
def test_memory_stays_flat_while_text_is_tokenised(
    tokenizers: TokenizersConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the text needs no more memory; benchmarks/flat_memory.py does the same with ten million pairs."""
    import tracemalloc

    monkeypatch.setattr(tokenise, "CHUNK", 200)
    monkeypatch.setattr(line_reader, "_BLOCK_BYTES", 2048)
    peaks = []
    for count in (100, 1500, 15_000):  # the first loads what is loaded late
        path = write(tmp_path / f"{count}.tsv", [(f"a{number % 7} b", f"c d{number % 5}") for number in range(count)])
        tracemalloc.start()
        prepare_corpus(DataConfig(train=str(path), holdout=10), tokenizers)  # validation pairs are kept in memory
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # What length_ratio sorts at the end takes some tens of bytes a pair.
    assert peaks[2] - peaks[1] < 64 * 13_500


def test_shares_of_unknown_tokens_are_counted(tmp_path: Path) -> None:
    pairs = [(f"same s{number}", "same same other") for number in range(100)]
    rare = TokenizersConfig(source=WordsConfig(split="spaces", min_count=2), target=WordsConfig(split="spaces"))
    valid = write(tmp_path / "valid.tsv", [("same same", "same new other new")])
    corpus = prepare_corpus(DataConfig(train=str(write(tmp_path / "a.tsv", pairs)), valid=str(valid)), rare)
    assert corpus.report["train"]["unknown"] == {"source": 0.5, "target": 0.0}
    assert corpus.report["valid"]["unknown"] == {"source": 0.0, "target": 0.5}
    message = "50.0% of the training source tokens, 0.0% of those for validation"
    assert unknown_token_report(corpus.report) == (
        f"unknown to the vocabulary: {message}; 0.0% of the training target tokens, 50.0% of those for validation"
    )
    assert unknown_token_report({"train": {"pairs": 1}, "valid": {"pairs": 1}}) == ""  # as older stores


@pytest.mark.parametrize("side", ["source", "target"])
def test_text_without_any_known_token_is_an_error(tmp_path: Path, side: str) -> None:
    path = write(tmp_path / "a.tsv", numbers(20))
    rare = replace(SPACES, **{side: WordsConfig(split="spaces", min_count=2)})
    message = rf"a\.tsv: every token of the {side} is unknown to its vocabulary.*tokenizer\.{side} \(min_count"
    with pytest.raises(DataError, match=message):
        prepare_corpus(DataConfig(train=str(path)), rare)
