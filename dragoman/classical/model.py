"""The contract of a fitted model: computed from the data in one go, stored as named tensors, without gradients.

The tensors are NumPy arrays, so that such a model predicts without torch. They are checked when they are read, since a
run folder may be damaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dragoman.base import ConfigError, RunError
from dragoman.classical.rows import Ragged
from dragoman.data.tokenizers import EOS, PAD
from dragoman.models import ModelTraits

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch, Corpus, Rows
    from dragoman.models import ClassifierOutput, Loss, TokenScores

Note = Callable[[str, int], None]  # (what is being done, how many so far)
Tokens = tuple[int, ...]
Arrays = Mapping[str, NDArray[Any]]
Size = int | str  # a name stands for any size, the same in all tensors; "N+1" is one more than "N"


class FittedModel(ModelTraits):
    """A model that `fit` computes. The same data and settings give the same tensors, to the bit.

    It has no parameters: `tensors` are all it knows, and a run keeps them as weights.safetensors.
    """

    shows_alignment: ClassVar[bool] = False  # whether `attention` says which source tokens an output comes from

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray[Any]] = {}

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        """Compute the tensors from the training part; returns the loss after each iteration, none if there are none."""
        raise NotImplementedError

    def tensor_specs(self) -> dict[str, TensorSpec]:
        raise NotImplementedError

    def load(self, tensors: Arrays) -> None:
        """Take the tensors of a run; RunError if they are not those of this model."""
        check_tensors(self.tensor_specs(), tensors)
        self.tensors = dict(tensors)

    def store(self, arrays: Arrays) -> None:
        self.load({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    @property
    def size(self) -> str:
        """How much it stores, in words."""
        return f"{sum(tensor.size for tensor in self.tensors.values()):,} numbers"

    def attention(self, batch: Batch) -> Tensor:
        """The weights of source tokens for every target token (B, 1, T, S), where `shows_alignment`."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> object:
        """Scores of the targets, for tools that call a model as a function."""
        return self.score(batch)

    def score(self, batch: Batch) -> TokenScores:
        raise NotImplementedError

    # --- What tools call on any model. This one has no parameters, is on no device and has no dropout.

    def __call__(self, batch: Batch) -> Any:
        return self.forward(batch)

    def parameters(self) -> Iterator[Any]:
        return iter(())

    def modules(self) -> Iterator[Any]:
        return iter(())

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        return iter(())

    def to(self, device: object) -> Self:
        return self

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        return self


class ScoredTokens(NamedTuple):
    """One output of a fitted model."""

    tokens: Tokens  # without <eos>
    token_scores: tuple[float, ...]  # of the tokens and of <eos>; they sum to the score

    @classmethod
    def of(cls, tokens: Iterable[int], score: float = 0.0) -> ScoredTokens:
        """An output with the whole score at its <eos>."""
        row = tuple(tokens)
        return cls(row, (*(0.0,) * len(row), score))


