"""A whole beam search that a GPU repeats by itself: the model's step, the choice and all books that are kept of it.

Nothing comes back to Python but, every few steps, which sources are done. When half of them are, the others move to a
smaller stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.beam import NOTHING, Live, Nexts, begin, each_of, hypotheses, next_tokens, plain_choice, settle
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.cuda_graph_step import (
    Captured,
    Shape,
    Stage,
    copy_tensors,
    give_up,
    known,
    on_grid,
    padded_to,
    shape_of,
)
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis, divisor
from dragoman.kernels import topk as best
from dragoman.models.contracts import map_tensors

LOOK = 4  # steps between two looks at what is done
FEWEST = 16  # sources that are worth a smaller stage


@dataclass(frozen=True)
class Kind:
    """What a stage is made for, and what stands fast in its steps."""

    shape: Shape
    most: int
    certain: bool


class Repeated(Stage):
    """A stage that also chooses."""

    def __init__(self, model: Any, static: Any, cache: Any, kind: Kind) -> None:
        shape = kind.shape
        super().__init__(model, static, cache, shape)
        self.kind = kind
        weight = next(model.parameters())
        self.choose = self.choose_plainly
        if hasattr(model, "scores") and best.suits(weight, model.output.out_features):
            self.step, self.choose = model.scores, self.choose_in_kernels
        self.first = torch.arange(0, shape.sources * shape.width, shape.width, device=self.tokens.device)[:, None]
        limits = torch.full((shape.sources,), shape.written, device=weight.device)
        self.live = self.before(limits, [1.0] * (shape.written + 1))

    def before(self, limits: Tensor, divisors: list[float]) -> Live:
        """A search before its first token; limits (B,) of all sources or of the first, the others are done."""
        shape, dtype = self.shape, torch.promote_types(next(self.model.parameters()).dtype, torch.float32)
        sources = limits.shape[0]
        limits = torch.cat([limits, limits.new_ones(shape.sources - sources)])
        enough = torch.full_like(limits, shape.width)
        live = begin(limits, shape.written, shape.width, shape.width, enough, divisors, dtype)
        live.totals[sources:] = NOTHING
        live.done[sources:] = True
        return live

    def body(self) -> None:
        """One step, from tokens to tokens."""
        super().body()
        assert self.found is not None
        self.choose(self.found, each_of(self.shape.width, self.found.shape[1]))

    def choose_plainly(self, scores: Tensor, count: int) -> None:
        """As `beam` does it, from log-probabilities."""
        choice = plain_choice(self.live, next_tokens(scores, count))
        live, kept = settle(self.live, choice, most=self.kind.most, certain=self.kind.certain)
        self.origins.copy_((choice.origin.gather(1, kept) + self.first).flatten())
        copy_tensors(self.live, live)
        self.tokens.copy_(live.last.flatten())

    def choose_in_kernels(self, scores: Tensor, count: int) -> None:
        """The same from scores before the softmax, in three kernels."""
        from dragoman.kernels import beam_triton as best_kernels

        nexts = Nexts(*best_kernels.best_next(scores, count, len(NEVER_WRITTEN), EOS))
        most, certain = self.kind.most, self.kind.certain
        best_kernels.settle(self.live, nexts, self.origins, self.tokens, most=most, certain=certain, end=EOS)

    def smaller(self, kind: Kind) -> Repeated:
        """A stage of the same model for fewer sources."""
        sources, width = kind.shape.sources, self.shape.width

        def fewer(part: Tensor) -> Tensor:
            return part[:sources] if part.shape[0] == self.shape.sources else part[: sources * width : width]

        return Repeated(self.model, map_tensors(self.static, fewer), map_tensors(self.cache, fewer), kind)

    def take(self, other: Repeated, sources: Tensor) -> None:
        """Go on with these sources (B',) of another stage."""
        missing = self.shape.sources - len(sources)
        rows = torch.cat([sources, sources[:1].expand(missing)])
        width = self.shape.width
        deep = (rows[:, None] * width + torch.arange(width, device=rows.device)).flatten()

        def taken(part: Tensor) -> Tensor:
            return part.index_select(0, rows if part.shape[0] == other.shape.sources else deep)

        copy_tensors(self.static, map_tensors(other.static, taken))
        copy_tensors(self.cache, map_tensors(other.cache, taken))
        copy_tensors(self.live, other.live.select(rows))
        self.live.done[len(sources) :] = True
        self.live.totals[len(sources) :] = NOTHING
        self.tokens.copy_(other.tokens.index_select(0, deep))
        self.origins.copy_(((other.origins.view(-1, width) - other.first)[rows] + self.first).flatten())
        self.length.copy_(other.length)


@torch.no_grad()
def search(
    model: Any, batch: Batch, limits: Tensor, width: int, most: int, config: SearchConfig
) -> list[list[Hypothesis]] | None:
    """What `beam` finds, or None where a plain search must do: a kind of search is captured when it is met again."""
    captured = known(model, batch)
    shape = None if captured is None else shape_of(batch, limits, width, captured.max_positions)
    if captured is None or shape is None:
        return None
    kind = Kind(shape, most, config.stop == "certain")
    if not captured.ready(kind):
        return None
    divisors = [1.0] + [
        divisor(length, config.length_penalty, config.normalisation) for length in range(1, shape.written + 1)
    ]
    held: list[Repeated] = []
    try:
        state = model.start(padded_to(batch, shape), shape.written)
        stage = lend(captured, kind, lambda: Repeated(model, state.static, state.cache, kind), held)
        stage.begin(state)
        copy_tensors(stage.live, stage.before(limits, divisors))
        stage.tokens.copy_(stage.live.last.flatten())
        return repeat(captured, stage, len(limits), int(limits.max()), held)
    except RuntimeError as error:
        give_up(captured, error)
        return None
    finally:
        for one in held:
            one.lock.release()


def lend(captured: Captured, kind: Kind, make: Any, held: list[Repeated]) -> Repeated:
    """A stage, noted among those that are held."""
    stage = captured.stage(kind, make)
    assert isinstance(stage, Repeated)
    held.append(stage)
    return stage


def repeat(
    captured: Captured, stage: Repeated, sources: int, longest: int, held: list[Repeated]
) -> list[list[Hypothesis]]:
    """Steps until all is done."""
    places = list(range(sources))  # which source each row of the stage is
    found: list[list[Hypothesis]] = [[] for _ in places]
    for length in range(1, longest + 1):
        stage.run()
        if length % LOOK and length < longest:
            continue
        done = stage.live.done.tolist()
        going = [row for row in range(len(places)) if not done[row]]
        if going and length < longest:
            kind = replace(stage.kind, shape=replace(stage.shape, sources=on_grid(len(going))))
            if not (worth_moving(len(going), stage.shape.sources) and captured.ready(kind)):
                continue
        gone = [row for row in range(len(places)) if done[row] or length == longest]
        rows = torch.tensor(gone, device=stage.tokens.device)
        for row, outputs in zip(gone, hypotheses(stage.live.select(rows), stage.kind.most), strict=True):
            found[places[row]] = outputs
        if len(gone) == len(places):
            break
        before = stage
        stage = lend(captured, kind, partial(before.smaller, kind), held)
        stage.take(before, torch.tensor(going, device=stage.tokens.device))
        places = [places[row] for row in going]
    return found


def worth_moving(going: int, room: int) -> bool:
    """Whether so few sources are worth a stage of their own."""
    return room >= FEWEST and on_grid(going) * 2 <= room
