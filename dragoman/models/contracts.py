"""Interfaces of encoders, decoders and whole models, and the values that pass between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dragoman.data import Batch
from dragoman.models.layers.attention import show
from dragoman.models.layers.linear import LogProbabilities
from dragoman.models.traits import DecoderTraits, EncoderTraits, ModelTraits


class Memory(NamedTuple):
    """The output of an encoder, as any decoder reads it."""

    keys: Tensor  # (B, S, D) compared with a decoder's queries
    values: Tensor  # (B, S, D) averaged by attention; most encoders give the keys again
    mask: Tensor  # (B, S), True = real
    final: tuple[Tensor, ...]  # per layer (B, D): summaries of the source, for the first states of recurrent decoders
    states: tuple[tuple[Tensor, ...], ...] = ()  # per layer the whole last cell state, of recurrent encoders if asked
    tokens: Tensor | None = None  # (B, S) the target token that copies each position, PAD where there is none


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of nested tuples."""
    if isinstance(tree, Tensor):
        return change(tree)
    branches = [map_tensors(branch, change) for branch in tree]
    return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)


def join_tensors(trees: Sequence[Any]) -> Any:
    """Concatenate nested tuples of the same structure, tensor by tensor along the first dimension."""
    if isinstance(trees[0], Tensor):
        return torch.cat(list(trees))
    branches = [join_tensors(branch) for branch in zip(*trees, strict=True)]
    return type(trees[0])(*branches) if hasattr(trees[0], "_fields") else tuple(branches)


class State(NamedTuple):
    """The state of a decoder between two calls.

    A state is a value and is never kept on the module, so one model serves many requests at once. `static` has one row
    per source. `cache` has one row per hypothesis: rows s·k … s·k+k−1 belong to source s.
    """

    static: Any  # nested tuples of tensors, computed once from the memory
    cache: Any  # nested tuples of tensors that every token changes: cell states, keys and values
    length: Tensor | int  # tokens read so far; a tensor where the caches have a fixed capacity
    hypotheses: int = 1  # k, the hypotheses per source

    def select(self, rows: Tensor) -> State:
        """Keep, drop or repeat sources with all their hypotheses; rows (B',) index sources."""
        cache_rows = rows
        if self.hypotheses > 1:
            offsets = torch.arange(self.hypotheses, device=rows.device)
            cache_rows = (rows[:, None] * self.hypotheses + offsets).flatten()
        return self._replace(
            static=map_tensors(self.static, lambda tensor: tensor.index_select(0, rows)),
            cache=map_tensors(self.cache, lambda tensor: tensor.index_select(0, cache_rows)),
        )

    def reorder(self, rows: Tensor) -> State:
        """Reorder hypotheses, each within its source; rows (N,) index hypotheses."""
        return self._replace(cache=map_tensors(self.cache, lambda tensor: tensor.index_select(0, rows)))

    def detach(self) -> State:
        """Stop gradients here, as truncated back-propagation through time does."""
        return self._replace(cache=map_tensors(self.cache, Tensor.detach))

    def expand(self, hypotheses: int) -> State:
        """Copy the one hypothesis of every source `hypotheses` times."""
        assert self.hypotheses == 1
        return self._replace(
            cache=map_tensors(self.cache, lambda tensor: tensor.repeat_interleave(hypotheses, 0)),
            hypotheses=hypotheses,
        )


class FeatureEncoderConfig(Protocol):
    """What other code reads of the settings of an image or audio encoder."""

    kind: ClassVar[str]


