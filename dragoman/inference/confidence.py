"""The confidence of outputs, at the temperature that fits a run's validation data (Guo et al. 2017)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dragoman.data.batch import batch_of
from dragoman.errors import RunError
from dragoman.inference.target_scores import batches_of_indices
from dragoman.models.heads.softmax import full_precision
from dragoman.runs import Run
from dragoman.scoring.calibration import PlattScale

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
    """The log-probability of an output, from the confidences of its tokens."""
    return sum(math.log(max(confidence, 1e-30)) for confidence in confidences)


@torch.no_grad()
def token_confidences(
    model: Any,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    device: torch.device,
    rows: int = 64,
) -> list[tuple[float, ...]]:
    """softmax(logits / temperature) of every target token and of its <eos>, in the order of the pairs."""
    confidences: list[tuple[float, ...]] = [()] * len(pairs)
    for indices in batches_of_indices([(len(target), len(source)) for source, target in pairs], rows):
        batch = batch_of([pairs[index][0] for index in indices], [pairs[index][1] for index in indices]).to(device)
        scores = (full_precision(model.logits(batch)) / temperature).log_softmax(-1)
        probabilities = scores.gather(-1, batch.target[:, :, None])[:, :, 0].exp().tolist()
        for index, row in zip(indices, probabilities, strict=True):
            confidences[index] = tuple(row[: len(pairs[index][1]) + 1])
    return confidences
