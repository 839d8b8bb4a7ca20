"""Decoding steps that a GPU repeats by itself.

A step of a small model is a hundred short kernels, and Python takes longer to launch them than they take. So the step
is captured once for each shape, as a CUDA graph over buffers that stay where they are, and replayed. Shapes are rounded
up to a grid, so that they are few; a shape is captured when it is met again, for a single batch is searched sooner
without. A Transformer's hypotheses write their keys and values side by side and remember which of them they descend
from: when hypotheses change places, nothing but this table moves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.data.batch import Batch, round_up_lengths
from dragoman.data.tokenizers.base import PAD
from dragoman.kernels.graph_inputs import GraphInputs
from dragoman.layers.self_attention import SelfAttention, Shared
from dragoman.models.contracts import State, map_tensors

USES = 2  # how often a shape must be asked for before it is captured
SHARE = 0.25  # of the GPU's memory, for all buffers together


def on_grid(number: int, step: int = 1) -> int:
    """The number rounded up to the grid of shapes, and to a multiple of `step`."""
    whole = int(round_up_lengths(np.array([number]))[0])
    return -(-whole // step) * step


@dataclass(frozen=True)
class Shape:
    """What the buffers of a stage are made for."""

    sources: int
    width: int  # hypotheses of each
    read: int  # tokens of a source
    written: int  # tokens of an output


class Stage:
    """The buffers of one shape and the step that works on them; lent to one search at a time."""

    def __init__(self, model: Any, static: Any, cache: Any, shape: Shape) -> None:
        """`static` and `cache`: of a state with as many sources, one hypothesis each."""
        self.model, self.shape = model, shape
        self.step = model.step
        rows, device = shape.sources * shape.width, next(model.parameters()).device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.origins = torch.arange(rows, device=device)  # which hypothesis each one goes on from
        self.identity = self.origins.clone()
        self.static = map_tensors(static, torch.clone)
        self.seen: Tensor | None = None
        if all(type(part) is SelfAttention for part in attentions(model)):
            places = shape.width * shape.written
            self.seen = torch.zeros(rows, places, dtype=torch.bool, device=device)
            self.cache: Any = tuple(
                Shared(room(layer[0], places), room(layer[1], places), self.seen) for layer in cache
            )
        else:
            self.cache = map_tensors(cache, lambda part: part.repeat_interleave(shape.width, 0))
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.found: Tensor | None = None  # what the step gave (N, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: GraphInputs | None = None  # kept alive as long as the graph
        self.lock = Lock()

    @property
    def size(self) -> int:
        """Bytes of its buffers."""
        return sum(part.nbytes for part in tensors_of((self.static, self.cache)))

    def begin(self, state: State) -> None:
        """Stand before the first token of other sources."""
        copy_tensors(self.static, state.static)
        if self.seen is not None:
            self.seen.zero_()
        else:
            copy_tensors(self.cache, state.expand(self.shape.width).cache)
        self.length.zero_()
        self.origins.copy_(self.identity)

    def body(self) -> None:
        """One step: from the tokens and the buffers to log-probabilities, and the buffers as they are after it."""
        width = self.shape.width
        if self.seen is not None:
            self.seen.copy_(self.seen.index_select(0, self.origins))
            # Every hypothesis sees itself: its new keys are written at (length, its place among those of its source).
            new = self.length * width + self.identity % width
            self.seen.scatter_(1, new[:, None], True)
            cache = self.cache
        else:
            cache = map_tensors(self.cache, lambda part: part.index_select(0, self.origins))
        state = State(self.static, cache, self.length, width)
        found, after = self.step(self.tokens, state)
        if self.seen is None:
            copy_tensors(self.cache, after.cache)
        self.found = found  # of a graph always the same memory
        self.length += 1

    def capture(self) -> None:
        """Let the GPU learn the step; twice plainly before, so that everything it needs is there."""
        here = torch.cuda.current_stream()
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            for _ in range(2):
                self.body()
                self.length.zero_()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.body()
            finally:
                graph.capture_end()
        here.wait_stream(beside)
        self.graph = graph

    def run(self) -> Tensor:
        """One step."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self.body()
        assert self.found is not None
        return self.found


def room(cache: Tensor, places: int) -> Tensor:
    """Zeros like a cache (B, K, C, d), but for so many places."""
    return cache.new_zeros(*cache.shape[:2], places, cache.shape[3])


def copy_tensors(into: Any, values: Any) -> None:
    """Copy a nest of tensors into another of the same shapes."""
    if isinstance(into, Tensor):
        if into.data_ptr() != values.data_ptr():
            into.copy_(values)
        return
    for mine, theirs in zip(into, values, strict=True):
        copy_tensors(mine, theirs)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of a nest."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree:
            yield from tensors_of(part)


def attentions(model: Any) -> list[nn.Module]:
    """The self-attentions of a decoder; a list of something else where its state is something else."""
    blocks = getattr(model.decoder, "blocks", None) or []
    return [getattr(block, "attention", block) for block in blocks] or [model.decoder]


