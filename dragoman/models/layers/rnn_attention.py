"""Attention of a recurrent decoder over the encoder's memory (Bahdanau et al. 2015, Luong et al. 2015).

An attention has a score (how a query is compared with a key) and a window (which source positions it may see). `read`
computes what depends on the memory alone, once. Queries come one step or a whole sequence at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Size, SizeOrNone, setting
from dragoman.models.kernels.deferred_gradients import matmul
from dragoman.models.kernels.input_feeding import DotMemory
from dragoman.models.layers.attention import CrossAttention, masked_softmax, observed, show
from dragoman.models.layers.linear import StepLinear

Position = Tensor | int  # the target position of the first query


@dataclass(frozen=True)
class GlobalConfig:
    """Every position of the source."""

    kind: ClassVar[str] = "global"


@dataclass(frozen=True)
class MonotonicConfig:
    """Source positions around the target position (Luong et al. 2015, local-m)."""

    kind: ClassVar[str] = "monotonic"
    radius: Size = setting(10, help="positions to either side")


@dataclass(frozen=True)
class PredictiveConfig:
    """Source positions around one that the query predicts (Luong et al. 2015, local-p)."""

    kind: ClassVar[str] = "predictive"
    radius: Size = setting(
        10, help="positions to either side; half of it is the deviation of the Gaussian around the centre"
    )


WindowConfig = GlobalConfig | MonotonicConfig | PredictiveConfig


class GlobalWindow(nn.Module):
    """Sees all real positions; the other windows restrict the mask and may scale the weights."""

    def __init__(self, config: Any, query_width: int) -> None:
        super().__init__()
        self.radius = getattr(config, "radius", 0)

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        """Queries (B, k, T, Q), mask (B, 1, 1, S) → mask and factors, each broadcastable to (B, k, T, S)."""
        return mask, None


class MonotonicWindow(GlobalWindow):
    """p_t = t, or the last source position where t lies beyond it."""

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(mask.shape[-1], device=mask.device)
        last = mask.sum(-1, keepdim=True) - 1  # (B, 1, 1, 1)
        centre = (start + torch.arange(query.shape[2], device=mask.device))[:, None].minimum(last)  # (B, 1, T, 1)
        return mask & ((positions - centre).abs() <= self.radius), None


class PredictiveWindow(GlobalWindow):
    """p_t = S · sigmoid(vᵀ tanh(W q)), and a Gaussian of deviation radius / 2 around it (eq. 9 and 10)."""

    def __init__(self, config: PredictiveConfig, query_width: int) -> None:
        super().__init__(config, query_width)
        self.inner = nn.Linear(query_width, query_width, bias=False)
        self.centre = nn.Linear(query_width, 1, bias=False)

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(query.device.type, enabled=False):  # half precision cannot tell positions beyond 256 apart
            query = query.to(torch.promote_types(query.dtype, torch.float32))
            positions = torch.arange(mask.shape[-1], device=mask.device, dtype=query.dtype)
            lengths = mask.sum(-1, keepdim=True).to(query.dtype)  # (B, 1, 1, 1)
            inner = torch.tanh(F.linear(query, self.inner.weight.to(query.dtype)))
            centre = lengths * torch.sigmoid(F.linear(inner, self.centre.weight.to(query.dtype)))  # (B, k, T, 1)
            distance = positions - centre
            return mask & (distance.abs() <= self.radius), torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))


WINDOWS: dict[type, type[GlobalWindow]] = {
    GlobalConfig: GlobalWindow,
    MonotonicConfig: MonotonicWindow,
    PredictiveConfig: PredictiveWindow,
}


@dataclass(frozen=True)
class _SingleHeadConfig:
    window: WindowConfig = setting(GlobalConfig(), help="which positions of the source can be seen")
    keys: SizeOrNone = setting(0, help="compare with keys W h of this size; 0: with the memory itself")
    values: SizeOrNone = setting(0, help="read values W h of this size; 0: the memory itself")
    gate: bool = setting(False, help="scale the context by a gate σ(w · s) of the query (Xu et al. 2015)")


@dataclass(frozen=True)
class AdditiveConfig(_SingleHeadConfig):
    """vᵀ tanh(W s + U h): Bahdanau 2015; Luong's concat."""

    kind: ClassVar[str] = "additive"
    width: Size = setting(512, help="inner size")


@dataclass(frozen=True)
class DotConfig(_SingleHeadConfig):
    """sᵀ h; a memory of another size than the state is projected first."""

    kind: ClassVar[str] = "dot"


@dataclass(frozen=True)
class ScaledDotConfig(_SingleHeadConfig):
    """sᵀ h / √D."""

    kind: ClassVar[str] = "scaled-dot"


@dataclass(frozen=True)
class GeneralConfig(_SingleHeadConfig):
    """sᵀ W h (Luong 2015)."""

    kind: ClassVar[str] = "general"


@dataclass(frozen=True)
class CosineConfig(_SingleHeadConfig):
    """The cosine of s and h times a learned factor, because a softmax of cosines alone is nearly uniform."""

    kind: ClassVar[str] = "cosine"


