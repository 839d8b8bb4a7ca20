"""`dragoman curve`: nested parts, one held-out part, no training twice, and a sentence."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

import dragoman
from tests.conftest import call, quiet_machine, words, write_rows

FAST = ("preset=ngram-transducer",)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of words and a curve of them."""
    folder = tmp_path_factory.mktemp("curve")
    made = [(word, " ".join(word.upper().replace("AB", "X"))) for word in words(420, seed=3, longest=9)]
    write_rows(folder / "pairs.tsv", made)
    with quiet_machine(folder / "cache"):
        first = call("curve", folder / "pairs.tsv", "--run", folder / "curve", *FAST, "--more", "100", "--quiet")
    assert first.code == 0, first.err
    (folder / "first.txt").write_text(first.out)
    return folder


def sources(path: Path) -> set[str]:
    return {json.loads(line)["source"] for line in path.read_text().splitlines()}


def test_parts_are_nested_and_nothing_held_out_is_trained_on(place: Path) -> None:
    data = place / "curve" / "data"
    parts = [sources(data / f"train-{number}.jsonl") for number in range(1, 5)]
    assert all(small < large for small, large in pairwise(parts))
    held_out = sources(data / "test.jsonl"), sources(data / "valid.jsonl")
    assert len(parts[3]) + sum(map(len, held_out)) == 420
    assert not parts[3] & (held_out[0] | held_out[1])
    assert not held_out[0] & held_out[1]
    assert len(held_out[0]) == pytest.approx(84, abs=30)
    *points, sentence = (place / "first.txt").read_text().splitlines()
    assert [int(line.split(" pairs")[0]) for line in points] == [len(part) for part in parts]
    assert re.match(r"100 more pairs: about [+-]\d+\.\d \S.* \(-?\d+\.\d to -?\d+\.\d\)", sentence)


def test_a_finished_size_is_not_trained_again(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "curve"
    shutil.copytree(place / "curve", folder)
    for number in range(1, 5):
        shutil.rmtree(folder / f"{number}-of-4")  # without its outputs, a size would be trained again
    (folder / "4-of-4.outputs.json").unlink()
    again = call("curve", place / "pairs.tsv", "--run", folder, *FAST, "--metric", "cer", "--json", "--quiet")
    assert again.code == 0, again.err
    assert [path.name for path in sorted(folder.glob("?-of-4"))] == ["4-of-4"]
    table = json.loads(again.out)
    assert table["metric"] == "cer"
    assert table["gains"][0]["more"] == round(table["points"][-1]["pairs"], -1)
    low, high = table["gains"][0]["interval"]
    assert low <= table["gains"][0]["gain"] <= high


def test_curve_from_python_draws_and_reads_a_test_file(place: Path, tmp_path: Path) -> None:
    pairs = [tuple(line.split("\t")) for line in (place / "pairs.tsv").read_text().splitlines()]
    test = write_rows(tmp_path / "test.tsv", pairs[:30])
    curve = dragoman.curve(pairs, tmp_path / "curve", *FAST, test=test, more=(50, 500), quiet=True)
    assert curve.held_out == 30
    assert not sources(tmp_path / "curve" / "data" / "train-4.jsonl") & {source for source, _ in pairs[:30]}
    assert [gain.more for gain in curve.gains] == [50, 500]
    wide, narrow = (gain.interval[1] - gain.interval[0] for gain in reversed(curve.gains))
    assert 0 < narrow <= wide * 1.5
    drawn = call("curve", place / "pairs.tsv", "--run", place / "curve", *FAST, "--plot", tmp_path / "x.svg", "-q")
    assert drawn.code == 0, drawn.err
    assert "training pairs" in re.sub(r"<!-- (.*?) -->", r"\1", (tmp_path / "x.svg").read_text())


def test_wrong_inputs(place: Path, tmp_path: Path) -> None:
    pairs, few = place / "pairs.tsv", write_rows(tmp_path / "few.tsv", [(str(n), "a") for n in range(60)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "tags.toml").write_text(f'data.train = [{{ file = "{pairs}", tag = "de" }}]\n')
    for arguments, message in (
        ((tmp_path / "pears.tsv",), "pears.tsv"),
        ((place / "curve",), "found a folder"),
        ((few, "--run", tmp_path / "a"), "found 60 usable pairs"),
        ((pairs, "--run", place / "curve", "preset=memorise"), "other data or settings"),
        ((few, "--run", place / "curve", *FAST), "other data or settings"),
        ((pairs, "--run", tmp_path / "full"), "found mine.txt"),
        ((pairs, "--more", "0"), "--more"),
        ((pairs, "--time", "soon"), "expected a time"),
        ((pairs, "--plot", tmp_path / "x.txt"), "expected .png"),
        ((pairs, "--metric", "blue", "--run", tmp_path / "b"), "Did you mean 'bleu'"),
        ((pairs, "--test", tmp_path / "none.tsv", "--run", tmp_path / "c"), "none.tsv"),
        ((pairs, "task=language-model", "--run", tmp_path / "d"), "needs pairs of texts"),
        ((tmp_path / "tags.toml", "--run", tmp_path / "e"), "found tags, weights"),
        ((pairs, "preset=nothing", "--run", tmp_path / "f"), "no such preset"),
    ):
        result = call("curve", *arguments, "--quiet")
        assert (result.code, message in result.err) == (2, True), (arguments, result.err)
