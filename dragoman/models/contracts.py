"""The values that pass between encoders, decoders and searches, and the contracts around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from dragoman.data.batch import Batch


class Memory(NamedTuple):
    """What an encoder leaves for any decoder."""

    keys: Tensor  # (B, S, D) compared with a query
    values: Tensor  # (B, S, D) read; may differ from the keys
    mask: Tensor  # (B, S), True = real
    final: tuple[Tensor, ...]  # per layer (B, D): starts recurrent decoders
    states: tuple[tuple[Tensor, ...], ...] = ()  # of a recurrent encoder, per layer: its cell's last state, whole


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    parts = [map_tensors(part, change) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def join_tensors(trees: Sequence[Any]) -> Any:
    """Nests of one form as one, the rows of every tensor one after the other."""
    if isinstance(trees[0], Tensor):
        return torch.cat(list(trees))
    parts = [join_tensors(part) for part in zip(*trees, strict=True)]
    return type(trees[0])(*parts) if hasattr(trees[0], "_fields") else tuple(parts)


class State(NamedTuple):
    """Where a decoder stands; a value, never kept on the module, so one model serves many requests at once.

    `static` has one row per source, `cache` one per hypothesis: rows s·k … s·k+k−1 belong to source s.
    """

    static: Any  # nest of tensors made once from the memory
    cache: Any  # nest of tensors changed by every token
    length: Tensor | int  # tokens read so far; a tensor when the caches have a fixed capacity
    hypotheses: int = 1  # k

    def select(self, rows: Tensor) -> State:
        """Keep, drop or repeat whole sources; rows (B',) index sources."""
        cache_rows = rows
        if self.hypotheses > 1:
            offsets = torch.arange(self.hypotheses, device=rows.device)
            cache_rows = (rows[:, None] * self.hypotheses + offsets).flatten()
        return self._replace(
            static=map_tensors(self.static, lambda part: part.index_select(0, rows)),
            cache=map_tensors(self.cache, lambda part: part.index_select(0, cache_rows)),
        )

    def reorder(self, rows: Tensor) -> State:
        """Exchange hypotheses within their source; rows (N,) index hypotheses."""
        return self._replace(cache=map_tensors(self.cache, lambda part: part.index_select(0, rows)))

    def detach(self) -> State:
        """The same state without its history: gradients stop here (FIELD B11)."""
        return self._replace(cache=map_tensors(self.cache, Tensor.detach))

    def expand(self, hypotheses: int) -> State:
        """Give every source this many copies of its one hypothesis."""
        assert self.hypotheses == 1
        return self._replace(
            cache=map_tensors(self.cache, lambda part: part.repeat_interleave(hypotheses, 0)),
            hypotheses=hypotheses,
        )


class Encoder(Protocol):
    """Text, image and audio encoders alike."""

    width: int

    def __call__(self, source: Tensor, mask: Tensor) -> Memory:
        """Read a batch of sources; mask (B, S)."""


class Decoder(Protocol):
    """One call serves training (all T at once), prefill, decoding and truncated back-propagation."""

    width: int
    max_positions: int | None  # most tokens it can read; None: any number

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """The state before the first token; capacity pre-allocates caches for compiled decoding."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, T), any T ≥ 1; give hidden vectors (N, T, D) and the state after them."""


class Loss(NamedTuple):
    """Total and count, never a mean: so accumulation and data parallelism are exact."""

    total: Tensor  # ()
    count: Tensor  # type: ignore[assignment]  # () how many targets it was summed over


class TokenScores(NamedTuple):
    """What a model thinks of given targets, token by token."""

    log_probabilities: Tensor  # (B, T) float32, zero on padding
    correct: Tensor  # (B, T) the token was the model's first choice, False on padding
    mask: Tensor  # (B, T)


class Model(Protocol):
    """A whole that can be trained and searched."""

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients."""

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; empty where it can."""

    def set_step(self, step: int) -> None:
        """Told before every training step how many lie behind, for schedules within the model."""

    def __call__(self, batch: Batch) -> Loss:
        """The training loss; nothing else happens here, so that DDP can wrap it."""

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the sources and stand before the first target token."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one in float32."""

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""

    def score(self, batch: Batch) -> TokenScores:
        """Teacher-forced scores of the batch's targets."""


class ClassifierOutput(NamedTuple):
    """What a model reads out of a batch without a search."""

    values: Tensor  # (B, N) labels or numbers: one a row, or one a word
    probabilities: Tensor | None  # (B, N, K) of every label; None: numbers have none
    mask: Tensor  # (B, N) which are real


class ClassifierModel(Protocol):
    """A whole that is trained like the others and answers at once with labels or numbers: nothing is searched for."""

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients."""

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; empty where it can."""

    def set_step(self, step: int) -> None:
        """Told before every training step how many lie behind, for schedules within the model."""

    def __call__(self, batch: Batch) -> Loss:
        """The training loss; the count is of labels, numbers or words."""

    def score(self, batch: Batch) -> TokenScores:
        """Scores of the batch's targets."""

    def predict(self, batch: Batch) -> ClassifierOutput:
        """What it answers."""


class CTCEmissions(NamedTuple):
    """What a model trained by CTC writes: repeats merge and the blank, which is <pad>, says nothing."""

    log_probabilities: Tensor  # (B, T, V) at least float32
    lengths: Tensor  # (B,) positions that are real


class LengthBeam(NamedTuple):
    """What a model that chooses the length first writes: one token a position, for each of k lengths."""

    log_probabilities: Tensor  # (B, k, T, V) at least float32
    lengths: Tensor  # (B, k) positions that are real; <eos> has none
    length_scores: Tensor  # (B, k) log-probability of each length, −∞ where there is none


@runtime_checkable
class NonAutoregressiveModel(Protocol):
    """A whole that is trained and searched too, but writes all tokens at once: it has no steps."""

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write, <eos> included; None: any number."""

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients."""

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; empty where it can."""

    def set_step(self, step: int) -> None:
        """Told before every training step how many lie behind, for schedules within the model."""

    def __call__(self, batch: Batch) -> Loss:
        """The training loss; nothing else happens here, so that DDP can wrap it."""

    def emissions(self, batch: Batch, limits: Tensor, candidates: int) -> CTCEmissions | LengthBeam:
        """What is written for every source; limits (B,) are most tokens with <eos>, candidates how many lengths."""

    def score(self, batch: Batch) -> TokenScores:
        """Scores of the batch's targets."""

    def positions(self, source: int, target: int) -> int:
        """At how many positions it writes for rows of these lengths while training."""

    def reachable(self, batch: Batch) -> Tensor:
        """Which targets (B,) the model could write at all; the others give no loss and no scores."""
