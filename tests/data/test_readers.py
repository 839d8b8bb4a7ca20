from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base.errors import ConfigError, DataError, MissingExtraError
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers import lines as line_reader
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.lines import read_lines
from dragoman.data.readers.pairs import read_pairs


def written(folder: Path, content: bytes | str, name: str = "pairs.tsv") -> Path:
    path = folder / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def pairs(*arguments: Any, **settings: Any) -> list[Any]:
    """Examples as (source, *references), faults as their kind."""
    items = read_pairs(*arguments, ReadOptions(**settings))
    return [item.kind if isinstance(item, Fault) else (item.source, *item.references) for item in items]


def faults(*arguments: Any, **settings: Any) -> list[str]:
    return [str(item) for item in read_pairs(*arguments, ReadOptions(**settings)) if isinstance(item, Fault)]


# --- lines


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_endings_and_byte_order_mark(tmp_path: Path, ending: str, last: bool, mark: bytes) -> None:
    text = ending.join(["a b\tc", "d\te f"]) + (ending if last else "")
    assert pairs(written(tmp_path, mark + text.encode())) == [("a b", "c"), ("d", "e f")]


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=6)),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    mark=st.booleans(),
    block=st.integers(1, 20),
)
def test_lines_do_not_depend_on_where_blocks_end(
    lines: list[str], ending: str, last: bool, mark: bool, block: int
) -> None:
    if lines and not last and not lines[-1]:
        last = True  # without its newline an empty last line is no line
    if lines and lines[0].startswith("\ufeff"):
        mark = True
    data = ending.join(lines) + (ending if last and lines else "")
    stream = io.BytesIO((b"\xef\xbb\xbf" if mark else b"") + data.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "_BLOCK_BYTES", block)
        assert list(read_lines(stream)) == lines


def test_other_separators_do_not_break_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a\u2028b\tc\u2029d\n \u00a0e\tf \n")
    assert pairs(path) == [("a\u2028b", "c\u2029d"), (" \u00a0e", "f ")]
    assert list(read_lines(io.BytesIO("a\x85b\x0bc\x0cd\u2028e\x1cf\n".encode()))) == ["a\x85b\x0bc\x0cd\u2028e\x1cf"]


@pytest.mark.parametrize("control", ["\x00", "\x0b", "\x0c", "\x1f", "\x7f", "\r"])
def test_control_characters(tmp_path: Path, control: str) -> None:
    path = written(tmp_path, f"good\tline\nab{control}c\td\na\tb{control}c\nlast\tline\n")
    code = f"U+{ord(control):04X}"
    assert pairs(path) == [("good", "line"), "control-characters", "control-characters", ("last", "line")]
    assert faults(path) == [
        f"{path}:2: found {code} at offset 2 of the source, expected no control characters",
        f"{path}:3: found {code} at offset 1 of the target, expected no control characters",
    ]


def test_harmless_control_characters_are_removed(tmp_path: Path) -> None:
    lines = "good\tline\na\x8ab\tc\x85d\n\ufeffa\tb\ufeff\n\x9f\tempty\n"
    expected = [("good", "line"), ("ab", "c d"), ("a", "b"), "empty-side"]
    path = written(tmp_path, lines)
    assert pairs(path) == pairs(path, several_references=True) == expected
    assert [item.normalised for item in read_pairs(path) if isinstance(item, Example)] == [False, True, True]
    columns = zip(*(line.split("\t") for line in lines[:-1].split("\n")), strict=True)
    sides = [written(tmp_path, "\n".join(column), f"side{number}") for number, column in enumerate(columns)]
    parallel = list(read_pairs(Pairs(*map(str, sides))))
    assert [(item.source, *item.references) for item in parallel if isinstance(item, Example)] == expected[:3]
    escaped = written(tmp_path, '{"source": "a\\u008a", "target": "b\\ufeff"}\n', "pairs.jsonl")
    assert pairs(escaped) == [("a", "b")]


