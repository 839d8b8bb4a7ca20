"""Beam search as a CUDA graph: the model's step, the choice of candidates and the update of the beam in one replay.

Python only reads, every few steps, which sources are done. When half of them are, the others move to a smaller graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.beam import BeamOptions
from dragoman.decoding.beam_state import (
    BeamSize,
    BeamState,
    NextTokens,
    complete_hypotheses,
    initial_state,
    num_next_tokens,
    top_candidates,
    top_next_tokens,
    update,
)
from dragoman.decoding.config import StopRule
from dragoman.decoding.cuda_graph_step import (
    GraphDecoder,
    GraphShape,
    GraphStep,
    copy_tensors,
    graph_decoder,
    graph_shape,
    round_up,
)
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.kernels import topk
from dragoman.models.contracts import map_tensors
from dragoman.progress import check_interrupted

CHECK_EVERY = 4  # steps between two checks of which sources are done
MIN_SOURCES = 16  # of a graph, to move to a smaller one


@dataclass(frozen=True)
class GraphBeamKey:
    """What is constant in a captured beam search step; the scorer's divisors are a buffer of it."""

    shape: GraphShape
    n_best: int
    stop: StopRule


class GraphBeamStep(GraphStep):
    """A decoding step followed by the beam's update, both captured."""

    def __init__(self, model: Any, static: Any, cache: Any, key: GraphBeamKey) -> None:
        shape = key.shape
        super().__init__(model, static, cache, shape)
        self.key = key
        weight = next(model.parameters())
        self.in_kernels = hasattr(model, "scores") and topk.supports(weight, model.output.out_features)
        if self.in_kernels:
            self.method = "scores"
        self.first_rows = torch.arange(0, shape.sources * shape.width, shape.width, device=self.tokens.device)[:, None]
        limits = torch.full((shape.sources,), shape.target_length, device=weight.device)
        self.beam = self.initial_beam(limits, Scorer())

    def initial_beam(self, limits: Tensor, scorer: Scorer) -> BeamState:
        """The beam before the first token; limits (B,) of the first sources, those that fill the shape are done."""
        shape, dtype = self.shape, torch.promote_types(next(self.model.parameters()).dtype, torch.float32)
        sources = limits.shape[0]
        limits = torch.cat([limits, limits.new_ones(shape.sources - sources)])
        size = BeamSize(shape.width, shape.width, shape.target_length)
        max_complete = torch.full_like(limits, shape.width)
        beam = initial_state(limits, size, max_complete, scorer.divisors(shape.target_length), self.key.stop, dtype)
        beam.totals[sources:] = NEG_INF
        beam.done[sources:] = True
        return beam

    def body(self) -> None:
        super().body()
        assert self.output is not None
        (self.advance_in_kernels if self.in_kernels else self.advance_plain)(self.output)

    def advance_plain(self, log_probabilities: Tensor) -> None:
        candidates = top_candidates(self.beam, top_next_tokens(log_probabilities, self.shape.width))
        beam, kept = update(self.beam, candidates, n_best=self.key.n_best, stop=self.key.stop)
        self.parents.copy_((candidates.parents.gather(1, kept) + self.first_rows).flatten())
        copy_tensors(self.beam, beam)
        self.tokens.copy_(beam.last.flatten())

    def advance_in_kernels(self, logits: Tensor) -> None:
        """The same from scores before the softmax, in three Triton kernels."""
        from dragoman.kernels import beam_triton

        count = num_next_tokens(self.shape.width, logits.shape[1])
        following = NextTokens(*beam_triton.best_next(logits, count, len(SUPPRESSED_TOKENS), EOS))
        n_best, stop = self.key.n_best, self.key.stop
        beam_triton.update(self.beam, following, self.parents, self.tokens, n_best=n_best, stop=stop, end=EOS)

    def shrunk(self, key: GraphBeamKey) -> GraphBeamStep:
        """A step of the same model for fewer sources."""
        sources, width = key.shape.sources, self.shape.width

        def first(tensor: Tensor) -> Tensor:
            return tensor[:sources] if tensor.shape[0] == self.shape.sources else tensor[: sources * width : width]

        return GraphBeamStep(self.model, map_tensors(self.static, first), map_tensors(self.cache, first), key)

    def load(self, other: GraphBeamStep, sources: Tensor) -> None:
        """Continue the search of these sources (B',) of another step."""
        missing = self.shape.sources - len(sources)
        rows = torch.cat([sources, sources[:1].expand(missing)])
        width = self.shape.width
        hypotheses = (rows[:, None] * width + torch.arange(width, device=rows.device)).flatten()

        def selected(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows if tensor.shape[0] == other.shape.sources else hypotheses)

        copy_tensors(self.static, map_tensors(other.static, selected))
        copy_tensors(self.cache, map_tensors(other.cache, selected))
        copy_tensors(self.beam, other.beam.select(rows))
        self.beam.done[len(sources) :] = True
        self.beam.totals[len(sources) :] = NEG_INF
        self.tokens.copy_(other.tokens.index_select(0, hypotheses))
        self.parents.copy_(((other.parents.view(-1, width) - other.first_rows)[rows] + self.first_rows).flatten())
        self.length.copy_(other.length)


