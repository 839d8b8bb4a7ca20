"""Data in memory: everything a Python user may hold becomes the same examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from dragoman.base.errors import DataError
from dragoman.data.config import DataConfig
from dragoman.data.examples import Fault, Pairs
from dragoman.data.formats.labels import LabelFormat, TagFormat
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.memory import as_training_data, examples_of, rows_of, source_rows
from dragoman.data.readers.pairs import read_pairs
from tests.conftest import write_rows

PAIRS = [("a b", "A B"), ("c", "C"), ("ß", "SS")]
RECORDS = [{"source": source, "target": target} for source, target in PAIRS]


class HuggingFace:
    """The documented part of datasets.Dataset: iteration over dicts, length, column names; no list of rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, list[Any]]:
        raise AssertionError("this would load all rows")


def pandas_frame(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def polars_frame(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def dataset(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


FRAMES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "list": list,
    "generator": iter,
    "pandas": pandas_frame,
    "polars": polars_frame,
    "arrow": pyarrow.Table.from_pylist,
    "batch": lambda rows: iter(pyarrow.RecordBatch.from_pylist(rows).to_pylist()),
    "hugging face": HuggingFace,
    "datasets": dataset,
}
ROWS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "source and target": (RECORDS, ()),
    "two other names": ([{"english": a, "german": b} for a, b in PAIRS], ()),
    "chosen": ([{"id": number, "de": b, "en": a} for number, (a, b) in enumerate(PAIRS)], ("en", "de")),
    "nested": ([{"id": "1", "translation": {"en": a, "de": b}} for a, b in PAIRS], ()),
    "nested and chosen": ([{"translation": {"de": b, "en": a}} for a, b in PAIRS], ("en", "de")),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sources_of(data: Any, columns: tuple[str, ...] = ()) -> list[str]:
    return [str(row) if isinstance(row, Fault) else row.text for row in source_rows(data, ReadOptions(columns))]


def read(files: Any, columns: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [(item.source, *item.references) for item in read_pairs(files, ReadOptions(columns=columns))]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("frame", FRAMES)
def test_every_kind_of_rows_gives_the_same_pairs(frame: str, kind: str) -> None:
    rows, columns = ROWS[kind]
    overrides = [f"data.columns={json.dumps(columns)}"] if columns else []
    assert read(as_training_data(FRAMES[frame](rows), overrides), columns) == PAIRS
    examples = examples_of(FRAMES[frame](rows), DataConfig(train="", columns=columns), PAIR_FORMAT)
    assert [(one.source, *one.references) for one in examples] == PAIRS
    assert sources_of(FRAMES[frame](rows), columns) == [source for source, _ in PAIRS]


def test_sequences_are_pairs(cache: Path) -> None:
    for rows in (PAIRS, [list(pair) for pair in PAIRS], np.array(PAIRS), (pair for pair in PAIRS)):
        assert read(as_training_data(rows)) == PAIRS
    assert len(list((cache / "rows").iterdir())) == 1  # one file for one content
    triples = [("1", *pair) for pair in PAIRS]
    assert read(as_training_data(triples, ['data.columns=["2", "3"]']), ("2", "3")) == PAIRS
    run = DataConfig(train="", columns=("2", "3"))
    assert [one.source for one in examples_of(triples, run, PAIR_FORMAT)] == ["a b", "c", "ß"]
    several = examples_of([("a", "b", "c"), ("d", "e", "f")], DataConfig(train=""), PAIR_FORMAT)
    assert several[1].references == ("e", "f")
    assert examples_of([("a", ["b", "c"])], DataConfig(train=""), PAIR_FORMAT)[0].references == ("b", "c")


@pytest.mark.parametrize("written", ["data.columns=en,de", "data.columns=en, de", 'data.columns=["en", "de"]'])
def test_columns_are_named_as_people_type_them(written: str) -> None:
    """Each letter of "en,de" was a column."""
    rows = [{"id": number, "de": b, "en": a} for number, (a, b) in enumerate(PAIRS)]
    assert read(as_training_data(rows, [written]), ("en", "de")) == PAIRS
    texts = as_training_data([(a, b, "x") for a, b in PAIRS], ["data.columns=2"])
    assert Path(str(texts)).read_text(encoding="utf-8").splitlines() == [b for _, b in PAIRS]


def test_paths_stay_paths(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.tsv", [*PAIRS])
    assert as_training_data(path) == as_training_data(str(path)) == str(path)
    assert as_training_data([path, str(path)]) == (str(path), str(path))
    assert as_training_data(Pairs("a", "b")) == Pairs("a", "b")
    assert len(examples_of([path, path], DataConfig(train=""), PAIR_FORMAT)) == 6
    assert sources_of(["a b", "c", "ß"]) == ["a b", "c", "ß"]


def test_labels_numbers_tags_and_texts() -> None:
    labels = [{"text": "good", "label": 1}, {"text": "bad", "label": np.int64(0)}]
    found = examples_of(labels, DataConfig(train=""), LabelFormat())
    assert [(one.source, one.references) for one in found] == [("good", ("1",)), ("bad", ("0",))]
    pairs = [{"one": "a", "two": "b", "label": "yes"}]
    found = examples_of(pairs, DataConfig(train="", columns=("one", "two", "label")), LabelFormat())
    assert (found[0].source, found[0].references) == ("a\tb", ("yes",))
    series = as_training_data([{"series": np.array([1.5, 2.0]), "next": 3.0}])
    assert json.loads(Path(str(series)).read_text()) == {"source": [1.5, 2.0], "target": 3.0}
    found = examples_of([{"tokens": ["New York", "is"], "tags": ["N", "V"]}], DataConfig(train=""), TagFormat())
    assert (found[0].source, found[0].references) == ("New\u00a0York is", ("N V",))
    text = Path(str(as_training_data([{"text": "one line"}, {"text": "another"}])))
    assert (text.suffix, text.read_text()) == (".txt", "one line\nanother\n")


def test_recordings_are_named_by_full_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.wav").touch()
    path = Path(str(as_training_data([{"audio": Path("a.wav"), "text": "a"}, {"audio": "none.wav", "text": "b"}])))
    assert [json.loads(line)["source"] for line in path.read_text().splitlines()] == [
        str(tmp_path / "a.wav"),
        "none.wav",
    ]


def test_missing_values_are_faults_of_their_rows() -> None:
    frame = pandas_frame([{"source": "a", "target": "b"}, {"source": None, "target": "c"}])
    with pytest.raises(DataError, match=r"^row 2 \(index 1\): 'source' is null, expected text$"):
        examples_of(frame, DataConfig(train=""), PAIR_FORMAT)
    assert [getattr(item, "kind", "") for item in read_pairs(str(as_training_data(frame)))] == ["", "not-text"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "data: found int 5, expected a path, several paths, an iterable of pairs or dicts, a pandas or polars"),
        (b"a\tb", "data: found bytes b'a\\\\tb', expected a path"),
        ({"train": [], "test": []}, r"found dict with 'train', 'test', .* name one part, as data\['train'\]"),
        ([("a", "b"), 7], "data: row 2: found int 7, expected a pair or a dict"),
        ([("a", "b"), "c\td"], "data: row 2: found str"),
        ([("a", "b"), ("c",)], "data: row 2: found the fields '1', expected '2' as in row 1"),
        ([("a", object())], "data: row 1: found object as '2', expected text, a number or a list of them"),
        ([{"id": 1, "en": "a", "de": "b"}], "found the fields 'id', 'en', 'de', expected 'source' and 'target'"),
        ([], "data: found no rows, expected one or more"),
        (iter(()), "data: found no rows"),
        ([{}], "found the fields none, expected 'source' and 'target'"),
    ],
)
def test_wrong_data_is_explained_in_one_line(data: Any, message: str) -> None:
    with pytest.raises((TypeError, DataError), match=message) as caught:
        as_training_data(data)
    assert "\n" not in str(caught.value)


def test_wrong_columns_and_sources_are_explained() -> None:
    with pytest.raises(DataError, match=r"'source', 'target', expected 'traget'\. Did you mean 'target'"):
        as_training_data(RECORDS, ['data.columns=["source", "traget"]'])
    with pytest.raises(TypeError, match="found str 'hello', expected an iterable of texts, or a path"):
        sources_of("hello")
    with pytest.raises(DataError, match="found the fields 'id', 'en', 'de', expected 'source'"):
        sources_of([{"id": "1", "en": "a", "de": "b"}])
    assert sources_of([("a", "b"), (None, "b"), (True, "c"), (5, "d"), ([1, 2.5], "e")]) == [
        "a",
        "row 2: '1' is null, expected text",
        "row 3: '1' is true or false, expected text",
        "5",  # numbers, as in a JSON file
        "1 2.5",
    ]


def test_rows_are_streamed() -> None:
    """A million rows are never all in memory: the reader asks for one row at a time."""
    asked = 0

    def rows() -> Iterator[tuple[str, str]]:
        nonlocal asked
        while True:
            asked += 1
            yield "a", "b"

    stream = rows_of(rows())
    assert [next(stream) for _ in range(3)] == [("a", "b")] * 3
    assert asked == 3