class Transducer(FittedModel):
    """A fitted model from tokens to tokens, which finds its outputs on its own."""

    decodes = "own-search"

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        """Between one and `n_best` outputs for every source (token ids without <eos>), best first."""
        raise NotImplementedError

    def check_likelihood(self) -> None:
        if self.likelihood == "none":
            raise ConfigError(f"{type(self).__name__} models find outputs, but have no probabilities of given ones")

    def log_probabilities(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        """The log-probability of each whole target; −∞: the model cannot output it."""
        raise NotImplementedError

    def score(self, batch: Batch) -> TokenScores:
        import torch

        from dragoman.models import TokenScores

        self.check_likelihood()
        sources, targets = rows_of(batch.source.data), rows_of(batch.target)
        totals = torch.tensor(self.log_probabilities(sources, targets), dtype=torch.float64)  # (B,)
        target = batch.target.cpu()
        mask = (target != PAD) & totals.isfinite()[:, None]  # (B, T)
        logs = torch.where((target == EOS) & mask, totals[:, None], 0.0)
        device = batch.target.device
        return TokenScores(logs.to(device), torch.zeros_like(mask).to(device), mask.to(device))


class LabelOutput(NamedTuple):
    """What a model predicts without a search, as `ClassifierOutput` has it, in NumPy arrays."""

    values: NDArray[Any]  # (B, N)
    probabilities: NDArray[Any] | None  # (B, N, K)
    mask: NDArray[np.bool_]  # (B, N)


class FittedLabeler(FittedModel):
    """A fitted model that predicts tags or numbers. It reads rows of a store, so that it needs no batch of tensors."""

    def predict_rows(self, sources: Rows, targets: Rows | None) -> LabelOutput:
        """The predictions for sources; targets say where words begin, where a task has words."""
        raise NotImplementedError

    def total_loss(self, sources: Rows, targets: Rows) -> tuple[float, int]:
        """The sum of the losses of all targets, and how many there are."""
        raise NotImplementedError

    def rows(self, batch: Batch) -> tuple[Rows, Rows]:
        """The stored rows of a batch: sources and targets."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> ClassifierOutput:
        import torch

        from dragoman.models import ClassifierOutput

        device, (values, shares, mask) = batch.source.device, self.predict_rows(*self.rows(batch))
        return ClassifierOutput(
            torch.from_numpy(values).to(device),
            None if shares is None else torch.from_numpy(shares).to(device),
            torch.from_numpy(mask).to(device),
        )

    def forward(self, batch: Batch) -> Loss:
        import torch

        from dragoman.models import Loss

        total, count = self.total_loss(*self.rows(batch))
        return Loss(torch.tensor(total, dtype=torch.float64), torch.tensor(count))


def rows_of(tokens: Tensor) -> list[Tokens]:
    """The rows of padded tokens (B, T), without <eos> and padding."""
    return [tuple(token for token in row if token not in (PAD, EOS)) for row in tokens.tolist()]


# --- tensors


class TensorSpec(NamedTuple):
    """Type, shape and values of one tensor. No number is NaN or ∞; −∞ is the logarithm of 0."""

    dtype: DTypeLike
    shape: tuple[Size, ...]
    least: int | None = None  # of all numbers
    below: tuple[Size, ...] = ()  # all numbers are below the product of these
    rising: bool = False  # no number is smaller than the one before
    offsets_of: str | None = None  # borders of rows in this tensor: they rise from 0 to its length


def row_specs(flat: str, offsets: str, count: Size, vocabulary: int | None, least: int = 0) -> dict[str, TensorSpec]:
    """Rows of tokens, `count` of them: a flat tensor and the offsets of its rows."""
    below = () if vocabulary is None else (vocabulary,)
    return {
        flat: TensorSpec(np.int32, (flat,), least, below),
        offsets: TensorSpec(np.int64, (f"{count}+1",), offsets_of=flat),
    }


def row_arrays(flat: str, offsets: str, rows: Ragged) -> dict[str, NDArray[Any]]:
    return {flat: rows.flat, offsets: rows.offsets}


def stored_rows(flat: str, offsets: str, tensors: Arrays) -> Ragged:
    return Ragged(tensors[flat], tensors[offsets])


def check_tensors(specs: Mapping[str, TensorSpec], tensors: Arrays) -> None:
    if missing := set(specs) ^ set(tensors):
        raise RunError(f"the weights do not fit the configuration: {', '.join(sorted(missing))} differ")
    sizes: dict[str, int] = {}
    for name, spec in specs.items():
        shape = tuple(tensors[name].shape)
        if tensors[name].dtype != spec.dtype or len(shape) != len(spec.shape):
            expected = f"{np.dtype(spec.dtype)} with {len(spec.shape)} dimensions"
            raise RunError(f"the weights are damaged: {name} is {tensors[name].dtype} {shape}, expected {expected}")
        for size, wanted in zip(shape, spec.shape, strict=True):
            more = isinstance(wanted, str) and wanted.endswith("+1")
            known = wanted if isinstance(wanted, int) else sizes.setdefault(wanted.removesuffix("+1"), size - more)
            if known < 0 or size != known + more:
                raise RunError(f"the weights are damaged: {name} has shape {shape}, which does not fit the others")
    for name, spec in specs.items():
        problem = wrong_values(tensors[name], spec, sizes, tensors)
        if problem:
            raise RunError(f"the weights are damaged: {name} {problem}")


def wrong_values(tensor: NDArray[Any], spec: TensorSpec, sizes: Mapping[str, int], tensors: Arrays) -> str:
    """What is wrong with the values of a tensor; empty: nothing."""
    if not tensor.size:
        return ""
    if np.issubdtype(tensor.dtype, np.floating):
        return "has NaN or ∞" if bool((~(tensor < math.inf)).any()) else ""
    if (spec.rising or spec.offsets_of) and bool((tensor[1:] < tensor[:-1]).any()):
        return "is not sorted"
    if spec.offsets_of and (int(tensor[0]), int(tensor[-1])) != (0, len(tensors[spec.offsets_of])):
        return f"does not divide {spec.offsets_of}"
    bound = math.prod(sizes[size] if isinstance(size, str) else size for size in spec.below) if spec.below else None
    if (spec.least is not None and int(tensor.min()) < spec.least) or (bound and int(tensor.max()) >= bound):
        return f"has numbers outside of {spec.least} … {'' if bound is None else bound - 1}"
    return ""
