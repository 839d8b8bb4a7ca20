"""Several models that write one output together: a step over several states, whatever the architectures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.errors import ConfigError, hint
from dragoman.models.contracts import Model, NonAutoregressiveModel, TokenScores

Average = Literal["probability", "log"]


class Bundle(NamedTuple):
    """Where several decoders stand; it goes through a search as one state does."""

    states: tuple[Any, ...]

    def select(self, rows: Tensor) -> Bundle:
        """Keep, drop or repeat whole sources."""
        return Bundle(tuple(state.select(rows) for state in self.states))

    def reorder(self, rows: Tensor) -> Bundle:
        """Exchange hypotheses within their source."""
        return Bundle(tuple(state.reorder(rows) for state in self.states))

    def expand(self, hypotheses: int) -> Bundle:
        """Give every source this many copies of its one hypothesis."""
        return Bundle(tuple(state.expand(hypotheses) for state in self.states))


def mean_probability(each: Tensor) -> Tensor:
    """log of the mean of probabilities, each (M, …, V): what any member holds likely stays possible."""
    return each.logsumexp(0) - math.log(len(each))


def mean_log(each: Tensor) -> Tensor:
    """Mean of log-probabilities, made to sum to one again: what any member holds unlikely is ruled out."""
    return each.mean(0).log_softmax(-1)


AVERAGES: dict[str, Callable[[Tensor], Tensor]] = {"probability": mean_probability, "log": mean_log}


class Ensemble:
    """Models that share their vocabularies, averaged token by token; searched and scored like one model."""

    def __init__(self, models: Sequence[Model], average: Average = "probability") -> None:
        if average not in AVERAGES:
            raise ConfigError(f"average: found {average!r}. {hint(average, AVERAGES)}")
        if not models:
            raise ConfigError("an ensemble needs at least one model, found none")
        if any(isinstance(model, NonAutoregressiveModel) for model in models):
            raise ConfigError("an ensemble needs models that write token by token; one of these writes all at once")
        self.models = tuple(models)
        self.average = AVERAGES[average]

    @property
    def max_positions(self) -> int | None:
        """Most tokens that every member can write; None: any number."""
        return min((model.max_positions for model in self.models if model.max_positions is not None), default=None)

    def start(self, batch: Batch) -> Bundle:
        """Every member reads the sources and stands before the first target token."""
        return Bundle(tuple(model.start(batch) for model in self.models))

    def step(self, tokens: Tensor, state: Bundle) -> tuple[Tensor, Bundle]:
        """Read tokens (N,) or (N, P); give the averaged log-probabilities (N, V) of the next one."""
        return self._together([model.step for model in self.models], tokens, state)

    def read(self, tokens: Tensor, state: Bundle) -> tuple[Tensor, Bundle]:
        """Read tokens (N, P); give the averaged log-probabilities (N, P, V) of what follows each of them."""
        return self._together([model.read for model in self.models], tokens, state)

    def _together(self, calls: Sequence[Any], tokens: Tensor, state: Bundle) -> tuple[Tensor, Bundle]:
        found, states = zip(*(call(tokens, one) for call, one in zip(calls, state.states, strict=True)), strict=True)
        return self.average(torch.stack(found)), Bundle(states)

    def score(self, batch: Batch) -> TokenScores:
        """Teacher-forced scores of the batch's targets."""
        target = batch.target
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        log_probabilities, _ = self.read(inputs, self.start(batch))
        mask = target != PAD
        chosen = log_probabilities.gather(-1, target[:, :, None])[:, :, 0]
        return TokenScores(chosen * mask, (log_probabilities.argmax(-1) == target) & mask, mask)
