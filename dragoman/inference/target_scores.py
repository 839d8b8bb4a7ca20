"""Teacher-forced scores of given targets, in batches of like lengths, and their calibrated confidences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dragoman.data.batch import Batch, batch_of
from dragoman.data.rows import Rows, batches_of_indices
from dragoman.inference.evaluation import ReferenceLoss
from dragoman.kernels.support import wide
from dragoman.models.contracts import TokenScores
from dragoman.models.heads.softmax import full_precision

Collate = Callable[[Any, Any], Batch]


@torch.no_grad()
def target_scores(
    model: Any, sources: Rows, targets: Rows, device: torch.device, batch_size: int, collate: Collate = batch_of
) -> Iterator[tuple[list[int], TokenScores]]:
    """(indices, scores) of all targets."""
    for rows in batches_of_indices([len(target) for target in targets], batch_size):
        batch = collate([sources[row] for row in rows], [targets[row] for row in rows]).to(device)
        yield rows, model.score(batch)


def mean_log_probabilities(
    model: Any, sources: Rows, targets: Rows, device: torch.device, batch_size: int = 64, too_long: float = -math.inf
) -> list[float]:
    """The mean log-probability per token of each target, <eos> included; −∞: the model cannot output it.

    A target longer than the model can write scores `too_long`.
    """
    means = [too_long] * len(targets)
    longest = model.max_positions
    fitting = [index for index, row in enumerate(targets) if longest is None or len(row) < longest]
    pairs = [sources[index] for index in fitting], [targets[index] for index in fitting]
    for rows, scores in target_scores(model, *pairs, device, batch_size):
        counts = scores.mask.sum(1)
        batch_means = scores.log_probabilities.sum(1, dtype=wide(device)) / counts.clamp(min=1)
        for row, mean in zip(rows, batch_means.masked_fill(counts == 0, -math.inf).tolist(), strict=True):
            means[fitting[row]] = mean
    return means


def reference_loss(
    model: Any, sources: Rows, targets: Rows, collate: Collate, device: torch.device, batch_size: int
) -> ReferenceLoss:
    """The loss of targets; those that the model cannot output at all are left out and counted."""
    total, correct, count, too_long = 0.0, 0, 0, 0
    for _, scores in target_scores(model, sources, targets, device, batch_size, collate):
        total -= float(scores.log_probabilities.sum(dtype=wide(device)))
        correct += int(scores.correct.sum())
        count += int(scores.mask.sum())
        too_long += int((~scores.mask.any(1)).sum())  # every other reference has its <eos> at least
    mean = (total / count, correct / count) if count else (math.inf, 0.0)
    return ReferenceLoss(*mean, too_long)


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
