"""Does the order of the words matter? Words are swapped and shuffled, with the positions of the encoder on and off."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.data import Batch, Tokens
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.encoders import BertEncoder

MAX_SWAPS = 16


def position_modules(model: nn.Module) -> list[Any]:
    """The modules that tell a model where its tokens are: those that declare `has_positions`."""
    return [module for module in model.modules() if getattr(module, "has_positions", False)]


@contextmanager
def positions_off(model: nn.Module) -> Iterator[None]:
    """Inside the block, the embeddings and the scores of attention have no positions."""
    with ExitStack() as stack:
        for module in position_modules(model):
            stack.enter_context(module.without_positions())
        yield


class Reordering(NamedTuple):
    """The source in another order, and the change of the target's log-probability."""

    name: str
    words: list[str]
    change: float
    change_off: float | None  # without positions, from the original order without positions


class OrderEffects(NamedTuple):
    """`off`: the change from leaving out the positions alone; None: the encoder has none that can be left out."""

    reorderings: list[Reordering]
    off: float | None


def reorderings(words: int, seed: int = 1) -> list[tuple[str, list[int]]]:
    """Swaps of neighbours, the reverse, and one shuffle; each as the old places of the words."""
    straight = list(range(words))
    named = []
    for first in range(min(words - 1, MAX_SWAPS)):
        named.append((f"swap {first + 1}, {first + 2}", [*straight[:first], first + 1, first, *straight[first + 2 :]]))
    shuffled = straight.copy()
    random.Random(seed).shuffle(shuffled)
    return [*named, ("reversed", straight[::-1]), ("shuffled", shuffled)] if words > 2 else named


@torch.no_grad()
def order_effects(subject: Subject) -> OrderEffects | None:
    """None: the model has no encoder of tokens, or the text has one word."""
    axis, batch, encoder = subject.source, subject.batch, subject.encoder
    if axis is None or encoder is None or not isinstance(batch.source, Tokens) or batch.copies is not None:
        return None
    row = batch.source.data
    last = 1 if axis.tokens[-1] in ("<eos>", "[SEP]") else 0  # stays at the end
    words = max(axis.word_of[: len(axis) - last], default=0) + 1
    if row.dim() != 2 or row.shape[1] != len(axis) or words < 2:
        return None
    spans = [[place for place, word in enumerate(axis.word_of) if word == number] for number in range(words)]

    def log_p(changed: Batch, off: bool) -> float:
        if not off:
            return float(subject.log_probabilities(changed).double().sum())
        with positions_off(encoder):
            return float(subject.log_probabilities(changed).double().sum())

    has_positions = bool(position_modules(encoder))
    before = [log_p(batch, off) if has_positions or not off else 0.0 for off in (False, True)]
    found = []
    for name, places in reorderings(words):
        changed = reordered(batch, row, [place for word in places for place in spans[word]])
        off = log_p(changed, True) - before[1] if has_positions else None
        found.append(Reordering(name, [axis.words[word] for word in places], log_p(changed, False) - before[0], off))
    return OrderEffects(found, before[1] - before[0] if has_positions else None)


def reordered(batch: Batch, row: Tensor, places: Sequence[int]) -> Batch:
    """The batch with the tokens of its source at other places; those behind them stay."""
    order = [*places, *range(len(places), row.shape[1])]
    source: Any = batch.source
    return replace(batch, source=replace(source, data=row[:, order]))


class AddedPositions(NamedTuple):
    """What an encoder reads: embedding + position, of BERT + segment, for the tokens of one source."""

    embedding: Tensor  # (S, D)
    position: Tensor  # (S, D)
    total: Tensor  # (S, D)
    segment: Tensor | None = None  # (S, D)

    @property
    def parts(self) -> dict[str, Tensor]:
        """The parts and their sum, in the order of the sum."""
        segment = {} if self.segment is None else {"segment": self.segment}
        return {"embedding": self.embedding, **segment, "position": self.position, "total": self.total}


@torch.no_grad()
def added_positions(subject: Subject) -> AddedPositions | None:
    """None: the encoder adds no position vectors."""
    encoder = subject.encoder
    if isinstance(encoder, BertEncoder):
        sums: list[Tensor] = []
        hook = encoder.embedding_norm.register_forward_pre_hook(lambda module, inputs: sums.append(inputs[0][0]))
        try:
            subject.log_probabilities()
        finally:
            hook.remove()
        total, source = sums[0].float().cpu(), subject.batch.source.data[:, : encoder.max_positions]
        position = encoder.positions[: len(total)].detach().float().cpu()
        segment = encoder.segments[encoder.segment_of(source)[0]].detach().float().cpu()
        return AddedPositions(total - position - segment, position, total, segment)  # [MASK] has a vector of its own
    module = next((one for one in position_modules(subject.encoder) if getattr(one, "adds_vectors", False)), None)
    if module is None:
        return None
    seen: list[tuple[Tensor, Tensor]] = []
    hook = module.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0][0], output[0])))
    try:
        subject.log_probabilities()
    finally:
        hook.remove()
    embedding, total = (part.float().cpu() for part in seen[0])
    return AddedPositions(embedding, total - embedding, total)


def order_view(subject: Subject) -> View | None:
    found = order_effects(subject)
    if found is None:
        return None
    off = (
        ""
        if found.off is None
        else " Without positions an encoder of self-attention cannot tell one order from another."
    )
    return View(
        "order",
        "Order",
        f"Each bar is the change of the {subject.measure} of the same output when the {subject.input_unit}s of the "
        f"input change places.{'' if found.off is None else off}",
        {
            "reorderings": [row._asdict() for row in found.reorderings],
            "off": found.off,
            "measure": subject.measure,
            "unit": subject.input_unit,
        },
    )