def test_blank_lines_at_the_end_are_no_faults(tmp_path: Path) -> None:
    assert pairs(written(tmp_path, "a\tb\n\nc\td\n\n  \n\n")) == [("a", "b"), "blank-line", ("c", "d")]
    assert pairs(written(tmp_path, '{"source": "a", "target": "b"}\n\n', "pairs.jsonl")) == [("a", "b")]
    assert pairs(written(tmp_path, "a,b\n\n\n", "pairs.csv")) == [("a", "b")]
    sides = [str(written(tmp_path, text, name)) for text, name in (("a\nb\n\n\n\n", "side0"), ("c\nd\n\n", "side1"))]
    assert [item[:2] for item in read_pairs(Pairs(*sides))] == [("a", ("c",)), ("b", ("d",))]


def test_characters_next_to_the_controls_are_text(tmp_path: Path) -> None:
    text = "~\u00a0\u00c2\u00df é \u0100\tx"
    assert pairs(written(tmp_path, text)) == [tuple(text.split("\t"))]


def test_one_carriage_return_is_stripped(tmp_path: Path) -> None:
    assert pairs(written(tmp_path, "a\tb\r\r\nc\td\r")) == ["control-characters", ("c", "d")]


def test_bad_utf8_does_not_stop_reading(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\tb\n\xc3\xa9x\xff\ty\nc\td\n\xe2\x82")
    assert pairs(path) == [("a", "b"), "bad-utf8", ("c", "d"), "bad-utf8"]
    assert faults(path) == [
        f"{path}:2: found byte 0xff at offset 3 of the line, expected UTF-8",
        f"{path}:4: found byte 0xe2 at offset 0 of the line, expected UTF-8",
    ]


def test_line_numbers_run_on_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "_BLOCK_BYTES", 16)
    path = written(tmp_path, b"".join(b"%d\t%s\n" % (n, b"\xff" if n % 7 == 0 else b"y") for n in range(1, 50)))
    for number, item in enumerate(read_pairs(path), 1):
        assert item.location == f"{path}:{number}"
        assert isinstance(item, Fault) == (number % 7 == 0)


# --- tab-separated columns


def test_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\tc\n\n   \na\na\tb\n\tb\na\t \n\t\n")
    assert faults(path) == [
        f"{path}:1: found 3 columns, expected 2",
        f"{path}:2: blank line",
        f"{path}:3: blank line",
        f"{path}:4: found 1 column, expected 2 with a tab between them",
        f"{path}:6: the source is empty, expected text",
        f"{path}:7: the target is empty, expected text",
        f"{path}:8: the source is empty, expected text",
    ]
    assert pairs(path) == ["wrong-columns", *["blank-line"] * 2, "wrong-columns", ("a", "b"), *["empty-side"] * 3]


def test_chosen_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\tc\na\tb\na\t\x07\tc\td\n")
    assert pairs(path, columns=("3", "1")) == [("c", "a"), "wrong-columns", ("c", "a")]
    assert faults(path, columns=("3", "1")) == [f"{path}:2: found 2 columns, expected at least 3"]
    assert pairs(path, columns=("1", "3", "2"), several_references=True) == [
        ("a", "c", "b"),
        "wrong-columns",
        "control-characters",
    ]


