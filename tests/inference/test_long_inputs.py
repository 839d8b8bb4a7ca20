"""Inputs longer than those of the training are read in parts, cut after sentences and clauses, else at spaces."""

from __future__ import annotations

import contextlib
import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dragoman.base.errors import ConfigError, RunError
from dragoman.data import corpus as corpora
from dragoman.data.sentences import fitting_sentences, join_sentences
from dragoman.data.source_reader import SourceReader
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.decoding.constraints import NO_CONSTRAINTS, ConstrainedInput
from dragoman.inference.load import load_predictor
from dragoman.inference.long_inputs import LengthLimits, parts_of, usual_length
from dragoman.inference.predictor import Predictor
from dragoman.inference.segments import Parsing
from dragoman.runs import Run
from tests.conftest import SMALL, call, own_copy, quiet_machine, words, write_rows

FEW = ("train.steps=2", "train.validate_every=2", "train.optimizer.warmup=1", "train.average.kind=none")
SUBWORDS = tuple(
    f"tokenizer.{side}.{name}" for side in ("source", "target") for name in ("kind=subwords", "vocab_size=300")
)
VOCABULARY = words(40, seed=5)


class WordCounter:
    """A tokenizer whose tokens are words."""

    tags: tuple[str, ...] = ()

    def encode(self, text: str) -> list[str]:
        return text.split()


COUNTER = cast("SourceReader", WordCounter())
LIMITS = LengthLimits(100, "data.max_length", 10_000, usual=6)


def sentence(draw: random.Random, length: int) -> str:
    chosen = [draw.choice(VOCABULARY) for _ in range(length)]
    return f"{' '.join(chosen[: length // 2])}, {' '.join(chosen[length // 2 :])}.".capitalize()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    def make(place: Path) -> None:
        draw = random.Random(2)
        rows: list[tuple[str, ...]] = [
            (text, text.upper()) for text in (sentence(draw, draw.randint(4, 12)) for _ in range(1_150))
        ]
        write_rows(place / "pairs.tsv", rows)
        with quiet_machine(place / "cache"), contextlib.chdir(place):
            result = call(
                "train", "pairs.tsv", "--run", "runs/pairs", "preset=transformer-tiny", *SMALL, *FEW, *SUBWORDS
            )
            assert result.code == 0, result.err

    place = own_copy(tmp_path_factory, "lengths", make)
    with quiet_machine(place / "cache"), contextlib.chdir(place):
        yield place


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    return load_predictor(folder / "runs" / "pairs", "cpu", beam=1, max_length=20)


def long_text(predictor: Predictor, sentences: int = 6) -> str:
    draw = random.Random(3)
    return " ".join(sentence(draw, 8) for _ in range(sentences))


def parts(text: str, limits: LengthLimits = LIMITS, **constraints: Any) -> tuple[list[str], list[str]]:
    """The parts that are read, and the warnings; the parts join to the text."""
    said: list[str] = []
    item = ConstrainedInput(text, replace(NO_CONSTRAINTS, **constraints))
    found = parts_of(item, "input 1", said.append, COUNTER, limits, Parsing(False))
    if found is None:
        return [text], said
    assert "".join(part.text for part in found) == text
    return [part.text for part in found if not part.copied], said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d e f", ["a b c d e f"]),  # as long as training had it
        ("Aa bb cc dd. Ee ff gg. Hh!", ["Aa bb cc dd.", "Ee ff gg.", "Hh!"]),  # sentences first
        ("a b c, d e f g h, i", ["a b c,", "d e f g h, i"]),  # then clauses, nearest to the middle
        ("a b c; d e – f g", ["a b c;", "d e – f g"]),
        ("a b c - d e f g", ["a b c -", "d e f g"]),
        ("甲 乙 丙，丁 戊 己 庚 辛 壬", ["甲 乙 丙，", "丁 戊 己 庚 辛 壬"]),
        ("a b, c d, e f g", ["a b, c d, e f g"]),  # hardly longer
        ("a b c d e f g h", ["a b c d", "e f g h"]),  # at spaces
        ("a <b title='x, y'> d e f g", ["a <b title='x, y'>", "d e f g"]),  # not inside of tags
        ("{n, plural, one {c} few {d} other {e}}", ["{n, plural, one {c} few {d} other {e}}"]),
        ("a b c d {n, plural, one {c} other {d}} e", ["a b c d", "{n, plural, one {c} other {d}} e"]),
    ],
)
def test_a_text_longer_than_those_of_the_training_is_cut(text: str, expected: list[str]) -> None:
    read, said = parts(text)
    assert read == expected
    if len(expected) > 1:
        count = len(text.split())
        reason = f"found {count} tokens, expected at most 6 as in 99 % of the training"
        assert said == [f"input 1: {reason}; read in {len(expected)} parts"]
    else:
        assert not said


