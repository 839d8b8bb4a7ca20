"""A server with a translation memory, and one that leaves out uncertain outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dragoman.base.errors import RunError
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.models import ServedModel
from tests.conftest import TrainedFolder, call
from tests.serving.conftest import serving


def test_memory_and_refusal(inside: TrainedFolder, tmp_path: Path) -> None:
    memory = tmp_path / "memory.tsv"
    memory.write_text("abc\tfrom memory\n", encoding="utf-8")
    run = tmp_path / "run"
    shutil.copytree(inside.run, run)
    model = ModelConfig(str(run), memory=str(memory), source="en", target="de")
    config = ServeConfig(models=(model,), min_confidence=1.0, threads=1, device="cpu")
    with pytest.raises(RunError, match="first: dragoman calibrate"):
        ServedModel(model, config)
    assert call("calibrate", run, inside.folder / "pairs.tsv").code == 0
    with serving(config, tmp_path / "spool") as live:
        known, other = live.post("/v1/predict", {"input": ["abc", "abdf"]})["outputs"]
        assert (known["text"], known["memory"]["score"]) == ("from memory", 1.0)
        assert other["text"] == ""
        assert "expected 1 or more" in other["refused"]
        asked = {"source": "en", "target": "de", "format": "text"}
        assert live.post("/translate", {"q": "abc", **asked})["translatedText"] == "from memory"
        assert live.post("/translate", {"q": "abdf", **asked})["translatedText"] == ""
        several = live.post("/translate", {"q": "abc", **asked, "alternatives": 3})
        assert (several["translatedText"], len(several["alternatives"])) == ("from memory", 3)


def test_memories_of_runs_that_do_not_translate_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    memory = tmp_path / "memory.tsv"
    memory.write_text("abc\tx\n", encoding="utf-8")
    other = next(path for name, path in runs.items() if "class" in name or "tag" in name)
    with pytest.raises(RunError, match="does not search"):
        ServedModel(ModelConfig(str(other), memory=str(memory)), ServeConfig())
