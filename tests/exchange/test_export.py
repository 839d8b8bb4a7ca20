"""`dragoman export`: a registered exporter writes a whole folder, or names every reason and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.exchange import registry
from dragoman.runs import Run
from tests.conftest import Workshop, call


def test_export_to_ctranslate2(inside: Workshop, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra 'fast' (ctranslate2) is not installed")
    (tmp_path / "new").mkdir()
    folder = tmp_path / "new" / "exported"
    answer = call("export", inside.run, "--to", "ctranslate2", "--output", folder)
    assert answer.code == 0, answer.err
    assert answer.out == f"written: {folder}\n"
    assert {"model.bin", "config.json"} <= {path.name for path in folder.iterdir()}
    assert not [path.name for path in folder.parent.iterdir() if path != folder]
    again = call("export", inside.run, "--to", "ctranslate2", "--output", folder)
    assert again.code == 2
    assert "exists already; expected a new name" in again.err


def test_an_unknown_format_names_the_nearest(inside: Workshop, tmp_path: Path) -> None:
    answer = call("export", inside.run, "--to", "ctranslate", "--output", tmp_path / "out")
    assert answer.code == 2
    assert "format: found 'ctranslate', no such format. Did you mean 'ctranslate2'?" in answer.err


class Blocked:
    """An exporter that cannot express anything, for two reasons."""

    name = "blocked"
    about = "nothing"

    def blockers(self, run: Run) -> list[str]:
        return ["first reason", "second reason"]

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        raise AssertionError("called in spite of blockers")


def test_all_reasons_are_told_at_once(inside: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.EXPORTERS, "blocked", Blocked())
    assert "blocked: nothing" in " ".join(call("export", "--help").out.split())
    answer = call("export", inside.run, "--to", "blocked", "--output", tmp_path / "out")
    assert answer.code == 2
    assert "blocked cannot express this run: first reason; second reason" in answer.err
    assert not (tmp_path / "out").exists()
