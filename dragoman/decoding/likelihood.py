"""What a language model gives to texts: running text as a whole, or outputs one by one for reranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dragoman.data.batch import batch_of
from dragoman.data.bptt import BpttPlan
from dragoman.data.tokenizers.base import PAD
from dragoman.scoring.perplexity import TextLikelihood, TextSize


@torch.no_grad()
def text_likelihood(
    model: Any,  # a LanguageModel that does not train
    plan: BpttPlan,  # not shuffled, so that every token is predicted once
    size: TextSize,
    device: torch.device,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    rows: int = 64,
    progress: Callable[[int], None] = lambda tokens: None,
) -> tuple[TextLikelihood, float] | None:
    """TextLikelihood of the whole text, with the state carried over, and how often the first choice was right.

    None if interrupted. `rows` lanes are read at once, which changes nothing but the time and memory it takes.
    """
    assert plan.skipped == 0, "a shuffled plan leaves tokens out"
    nats = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.long, device=device)
    for first in range(0, plan.streams, rows):
        lanes = slice(first, min(first + rows, plan.streams))
        carried = model.carry(lanes.stop - first)
        for segment in plan.epoch(0, lanes):
            if interrupted():
                return None
            scores = model.score(segment.to(device)._replace(carried=carried))
            nats -= scores.log_probabilities.sum(dtype=torch.float64)
            correct += scores.correct.sum()
            progress(int((segment.target != PAD).sum()))
    return TextLikelihood(float(nats), plan.count, size), int(correct) / max(1, plan.count)


@torch.no_grad()
def mean_log_probabilities(
    model: Any, rows: Sequence[Sequence[int]], device: torch.device, at_once: int = 64
) -> list[float]:
    """Of every output, a line of its own, the mean log-probability a token, <eos> included.

    What a reranker adds to a hypothesis' score: how well it reads, whatever the source (the language model of the noisy
    channel). An output longer than the model can read is given −∞: it cannot be said how well it reads.
    """
    room = model.max_positions
    found = [float("-inf")] * len(rows)
    order = [place for place, row in enumerate(rows) if room is None or len(row) < room]
    order.sort(key=lambda place: len(rows[place]))
    for first in range(0, len(order), at_once):
        places = order[first : first + at_once]
        batch = batch_of([[]] * len(places), [rows[place] for place in places]).to(device)
        scores = model.score(batch)
        means = scores.log_probabilities.double().sum(1) / scores.mask.sum(1)
        for place, mean in zip(places, means.tolist(), strict=True):
            found[place] = mean
    return found
