"""Decoding steps as CUDA graphs.

A step of a small model is about a hundred short kernels, and launching them from Python takes longer than running
them. So a step is captured once per shape, as a CUDA graph over fixed buffers, and replayed. Shapes are rounded up to
a grid, so that they are few. A shape is captured only when it is used repeatedly: a single batch is decoded sooner
without. The hypotheses of a Transformer write their keys and values side by side and keep a table of the entries that
belong to them; when the search reorders hypotheses, only this table moves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.base import brief, check_interrupted
from dragoman.data import Batch, Tokens, round_up_lengths
from dragoman.data.tokenizers import EOS
from dragoman.decoding.beam import BeamOptions
from dragoman.decoding.beam_state import (
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
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.models import State, map_tensors
from dragoman.models.kernels import GraphInputs, fused_layers
from dragoman.models.kernels import top_k as topk
from dragoman.models.layers import SharedCache, SharedEntries

MIN_USES = 2  # a shape is captured at the first use after these
MEMORY_SHARE = 0.25  # of the GPU memory that other processes leave, for all buffers together


def round_up(number: int, multiple: int = 1) -> int:
    """The number rounded up to the grid of shapes and to a multiple."""
    whole = int(round_up_lengths(np.array([number]))[0])
    return -(-whole // multiple) * multiple


@dataclass(frozen=True)
class GraphShape:
    """The sizes of the buffers of one graph."""

    sources: int
    width: int  # hypotheses per source
    source_length: int
    target_length: int


class WeakModelRef:
    """Holds a model weakly, see `_DECODERS`."""

    def __init__(self, model: Any) -> None:
        self._model = ref(model)

    @property
    def model(self) -> Any:
        model = self._model()
        assert model is not None, "the caller of a search holds its model"
        return model


class GraphStep(WeakModelRef):
    """The buffers of one shape and the decoding step that runs on them; one search uses it at a time."""

    method = "step"  # of the model, which the graph captures

    def __init__(self, model: Any, static: Any, cache: Any, shape: GraphShape) -> None:
        """`static` and `cache` are those of a state with `shape.sources` sources and one hypothesis each."""
        super().__init__(model)
        self.shape = shape
        rows, device = shape.sources * shape.width, next(model.parameters()).device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.parents = torch.arange(rows, device=device)  # the hypothesis that each row continues
        self.identity = self.parents.clone()
        self.static = map_tensors(static, torch.clone)
        self.entries: SharedEntries | None = None  # of the key-value caches
        if model.decoder.shares_cache:
            self.entries = SharedEntries.empty(shape.sources, shape.width, shape.target_length, device)
            self.cache: Any = tuple(SharedCache.like(layer, self.entries) for layer in cache)
        else:
            self.cache = map_tensors(cache, lambda tensor: tensor.repeat_interleave(shape.width, 0))
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.output: Tensor | None = None  # of the step (N, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None  # the sources that the graph of the encoder reads
        self.start_graph: torch.cuda.CUDAGraph | None = None
        # The memory of all graphs of encoders: what one leaves is copied to `static` before the next one runs.
        self.pool: Any = None
        self.inputs: GraphInputs | None = None  # kept alive as long as the graph
        self.lock = Lock()

    @property
    def size(self) -> int:
        return sum(tensor.nbytes for tensor in tensors_of((self.static, self.cache)))

    def begin(self, batch: Batch) -> None:
        """Encode new sources, padded to the shape, before their first token."""
        if self.pool is None or self.entries is None or self.model.encoder.graph_blockers:
            self.encode(batch)
        else:
            if self.batch is None or self.batch.graph_key != batch.graph_key:
                self.batch = batch.buffers(self.tokens.device)
                self.start_graph = captured(self.encode_in_kernels, self.encode_in_kernels, self.pool)
            assert self.start_graph is not None
            self.batch.fill(batch)
            self.start_graph.replay()
        if self.entries is not None:
            self.entries.visible.zero_()
        self.length.zero_()
        self.parents.copy_(self.identity)

    def encode_in_kernels(self) -> None:
        assert self.batch is not None
        with fused_layers.enabled():
            self.encode(self.batch)

    def encode(self, batch: Batch) -> None:
        state = self.model.start(batch, self.shape.target_length)
        copy_tensors(self.static, state.static)
        if self.entries is None:
            copy_tensors(self.cache, state.expand(self.shape.width).cache)

    def body(self) -> None:
        """The step that the graph captures: read tokens and buffers, write the output and the buffers."""
        width = self.shape.width
        if self.entries is not None:
            self.entries.advance(self.parents, self.length)
            cache = self.cache
        else:
            cache = map_tensors(self.cache, lambda tensor: tensor.index_select(0, self.parents))
        state = State(self.static, cache, self.length, width)
        step = getattr(self.model, self.method)
        with fused_layers.enabled():
            self.output, after = step(self.tokens, state)  # the output of a graph is always the same memory
        if self.entries is None:
            copy_tensors(self.cache, after.cache)
        self.length += 1

    def capture(self) -> None:
        def first() -> None:
            self.body()
            self.length.zero_()

        self.graph = captured(self.body, first)

    def run(self) -> Tensor:
        if self.graph is not None:
            self.graph.replay()
        else:
            self.body()
        assert self.output is not None
        return self.output


Step = TypeVar("Step", bound=GraphStep)


def captured(work: Callable[[], None], first: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of `work`, after two plain calls of `first` that allocate and compile what it needs."""
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(2):
            first()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    current.wait_stream(stream)
    return graph


