"""The contract of a fitted model: computed from the data in one go, stored as named tensors, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.classical.tensors import TensorSpec, check_tensors
from dragoman.data.batch import Batch
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.errors import ConfigError
from dragoman.models.base import BaseModel
from dragoman.models.contracts import TokenScores

Note = Callable[[str, int], None]  # (what is being done, how many so far)
Tokens = tuple[int, ...]


class FittedModel(BaseModel):
    """A model that `fit` computes. The same data and settings give the same tensors, to the bit.

    It has no parameters: `tensors` are all it knows, and a run keeps them as weights.safetensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        """Compute the tensors from the training part; returns the loss after each iteration, none if there are none."""
        raise NotImplementedError

    def tensor_specs(self) -> dict[str, TensorSpec]:
        raise NotImplementedError

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of a run; RunError if they are not those of this model."""
        check_tensors(self.tensor_specs(), tensors)
        self.tensors = dict(tensors)

    def store(self, arrays: Mapping[str, NDArray[Any] | Tensor]) -> None:
        """Take what `fit` computed."""
        self.load({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    @property
    def size(self) -> str:
        """How much it stores, in words."""
        return f"{sum(tensor.numel() for tensor in self.tensors.values()):,} numbers"

    def forward(self, batch: Batch) -> object:
        """Scores of the targets, for tools that call a model as a function."""
        return self.score(batch)

    def score(self, batch: Batch) -> TokenScores:
        raise NotImplementedError


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

    def log_probabilities(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        """The log-probability of each whole target; −∞: the model cannot output it."""
        raise NotImplementedError

    def score(self, batch: Batch) -> TokenScores:
        if self.likelihood == "none":
            raise ConfigError(f"{type(self).__name__} models find outputs, but have no probabilities of given ones")
        sources, targets = rows_of(batch.source.data), rows_of(batch.target)
        totals = torch.tensor(self.log_probabilities(sources, targets), dtype=torch.float64)  # (B,)
        target = batch.target.cpu()
        mask = (target != PAD) & totals.isfinite()[:, None]  # (B, T)
        logs = torch.where((target == EOS) & mask, totals[:, None], 0.0)
        device = batch.target.device
        return TokenScores(logs.to(device), torch.zeros_like(mask).to(device), mask.to(device))


def rows_of(tokens: Tensor) -> list[Tokens]:
    """The rows of padded tokens (B, T), without <eos> and padding."""
    return [tuple(token for token in row if token not in (PAD, EOS)) for row in tokens.tolist()]