@dataclass(frozen=True)
class Standing:
    """Where a search stands on a stage: which of its sources live, and whom each hypothesis goes on from."""

    stage: Stage
    live: Tensor  # (L,) sources of the stage
    origins: Tensor | None = None  # (L·k,) rows of the stage

    @property
    def rows(self) -> Tensor:
        """The hypotheses of the live sources, as rows of the stage."""
        width = self.stage.shape.width
        return (self.live[:, None] * width + torch.arange(width, device=self.live.device)).flatten()

    def expand(self, hypotheses: int) -> Standing:
        """The stage was made for as many."""
        assert hypotheses == self.stage.shape.width
        return self

    def reorder(self, rows: Tensor) -> Standing:
        """Exchange hypotheses; rows (L·k,) index those of live sources."""
        return replace(self, origins=self.rows[rows])

    def select(self, rows: Tensor) -> Standing:
        """Keep some sources; rows (L',) index live ones."""
        origins = self.origins
        if origins is not None:
            origins = origins.view(len(self.live), -1)[rows].flatten()
        return replace(self, live=self.live[rows], origins=origins)


class Captured:
    """A model whose steps are captured, for searches by one beam or by greedy choice."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.stages: dict[Any, Stage] = {}  # the least used first
        self.asked: dict[Any, int] = {}
        self.guard = Lock()  # of both: threads that ask at once must not make a stage twice
        self.inputs: GraphInputs | None = None  # the memory that the stages' graphs read
        self.working = True

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""
        most: int | None = self.model.max_positions
        return most

    def ready(self, kind: Any) -> bool:
        """Whether a kind of stage was asked for often enough to be captured."""
        with self.guard:
            self.asked[kind] = self.asked.get(kind, 0) + 1
            return self.working and (kind in self.stages or self.asked[kind] > USES)

    def stage(self, kind: Any, make: Callable[[], Stage]) -> Stage:
        """The stage of a kind, made if there is none yet; the caller has it alone until the lock is released."""
        with self.guard:
            if self.inputs is None or self.inputs.moved():
                self.stages.clear()
                self.inputs = GraphInputs(self.model)
            stage = self.stages.pop(kind, None)
            if stage is None:
                self.make_room()
                stage = make()
                stage.inputs = self.inputs
                if stage.tokens.is_cuda:
                    stage.capture()
            self.stages[kind] = stage
        stage.lock.acquire()
        return stage

    def make_room(self) -> None:
        """Forget the stages that were not used for longest, so that all together stay small beside the GPU's memory."""
        if not torch.cuda.is_available():
            return
        room = torch.cuda.mem_get_info()[1] * SHARE
        while self.stages and sum(stage.size for stage in self.stages.values()) > room:
            kind, stage = next(iter(self.stages.items()))
            if stage.lock.locked():
                return
            del self.stages[kind]

    def start(self, batch: Batch, shape: Shape) -> Standing:
        """Read the sources and stand before the first target token."""
        state = self.model.start(padded_to(batch, shape), shape.written)
        stage = self.stage(shape, lambda: Stage(self.model, state.static, state.cache, shape))
        stage.begin(state)
        return Standing(stage, torch.arange(batch.source.shape[0], device=batch.source.device))

    def step(self, tokens: Tensor, standing: Standing) -> tuple[Tensor, Standing]:
        """Read tokens (L·k,); give log-probabilities (L·k, V) of the next one, valid until the next step."""
        stage = standing.stage
        rows = standing.rows
        stage.tokens.index_copy_(0, rows, tokens)
        if standing.origins is not None:
            stage.origins.index_copy_(0, rows, standing.origins)
        found = stage.run()
        stage.origins.copy_(stage.identity)
        whole = len(standing.live) == stage.shape.sources
        return found if whole else found.index_select(0, rows), replace(standing, origins=None)


def padded_to(batch: Batch, shape: Shape) -> Batch:
    """The batch with columns of padding and copies of its first source."""
    rows, read = batch.source.shape
    source = nn.functional.pad(batch.source, (0, shape.read - read), value=PAD)
    if rows < shape.sources:
        source = torch.cat([source, source[:1].expand(shape.sources - rows, -1)])
    return Batch(source, source != PAD, source.new_empty(shape.sources, 0))


_KNOWN: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()


def known(model: Any, batch: Batch) -> Captured | None:
    """The model with its captured steps, where it can have such."""
    tokens = batch.source.dim() == 2 and batch.source.dtype == torch.long  # not recordings or pictures
    if batch.source.is_cuda and tokens and isinstance(model, nn.Module) and hasattr(model, "decoder"):
        return _KNOWN.setdefault(model, Captured(model))
    return None


def shape_of(batch: Batch, limits: Tensor, width: int, most: int | None) -> Shape | None:
    """The shape of a stage for a batch; None: the model cannot write so much."""
    sources, read = batch.source.shape
    shape = Shape(on_grid(sources), width, on_grid(read), on_grid(int(limits.max()), 8))
    return shape if most is None or shape.written <= most else None


def give_up(captured: Captured, error: RuntimeError) -> None:
    """Say that steps cannot be captured, and never try again."""
    captured.working = False
    first = str(error).split("\n", 1)[0]
    print(f"a decoding step could not be captured ({first}); going on with plain ones", file=sys.stderr)


@contextmanager
def start(model: Any, batch: Batch, limits: Tensor, width: int, *, able: bool) -> Iterator[tuple[Any, Any]]:
    """A writer and its state before the first token: captured where it pays and is `able`, else the model itself."""
    captured = known(model, batch) if able else None
    if captured is not None:
        shape = shape_of(batch, limits, width, captured.max_positions)
        if shape is not None and captured.ready(shape):
            try:
                standing = captured.start(batch, shape)
            except RuntimeError as error:
                give_up(captured, error)
            else:
                try:
                    yield captured, standing
                finally:
                    standing.stage.lock.release()
                return
    yield model, model.start(batch)
