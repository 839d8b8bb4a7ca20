"""Attention of a decoder over an encoder's memory, as recurrent decoders use it (FIELD D1 to D6, C4, C5).

An attention is a score (how a query is compared with a key) and a window (which places may be seen). What depends on
the memory alone is computed once by `read`; queries come one step or a whole sequence at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, SizeOrNone, setting
from dragoman.kernels.additive_score import COMPARISONS, compared, grown, way
from dragoman.kernels.deferred_gradients import DIRECT, Products
from dragoman.layers.attention import CrossAttention, masked_softmax, show

Place = Tensor | int  # how many tokens were read before the first query


# Windows: which places of the source a query may see


@dataclass(frozen=True)
class WholeConfig:
    """Every place of the source."""

    kind: ClassVar[str] = "whole"


@dataclass(frozen=True)
class MonotonicConfig:
    """Places around the target's own (Luong 2015, local-m)."""

    kind: ClassVar[str] = "monotonic"
    radius: Size = setting(10, help="places to either side")


@dataclass(frozen=True)
class PredictiveConfig:
    """Places around one that the query predicts (Luong 2015, local-p)."""

    kind: ClassVar[str] = "predictive"
    radius: Size = setting(10, help="places to either side; half of it is the spread of the bell around the centre")


WindowConfig = WholeConfig | MonotonicConfig | PredictiveConfig


class Window(nn.Module):
    """Sees everything; the other windows narrow the mask and may weigh what is left."""

    def __init__(self, config: Any, query_width: int) -> None:
        super().__init__()
        self.radius = getattr(config, "radius", 0)

    def forward(self, query: Tensor, mask: Tensor, start: Place) -> tuple[Tensor, Tensor | None]:
        """Mask and factors, each broadcastable to (B, k, T, S), for queries (B, k, T, Q); mask (B, 1, 1, S)."""
        return mask, None


class MonotonicWindow(Window):
    """p_t = t, or the last place of the source once t lies beyond it."""

    def forward(self, query: Tensor, mask: Tensor, start: Place) -> tuple[Tensor, Tensor | None]:
        """See Window."""
        places = torch.arange(mask.shape[-1], device=mask.device)
        last = mask.sum(-1, keepdim=True) - 1  # (B, 1, 1, 1)
        centre = (start + torch.arange(query.shape[2], device=mask.device))[:, None].minimum(last)  # (B, 1, T, 1)
        return mask & ((places - centre).abs() <= self.radius), None


class PredictiveWindow(Window):
    """p_t = S · sigmoid(vᵀ tanh(W q)), and a bell of spread radius / 2 around it (Luong 2015 eq. 9 and 10)."""

    def __init__(self, config: PredictiveConfig, query_width: int) -> None:
        super().__init__(config, query_width)
        self.inner = nn.Linear(query_width, query_width, bias=False)
        self.centre = nn.Linear(query_width, 1, bias=False)

    def forward(self, query: Tensor, mask: Tensor, start: Place) -> tuple[Tensor, Tensor | None]:
        """See Window."""
        with torch.autocast(query.device.type, enabled=False):  # half precision cannot tell places beyond 256 apart
            query = query.to(torch.promote_types(query.dtype, torch.float32))
            places = torch.arange(mask.shape[-1], device=mask.device, dtype=query.dtype)
            lengths = mask.sum(-1, keepdim=True).to(query.dtype)  # (B, 1, 1, 1)
            inner = torch.tanh(F.linear(query, self.inner.weight.to(query.dtype)))
            centre = lengths * torch.sigmoid(F.linear(inner, self.centre.weight.to(query.dtype)))  # (B, k, T, 1)
            distance = places - centre
            return mask & (distance.abs() <= self.radius), torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))


WINDOWS: dict[type, type[Window]] = {
    WholeConfig: Window,
    MonotonicConfig: MonotonicWindow,
    PredictiveConfig: PredictiveWindow,
}


# Scores: how a query is compared with a key


@dataclass(frozen=True)
class _OneHead:
    window: WindowConfig = setting(WholeConfig(), help="which places of the source can be seen")
    keys: SizeOrNone = setting(0, help="compare with keys W h of this size; 0: with the memory itself")
    values: SizeOrNone = setting(0, help="read values W h of this size; 0: the memory itself")
    gate: bool = setting(False, help="the query says how much of what was read counts: σ(w · s) (Xu et al. 2015)")


