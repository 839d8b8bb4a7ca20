"""An ensemble: several models, of any architectures, that write one output together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.base import ConfigError, hint
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.decoding.config import DEFAULT_AVERAGE, Average
from dragoman.models import Decodes, Likelihood, Model, State, TokenScores, decodes
from dragoman.models.heads import teacher_inputs


def mean_probability(each: Tensor, weights: Sequence[float]) -> Tensor:
    """Log of the mean probability, each (M, …, V): a token that any member finds likely stays possible."""
    if not weights:
        return each.logsumexp(0) - math.log(len(each))
    return (each + column(weights, each).log()).logsumexp(0)


def mean_log(each: Tensor, weights: Sequence[float]) -> Tensor:
    """Mean log-probability, normalised again: a token that any member finds unlikely is ruled out."""
    mean = each.mean(0) if not weights else (each * column(weights, each)).nan_to_num(nan=0.0).sum(0)
    return mean.log_softmax(-1)


def column(weights: Sequence[float], each: Tensor) -> Tensor:
    return torch.tensor(weights, dtype=each.dtype, device=each.device).view(-1, *[1] * (each.dim() - 1))


AVERAGES: dict[str, Callable[[Tensor, Sequence[float]], Tensor]] = {"probability": mean_probability, "log": mean_log}


def joint_state(states: Sequence[State]) -> State:
    """The states of all members as one: they have read the same tokens."""
    return states[0]._replace(
        static=tuple(state.static for state in states), cache=tuple(state.cache for state in states)
    )


class Ensemble:
    """Models that share their vocabularies, averaged token by token; searched and scored like one model."""

    likelihood: Likelihood = "tokens"
    decodes: Decodes = "stepwise"

    def __init__(
        self, models: Sequence[Model], average: Average = DEFAULT_AVERAGE, weights: Sequence[float] = ()
    ) -> None:
        """`weights` sum to 1; none: equal ones."""
        if average not in AVERAGES:
            raise ConfigError(f"average: found {average!r}. {hint(average, AVERAGES)}")
        if not models:
            raise ConfigError("an ensemble needs at least one model, found none")
        if any(decodes(model) == "parallel" for model in models):
            raise ConfigError("an ensemble needs models that write token by token; one of these writes all at once")
        self.models = tuple(models)
        self.average, self.weights = AVERAGES[average], tuple(weights)

    @property
    def max_positions(self) -> int | None:
        return min((model.max_positions for model in self.models if model.max_positions is not None), default=None)

    def start(self, batch: Batch) -> State:
        return joint_state([model.start(batch) for model in self.models])

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._averaged([model.step for model in self.models], tokens, state)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._averaged([model.read for model in self.models], tokens, state)

    def _averaged(self, calls: Sequence[Any], tokens: Tensor, state: State) -> tuple[Tensor, State]:
        members = zip(calls, state.static, state.cache, strict=True)
        results = [call(tokens, state._replace(static=static, cache=cache)) for call, static, cache in members]
        outputs, states = zip(*results, strict=True)
        # Where some members copy unknown words and others cannot, none does: their scores are −∞.
        vocabulary = min(output.shape[-1] for output in outputs)
        each = torch.stack([output[..., :vocabulary] for output in outputs])
        return self.average(each, self.weights), joint_state(states)

    def parameters(self) -> Iterator[Tensor]:
        return (parameter for model in self.models for parameter in model.parameters())  # type: ignore[attr-defined]

    def logits(self, batch: Batch) -> Tensor:
        """The averaged log-probabilities (B, T, V) at every target position, given the true tokens before it."""
        return self.read(teacher_inputs(batch.target), self.start(batch))[0]

    def score(self, batch: Batch) -> TokenScores:
        target, log_probabilities = batch.target, self.logits(batch)
        mask = target != PAD
        chosen = log_probabilities.gather(-1, target[:, :, None])[:, :, 0]
        return TokenScores(chosen * mask, (log_probabilities.argmax(-1) == target) & mask, mask)
