"""Header rows, labels, spreadsheets and misplaced settings lead to the right place."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.auto.configure import configure
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.config import DataConfig
from dragoman.data.readers.base import READERS, ReadOptions
from dragoman.data.readers.header import header_warnings, looks_like_header
from dragoman.data.readers.pairs import read_pairs
from dragoman.runs.tasks import config as configuration
from tests.conftest import words, write_rows

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_a_header_is_recognised_and_labels_are_pointed_out(tmp_path: Path) -> None:
    rows = [(word, word.upper()) for word in words(60)]
    named = str(write_rows(tmp_path / "named.tsv", [("source", "target"), *rows]))
    config, reasons = configure(named)
    assert config.data.header
    assert reasons[0] == "header: the first line (source, target) names the columns and is no pair"
    plain, reasons = configure(str(write_rows(tmp_path / "plain.tsv", rows)))
    assert not plain.data.header
    assert not any("classify" in reason for reason in reasons)
    labelled = [(word, "even" if len(word) % 2 == 0 else "odd") for word in words(60)]
    _, reasons = configure(str(write_rows(tmp_path / "labels.tsv", labelled)))
    assert any(
        "only 2 different targets occur in 60 pairs" in reason and "task=classify" in reason for reason in reasons
    )


@pytest.mark.parametrize(
    ("content", "columns", "expected"),
    [
        ('a,b\n"c, d",e\n', (), [("a", "b"), ("c, d", "e")]),
        ("source,target\na,b\n", (), [("a", "b")]),
        ("id;en;de\n1;a;b\n2;c;d\n", ("en", "de"), [("a", "b"), ("c", "d")]),
        ("1,a,b\n", ("2", "3"), [("a", "b")]),
    ],
)
def test_comma_separated_files(
    tmp_path: Path, content: str, columns: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content, encoding="utf-8")
    items = list(read_pairs(path, ReadOptions(columns=columns)))
    assert [(item.source, item.references[0]) for item in items] == expected  # type: ignore[union-attr]


def test_faults_of_comma_separated_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('a,b\nalone\n"open,b\n')
    found = [str(item) for item in read_pairs(path)][1:]
    assert found[0] == f"{path}:2: found 1 columns, expected 2 with commas between them"
    assert found[1].startswith(f"{path}:3: not a row of comma-separated cells")
    with pytest.raises(ConfigError, match=r"columns: found 'fr', but the first line of .* has a, b"):
        list(read_pairs(path, ReadOptions(columns=("fr", "b"))))
    with pytest.raises(DataError, match=r"expected \.jsonl with one object on each line"):
        read_pairs(tmp_path / "pairs.json")


@pytest.mark.parametrize(
    ("assignment", "place"),
    [
        ("steps=5", "train.steps"),
        ("train.learning_rate=0.1", "train.optimizer.learning_rate"),
        ("beam=3", "search.beam"),
        ("model.dropout=0.1", "model.encoder.dropout"),
    ],
)
def test_a_misplaced_setting_leads_to_its_place(assignment: str, place: str) -> None:
    table = settings.override({"data": {"train": "x.tsv"}}, [assignment])
    with pytest.raises(ConfigError, match=f"no such setting. Did you mean .*{place}"):
        configuration.build(table)


def test_names_above_text_in_another_script_are_a_header(tmp_path: Path) -> None:
    """`latin2,ivrit` above Hebrew was learned as a pair."""
    path = tmp_path / "names.csv"
    path.write_text("latin2,ivrit\n" + "".join(f"{word},קמפ{'אבגד'[n % 4]}\n" for n, word in enumerate(words(40))))
    config, reasons = configure(str(path))
    assert config.data.header
    assert reasons[0] == "header: the first line (latin2, ivrit) names the columns and is no pair"
    write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(40)])
    assert not configure(str(tmp_path / "pairs.tsv"))[0].data.header


def test_a_label_misspelt_once_is_asked_about(tmp_path: Path) -> None:
    rows = [(word, "positive" if number % 2 else "negative") for number, word in enumerate(words(120))]
    rows[4] = (rows[4][0], "negativ")
    _, reasons = configure(str(write_rows(tmp_path / "labels.tsv", rows)), ["task=classify"])
    (asked,) = [reason for reason in reasons if "typing mistake" in reason]
    assert "labels.tsv:5 a typing mistake? It has the label 'negativ', which occurs 1 times; 'negative' occurs" in asked


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "pairs.tsv: the file is empty"),
        (b"\x1f\x8b\x08\x00abc", "found gzip data, expected UTF-8 text; name the file .gz"),
        ("a\tb\n".encode("utf-16"), "found UTF-16 text, expected UTF-8 text; convert it with: iconv"),
        (
            "abc\tabc\n".encode("utf-16-le") * 20,
            "found UTF-16LE text, expected UTF-8 text; convert it with",
        ),
        (b"\x7fELF" + bytes(200), "found zero bytes, as in a program or a picture; expected UTF-8 text"),
        (b"a\nb\nc\n", "found 1 column, expected 2 with a tab between them. Every line has a fault"),
        (b"PK\x03\x04abc", "found a zip archive or a spreadsheet"),
        ("ä\tö\n".encode("latin-1") * 5, "The text seems to be in another encoding: convert it"),
    ],
)
def test_other_kinds_of_files_are_recognised(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        configure(str(path))
    assert expected in str(caught.value)


def test_long_outputs_of_few_words_are_for_a_transformer(tmp_path: Path) -> None:
    """On COGS, whose logical forms have 44 words on average, Luong's attention had 63.5 % and a Transformer 98.8 %."""
    some, draw = words(30, seed=2), random.Random(1)
    rows = [(" ".join(draw.choices(some, k=5)), " ".join(draw.choices(some, k=40))) for _ in range(400)]
    _, reasons = configure(str(write_rows(tmp_path / "long.tsv", rows)))
    assert any("transformer-small" in reason and "40 tokens on average" in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    "names", [("en", "de"), ("word", "pron"), ("misspelling", "correct"), ("English", "German_2"), ("src_text", "ziel")]
)
def test_a_first_line_that_seems_to_name_columns_is_reported(tmp_path: Path, names: tuple[str, str]) -> None:
    """It silently became a training pair."""
    rows = [(f"{word} {word}", f"{word.upper()} {word}") for word in words(60)]
    headed = write_rows(tmp_path / "headed.tsv", [names, *rows])
    data = DataConfig(train=str(headed))
    told = f"{headed}:1 looks like a header ({', '.join(names)}) but is read as data; if it names the columns, add "
    assert list(header_warnings(data)) == [f"{told}data.header=true"]
    assert not list(header_warnings(replace(data, header=True)))


def test_ordinary_pairs_are_no_header() -> None:
    """Each row in turn as the first of a file."""
    rows = [[word, word[::-1]] for word in ("no", "so", "it", "is", "he", "my", "or", *words(60))]
    rows += [["name", "Name"], ["word", "Wort"], ["text", "Text"], ["old", "alt"], ["source", "Quelle"], ["a", "b"]]
    rows += [["The old name.", "Der alte Name."], ["Go.", "Geh."], ["12", "zwölf"], ["Question", "Frage"]]
    for first in range(len(rows)):
        assert not looks_like_header([rows[first], *rows]), rows[first]
        assert not looks_like_header([rows[first], *rows[first + 1 :]]), rows[first]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")
def test_no_file_of_pairs_gives_a_false_alarm() -> None:
    """Those of GLUE do have headers."""
    files = [path for path in SHARED.rglob("*") if path.name.endswith((".tsv", ".tsv.gz", ".txt.gz"))]
    found = [
        path for path in files if "documents" not in path.parts and looks_like_header(READERS.of(path).first_rows(path))
    ]
    assert {path.parent.parent.name for path in found} <= {"glue_small"}
