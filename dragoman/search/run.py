"""Token rows in, hypotheses out: the road that prediction and validation share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batches import Batch, batch_of
from dragoman.errors import DragomanError
from dragoman.models.core import AtOnce, Emissions, Slots
from dragoman.search import ctc, slots
from dragoman.search.beam import beam
from dragoman.search.core import Hypothesis, SearchConfig
from dragoman.search.follow import follow
from dragoman.search.methods import Method, Request, Writer

# How to read what a model writes at once.
READERS: dict[type, Any] = {
    Emissions: ctc.read,
    Slots: slots.read,
}


def limits_for(batch: Batch, config: SearchConfig, ratio: float) -> Tensor:
    """How many tokens each source may be answered with; its neighbours have no say."""
    lengths = batch.source_mask.sum(1)
    if config.longest:
        return torch.full_like(lengths, config.longest + 1)
    return (lengths * math.ceil(ratio * 16) // 16) + 12


def search(
    model: Writer | AtOnce,
    batch: Batch,
    config: SearchConfig,
    ratio: float,
    most: int = 1,
    *,
    method: Method | None = None,
    text: Callable[[Sequence[int]], str] = str,
) -> list[list[Hypothesis]]:
    """The best hypotheses for every source of a batch, best first; without a `method` those of greedy or beam search.

    `text` spells token ids, for methods that compare texts.
    """
    limits = limits_for(batch, config, ratio)
    if model.maximum is not None:
        limits = limits.clamp(max=model.maximum)
    if method is not None:
        found = method.search(Request(model, batch, limits, config, most, text))
    elif isinstance(model, AtOnce):
        found = at_once(model, batch, limits, config, most)
    else:
        found = in_steps(model, batch, limits, config, most)
    if any(not hypotheses or math.isnan(hypotheses[0].score) for hypotheses in found):
        raise DragomanError("found no output for a source: the model's probabilities are NaN; its weights are broken")
    return found


@torch.no_grad()
def at_once(model: AtOnce, batch: Batch, limits: Tensor, config: SearchConfig, most: int) -> list[list[Hypothesis]]:
    """What a model without feedback writes."""
    written = model.emissions(batch, limits, max(config.beam, most))
    found: list[list[Hypothesis]] = READERS[type(written)](written, limits, config, most)
    return found


def in_steps(model: Writer, batch: Batch, limits: Tensor, config: SearchConfig, most: int) -> list[list[Hypothesis]]:
    """What a model writes token by token."""
    with torch.no_grad():
        state = model.start(batch)
    if config.beam == 1 and most == 1:
        return [[one] for one in follow(model.step, state, limits, length_penalty=config.length_penalty)]
    return beam(
        model.step,
        state,
        limits,
        width=max(config.beam, most),
        length_penalty=config.length_penalty,
        most=most,
    )


def search_all(
    model: Writer | AtOnce,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    ratio: float,
    device: torch.device,
    *,
    rows: int = 64,
    most: int = 1,
    method: Method | None = None,
    text: Callable[[Sequence[int]], str] = str,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """(place, hypotheses) for many sources, batched by length; each place comes once, in the order of lengths."""
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        batch = batch_of([sources[place] for place in places]).to(device)
        found = search(model, batch, config, ratio, most, method=method, text=text)
        yield from zip(places, found, strict=True)