@pytest.mark.parametrize("columns", [("1",), ("1", "2", "3"), ("source", "target"), ("0", "1"), ("²", "1")])
def test_wrong_columns_setting(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^columns: found "):
        read_pairs(written(tmp_path, "a\tb\n"), ReadOptions(columns=columns))


def test_several_references(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\na\tb\t\tc\t \na\na\t\tb\na\tb\t\x07\n")
    assert pairs(path, several_references=True) == [
        ("a", "b"),
        ("a", "b", "c"),
        "wrong-columns",
        "empty-side",
        "control-characters",
    ]
    assert "found 1 column, expected 2 or more with a tab between them" in faults(path, several_references=True)[0]


def test_over_long(tmp_path: Path) -> None:
    path = written(tmp_path, "ééééé\t12345\n123456\t1\n1\t123456\n")
    assert pairs(path, max_characters=5) == [("ééééé", "12345"), "over-long", "over-long"]
    assert faults(path, max_characters=5)[1] == f"{path}:3: the target has 6 characters, expected at most 5"


LINES = st.lists(st.text(st.sampled_from("ab \t\t\x07\x85é\u2028"), max_size=8), min_size=1, max_size=8)


@given(LINES)
def test_every_line_gives_one_item_as_the_rules_say(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    def rule(line: str) -> Any:
        cells = line.replace("\x85", " ").split("\t")
        if len(cells) != 2:
            return "wrong-columns" if line.strip() else "blank-line"
        for cell in cells:
            if "\x07" in cell:
                return "control-characters"
            if not cell.strip():
                return "empty-side"
            if len(cell) > 4:
                return "over-long"
        return tuple(cells)

    path = tmp_path_factory.getbasetemp() / "rules.tsv"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    expected = [rule(line) for line in lines]
    while expected and expected[-1] == "blank-line":
        expected.pop()
    assert pairs(path, max_characters=4) == expected


# --- compression and files that cannot be read

TEXT = "".join(f"source {number}\ttarget é {number}\n" for number in range(30_000))


def compressed(folder: Path, suffix: str, text: str = TEXT, name: str = "pairs.tsv") -> Path:
    pack = gzip.compress if suffix.lower() == ".gz" else line_reader.zstandard().compress
    return written(folder, pack(text.encode()), name + suffix)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".GZ"])
def test_compressed(tmp_path: Path, suffix: str) -> None:
    path = compressed(tmp_path, suffix)
    assert pairs(path) == [tuple(line.split("\t")) for line in TEXT.splitlines()]
    assert list(read_lines(path)) == TEXT.splitlines()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_cut_short(tmp_path: Path, suffix: str) -> None:
    path = compressed(tmp_path, suffix)
    path.write_bytes(path.read_bytes()[:-9])
    items = read_pairs(path)
    assert next(items) == Example("source 0", ("target é 0",), str(path), 1)  # before the end is seen: a stream
    with pytest.raises(DataError, match=r"pairs\.tsv\.\w+: compressed data is damaged or cut short \(.+\)$"):
        list(items)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_not_compressed_at_all(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match="compressed data is damaged"):
        pairs(written(tmp_path, "a\tb\n", "pairs.tsv" + suffix))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, "a\tb\n", "train.tsv")
    with pytest.raises(DataError, match=r"trian\.tsv: no such file\. Did you mean 'train\.tsv'\?$"):
        read_pairs(tmp_path / "trian.tsv")
    with pytest.raises(DataError, match=r"zz: no such file\.$"):
        read_lines(tmp_path / "zz")
    with pytest.raises(DataError, match=r"the folder '.*nowhere' does not exist$"):
        read_pairs(Pairs(str(tmp_path / "train.tsv"), str(tmp_path / "nowhere" / "train.tsv")))


def test_folder_and_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="found a folder, expected a file"):
        read_pairs(tmp_path)
    path = written(tmp_path, "a\tb\n")

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not bind the root user that tests may run as
    with pytest.raises(DataError, match=r"pairs\.tsv: cannot be read \(Permission denied\)$"):
        pairs(path)


def test_missing_packages_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("backports.zstd", "compression.zstd", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"zst files needs .*dragoman\[documents\]"):
        pairs(compressed(tmp_path, ".zst"))
    with pytest.raises(MissingExtraError, match=r"Parquet files needs .*dragoman\[documents\]"):
        pairs(written(tmp_path, "", "pairs.parquet"))


def test_no_newline_anywhere_stops_before_memory_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(line_reader, "_MAX_LINE_BYTES", 100)
    assert len(pairs(written(tmp_path, ("a" * 45 + "\tb\n") * 100 + "a\tb"))) == 101
    with pytest.raises(DataError, match="found a line of over 100 bytes"):
        pairs(written(tmp_path, "a\tb\n" + "a" * 500))


# --- streaming


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT * 6)
    assert path.stat().st_size > 4.5e6
    tracemalloc.start()
    try:
        assert sum(isinstance(item, Example) for item in read_pairs(path)) == 180_000
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_reading_is_lazy() -> None:
    stream = io.BytesIO(b"line\n" * 1_000_000)
    assert list(islice(read_lines(stream), 3)) == ["line"] * 3
    assert stream.tell() < 1_000_000


