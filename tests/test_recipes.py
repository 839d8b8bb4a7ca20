"""Every recipe describes something that can be trained, in every variant."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dragoman.base import config as settings
from dragoman.runs.tasks.config import build

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


def script() -> Any:
    """recipes/run.py, which is no part of the package."""
    about = importlib.util.spec_from_file_location("run_recipe", FOLDER / "run.py")
    assert about is not None
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_builds(path: Path) -> None:
    found = script().variants(path.stem, tomllib.loads(path.read_text(encoding="utf-8")), None)
    assert found
    for one in found.values():
        assert one["recipe"]["about"]
        assert one["recipe"]["seeds"]
        if "first" in one["recipe"]:
            assert path.with_name(f"{one['recipe']['first']}.toml") in RECIPES
        table: Any = settings.merge(one["config"], {"data": {"train": "pairs.tsv"}})
        if table.get("tokenizer", {}).get("source", {}).get("kind") == "run":  # which is trained before
            table["tokenizer"]["source"] = {"kind": "subwords"}
            table["train"].pop("start_from", None)
        assert build(table).train.steps > 0
