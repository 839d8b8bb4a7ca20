"""Every command that reads pairs or sources reads every suffix of the table, also behind a compression."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dragoman import register
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.config import DataConfig
from dragoman.data.examples import Example, Fault
from dragoman.data.inputs import ReadingOptions, media_inputs
from dragoman.data.readers import READERS
from dragoman.data.readers.base import Reader, ReadOptions
from dragoman.data.readers.pairs import read_pairs
from tests.conftest import QUICK, SMALL, TrainedFolder, call, quiet_machine, words, write_rows

PAIRS = [(word, word.upper()) for word in words(40, seed=5)]


def tmx(pairs: list[tuple[str, str]]) -> str:
    unit = '<tu><tuv xml:lang="de"><seg>{}</seg></tuv><tuv xml:lang="en-GB"><seg><ph>x</ph>{}</seg></tuv></tu>\n'
    units = "".join(unit.format(target, source) for source, target in pairs)
    return f'<tmx version="1.4"><header srclang="en"/><body>\n{units}</body></tmx>\n'


class BarReader(Reader):
    """What a plug-in adds: a format of its own, source|target."""

    suffixes = (".bar",)
    about = "bars"

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            source, _, target = line.partition("|")
            yield Example(source, (target,), str(path), number)


@pytest.fixture(scope="module", autouse=True)
def plugged_in() -> Iterator[None]:
    reader = register(BarReader())
    yield
    READERS.remove(reader)


def write_parquet(path: Path) -> None:
    table = pyarrow.Table.from_pylist([{"source": source, "target": target} for source, target in PAIRS])
    pyarrow.parquet.write_table(table, path)


WRITE: dict[str, Callable[[Path], object]] = {
    ".txt": lambda path: write_rows(path, [*PAIRS]),
    ".tsv": lambda path: write_rows(path, [*PAIRS]),
    ".tsv.gz": lambda path: path.write_bytes(gzip.compress("".join(f"{a}\t{b}\n" for a, b in PAIRS).encode())),
    ".csv": lambda path: path.write_text("source;target\n" + "".join(f'"{a}";{b}\n' for a, b in PAIRS)),
    ".jsonl": lambda path: path.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS)),
    ".ndjson": lambda path: path.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS)),
    ".parquet": write_parquet,
    ".tmx": lambda path: path.write_text(tmx(PAIRS)),
    ".tmx.gz": lambda path: path.write_bytes(gzip.compress(tmx(PAIRS).encode())),
    ".bar": lambda path: path.write_text("".join(f"{a}|{b}\n" for a, b in PAIRS)),
}


@pytest.fixture(scope="module")
def plain(trained_folder: TrainedFolder) -> list[str]:
    """The outputs for the sources alone."""
    with quiet_machine(trained_folder.folder / "cache"), contextlib.chdir(trained_folder.folder):
        return call(
            "predict", trained_folder.run, "--beam", "1", stdin="".join(f"{a}\n" for a, _ in PAIRS).encode()
        ).lines


def test_the_table_is_tested() -> None:
    assert {suffix for reader in READERS.values() for suffix in reader.suffixes} <= {"", *WRITE}


@pytest.mark.parametrize("suffix", WRITE)
def test_every_command(inside: TrainedFolder, plain: list[str], suffix: str) -> None:
    path = inside.folder / f"every{suffix}"
    WRITE[suffix](path)
    assert [(item.source, *item.references) for item in read_pairs(path) if isinstance(item, Example)] == PAIRS

    columns = ("data.columns=1,2",) if suffix == ".txt" else ()  # a line of plain text is a source as a whole
    predicted = call("predict", inside.run, path, "--beam", "1", *columns)
    assert (predicted.code, predicted.lines) == (0, plain), predicted.err

    evaluated = call("evaluate", inside.run, path, "--beam", "1", "--json", "--output", "out.txt")
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["segments"] == len(PAIRS)
    assert (inside.folder / "out.txt").read_text(encoding="utf-8").splitlines() == plain

    cleaned = call("clean", path, "-o", "kept.tsv", "--without", "ratio")
    assert cleaned.code == 0, cleaned.err
    assert (inside.folder / "kept.tsv").read_text(encoding="utf-8").splitlines() == ["\t".join(pair) for pair in PAIRS]

    sharded = call("predict", inside.run, path, "--beam", "1", "--shards", f"shards{suffix}", *columns)
    if path.suffix == ".gz" or suffix in (".tmx", ".bar"):
        assert "cannot be cut into shards" in sharded.err
    else:
        assert sharded.code == 0, sharded.err
        parts = sorted((inside.folder / f"shards{suffix}").glob("part-*.txt"))
        assert [line for part in parts for line in part.read_text(encoding="utf-8").splitlines()] == plain

    run = f"runs/every{suffix}"
    trained = call("train", path, "--run", run, "preset=transformer-tiny", *SMALL, *QUICK, "train.steps=2")
    assert trained.code == 0, trained.err
    assert json.loads((inside.folder / run / "data.json").read_text(encoding="utf-8"))["train"]["pairs"] > 30
    assert call("check", f"{run}/config.toml").code == 0


def test_the_source_side_of_a_memory_needs_no_target(inside: TrainedFolder, plain: list[str]) -> None:
    """`predict` decoded the XML as text."""
    units = "".join(f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv></tu>' for source, _ in PAIRS)
    path = inside.write("sources.tmx", f'<tmx version="1.4"><header srclang="*all*"/><body>{units}</body></tmx>')
    assert call("predict", inside.run, path, "--beam", "1").lines == plain
    result = call("predict", inside.run, path, "data.columns=fr")
    assert result.code == 2
    assert "found the languages en, expected fr" in result.err
    assert call("predict", inside.run, "none.tmx").code == 2


def test_lines_of_text_are_no_memory(inside: TrainedFolder) -> None:
    path = inside.folder / "lines.tmx"
    path.write_text(tmx(PAIRS))
    result = call("score", path, path)
    assert result.code == 2
    assert "found TMX, expected lines of text" in result.err
    result = call("train", path, "task=language-model", "--run", "runs/lm")
    assert result.code == 2
    assert "expected plain text for a language model" in result.err


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITE if suffix != ".txt"])
def test_every_manifest_names_files(tmp_path: Path, suffix: str) -> None:
    """A manifest in .csv was taken for a list of paths."""
    path = tmp_path / f"manifest{suffix}"
    WRITE[suffix](path)
    named = list(media_inputs(path, DataConfig(train=""), None, ReadingOptions(), pytest.fail))
    assert [(item.name, item.path) for item in named] == [(source, str(tmp_path / source)) for source, _ in PAIRS]
    assert named[1].place.startswith(f"{path}:")


def test_a_suffix_has_one_reader() -> None:
    with pytest.raises(ConfigError, match=r"the reader of '\.bar' in other, but tests\S+ has registered one"):
        READERS.add(BarReader(), "other")
    with pytest.raises(DataError, match="cannot be cut"):
        READERS.of("a.BAR.gz").cut(Path("a.BAR.gz"), 1)
