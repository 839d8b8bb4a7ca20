"""How sure a model is of what it wrote, at the temperature that fits its validation data (Guo et al. 2017)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dragoman.data.batch import batch_of
from dragoman.errors import RunError
from dragoman.files import digest
from dragoman.models.heads.softmax import full_precision
from dragoman.scoring.calibration import PlattScale

CALIBRATION = "calibration.json"


class Calibrated(NamedTuple):
    """What makes a run's probabilities honest."""

    temperature: float  # of tokens
    scale: PlattScale  # of whole outputs


def calibrated(folder: Path, weights: Path) -> Calibrated | None:
    """How a run is calibrated; None if it never was, or if its weights have changed since."""
    path = folder / CALIBRATION
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        temperature, known = float(table["temperature"]), table["weights"]
        scale = PlattScale(float(table["outputs"]["slope"]), float(table["outputs"]["offset"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"damaged or of an earlier version ({type(error).__name__}: {error})"
        raise RunError(f"{path}: {reason}; write it anew with: dragoman calibrate {folder}") from None
    return Calibrated(temperature, scale) if known == digest(weights) else None


def log_probability(confidences: Sequence[float]) -> float:
    """log of the product, for an output with these confidences of its tokens."""
    return sum(math.log(max(one, 1e-30)) for one in confidences)


@torch.no_grad()
def token_confidences(
    model: Any,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    device: torch.device,
    rows: int = 64,
) -> list[tuple[float, ...]]:
    """softmax(logits / temperature) of every target token and of its <eos>, in the order of the pairs."""
    out: list[tuple[float, ...]] = [()] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda place: (len(pairs[place][1]), len(pairs[place][0])))
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        batch = batch_of([pairs[place][0] for place in places], [pairs[place][1] for place in places]).to(device)
        scores = (full_precision(model.logits(batch)) / temperature).log_softmax(-1)
        chances = scores.gather(-1, batch.target[:, :, None])[:, :, 0].exp().tolist()
        for place, row in zip(places, chances, strict=True):
            out[place] = tuple(row[: len(pairs[place][1]) + 1])
    return out