class Encoder(EncoderTraits, nn.Module):
    """An encoder of text, images or audio. Padding and the other rows of the batch must not change a row's memory.

    `__init__` takes the settings and the embedding; an encoder of images or audio takes the number of features instead.
    """

    width: int  # D of the memory
    entries_are_tokens: ClassVar[bool] = True  # entry i of the memory is source token i, so that a decoder may copy it
    reads_lower_case: ClassVar[bool] = False  # `embedding.folded` must tell which tokens are each other's lower case
    prepended: ClassVar[tuple[str, ...]] = ()  # tokens that it reads before the source's, as BERT reads [CLS]
    graph_blockers: tuple[str, ...] = ()  # why a training step with it cannot be captured as a CUDA graph
    units: Sequence[nn.Module] = ()  # modules whose weights nobody reads outside of their own call: see train.shard

    if TYPE_CHECKING:

        def __call__(self, source: Tensor, mask: Tensor) -> Memory: ...

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """Encode sources (B, S) or (B, S, F) with mask (B, S)."""
        raise NotImplementedError

    def load_pretrained(self) -> str:
        """Load published weights into a new model; says which, empty if there are none."""
        return ""

    def keep_states(self) -> None:
        """Fill `Memory.states` from now on; for encoders with a cell layout."""
        raise NotImplementedError

    def cells(self) -> nn.ModuleList:
        """The cells from bottom to top; for encoders with a cell layout."""
        raise NotImplementedError


class Criterion(Protocol):
    """The loss of hidden vectors by the settings of the model: output layer, softmax, label smoothing."""

    @property
    def smoothing(self) -> float:
        """Label smoothing; 0 outside training."""

    def __call__(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Hidden vectors (N, T, D) and target tokens (N, T) → the summed loss, without padding."""

    def scored(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every token (N, T), zero on padding, and the log-probabilities (N, T, V)."""


class Decoder(DecoderTraits, nn.Module):
    """An autoregressive decoder. One call serves training, prefill and decoding: any split gives the same.

    A decoder defines `__init__(config, embedding, memory_width)`, `start` and `forward`, which returns hidden vectors;
    the model adds output layer, loss and search. All else has defaults, and models, searches, the trainer and the
    analysis ask nothing but this class.

    A decoder with a likelihood of its own (a pointer, a transducer) sets `own_likelihood`, keeps the output layer in
    `set_output`, and gives log-probabilities of target tokens from `forward`. It may override `loss` where the
    likelihood of given targets is cheaper than the whole distribution.

    Speed: a decoder whose `start` takes a capacity and then counts `State.length` in a tensor has fixed shapes, so that
    its steps become CUDA graphs.
    """

    width: int  # D of the hidden vectors; with a likelihood of its own, the number of target tokens after `set_output`
    max_positions: int | None = None  # how many tokens it can read; None: no limit
    unused_memory: tuple[str, ...] = ()  # fields of Memory it never reads; encoder weights behind them get no gradient
    is_cross_attention: bool = True  # weights that it shows itself align target and source
    graph_blockers: tuple[str, ...] = ()  # why a training step with it cannot be captured as a CUDA graph
    units: Sequence[nn.Module] = ()  # modules whose weights nobody reads outside of their own call: see train.shard
    shares_cache: bool = False  # its cache is a tuple of FixedCache that the hypotheses of a source may share

    if TYPE_CHECKING:

        def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...

    def connect(self, encoder: Encoder, *, share_cells: bool = False) -> None:
        """Agree with the encoder on what the memory must hold; called once, after `problems` found none."""

    def set_output(self, layer: nn.Linear) -> nn.Linear | LogProbabilities:
        """Take the output layer; return what the model applies to the outputs of `forward` to get logits."""
        return layer

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """Make the state before the first token; `capacity` preallocates caches for that many tokens."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, T), any T ≥ 1; return hidden vectors (N, T, D) and the state after them."""
        raise NotImplementedError

    def without_cache(self, state: State) -> State:
        """The state for one last call, which needs to keep nothing for a next one; that saves memory in training."""
        return state

    def loss(self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion) -> Tensor:
        """The summed loss of target tokens (N, T) under teacher forcing: one call reads inputs (N, T)."""
        return self.loss_of(self(inputs, self.without_cache(state))[0], target, criterion)

    def scored_losses(
        self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion
    ) -> tuple[Tensor, Tensor]:
        """Like `loss`, for every token (N, T), with log-probabilities (N, T, V); `inputs` may hide target tokens."""
        return criterion.scored(self(inputs, self.without_cache(state))[0], target)

    def loss_of(self, outputs: Tensor, target: Tensor, criterion: Criterion) -> Tensor:
        """The same from outputs of `forward` (N, T, D), where several calls read the inputs."""
        return criterion(outputs, target)

    def suppress(self, scores: Tensor, state: State) -> Tensor:
        """Set scores (N, …, V) of tokens that cannot follow to −∞, in place or in a copy."""
        return scores

    def show_attention(self, weights: Tensor) -> None:
        """Show weights (N, H, T, S) over the memory to attention plots, alignments and the coverage penalty.

        For decoders that compute their attention themselves; the attentions of `layers` show theirs.
        """
        show(self, weights)


class Loss(NamedTuple):
    """A summed loss and the number of targets: no mean, so that accumulation and data parallelism are exact."""

    total: Tensor  # ()
    count: Tensor  # type: ignore[assignment]  # () tokens, words, labels or numbers that were summed over


class TokenScores(NamedTuple):
    """Scores of given targets, token by token."""

    log_probabilities: Tensor  # (B, T) float32, zero on padding
    correct: Tensor  # (B, T) the target was the model's first choice; False on padding
    mask: Tensor  # (B, T)


class BaseModel(ModelTraits, nn.Module):
    """A model with parameters. It overrides the defaults of `ModelTraits` that differ.

    `forward(batch)` computes the training loss. DDP wraps that call, so it is the only thing that happens there.
    """

    @property
    def graph_blockers(self) -> list[str]:
        """Reasons why a training step cannot be captured as a CUDA graph: those of its encoders and decoders."""
        parts = (part for part in self.modules() if part is not self)
        return [reason for part in parts for reason in getattr(part, "graph_blockers", ())]

    def score(self, batch: Batch) -> TokenScores:
        """Score the batch's targets (teacher forcing)."""
        raise NotImplementedError


class Model(Protocol):
    """An autoregressive model: it writes one token after another, and every search runs over `start` and `step`."""

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can write; None: no limit."""

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Encode the sources and make the state before the first target token."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); return float32 log-probabilities (N, V) of the next token."""

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); return log-probabilities (N, P, V) of the token after each of them."""

    def score(self, batch: Batch) -> TokenScores:
        """Score the batch's targets (teacher forcing)."""