@torch.no_grad()
def graph_beam_search(
    model: Any, batch: Batch, limits: Tensor, options: BeamOptions, scorer: Scorer
) -> list[list[Hypothesis]] | None:
    """What `beam_search` finds with plain options, or None where it must run: a search is captured when it recurs."""
    decoder = graph_decoder(model, batch)
    shape = None if decoder is None else graph_shape(batch, limits, options.width, decoder.max_positions)
    if decoder is None or shape is None:
        return None
    key = GraphBeamKey(shape, options.n_best, options.stop_rule)
    if not decoder.is_ready(key):
        return None
    acquired: list[GraphBeamStep] = []
    try:
        state = model.start(batch.padded(shape.sources, shape.source_length), shape.target_length)
        step = _acquire(decoder, key, lambda: GraphBeamStep(model, state.static, state.cache, key), acquired)
        step.begin(state)
        copy_tensors(step.beam, step.initial_beam(limits, scorer))
        step.tokens.copy_(step.beam.last.flatten())
        return _run(decoder, step, len(limits), int(limits.max()), acquired)
    except RuntimeError as error:
        decoder.disable(error)
        return None
    finally:
        for step in acquired:
            step.lock.release()


def _acquire(
    decoder: GraphDecoder, key: GraphBeamKey, make: Callable[[], GraphBeamStep], acquired: list[GraphBeamStep]
) -> GraphBeamStep:
    """A step, noted among those to release."""
    step = decoder.acquire(key, make)
    assert isinstance(step, GraphBeamStep)
    acquired.append(step)
    return step


def _run(
    decoder: GraphDecoder, step: GraphBeamStep, count: int, max_length: int, acquired: list[GraphBeamStep]
) -> list[list[Hypothesis]]:
    """Replay steps until all sources are done."""
    sources = list(range(count))  # which source each row of the graph is
    outputs: list[list[Hypothesis]] = [[] for _ in sources]
    for length in range(1, max_length + 1):
        step.run()
        if length % CHECK_EVERY and length < max_length:
            continue
        check_interrupted()
        done = step.beam.done.tolist()
        going = [row for row in range(len(sources)) if not done[row]]
        if going and length < max_length:
            key = replace(step.key, shape=replace(step.shape, sources=round_up(len(going))))
            if not (worth_shrinking(len(going), step.shape.sources) and decoder.is_ready(key)):
                continue
        finished = [row for row in range(len(sources)) if done[row] or length == max_length]
        rows = torch.tensor(finished, device=step.tokens.device)
        for row, hypotheses in zip(finished, complete_hypotheses(step.beam.select(rows), step.key.n_best), strict=True):
            outputs[sources[row]] = hypotheses
        if len(finished) == len(sources):
            break
        larger = step
        step = _acquire(decoder, key, partial(larger.shrunk, key), acquired)
        step.load(larger, torch.tensor(going, device=step.tokens.device))
        sources = [sources[row] for row in going]
    return outputs


def worth_shrinking(going: int, sources: int) -> bool:
    """Whether a graph for the sources that are not done would be at most half as large."""
    return sources >= MIN_SOURCES and round_up(going) * 2 <= sources