@dataclass(frozen=True)
class AdditiveConfig(_OneHead):
    """vᵀ tanh(W s + U h): Bahdanau 2015; Luong's concat."""

    kind: ClassVar[str] = "additive"
    width: Size = setting(512, help="inner size")


@dataclass(frozen=True)
class DotConfig(_OneHead):
    """sᵀ h; a memory of another size than the state is projected to it first."""

    kind: ClassVar[str] = "dot"


@dataclass(frozen=True)
class ScaledDotConfig(_OneHead):
    """sᵀ h / √D."""

    kind: ClassVar[str] = "scaled-dot"


@dataclass(frozen=True)
class GeneralConfig(_OneHead):
    """sᵀ W h (Luong 2015)."""

    kind: ClassVar[str] = "general"


@dataclass(frozen=True)
class CosineConfig(_OneHead):
    """The cosine of s and h, sharpened by a learned factor, since a softmax of cosines alone is nearly flat."""

    kind: ClassVar[str] = "cosine"


@dataclass(frozen=True)
class MultiHeadConfig:
    """Scaled dot products of several projections side by side (Vaswani 2017)."""

    kind: ClassVar[str] = "multi-head"
    heads: Size = setting(8, help="must divide width")
    width: Size = setting(512, help="size of the queries, keys and values of all heads together, and of what is read")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"


MemoryAttentionConfig = AdditiveConfig | DotConfig | ScaledDotConfig | GeneralConfig | CosineConfig | MultiHeadConfig


class DotScore(nn.Module):
    """Scores by dot products (FIELD D1, D4); keys of another size than the query get a projection."""

    def __init__(self, config: Any, query_width: int, key_width: int) -> None:
        super().__init__()
        fits = query_width == key_width and not isinstance(config, GeneralConfig)
        self.key = nn.Identity() if fits else nn.Linear(key_width, query_width, bias=False)
        self.scale = query_width**-0.5 if isinstance(config, ScaledDotConfig) else 1.0

    def ready(self, keys: Tensor) -> tuple[Tensor, ...]:
        """What depends on the keys (B, S, K) alone."""
        return (self.key(keys),)

    def forward(self, query: Tensor, keys: tuple[Tensor, ...], products: Products = DIRECT) -> Tensor:
        """Queries (B, n, Q) and what `ready` made of the keys: scores (B, n, S)."""
        return products.read(query, keys[0].transpose(1, 2)) * self.scale


class CosineScore(DotScore):
    """Scores by direction alone (FIELD D5)."""

    def __init__(self, config: CosineConfig, query_width: int, key_width: int) -> None:
        super().__init__(config, query_width, key_width)
        self.sharpness = nn.Parameter(torch.tensor(5.0))

    def ready(self, keys: Tensor) -> tuple[Tensor, ...]:
        """See DotScore."""
        return (F.normalize(self.key(keys), dim=-1),)

    def forward(self, query: Tensor, keys: tuple[Tensor, ...], products: Products = DIRECT) -> Tensor:
        """See DotScore."""
        return self.sharpness * super().forward(F.normalize(query, dim=-1), keys, products)


class AdditiveScore(nn.Module):
    """e = vᵀ tanh(W s + U h) (FIELD D3, Bahdanau 2015 eq. 6 and its appendix A.1.2)."""

    def __init__(self, config: AdditiveConfig, query_width: int, key_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, config.width, bias=False)
        self.key = nn.Linear(key_width, config.width)
        self.score = nn.Linear(config.width, 1, bias=False)

    def ready(self, keys: Tensor) -> tuple[Tensor, ...]:
        """See DotScore."""
        keys = self.key(keys)
        more = grown(keys.detach()) if way(keys) == "grown" else None
        return (keys,) if more is None else (keys, more)

    def forward(self, query: Tensor, keys: tuple[Tensor, ...], products: Products = DIRECT) -> Tensor:
        """See DotScore."""
        query = products.map(self.query, query)
        comparison, vector = COMPARISONS[way(keys[0])](), self.score.weight
        if comparison is not None:
            return compared(query, products.shared(keys[0], lambda: comparison(vector, *keys)))
        out: Tensor = self.score(torch.tanh(query[:, :, None] + keys[0][:, None])).squeeze(-1)
        return out


