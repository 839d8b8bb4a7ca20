"""Token rows in, hypotheses out: the road that prediction and validation share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dragoman.data.batches import Batch, batch_of
from dragoman.errors import DragomanError
from dragoman.models.core import Model
from dragoman.search.beam import beam
from dragoman.search.core import Hypothesis, SearchConfig
from dragoman.search.follow import follow


def limits_for(batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """How many tokens each source may be answered with; its neighbours have no say."""
    lengths = batch.source_mask.sum(1)
    if config.longest:
        return torch.full_like(lengths, config.longest + 1)
    return (lengths * math.ceil(ratio * 16) // 16) + 12


def search(model: Model, batch: Batch, config: SearchConfig, ratio: float, most: int = 1) -> list[list[Hypothesis]]:
    """The best hypotheses for every source of a batch, best first."""
    limits = limits_for(batch, config, ratio)
    if model.maximum is not None:
        limits = limits.clamp(max=model.maximum)
    with torch.no_grad():
        state = model.start(batch)
    if config.beam == 1 and most == 1:
        found = [[one] for one in follow(model.step, state, limits, length_penalty=config.length_penalty)]
    else:
        found = beam(
            model.step,
            state,
            limits,
            width=max(config.beam, most),
            length_penalty=config.length_penalty,
            most=most,
        )
    if any(not hypotheses or math.isnan(hypotheses[0].score) for hypotheses in found):
        raise DragomanError("found no output for a source: the model's probabilities are NaN; its weights are broken")
    return found


def search_all(
    model: Model,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    ratio: float,
    device: torch.device,
    *,
    rows: int = 64,
    most: int = 1,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """(place, hypotheses) for many sources, batched by length; each place comes once, in the order of lengths."""
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        batch = batch_of([sources[place] for place in places]).to(device)
        yield from zip(places, search(model, batch, config, ratio, most), strict=True)
