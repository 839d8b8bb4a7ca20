"""Header rows, labels, spreadsheets and misplaced settings lead to the right place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.auto.configure import configure
from dragoman.config import settings
from dragoman.data.readers.pairs import read_pairs
from dragoman.errors import ConfigError, DataError
from dragoman.tasks import config as configuration
from tests.conftest import words, write_rows


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
    items = list(read_pairs(path, columns=columns))
    assert [(item.source, item.references[0]) for item in items] == expected  # type: ignore[union-attr]


def test_faults_of_comma_separated_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('a,b\nalone\n"open,b\n')
    found = [str(item) for item in read_pairs(path)][1:]
    assert found[0] == f"{path}:2: found 1 columns, expected 2 with commas between them"
    assert found[1].startswith(f"{path}:3: not a row of comma-separated cells")
    with pytest.raises(ConfigError, match=r"columns: found 'fr', but the first line of .* has a, b"):
        list(read_pairs(path, columns=("fr", "b")))
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