def test_one_long_word_stays_whole() -> None:
    class LetterCounter(WordCounter):
        def encode(self, text: str) -> list[str]:
            return list(text)

    limits = LIMITS._replace(tokens=50)
    assert (
        limits.excess("donaudampfschifffahrtsgesellschaft", cast("SourceReader", LetterCounter()), usual=True) is None
    )
    assert limits.excess("x" * 51, cast("SourceReader", LetterCounter()), usual=True) is not None


def test_a_text_with_constraints_on_the_whole_output_stays_whole() -> None:
    """Above the hard limit such a text is refused; the usual length is no reason to refuse it."""
    text = "Aa bb cc dd. Ee ff gg. Hh!"
    assert parts(text, prefix="x") == ([text], [])
    assert len(parts(text, forbid=("x",))[0]) == 3


def test_parts_join_to_the_text_whatever_it_is() -> None:
    draw = random.Random(1)
    for _ in range(300):
        text = "".join(draw.choice("ab ,.;{}<>-\n\t。、é") for _ in range(draw.randint(0, 80)))
        plan = fitting_sentences(text, lambda part: LIMITS.excess(part, COUNTER, usual=True) is None)
        assert join_sentences(plan) == text
        parts(text)


def write_lengths(folder: Path, lengths: list[tuple[int, int]]) -> TokenStore:
    with StoreWriter(folder, 10, 10) as writer:
        writer.add([[5] * source for source, _ in lengths], [[5] * target for _, target in lengths])
    return TokenStore(folder)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_source_lengths_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(corpora, "LENGTHS_CHUNK", chunk)
    draw = random.Random(1)
    lengths = [(draw.randint(1, 30), draw.randint(1, 30)) for _ in range(99)] + [(200, 4)]
    found = corpora.source_lengths(write_lengths(tmp_path / "store", lengths))
    sources, targets = zip(*lengths, strict=True)
    assert found["p99"] == sorted(sources)[98]
    assert found["correlation"] == pytest.approx(np.corrcoef(sources, targets)[0, 1], abs=1e-4)
    assert corpora.source_lengths(write_lengths(tmp_path / "same", [(3, 4)] * 5)) == {"p99": 3, "correlation": 0.0}


