"""Pooling: many states to one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base.config import Range, Size, setting
from dragoman.models.layers.attention import masked_softmax, show
from dragoman.models.layers.linear import glorot
from dragoman.models.layers.masking import masked_mean


@dataclass(frozen=True)
class LastConfig:
    """The final state of the encoder: of a recurrent one after its last token, of others their own summary."""

    kind: ClassVar[str] = "last"


@dataclass(frozen=True)
class MeanConfig:
    """The mean of all states."""

    kind: ClassVar[str] = "mean"


@dataclass(frozen=True)
class MaxConfig:
    """The largest of each feature."""

    kind: ClassVar[str] = "max"


@dataclass(frozen=True)
class TimeAttentionConfig:
    """Attention over time with the weights softmax(tanh(h·w + b_t))."""

    kind: ClassVar[str] = "attention"
    steps: Annotated[int, Range(0)] = setting(
        0, help="length of the learned bias b, which is then the maximum length; 0: no bias, any length"
    )


@dataclass(frozen=True)
class StepWeightsConfig:
    """A learned weight for every step, whatever its state: Σ_t α_t h_t + b."""

    kind: ClassVar[str] = "step-weights"
    steps: Size = setting(20, help="number of weights, which is the maximum length")


@dataclass(frozen=True)
class QueriesConfig:
    """Learned queries; each attends to the states by scaled dot products."""

    kind: ClassVar[str] = "queries"
    count: Size = setting(1, help="learned queries; their contexts are concatenated")


PoolingConfig = LastConfig | MeanConfig | MaxConfig | TimeAttentionConfig | StepWeightsConfig | QueriesConfig


class LastPooling(nn.Module):
    """The final state of the encoder."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.width = width  # of the pooled vector

    def forward(self, states: Tensor, mask: Tensor, final: Tensor) -> Tensor:
        """states (B, T, D), mask (B, T), final (B, D) → (B, D)."""
        return final


class MeanPooling(LastPooling):
    """The mean of real states."""

    def forward(self, states: Tensor, mask: Tensor, final: Tensor) -> Tensor:
        return masked_mean(states, mask)


class MaxPooling(LastPooling):
    """The largest real value of each feature."""

    def forward(self, states: Tensor, mask: Tensor, final: Tensor) -> Tensor:
        return states.masked_fill(~mask[:, :, None], torch.finfo(states.dtype).min).amax(1)


class TimeAttention(nn.Module):
    """Σ_t a_t h_t with a = softmax(tanh(h_t·w + b_t)), b only where the maximum length is fixed."""

    def __init__(self, width: int, steps: int = 0) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.randn(width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(steps)) if steps else None

    def forward(self, states: Tensor, mask: Tensor | None = None, final: Tensor | None = None) -> Tensor:
        scores = states @ self.weight  # (B, T)
        if self.bias is not None:
            scores = scores + self.bias[: states.shape[1]]
        weights = masked_softmax(torch.tanh(scores), mask)
        show(self, weights[:, None, None])
        return (weights[:, :, None] * states).sum(1)


class StepWeights(LastPooling):
    """Σ_t α_t h_t + b with learned α (T,) and b (D,); α starts at 1/T, so that it starts as the mean of T states."""

    def __init__(self, config: StepWeightsConfig, width: int) -> None:
        super().__init__(config, width)
        self.weight = nn.Parameter(torch.full((config.steps,), 1 / config.steps))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, states: Tensor, mask: Tensor, final: Tensor) -> Tensor:
        weights = self.weight[: states.shape[1]] * mask  # (B, T)
        show(self, weights[:, None, None])
        return (weights[:, :, None] * states).sum(1) + self.bias


class QueryPooling(LastPooling):
    """softmax(Q(W h + b)ᵀ / √D) h for learned Q (q, D), concatenated."""

    def __init__(self, config: QueriesConfig, width: int) -> None:
        super().__init__(config, width * config.count)
        self.keys = nn.Linear(width, width)
        glorot(self.keys)
        self.queries = nn.Parameter(torch.randn(config.count, width))

    def forward(self, states: Tensor, mask: Tensor, final: Tensor) -> Tensor:
        """states (B, T, D), mask (B, T) → (B, q·D)."""
        scores = self.queries @ self.keys(states).transpose(1, 2) * states.shape[2] ** -0.5  # (B, q, T)
        weights = masked_softmax(scores, mask[:, None])
        show(self, weights[:, None])
        return (weights @ states).flatten(1)


POOLINGS: dict[type, Any] = {
    LastConfig: LastPooling,
    MeanConfig: MeanPooling,
    MaxConfig: MaxPooling,
    TimeAttentionConfig: lambda config, width: TimeAttention(width, config.steps),
    StepWeightsConfig: StepWeights,
    QueriesConfig: QueryPooling,
}