def test_a_line_is_given_before_the_pipe_closes() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as reading, os.fdopen(into, "wb", buffering=0) as writing:
        lines = read_lines(reading)
        writing.write(b"one\ntw")
        assert next(lines) == "one"
        writing.write(b"o\n")
        assert next(lines) == "two"


# --- lines for prediction


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n a \r\n\nb", ["", " a ", "", "b"]),
        (b"a\rb\n", ["a\rb"]),
    ],
)
def test_read_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, lines: list[str]) -> None:
    assert list(read_lines(written(tmp_path, data, "input.txt"))) == lines
    assert list(read_lines(io.BytesIO(data))) == lines
    for name in ("-", None):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert list(read_lines(name)) == lines


def test_read_lines_stops_at_bad_utf8(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\nb\xff\nc\n", "input.txt")
    lines = read_lines(path)
    assert next(lines) == "a"
    with pytest.raises(DataError, match=r"input\.txt:2: found byte 0xff at offset 1"):
        next(lines)


# --- two parallel files


def parallel(folder: Path, source: bytes | str, target: bytes | str) -> Pairs:
    return Pairs(str(written(folder, source, "a.en")), str(written(folder, target, "a.de")))


def test_parallel(tmp_path: Path) -> None:
    files = parallel(tmp_path, b"a\tb\n\nc\xff\nd\ne\nf\n", "1\n2\n3\n\n5\x07\n6666\n")
    assert pairs(files, max_characters=3) == [
        ("a\tb", "1"),
        "empty-side",
        "bad-utf8",
        "empty-side",
        "control-characters",
        "over-long",
    ]
    locations = [item.location for item in read_pairs(files, ReadOptions(max_characters=3))]
    en, de = files.source, files.target
    assert locations == [f"{en}:1", f"{en}:2", f"{en}:3", f"{de}:4", f"{de}:5", f"{de}:6"]


@pytest.mark.parametrize(
    ("source", "target", "name", "line", "counts"),
    [
        ("a\nb\nc\nd\n", "1\n2\n", "a.en", 3, "4 source lines and 2 target lines"),
        ("a\n", "1\n2\n3", "a.de", 2, "1 source lines and 3 target lines"),
        ("", "1\n", "a.de", 1, "0 source lines and 1 target lines"),
    ],
)
def test_unequal_parallel_files(tmp_path: Path, source: str, target: str, name: str, line: int, counts: str) -> None:
    *before, last = read_pairs(parallel(tmp_path, source, target))
    assert len(before) == line - 1
    assert isinstance(last, Fault)
    assert last.kind == "unpaired-line"
    assert str(last) == f"{tmp_path / name}:{line}: found {counts}, expected as many of each"


def test_parallel_compressed_and_without_columns(tmp_path: Path) -> None:
    files = Pairs(
        str(compressed(tmp_path, ".gz", "a\nb\n", "a.en")),
        str(compressed(tmp_path, ".zst", "1\n2\n", "a.de")),
    )
    assert pairs(files) == [("a", "1"), ("b", "2")]
    with pytest.raises(ConfigError, match="expected none for two line-parallel files"):
        read_pairs(files, ReadOptions(columns=("1", "2")))


# --- JSON lines


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        '{"source": "a b", "target": "c\\u2028", "other": 1}',
        '{"source": "a", "target": 3}',
        '{"source": null, "target": "b"}',
        '{"source": "a", "tarqet": "b"}',
        '["a", "b"]',
        '{"source": "a", "target": "b"',
        "",
        '{"source": "a\\tb", "target": "b"}',
        '{"source": "a", "target": "b\\nc"}',
        '{"source": "a", "target": "\\ud800"}',
        '{"source": " ", "target": "b"}',
        '{"source": "a", "target": ["b"]}',
        "[" * 100_000,
        '{"source": "\\ud83d\\ude00", "target": "b"}',
    ]
    path = written(tmp_path, "\ufeff" + "\r\n".join(rows), "pairs.jsonl")
    assert pairs(path) == [
        ("a b", "c\u2028"),
        "not-text",
        "not-text",
        "missing-field",
        "bad-json",
        "bad-json",
        "blank-line",
        "control-characters",
        "control-characters",
        "bad-utf8",
        "empty-side",
        "not-text",
        "bad-json",
        ("😀", "b"),
    ]
    found = faults(path)
    assert found[0] == f"{path}:2: 'target' is a number, expected text"
    assert found[2].startswith(f"{path}:4: found the fields 'source', 'tarqet', expected 'target' (")
    assert found[5] == f"{path}:7: blank line"
    assert found[6] == f"{path}:8: found U+0009 at offset 1 of the source, expected no control characters"


