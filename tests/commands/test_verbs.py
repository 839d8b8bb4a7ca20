"""A verb called from Python does what its command does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import dragoman
from dragoman import (
    BackTranslateOptions,
    CleanOptions,
    CompareOptions,
    ExportOptions,
    ReviewOptions,
    ScoreAlignmentOptions,
    ScoreOptions,
    TranslateOptions,
)
from dragoman.base.errors import DataError
from dragoman.data.correction_log import Correction, CorrectionLog
from tests.conftest import TrainedFolder, call, words, write_rows


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of references and outputs, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(words(6, seed=seed)) for seed in range(30)]
    for name, step in (("refs", 1), ("base", 2), ("other", 3)):
        changed = [line if place % step == 0 else f"{line[3:]} x" for place, line in enumerate(lines)]
        (tmp_path / name).write_text("\n".join(changed) + "\n", encoding="utf-8")
    return tmp_path


def test_clean(tmp_path: Path) -> None:
    pairs = write_rows(tmp_path / "pairs.tsv", [*((word, word.upper()) for word in words(30)), ("a" * 90, "b")] * 2)
    options = CleanOptions(str(tmp_path / "ours.tsv"), without=("markup",), max_ratio=2.0)
    report = dragoman.clean(pairs, options)
    theirs = tmp_path / "theirs.tsv"
    result = call("clean", pairs, "-o", theirs, "--without", "markup", "--max-ratio", "2", "--json")
    assert json.loads(result.out) == json.loads(json.dumps(report.as_dict()))
    assert (report.kept, report.rejected["duplicate"]) == (30, 31)
    assert theirs.read_bytes() == Path(options.output).read_bytes()
    assert theirs.with_name("theirs.rejected.tsv").read_bytes() == Path(options.rejected).read_bytes()
    with pytest.raises(DataError, match="would overwrite the input"):
        dragoman.clean(pairs, CleanOptions(str(pairs)))


def test_score_files(texts: Path) -> None:
    found = dragoman.score_files("base", ["refs"], ScoreOptions(("chrf",), by_length=True, draws=50))
    asked = ("score", "base", "refs", "--metric", "chrf", "--by-length", "--draws", "50")
    assert json.loads(call(*asked, "--json").out) == json.loads(json.dumps(found.scores))
    assert call(*asked).lines[: len(found.lines)] == found.lines
    with pytest.raises(DataError, match="table=… needs alignment=…"):
        dragoman.score_files("base", ["refs"], ScoreOptions(table=True))


def test_score_alignment(tmp_path: Path) -> None:
    gold, links = tmp_path / "gold", tmp_path / "links"
    gold.write_text("1-1 2p3\n2-1\n")
    links.write_text("0-0 2-1\n0-1\n")
    score = dragoman.score_alignment(gold, links, ScoreAlignmentOptions("1", swap=True))
    result = call("score-alignment", gold, links, "--gold-from", "1", "--swap", "--json")
    assert json.loads(result.out) == score.as_dict()
    assert "add --gold-from 1" in dragoman.score_alignment(gold, links).note
    assert "add --gold-from 1" in call("score-alignment", gold, links).err


def test_compare_systems(texts: Path) -> None:
    said: list[str] = []
    options = CompareOptions(metrics=("chrf",), draws=50, output="ours.json")
    found = dragoman.compare_systems(["refs", "base", "other"], options, said.append)
    asked = ("compare", "refs", "base", "other", "--metric", "chrf", "--draws", "50")
    assert call(*asked).lines == [line for text in found.lines for line in text.split("\n")]
    assert json.loads(call(*asked, "--json", "--output", "theirs.json").out) == found.data
    assert Path("ours.json").read_bytes() == Path("theirs.json").read_bytes()
    assert said == ["report: ours.json"]


def test_review(tmp_path: Path) -> None:
    log = CorrectionLog(tmp_path)
    log.create()
    first, second = (log.add(Correction(text, text.upper())) for text in ("a", "b"))
    assert [item.id for item in dragoman.review(tmp_path)] == [first.id, second.id]
    assert dragoman.review(tmp_path, "accept", [first.id])[0].state == "accepted"
    accepted = dragoman.review(tmp_path, options=ReviewOptions(state="accepted"))
    shown = call("corrections", "list", tmp_path, "--state", "accepted", "--json")
    assert json.loads(shown.out) == [item.as_dict() for item in accepted]
    assert call("corrections", "reject", tmp_path, "--all").out == "rejected: 1\n"
    assert not dragoman.review(tmp_path)


def test_export(inside: TrainedFolder, tmp_path: Path) -> None:
    exported = dragoman.export(inside.run, ExportOptions("card", str(tmp_path / "ours.md"), licence="MIT"))
    assert (exported.check, exported.licence) == (None, "")
    result = call("export", inside.run, "--to", "card", "--output", tmp_path / "theirs.md", "--licence", "MIT")
    assert result.out == f"written: {tmp_path / 'theirs.md'}\n"
    assert exported.path.read_bytes() == (tmp_path / "theirs.md").read_bytes()


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_back_translate(inside: TrainedFolder, tmp_path: Path, method: str) -> None:
    mono = inside.write("few.txt", "abc def\n\ncab\n")
    options = BackTranslateOptions(str(tmp_path / "ours.tsv"), "sample" if method == "sample" else "beam", seed=2)
    counts = dragoman.back_translate(inside.run, mono, options)
    theirs = tmp_path / "theirs.tsv"
    result = call("back-translate", inside.run, mono, "-o", theirs, "--method", method, "--seed", "2")
    assert Path(options.output).read_bytes() == theirs.read_bytes()
    assert f"{counts['pairs']} pairs; left out: " in result.err
    assert counts["empty line"] == 1
    with pytest.raises(DataError, match="would overwrite the input"):
        dragoman.back_translate(inside.run, "pairs.tsv", BackTranslateOptions("pairs.tsv"))


def test_translate(inside: TrainedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    page = inside.write("page.md", "# abc\n\ncab *abc*\n")
    (done,) = dragoman.translate(inside.run, [str(page)], TranslateOptions(str(tmp_path / "ours.md")))
    result = call("translate", inside.run, page, "-o", tmp_path / "theirs.md")
    assert Path(done.output).read_bytes() == (tmp_path / "theirs.md").read_bytes() == done.translation.data
    assert f"{done.translation.counts['translated']} translated" in result.err
    os.truncate(done.output, 3)
    with pytest.raises(DataError, match="may have been edited"):
        list(dragoman.translate(inside.run, [str(page)], TranslateOptions(done.output)))
