"""One way to open inputs: the command line, Python and shards read a file alike, and data in memory as such a file."""

from __future__ import annotations

import io
import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import dragoman
from dragoman.base import config as settings
from dragoman.base.errors import DataError
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.inference.opened_inputs import open_inputs
from dragoman.runs.tasks.config import from_table
from tests.conftest import TrainedFolder, call, words, write_rows

TEXTS = words(6, seed=5)
Rows = list[dict[str, Any]]


def columns_of(rows: Rows, delimiter: str, header: bool) -> str:
    lines = [list(rows[0])] if rows and header else []
    return "".join(f"{delimiter.join(map(str, line))}\n" for line in [*lines, *(row.values() for row in rows)])


def parquet(path: Path, rows: Rows) -> None:
    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({"source": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(table, path)


def tmx(path: Path, rows: Rows) -> None:
    sides = [[f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in row.items()] for row in rows]
    units = "".join(f"<tu>{''.join(side)}</tu>\n" for side in sides)
    path.write_text(f'<tmx version="1.4"><header srclang="source"/><body>\n{units}</body></tmx>\n')


WRITE: dict[str, Callable[[Path, Rows, bool], object]] = {
    ".txt": lambda path, rows, header: path.write_text("".join(f"{row['source']}\n" for row in rows)),
    ".tsv": lambda path, rows, header: path.write_text(columns_of(rows, "\t", header)),
    ".csv": lambda path, rows, header: path.write_text(columns_of(rows, ",", header)),
    ".jsonl": lambda path, rows, header: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    ".parquet": lambda path, rows, header: parquet(path, rows),
    ".tmx": lambda path, rows, header: tmx(path, rows),
}
CUT = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")  # into shards


@dataclass(frozen=True)
class Case:
    """A file, the settings that its run was trained with, and what is read."""

    suffixes: tuple[str, ...]
    rows: Rows
    header: bool = False  # the file has one
    settings: tuple[str, ...] = ()
    texts: tuple[str, ...] = tuple(TEXTS)
    forbid: tuple[str, ...] = ()  # one for each text
    fault: str = ""  # of the second row


PAIRS: Rows = [{"source": text, "target": text.upper()} for text in TEXTS]
TURNED: Rows = [{"out": text.upper(), "id": str(number), "in": text} for number, text in enumerate(TEXTS)]
BY_NAME = 'data.columns=["in", "out"]'
FORBIDDEN = ["AB", "C", "D", "E", "F", "G"]
CASES = {
    "pairs": Case(tuple(WRITE), PAIRS),
    "empty": Case(tuple(WRITE), [], texts=()),
    "header": Case((".tsv", ".csv"), PAIRS, True, ("data.header=true",)),
    "named columns": Case((".tsv", ".csv"), TURNED, True, ("data.header=true", BY_NAME)),
    "named fields": Case((".jsonl", ".parquet"), TURNED, settings=(BY_NAME,)),
    "named fields of a run with a header": Case((".jsonl", ".parquet"), TURNED, False, ("data.header=true", BY_NAME)),
    "languages": Case((".tmx",), [{"in": row["in"], "out": row["out"]} for row in TURNED], settings=(BY_NAME,)),
    "numbered columns": Case((".tsv", ".csv"), TURNED, False, ('data.columns=["3", "1"]',)),
    "as many words on both sides": Case(
        (".tsv",), [{"source": f"{text} {text}", "target": f"{text} X"} for text in TEXTS], True,
        ("data.header=true",), tuple(f"{text} {text}" for text in TEXTS),
    ),
    "constraints": Case(
        (".jsonl",), [{**row, "forbid": text} for row, text in zip(PAIRS, FORBIDDEN, strict=True)],
        forbid=tuple(FORBIDDEN),
    ),
    "misspelt constraint": Case(
        (".jsonl",), [PAIRS[0], {**PAIRS[1], "forbidd": "A"}, PAIRS[2]], texts=tuple(TEXTS[:3]),
        fault="found the field 'forbidd'. Did you mean 'forbid'?",
    ),
    "wrong constraint": Case(
        (".jsonl",), [PAIRS[0], {**PAIRS[1], "require": 5}, PAIRS[2]], texts=tuple(TEXTS[:3]),
        fault="require: found 5, expected a text or a list of texts, none of them empty",
    ),
    "missing source": Case(
        (".jsonl",), [PAIRS[0], {"target": "A"}, PAIRS[2]], texts=tuple(TEXTS[:3]),
        fault='found "target", expected a text "source" (data.columns names another field)',
    ),
    "null": Case(
        (".parquet",), [PAIRS[0], {"source": None, "target": "A"}, PAIRS[2]], texts=tuple(TEXTS[:3]),
        fault="'source' is null, expected text",
    ),
    "missing column": Case(
        (".tsv", ".csv"), [TURNED[0], {"out": "A", "id": "1"}, TURNED[2]], settings=('data.columns=["3", "1"]',),
        texts=tuple(TEXTS[:3]), fault="found 2 columns, expected at least 3",
    ),
}  # fmt: skip
FILES = [(name, suffix) for name, case in CASES.items() for suffix in case.suffixes]


@pytest.fixture
def run_with(inside: TrainedFolder) -> Callable[..., Path]:
    """The trained run as if it had been trained with other settings of data."""

    def run_of(*places: str) -> Path:
        path = inside.folder / "runs" / f"as-{zlib.crc32(repr(places).encode())}"
        if not path.exists():
            shutil.copytree(inside.run, path)
            table = settings.override(settings.read_toml(path / "config.toml"), places)
            (path / "config.toml").write_text(settings.dump(from_table(table)), encoding="utf-8")
        return path

    return run_of


def expected_of(run: Path, case: Case) -> list[str]:
    """The outputs for the texts alone."""
    forbid = [[text] for text in case.forbid] or ()
    return [output.text for output in dragoman.load(run, device="cpu").predict(list(case.texts), beam=2, forbid=forbid)]


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_every_road_reads_a_file_alike(
    inside: TrainedFolder, run_with: Callable[..., Path], name: str, suffix: str
) -> None:
    """Python returned a header as an input, refused names of columns and dropped the field "forbid"."""
    case = CASES[name]
    run, path = run_with(*case.settings), inside.write(f"opened/{name}{suffix}", "")
    WRITE[suffix](path, case.rows, case.header)
    outputs = expected_of(run, case)
    said = call("predict", run, path, "--beam", "2")
    if case.fault:
        assert (said.code, said.err) == (2, f"dragoman: {path}:2: {case.fault}\n")
        with pytest.raises(DataError) as caught:
            dragoman.load(run, device="cpu").predict(path, beam=2)
        assert str(caught.value) == f"{path}:2: {case.fault}"
    else:
        assert (said.code, said.lines) == (0, outputs), said.err
        assert [output.text for output in dragoman.load(run, device="cpu").predict(path, beam=2)] == outputs
    if suffix in CUT:
        folder = inside.folder / "shards" / f"{name}{suffix}"
        sharded = call("predict", run, path, "--beam", "2", "--shards", folder)
        assert sharded.code == 0, sharded.err
        lines = [line for part in sorted(folder.glob("part-*.txt")) for line in part.read_text().splitlines()]
        assert lines == ([outputs[0], "", outputs[2]] if case.fault else outputs)
        texts = [part.read_text().splitlines() for part in folder.glob("*.rejected.jsonl")]
        rejected = [json.loads(line) for lines in texts for line in lines]
        assert [(row["row"], row["reason"]) for row in rejected] == ([(2, case.fault)] if case.fault else [])


@pytest.mark.parametrize("frame", ["list", "generator", "pandas", "arrow"])
@pytest.mark.parametrize("name", ["pairs", "named fields", "constraints", "misspelt constraint", "missing source"])
def test_rows_in_memory_are_read_as_a_file(run_with: Callable[..., Path], name: str, frame: str) -> None:
    case = CASES[name]
    run = dragoman.load(run_with(*case.settings), device="cpu")
    make: dict[str, Callable[[Rows], Any]] = {
        "list": list, "generator": iter, "arrow": pyarrow.Table.from_pylist,
        "pandas": lambda rows: pytest.importorskip("pandas").DataFrame(rows),
    }  # fmt: skip
    if case.fault:
        told = case.fault if name == "misspelt constraint" else "expected (text|'source' as in row 1)"
        with pytest.raises(DataError, match=rf"row [12]( \(index \d\))?: .*{told}"):
            run.predict(make[frame](case.rows[name == "misspelt constraint" :]), beam=2)
    else:
        outputs = [output.text for output in run.predict(make[frame](case.rows), beam=2)]
        assert outputs == expected_of(run.run.folder, case)


def test_constraints_of_a_call_fill_those_that_a_row_lacks(inside: TrainedFolder) -> None:
    run = dragoman.load(inside.run, device="cpu")
    rows = [{"source": "abc", "forbid": "A"}, {"source": "abc"}, {"source": "abc", "forbid": None, "prefix": "C"}]
    found = [output.text for output in run.predict(rows, forbid="B", beam=2)]
    alone = (("A", None), ("B", None), ("B", "C"))
    assert found == [run.predict(["abc"], forbid=text, prefix=prefix, beam=2)[0].text for text, prefix in alone]


def test_a_first_line_that_is_no_header_is_an_input(inside: TrainedFolder, run_with: Callable[..., Path]) -> None:
    run = run_with("data.header=true")
    path = write_rows(inside.folder / "no-header.tsv", [(text, text.upper()) for text in TEXTS])
    with pytest.warns(UserWarning, match=r"no-header\.tsv:1 is not the header of the training file and is read"):
        outputs = [output.text for output in dragoman.load(run, device="cpu").predict(path, beam=1)]
    assert outputs == call("predict", run, path, "--beam", "1").lines
    assert len(outputs) == len(TEXTS)
    with pytest.warns(UserWarning, match="is not the header"):
        assert dragoman.load(run, device="cpu").evaluate(path, beam=1)["segments"] == len(TEXTS)
    with pytest.raises(DataError, match=r"missing\.tsv: no such file"):
        dragoman.load(run, device="cpu").predict(Path("missing.tsv"))


def test_a_line_is_named_by_its_place_in_the_file(inside: TrainedFolder, run_with: Callable[..., Path]) -> None:
    """The header was not counted."""
    run = run_with("data.header=true")
    rows = [("source", "target"), ("abc", "ABC"), ("ab " * 6000, "AB")]
    path = write_rows(inside.folder / "long-row.tsv", rows)
    assert f"{path}:3: found 18,000 characters" in call("predict", run, path, "--beam", "1").err
    said = call("predict", run, stdin=b"abc\n" + b"ab " * 6000 + b"\n")
    assert "input 2: found 18,000 characters" in said.err


def test_lines_of_standard_input_are_answered_one_by_one(
    inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read ahead of the line that is asked for."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reading, os.fdopen(write, "wb", buffering=0) as writing:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(reading, encoding="utf-8"))
        inputs = open_inputs(dragoman.load(inside.run, device="cpu").run, None)
        for line in ("first", "second"):
            writing.write(f"{line}\n".encode())
            assert next(inputs) == ConstrainedInput(line)
        writing.close()
        assert list(inputs) == []