def test_all_missing_fields_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, '{"words": "a b", "tags": "X Y"}', "tagged.jsonl")
    message = "found the fields 'words', 'tags', expected 'source' and 'target' (data.columns can name others)"
    assert faults(path) == [f"{path}:1: {message}"]
    assert faults(path, columns=("words", "tag")) == [f"{path}:1: found the fields 'words', 'tags', expected 'tag'"]


def test_json_fields_and_references(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"en": "a", "de": ["b", "", "c"], "at": "d"},
        {"en": "a", "de": "b", "at": []},
        {"en": "a", "de": [], "at": "d"},
        {"en": "a", "de": [], "at": []},
        {"en": "a", "de": ["b", 3], "at": "d"},
        {"en": ["a"], "de": "b", "at": "d"},
    ]
    path = compressed(tmp_path, ".gz", "".join(json.dumps(row) + "\n" for row in rows), "pairs.ndjson")
    assert pairs(path, columns=("en", "de", "at"), several_references=True) == [
        ("a", "b", "c", "d"),
        ("a", "b"),
        ("a", "d"),
        "empty-side",
        "not-text",
        "not-text",
    ]
    assert pairs(path, columns=("de", "en"))[1:3] == [("b", "a"), "not-text"]


# --- Parquet


def table(folder: Path, **columns: Any) -> Path:
    path = folder / "pairs.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path


def test_parquet(tmp_path: Path) -> None:
    path = table(tmp_path, source=["a", None, "b\tc", " ", "d"], target=["1", "2", "3", "4", "5"], other=[1] * 5)
    assert pairs(path) == [("a", "1"), "not-text", "control-characters", "empty-side", ("d", "5")]
    assert faults(path)[0] == f"{path}:2: 'source' is null, expected text"
    assert pairs(path, columns=("target", "source"))[0] == ("1", "a")


def test_parquet_rows_are_numbered_across_batches(tmp_path: Path) -> None:
    texts = [str(number) for number in range(1, 10_001)]
    path = table(tmp_path, source=pa.array(texts, pa.large_string()), target=pa.array(texts).dictionary_encode())
    items = list(read_pairs(path))
    assert [item.location for item in items] == [f"{path}:{text}" for text in texts]
    assert items[9_999] == Example("10000", ("10000",), str(path), 10_000)


def test_parquet_references_and_bad_bytes(tmp_path: Path) -> None:
    raw = pa.array([b"ok", b"a\xff"], pa.binary()).view(pa.string())
    path = table(tmp_path, source=raw, target=[["b", "c"], ["d"]])
    assert pairs(path, several_references=True) == [("ok", "b", "c"), "bad-utf8"]
    assert faults(path, several_references=True) == [
        f"{path}:2: found byte 0xff at offset 1 of 'source', expected UTF-8"
    ]


def test_parquet_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = table(tmp_path, source=["a"], count=[1], many=[["a"]])
    with pytest.raises(DataError, match="found the columns 'source', 'count', 'many', expected 'target'"):
        pairs(path)
    with pytest.raises(DataError, match=r"column 'count' holds int64, expected string$"):
        pairs(path, columns=("source", "count"))
    with pytest.raises(DataError, match=r"column 'many' holds list.* expected string \(several_references"):
        pairs(path, columns=("source", "many"))
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole.replace(b"source", b"\xf4ourc\xe9")):  # cut, and with a column that is not UTF-8
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"pairs\.parquet: cannot be read as Parquet \(.+\)$"):
            pairs(path)
    with pytest.raises(DataError, match=r"found Parquet inside \.gz"):
        pairs(written(tmp_path, b"", "pairs.parquet.gz"))


def test_a_fault_reads_as_one_line() -> None:
    assert str(Fault("a.tsv:3", "wrong-columns", "blank line")) == "a.tsv:3: blank line"