def test_a_run_stores_the_lengths_of_its_training(folder: Path) -> None:
    run = Run(folder / "runs" / "pairs")
    sources = [line.split("\t")[0] for line in (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    tokenizer = run.tokenizers()[0]
    lengths = sorted(len(tokenizer.encode(source)) for source in sources)
    found = run.data["source_lengths"]
    assert lengths[int(0.97 * len(lengths))] <= found["p99"] <= lengths[-1]  # some of them are for validation
    assert found["correlation"] > 0.9
    assert usual_length(run) == found["p99"]


def test_a_corpus_of_an_older_cache_gets_its_lengths(folder: Path) -> None:
    reports = list((folder / "cache").rglob("report.json"))
    assert reports
    for path in reports:
        table = json.loads(path.read_text(encoding="utf-8"))
        del table["source_lengths"]
        path.write_text(json.dumps(table), encoding="utf-8")
    run = Run(folder / "runs" / "pairs")
    assert run.task.prepare(run.config).report["source_lengths"] == run.data["source_lengths"]


@pytest.mark.parametrize(
    "change",
    [
        {"source_lengths": None},  # a run of an earlier version
        {"source_lengths": {}},
        {"source_lengths": {"p99": 30, "correlation": 0.2}},  # summaries
        {"source_lengths": {"p99": 4, "correlation": 0.9}},  # words and names
        {"characters": {"source": "abc ."}},  # commands and formulas
        {"train": {"pairs": 200}},
        {"train": {}},
    ],
    ids=lambda change: json.dumps(change),
)
def test_a_run_of_other_data_cuts_nothing_for_its_length(folder: Path, change: dict[str, Any]) -> None:
    run = Run(folder / "runs" / "pairs")
    path = run.folder / "data.json"
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(json.dumps(json.loads(before) | change), encoding="utf-8")
        assert usual_length(run) is None
        loaded = load_predictor(run.folder, "cpu", beam=1, max_length=5)
        assert loaded.fits("a, b. " * 15)
        with pytest.raises(ConfigError, match=r"split_long: .* stores no length to split at"):
            loaded.predict(["a"], split_long=True)
    finally:
        path.write_text(before, encoding="utf-8")


@pytest.mark.parametrize("damage", [3, {"p99": "x", "correlation": 1}, {"p99": 3}, {"p99": 1e999, "correlation": 1}])
def test_damaged_lengths_are_an_error(folder: Path, damage: Any) -> None:
    path = folder / "runs" / "pairs" / "data.json"
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(json.dumps(json.loads(before) | {"source_lengths": damage}), encoding="utf-8")
        with pytest.raises(RunError, match=r"data.json: damaged \(source_lengths: found"):
            _ = Run(path.parent).data
    finally:
        path.write_text(before, encoding="utf-8")


def test_predict_reads_a_long_text_in_parts_and_says_it_once(predictor: Predictor) -> None:
    """Its output is that of its parts; the search of the whole saw lengths that the model has never learned."""
    text = long_text(predictor)
    said: list[str] = []
    (output,) = predictor.stream([text], on_warning=said.append)
    assert len(said) == 1
    assert "as in 99 % of the training; read in 6 parts" in said[0]
    plan = fitting_sentences(text, predictor.fits)
    assert len(plan) == 6
    assert output.text == join_sentences(plan, [part.text for part in predictor.predict([own.text for own in plan])])


def test_only_who_wants_texts_gets_parts(predictor: Predictor) -> None:
    text = long_text(predictor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (whole,) = predictor.predict([text], split_long=False)
        scores, (evaluated,) = predictor.evaluate([(text, text.upper())])
        (trace,) = [predictor.trace(text)]
    assert evaluated.text == whole.text
    assert trace
    with pytest.warns(UserWarning, match="read in 6 parts"):
        split, (parted,) = predictor.evaluate([(text, text.upper())], split_long=True)
    assert parted.text != whole.text
    assert split["loss"] == scores["loss"]
    assert not predictor.fits(text)
    assert load_predictor(predictor.run.folder, "cpu", split_long=False).fits(text)


def test_commands_and_documents_split_alike(folder: Path, predictor: Predictor) -> None:
    text = long_text(predictor)
    one_sentence = text.replace(". ", ", ")
    (folder / "long.txt").write_text(f"{text}\n{one_sentence}\n", encoding="utf-8")
    outputs = []
    for more in ((), ("split_long=false",)):
        predicted = call("predict", "runs/pairs", "long.txt", "search.beam=1", *more)
        translated = call("translate", "runs/pairs", "long.txt", "-o", "-", "search.beam=1", *more)
        assert predicted.code == translated.code == 0, predicted.err + translated.err
        assert predicted.err.count("as in 99 % of the training; read in") == (0 if more else 2)
        outputs.append((predicted.lines, translated.lines))
    (lines, document), (whole, sentences) = outputs
    assert lines == document
    assert whole[1] == sentences[1] != lines[1]  # a document is cut at sentences, but no longer at clauses
