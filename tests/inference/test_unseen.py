"""What training did not have: characters are reported, numbers copied, placeholders kept, long inputs read in parts."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.base.errors import DataError, DragomanError
from dragoman.decoding.sampling import Sampling
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.load import load_predictor
from dragoman.inference.long_inputs import InputTooLongError, join_parts, split_text
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.segments import Parsing, parts_of_text
from tests.conftest import SMALL, call, quiet_machine, words, write_rows

FEW = ("train.steps=2", "train.validate_every=2", "train.optimizer.warmup=1", "train.average.kind=none")
SUBWORDS = tuple(
    f"tokenizer.{side}.{name}" for side in ("source", "target") for name in ("kind=subwords", "vocab_size=300")
)
FITTED = ("phrase-based", "ngram-transducer", "copy", "memorise")
VOCABULARY = words(40, seed=5)


def translated(text: str) -> str:
    return " ".join(word[::-1] + "o" for word in text.split())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("unseen")
    sources = [" ".join(VOCABULARY[(row * step) % 40] for step in range(1, 2 + row % 5)) for row in range(1, 160)]
    write_rows(folder / "pairs.tsv", [(source, translated(source)) for source in sources])
    write_rows(folder / "words.tsv", [(word, translated(word)) for word in VOCABULARY])
    write_rows(folder / "digits.tsv", [(f"{source} {row}", f"{row} {source}") for row, source in enumerate(sources)])
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        for name, kind in (("subwords", SUBWORDS), ("digits", SUBWORDS)):
            data = "digits.tsv" if name == "digits" else "pairs.tsv"
            result = call("train", data, "--run", f"runs/{name}", "preset=transformer-tiny", *SMALL, *FEW, *kind)
            assert result.code == 0, result.err
        bytes_ = ("tokenizer.source.kind=bytes", "tokenizer.target.kind=bytes")
        assert (
            call("train", "words.tsv", "--run", "runs/bytes", *SMALL, *FEW, "preset=transformer-tiny", *bytes_).code
            == 0
        )
        for name in FITTED:
            assert call("train", "pairs.tsv", "--run", f"runs/{name}", f"preset={name}").code == 0
        yield folder


@pytest.fixture(scope="module")
def subwords(place: Path) -> Predictor:
    return load_predictor(place / "runs" / "subwords", "cpu")


def reported(run: Predictor, texts: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    list(run.stream(texts, on_unknown=lambda number, surfaces: found.update({number: surfaces}), beam=1))
    return found


def test_a_run_remembers_the_characters_of_its_data(place: Path) -> None:
    data = json.loads((place / "runs" / "subwords" / "data.json").read_text(encoding="utf-8"))
    assert set(data["characters"]["source"]) == set("".join(VOCABULARY)) | {" "}
    assert set(data["characters"]["target"]) == set("".join(VOCABULARY)) | {" ", "o"}


@pytest.mark.parametrize("name", ["subwords", "bytes", *FITTED])
def test_every_kind_of_model_reports_what_training_did_not_have(place: Path, name: str) -> None:
    """Byte fallback hid them: no token is <unk>."""
    run = load_predictor(place / "runs" / name, "cpu")
    known = VOCABULARY[0]
    found = reported(run, [known, f"{known}é", known, "Ж"])
    assert set(found) == {2, 4}
    assert "é" in "".join(found[2])
    assert found[4] == ["Ж"]


def test_a_python_caller_gets_one_warning_with_examples_and_counts(subwords: Predictor) -> None:
    with pytest.warns(
        UserWarning, match=r"2 inputs have .* training did not have: 'Ж', 'é' \(first in input 2\)"
    ) as result:
        subwords.predict([VOCABULARY[0], "ЖЖ", "é"], beam=1)
    assert [Path(one.filename).name for one in result] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subwords.predict(VOCABULARY[:3], beam=1)


def test_a_run_without_a_record_goes_by_its_pieces(place: Path, subwords: Predictor) -> None:
    path = place / "runs" / "subwords" / "data.json"
    before = path.read_text(encoding="utf-8")
    data = json.loads(before)
    del data["characters"]
    path.write_text(json.dumps(data), encoding="utf-8")
    old = load_predictor(path.parent, "cpu")
    path.write_text(before, encoding="utf-8")
    assert old.unseen.characters == subwords.unseen.characters
    assert reported(old, ["a7é"]) == {1: ["7", "é"]}


def test_numbers_that_training_never_had_are_copied(place: Path, subwords: Predictor) -> None:
    a, b = VOCABULARY[:2]
    stream = StreamOptions(on_unknown=lambda number, surfaces: None)
    for number in ("12", "1,234.50", "٣"):
        only, inside, sampled = (
            next(subwords.stream([text], stream=stream, **options)).text  # type: ignore[arg-type]
            for text, options in (
                (f" {number} ", {}),
                (f"{a} {number} {b}", {"beam": 2}),
                (f"{a} {number} {b}", {"method": Sampling()}),
            )
        )
        assert only == f" {number} "
        assert inside.count(number) == 1
        assert sampled.count(number) == 1
    digits = load_predictor(place / "runs" / "digits", "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # training had these digits: nothing to report
        digits.predict(["12", f"{a} 12"], beam=1)
    assert not digits.unseen.lacks_digit("12")


@pytest.mark.parametrize("name", ["phrase-based", "ngram-transducer"])
def test_models_that_search_on_their_own_translate_around_placeholders(place: Path, name: str) -> None:
    """Every unit with a placeholder was left untranslated, with exit code 0."""
    a, b, c = VOCABULARY[:3]
    text = f"{a} {{name}} {b}\n{{count}}: {c}\n%s\n{a} 12 {b}\n"
    (place / "in.txt").write_text(text, encoding="utf-8")
    output = place / f"out-{name}.txt"
    result = call("translate", place / "runs" / name, place / "in.txt", "-o", output)
    assert result.code == 0, result.err
    ta, tb, tc = (one.text for one in load_predictor(place / "runs" / name, "cpu").predict([a, b, c]))
    expected = f"{ta} {{name}} {tb}\n{{count}}: {tc}\n%s\n{ta} 12 {tb}\n"
    assert output.read_text(encoding="utf-8") == expected


def test_units_that_fail_give_an_exit_code_and_a_summary(place: Path) -> None:
    a = VOCABULARY[0]
    (place / "fail.txt").write_text(f"{a}\n{a} {a}\n", encoding="utf-8")
    output = place / "failed.txt"
    result = call(
        "translate", place / "runs" / "phrase-based", place / "fail.txt", "-o", output, "constraints.forbid=x"
    )
    assert result.code == 1
    assert "2 failed" in result.err
    assert "2 units could not be translated and are left as before" in result.err
    assert output.read_text(encoding="utf-8") == f"{a}\n{a} {a}\n"


def test_documents_keep_segments_without_a_letter_and_report_the_unseen(place: Path) -> None:
    a = VOCABULARY[0]
    (place / "page.html").write_text(f"<p>12 <b>%</b> – 3.5</p><p>{a} Ж</p>", encoding="utf-8")
    result = call("translate", place / "runs" / "digits", place / "page.html", "-o", place / "page.de.html")
    assert result.code == 0, result.err
    assert (place / "page.de.html").read_text(encoding="utf-8").startswith("<p>12 <b>%</b> – 3.5</p>")
    assert "1 sentence has characters or words that training did not have: 'Ж'" in result.err


def test_a_long_text_is_read_in_parts_that_join_to_it(subwords: Predictor) -> None:
    long = " ".join(VOCABULARY * 80)
    assert len(long) > 10_000
    notes: list[str] = []
    (found,) = subwords.stream([long], on_warning=notes.append, beam=1, max_length=2)
    assert re.match(
        r"input 1: found [\d,]+ characters, expected at most data.max_characters = 10,000; read in", notes[0]
    )
    assert found.text.strip()
    assert "".join(split_text(long, lambda text: len(text) < 70)) == long


def test_a_text_that_cannot_be_split_is_refused_with_text_and_limit(subwords: Predictor) -> None:
    """It had an empty output."""
    long = " ".join(VOCABULARY * 80)
    with pytest.raises(InputTooLongError, match=r"input 2: found .* expected at most data.max_characters"):
        subwords.predict([VOCABULARY[0], long], require=["a"], beam=2)
    failed: dict[int, DragomanError] = {}
    list(subwords.stream([VOCABULARY[0], long], on_failed=failed.__setitem__, require=["a"], beam=2))
    assert list(failed) == [2]
    assert isinstance(failed[2], InputTooLongError)
    assert isinstance(failed[2], DataError)
    assert (failed[2].text, failed[2].limit) == (long, 10_000)
    refused: list[int] = []
    stream = StreamOptions(on_refused=lambda number, error: refused.append(number))
    found = list(subwords.stream([long, VOCABULARY[0]], stream=stream, require=["a"], beam=2))
    assert (refused, found[0].text) == ([1], "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {x} b", ["a", "* {x} ", "b"]),
        ("a {x}{x}.", ["a", "* {x}{x}."]),
        ("a ({x}): b.", ["a", "* ({x}): ", "b."]),
        ("take B12 daily", ["take", "* B12 ", "daily"]),
        ("a 1 and 12", ["a", "* 1 ", "and", "* 12"]),
        ("a <b>.www.x.org/y</b> c", ["a", "* <b>.www.x.org/y</b> ", "c"]),
    ],
)
def test_models_without_alignment_read_the_texts_around_spans(text: str, expected: list[str]) -> None:
    parts = parts_of_text(text, Parsing(True, lambda number: True, apart=True))
    assert "".join(part.text for part in parts) == text
    shown = [f"*{part.text}" if part.copied else part.text for part in parts]
    assert shown == expected
    read = [part.text for part in parts if not part.copied]
    assert join_parts(parts, [Prediction(one, -1.0, (one,), (-1.0,)) for one in read]).text == text
