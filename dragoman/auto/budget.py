"""Rules of thumb for batch size and training length that several tasks share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.base.config import read_toml
from dragoman.runs.tasks import started_folder

CHARACTERS_PER_TOKEN = {"characters": 1, "subwords": 4}  # roughly
BATCHES = ((50_000, 512), (100_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))  # tokens
EPOCHS = ((5000, 60), (50_000, 50), (200_000, 25), (1_000_000, 12), (math.inf, 5))  # examples → epochs


def up_to(table: Any, number: float) -> Any:
    """The entry of the first row whose limit the number does not exceed."""
    return next(value for limit, value in table if number <= limit)


def cosine_schedule(steps: int, batch_tokens: int, metric: str) -> dict[str, Any]:
    """The `train` table of a small model: validate often, warm up, then decay to zero."""
    every = max(20, min(1000, steps // 20))
    return {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "validate_every": every,
        "save_every": every,
        "metric": metric,
        "optimizer": {"warmup": max(20, steps // 10), "schedule": "cosine", "learning_rate": 2e-3},
    }


def started_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run that train.start_from names; empty if it names none."""
    folder = started_folder(given)
    return dict(read_toml(Path(folder) / "config.toml")) if folder else {}


def lower_rate(train: dict[str, Any], theirs: Mapping[str, Any]) -> None:
    """Set the learning rate for weights of another run: its own, where that is lower; those of imported runs are."""
    own = theirs.get("train", {}).get("optimizer", {}).get("learning_rate", math.inf)
    train["optimizer"]["learning_rate"] = min(train["optimizer"]["learning_rate"], float(own))