def copy_tensors(target: Any, source: Any) -> None:
    if isinstance(target, Tensor):
        if target.data_ptr() != source.data_ptr():
            target.copy_(source)
        return
    for own, other in zip(target, source, strict=True):
        copy_tensors(own, other)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for branch in tree:
            yield from tensors_of(branch)


@dataclass(frozen=True)
class GraphState:
    """A decoder state in the buffers of a graph: which sources are open and which hypotheses their rows continue."""

    step: GraphStep
    sources: Tensor  # (L,) open sources, as rows of the buffers
    parents: Tensor | None = None  # (L·k,) rows of the buffers

    @property
    def rows(self) -> Tensor:
        """The hypotheses of the open sources, as rows of the buffers."""
        width = self.step.shape.width
        return (self.sources[:, None] * width + torch.arange(width, device=self.sources.device)).flatten()

    def expand(self, hypotheses: int) -> GraphState:
        """The buffers already have this width."""
        assert hypotheses == self.step.shape.width
        return self

    def reorder(self, rows: Tensor) -> GraphState:
        """Reorder hypotheses; rows (L·k,) index those of open sources."""
        return replace(self, parents=self.rows[rows])

    def select(self, rows: Tensor) -> GraphState:
        """Keep some sources; rows (L',) index open ones."""
        parents = self.parents
        if parents is not None:
            parents = parents.view(len(self.sources), -1)[rows].flatten()
        return replace(self, sources=self.sources[rows], parents=parents)