@dataclass(frozen=True)
class MultiHeadConfig:
    """Multi-head scaled dot-product attention (Vaswani 2017)."""

    kind: ClassVar[str] = "multi-head"
    heads: Size = setting(8, help="must divide width")
    width: Size = setting(512, help="size of the queries, keys and values of all heads together, and of the context")

    def problems(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"


RNNAttentionConfig = AdditiveConfig | DotConfig | ScaledDotConfig | GeneralConfig | CosineConfig | MultiHeadConfig


# Scores: how a query is compared with a key


class DotScore(nn.Module):
    """Dot products; keys of another size than the query are projected, and those of `general` always."""

    def __init__(self, config: Any, query_width: int, key_width: int) -> None:
        super().__init__()
        unprojected = query_width == key_width and not isinstance(config, GeneralConfig)
        self.key = nn.Identity() if unprojected else nn.Linear(key_width, query_width, bias=False)
        self.scale = query_width**-0.5 if isinstance(config, ScaledDotConfig) else 1.0

    def prepare(self, keys: Tensor) -> Tensor:
        """What depends on the keys (B, S, K) alone."""
        return self.key(keys)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Queries (B, n, Q) and keys as `prepare` returns them → scores (B, n, S)."""
        return matmul(query, keys.transpose(1, 2)) * self.scale


class CosineScore(DotScore):
    """The cosine of query and key times a learned factor."""

    def __init__(self, config: CosineConfig, query_width: int, key_width: int) -> None:
        super().__init__(config, query_width, key_width)
        self.sharpness = nn.Parameter(torch.tensor(5.0))

    def prepare(self, keys: Tensor) -> Tensor:
        return F.normalize(super().prepare(keys), dim=-1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.sharpness * super().forward(F.normalize(query, dim=-1), keys)


class AdditiveScore(nn.Module):
    """e = vᵀ tanh(W s + U h) (Bahdanau 2015, eq. 6 and appendix A.1.2)."""

    def __init__(self, config: AdditiveConfig, query_width: int, key_width: int) -> None:
        super().__init__()
        self.query = StepLinear(query_width, config.width, bias=False)
        self.key = nn.Linear(key_width, config.width)
        self.score = nn.Linear(config.width, 1, bias=False)

    def prepare(self, keys: Tensor) -> Tensor:
        """U h."""
        return self.key(keys)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Queries (B, n, Q) and keys as `prepare` returns them → scores (B, n, S)."""
        compared = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # (B, n, S, A)
        return F.linear(compared, self.score.weight).squeeze(-1)


# `general` is sᵀ W h too: W is applied to the keys, once.
SCORES: dict[type, Any] = {AdditiveConfig: AdditiveScore, CosineConfig: CosineScore}


# Attention


class SingleHeadAttention(nn.Module):
    """One score and one window; all hypotheses of a source share its keys and values."""

    is_cross_attention = True

    def __init__(self, config: _SingleHeadConfig, query_width: int, memory_width: int) -> None:
        super().__init__()
        key_width = config.keys or memory_width
        self.width = config.values or memory_width
        self.keys = nn.Linear(memory_width, key_width, bias=False) if config.keys else nn.Identity()
        self.values = nn.Linear(memory_width, self.width, bias=False) if config.values else nn.Identity()
        self.score = SCORES.get(type(config), DotScore)(config, query_width, key_width)
        self.window = WINDOWS[type(config.window)](config.window, query_width)
        self.gate = StepLinear(query_width, 1) if config.gate else None

    def read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """What depends on the memory alone: keys as the score prepares them, and values, each (B, S, …)."""
        return self.score.prepare(self.keys(keys)), self.values(values)

    def as_dot_products(self, mask: Tensor, memory: tuple[Tensor, ...]) -> DotMemory | None:
        """Keys and values where the context is softmax(scale · q · K) V and nobody looks at the weights."""
        if type(self.score) is not DotScore or type(self.window) is not GlobalWindow or self.gate or observed():
            return None
        keys, values = memory
        return DotMemory(keys, values, mask, self.score.scale)

    def forward(self, query: Tensor, memory: tuple[Tensor, ...], mask: Tensor, start: Position) -> Tensor:
        """Queries (N, T, Q), mask (B, S) → contexts (N, T, width); `start`: target position of the first query."""
        keys, values = memory
        rows, length = query.shape[:2]
        sources = keys.shape[0]
        scores = self.score(query.reshape(sources, -1, query.shape[-1]), keys)  # (B, k·T, S)
        scores = scores.view(sources, -1, length, scores.shape[-1])  # (B, k, T, S)
        queries = query.view(sources, -1, length, query.shape[-1])  # (B, k, T, Q)
        visible, factors = self.window(queries, mask[:, None, None], start)
        weights = masked_softmax(scores, visible)
        if factors is not None:
            weights = (weights * factors).to(weights.dtype)
        show(self, weights.reshape(rows, 1, length, -1))
        context = matmul(weights.flatten(1, 2), values).view(rows, length, -1)
        return context if self.gate is None else torch.sigmoid(self.gate(query)) * context


class MultiHeadRNNAttention(CrossAttention):
    """The cross-attention of the Transformer, for a recurrent decoder."""

    def __init__(self, config: MultiHeadConfig, query_width: int, memory_width: int) -> None:
        super().__init__(config.width, config.heads, memory_width)
        self.width = config.width
        self.resize = None if query_width == config.width else StepLinear(query_width, config.width)

    def as_dot_products(self, mask: Tensor, memory: Any) -> None:
        """Several heads have no such form."""

    def forward(self, query: Tensor, memory: Any, mask: Tensor, start: Position = 0) -> Tensor:
        """Queries (N, T, Q), mask (B, S) → contexts (N, T, width)."""
        if self.resize is not None:
            query = self.resize(query)
        return super().forward(query, memory, mask)


RNNAttention = SingleHeadAttention | MultiHeadRNNAttention


def build_rnn_attention(config: RNNAttentionConfig, query_width: int, memory_width: int) -> RNNAttention:
    if isinstance(config, MultiHeadConfig):
        return MultiHeadRNNAttention(config, query_width, memory_width)
    return SingleHeadAttention(config, query_width, memory_width)