class ClassifierOutput(NamedTuple):
    """Predictions of a classifier, regressor or tagger."""

    values: Tensor  # (B, N) labels or numbers: one per row, or one per word
    probabilities: Tensor | None  # (B, N, K) of every label; None: numbers have none
    mask: Tensor  # (B, N) True = real


class ClassifierModel(Protocol):
    """A model that predicts labels or numbers without a search."""

    def predict(self, batch: Batch) -> ClassifierOutput:
        """Predict a label or number per row, or a label per word."""


class CTCEmissions(NamedTuple):
    """Per-position distributions of a CTC model; the blank is <pad>, and repeated tokens collapse."""

    log_probabilities: Tensor  # (B, T, V) at least float32
    lengths: Tensor  # (B,) positions that are real


class LengthBeam(NamedTuple):
    """Per-position distributions for each of k predicted target lengths; one token per position."""

    log_probabilities: Tensor  # (B, k, T, V) at least float32
    lengths: Tensor  # (B, k) positions that are real; <eos> has none
    length_scores: Tensor  # (B, k) log-probability of each length, −∞ where there is none


class NonAutoregressiveModel(Protocol):
    """A model that writes all target tokens in parallel, so it has no steps; `decodes = "parallel"`."""

    length_advice: str  # which settings make room for longer targets

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can write, <eos> included; None: no limit."""

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions | LengthBeam:
        """Return the distributions of all positions; limits (B,): tokens with <eos>, candidates: lengths to try."""

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) the model can write at all; the others give no loss and no scores."""
