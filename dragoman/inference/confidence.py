"""The calibration that a run folder keeps, at the temperature that fits its validation data (Guo et al. 2017)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.base import RunError
from dragoman.runs import Run
from dragoman.scoring import PlattScale

CALIBRATION = "calibration.json"  # in a run folder


class SavedCalibration(NamedTuple):
    """The parameters that calibrate a run's probabilities."""

    temperature: float  # of tokens
    scale: PlattScale  # of whole outputs


def load_calibration(run: Run) -> SavedCalibration | None:
    """The calibration of a run; None if there is none, or if the weights, of an ensemble any, have changed since."""
    path = run.folder / CALIBRATION
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        temperature, known = float(table["temperature"]), table["weights"]
        scale = PlattScale(float(table["outputs"]["slope"]), float(table["outputs"]["offset"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"damaged or of an earlier version ({type(error).__name__}: {error})"
        raise RunError(f"{path}: {reason}; write it anew with: dragoman calibrate {run.folder}") from None
    return SavedCalibration(temperature, scale) if known == run.weights_digest() else None


def log_probability(confidences: Sequence[float]) -> float:
    return sum(math.log(max(confidence, 1e-30)) for confidence in confidences)