class GraphDecoder(WeakModelRef):
    """A model whose decoding steps are captured; it starts and steps like the model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.steps: dict[Any, GraphStep] = {}  # by key, the least recently used first
        self.uses: dict[Any, int] = {}
        self.guard = Lock()  # of both: two threads must not make the same step twice
        self.inputs: GraphInputs | None = None  # the memory that the graphs read
        self.pool: Any = None  # of the graphs of the encoder
        self.enabled = True

    def is_ready(self, key: Any) -> bool:
        """Count a use; whether there were enough uses to capture a step."""
        with self.guard:
            self.uses[key] = self.uses.get(key, 0) + 1
            return self.enabled and (key in self.steps or self.uses[key] > MIN_USES)

    def acquire(self, key: Any, make: Callable[[], Step]) -> Step:
        """The step with this key, captured if there is none yet; the caller must release its lock."""
        with self.guard:
            if self.inputs is None or self.inputs.moved():
                self.steps.clear()
                self.inputs = GraphInputs(self.model)
            step = self.steps.pop(key, None)
            if step is None:
                self.free_memory()
                step = make()
                step.inputs = self.inputs
                if step.tokens.is_cuda:
                    step.capture()
                    self.pool = step.pool = self.pool or torch.cuda.graph_pool_handle()
            self.steps[key] = step
        step.lock.acquire()
        return cast(Step, step)

    def free_memory(self) -> None:
        """Drop the least recently used steps until all buffers fit in MEMORY_SHARE of what other processes leave."""
        if not torch.cuda.is_available():
            return
        free, total = torch.cuda.mem_get_info()
        allowed = min(total, free + torch.cuda.memory_reserved()) * MEMORY_SHARE
        while self.steps and sum(step.size for step in self.steps.values()) > allowed:
            key, step = next(iter(self.steps.items()))
            if step.lock.locked():
                return
            del self.steps[key]

    def begin(self, batch: Batch, shape: GraphShape, key: Any, kind: type[Step]) -> Step:
        """Encode the sources; the step with this key before the first target token. The caller must release it."""
        padded = batch.padded(shape.sources, shape.source_length)

        def make() -> Step:
            state = self.model.start(padded, shape.target_length)
            return kind(self.model, state.static, state.cache, key)

        step = self.acquire(key, make)
        try:
            step.begin(padded)
        except RuntimeError:
            step.lock.release()
            raise
        return step

    def start(self, batch: Batch, shape: GraphShape) -> GraphState:
        step = self.begin(batch, shape, shape, GraphStep)
        return GraphState(step, torch.arange(len(batch.source), device=batch.source.device))

    def step(self, tokens: Tensor, state: GraphState) -> tuple[Tensor, GraphState]:
        """Read tokens (L·k,); log-probabilities (L·k, V) of the next one, valid until the next step."""
        step = state.step
        rows = state.rows
        step.tokens.index_copy_(0, rows, tokens)
        if state.parents is not None:
            step.parents.index_copy_(0, rows, state.parents)
        output = step.run()
        step.parents.copy_(step.identity)
        all_open = len(state.sources) == step.shape.sources
        return output if all_open else output.index_select(0, rows), replace(state, parents=None)

    def disable(self, error: RuntimeError) -> None:
        """Report that a step could not be captured, and never try again."""
        self.enabled = False
        print(
            f"a decoding step could not be captured ({brief(error)}); decoding continues without CUDA graphs",
            file=sys.stderr,
        )


# A decoder lives as long as its model. Neither it nor its steps may hold the model: a value that holds its key would
# keep both, and the memory of the graphs, for ever.
_DECODERS: WeakKeyDictionary[nn.Module, GraphDecoder] = WeakKeyDictionary()


def graph_decoder(model: Any, batch: Batch) -> GraphDecoder | None:
    is_text = isinstance(batch.source, Tokens) and batch.source.data.dim() == 2
    if batch.source.data.is_cuda and is_text and getattr(model, "steps_in_graphs", False):
        return _DECODERS.setdefault(model, GraphDecoder(model))
    return None


def ready_graph(
    model: Any, batch: Batch, limits: Tensor, width: int, key_of: Callable[[GraphShape], Any] = lambda shape: shape
) -> tuple[GraphDecoder, GraphShape] | None:
    """The graph decoder of a model and the shape for a batch; None where no step is ready, or it would be too long."""
    if (decoder := graph_decoder(model, batch)) is None:
        return None
    sources, length = batch.source.data.shape
    shape = GraphShape(round_up(sources), width, round_up(length), round_up(int(limits.max()), 8))
    fits = model.max_positions is None or shape.target_length <= model.max_positions
    return (decoder, shape) if fits and decoder.is_ready(key_of(shape)) else None


@contextmanager
def start_decoding(
    model: Any, batch: Batch, limits: Tensor, width: int, allow_graph: bool
) -> Iterator[tuple[Any, Any]]:
    """A decoder and its state before the first token: a `GraphDecoder` where one is ready, else the model itself."""
    ready = ready_graph(model, batch, limits, width) if allow_graph else None
    if ready is not None:
        decoder, shape = ready
        try:
            state = decoder.start(batch, shape)
        except RuntimeError as error:
            decoder.disable(error)
        else:
            try:
                yield decoder, state
            finally:
                state.step.lock.release()
            return
    yield model, model.start(batch)


# --- Beam search as a CUDA graph


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
        size = (shape.width, shape.width, shape.target_length)
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
        from dragoman.models.kernels import beam_triton

        count = num_next_tokens(self.shape.width, logits.shape[1])
        following = NextTokens(*beam_triton.best_next(logits, count, len(SUPPRESSED_TOKENS), EOS))
        n_best, stop = self.key.n_best, self.key.stop
        beam_triton.update(self.beam, following, self.parents, self.tokens, n_best=n_best, stop=stop, end=EOS)

    def shrunk(self, key: GraphBeamKey) -> GraphBeamStep:
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

    def key_of(shape: GraphShape) -> GraphBeamKey:
        return GraphBeamKey(shape, options.n_best, options.stop_rule)

    if (ready := ready_graph(model, batch, limits, options.width, key_of)) is None:
        return None
    decoder, shape = ready
    with ExitStack() as acquired:
        try:
            step = decoder.begin(batch, shape, key_of(shape), GraphBeamStep)
            acquired.callback(step.lock.release)
            copy_tensors(step.beam, step.initial_beam(limits, scorer))
            step.tokens.copy_(step.beam.last.flatten())
            return _run(decoder, step, len(limits), int(limits.max()), acquired)
        except RuntimeError as error:
            decoder.disable(error)
            return None


def _run(
    decoder: GraphDecoder, step: GraphBeamStep, count: int, max_length: int, acquired: ExitStack
) -> list[list[Hypothesis]]:
    """Replay steps until all sources are done."""
    sources = list(range(count))  # which source each row of the graph is
    outputs: list[list[Hypothesis]] = [[] for _ in sources]
    for length in range(1, max_length + 1):
        step.run()
        if length % CHECK_EVERY and length < max_length:
            continue
        check_interrupted()
        done = step.beam.done.cpu().numpy()[: len(sources)]
        going = np.flatnonzero(~done).tolist()
        if going and length < max_length:
            key = replace(step.key, shape=replace(step.shape, sources=round_up(len(going))))
            # worth it if the smaller graph is at most half as large
            shrinks = step.shape.sources >= MIN_SOURCES and 2 * key.shape.sources <= step.shape.sources
            if not (shrinks and decoder.is_ready(key)):
                continue
        finished = list(range(len(sources))) if length == max_length else np.flatnonzero(done).tolist()
        for row, hypotheses in zip(finished, complete_hypotheses(step.beam, step.key.n_best, finished), strict=True):
            outputs[sources[row]] = hypotheses
        if len(finished) == len(sources):
            break
        larger = step
        step = decoder.acquire(key, partial(larger.shrunk, key))
        acquired.callback(step.lock.release)
        step.load(larger, torch.tensor(going, device=step.tokens.device))
        sources = [sources[row] for row in going]
    return outputs