SCORES: dict[type, Any] = {
    AdditiveConfig: AdditiveScore,
    DotConfig: DotScore,
    ScaledDotConfig: DotScore,
    GeneralConfig: DotScore,  # sᵀ W h: W turns the keys, once
    CosineConfig: CosineScore,
}


# The attentions themselves


class MemoryAttention(Protocol):
    """What a decoder asks of its attention."""

    width: int  # of the contexts

    def read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """What depends on the memory alone, rows first."""

    def __call__(
        self, query: Tensor, memory: tuple[Tensor, ...], mask: Tensor, start: Place, products: Products = DIRECT
    ) -> Tensor:
        """Queries (N, T, Q) over the memory of their source, mask (B, S): contexts (N, T, width)."""


class OneHeadAttention(nn.Module):
    """One score and one window; every hypothesis of a source shares its keys and values."""

    reads_memory = True

    def __init__(self, config: _OneHead, query_width: int, memory_width: int) -> None:
        super().__init__()
        key_width = config.keys or memory_width
        self.width = config.values or memory_width
        self.keys = nn.Linear(memory_width, key_width, bias=False) if config.keys else nn.Identity()
        self.values = nn.Linear(memory_width, self.width, bias=False) if config.values else nn.Identity()
        self.score = SCORES[type(config)](config, query_width, key_width)
        self.window = WINDOWS[type(config.window)](config.window, query_width)
        self.gate = nn.Linear(query_width, 1) if config.gate else None

    def read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Keys ready to be compared and values ready to be read, and what else the score wants, each (B, S, …)."""
        ready, *more = self.score.ready(self.keys(keys))
        return ready, self.values(values), *more

    def forward(
        self, query: Tensor, memory: tuple[Tensor, ...], mask: Tensor, start: Place, products: Products = DIRECT
    ) -> Tensor:
        """See MemoryAttention."""
        keys, values, *more = memory
        rows, length = query.shape[:2]
        sources = keys.shape[0]
        scores = self.score(query.reshape(sources, -1, query.shape[-1]), (keys, *more), products)  # (B, k·T, S)
        scores = scores.view(sources, -1, length, scores.shape[-1])  # (B, k, T, S)
        fan = query.view(sources, -1, length, query.shape[-1])
        seen, factors = self.window(fan, mask[:, None, None], start)
        weights = masked_softmax(scores, seen)
        if factors is not None:
            weights = (weights * factors).to(weights.dtype)
        show(self, weights.reshape(rows, 1, length, -1))
        context = products.read(weights.flatten(1, 2), values).view(rows, length, -1)
        return context if self.gate is None else torch.sigmoid(products.map(self.gate, query)) * context


class MultiHeadMemoryAttention(CrossAttention):
    """The Transformer's attention over the memory, for a recurrent decoder (FIELD D6)."""

    def __init__(self, config: MultiHeadConfig, query_width: int, memory_width: int) -> None:
        super().__init__(config.width, config.heads, memory_width)
        self.width = config.width
        self.enter = nn.Identity() if query_width == config.width else nn.Linear(query_width, config.width)

    def forward(  # type: ignore[override]
        self, query: Tensor, memory: Any, mask: Tensor, start: Place = 0, products: Products = DIRECT
    ) -> Tensor:
        """See MemoryAttention."""
        return super().forward(products.map(self.enter, query), memory, mask, products)


ATTENTIONS: dict[type, Callable[..., nn.Module]] = {
    AdditiveConfig: OneHeadAttention,
    DotConfig: OneHeadAttention,
    ScaledDotConfig: OneHeadAttention,
    GeneralConfig: OneHeadAttention,
    CosineConfig: OneHeadAttention,
    MultiHeadConfig: MultiHeadMemoryAttention,
}


def build_attention(config: MemoryAttentionConfig, query_width: int, memory_width: int) -> MemoryAttention:
    """The attention a configuration describes."""
    return cast(MemoryAttention, ATTENTIONS[type(config)](config, query_width, memory_width))
