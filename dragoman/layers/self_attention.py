"""Self-attention (FIELD D6): full, restricted to a window, over segments, or linear in length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.config.settings import Size, setting
from dragoman.kernels import short_attention
from dragoman.layers.attention import Cache, attend, join_heads, split_heads, watched
from dragoman.layers.attention_scores import SCORES, Dot, ScaledDot
from dragoman.layers.block_windows import Windows
from dragoman.layers.linear import Linear, glorot
from dragoman.layers.linear_attention import attend_linear, extend_linear
from dragoman.layers.relative_positions import RelativePositions


@dataclass(frozen=True)
class FullConfig:
    """Every position sees every other; in a decoder, every earlier one."""

    kind: ClassVar[str] = "full"


class SharedCache(NamedTuple):
    """A cache that the k hypotheses of a source write side by side, so that nothing moves when they change places."""

    keys: Tensor  # (B, K, C·k, d): for each of C positions one entry a hypothesis
    values: Tensor
    seen: Tensor  # (N, C·k) which entries a hypothesis descends from, its own new one included


class SelfAttention(nn.Module):
    """Multi-head self-attention over a whole sequence, or over a cache of what came before.

    A kind that sees less than everything says so in `sees`, `first` and `block`; long sequences are then computed
    block by block.
    """

    block: int | None = None  # a block of so many positions sees the block before it, itself and …
    ahead = 0  # … so many blocks after it in an encoder

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        *,
        config: Any = None,
        key_heads: int = 0,
        score: str = "scaled-dot",
        bias: bool = True,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.dropout = heads, key_heads or heads, dropout
        depth = width // heads
        self.project = Linear(width, width + 2 * self.key_heads * depth, bias=bias)
        self.output = Linear(width, width, bias=bias)
        self.score = SCORES[score](heads, depth)
        self.relative = relative or RelativePositions()
        glorot(self.project, gain=2**-0.5)  # as three square matrices
        glorot(self.output)

    def sees(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Whether positions see others, of any shapes that broadcast; None: they all do."""
        return None

    def first(self, place: int) -> int:
        """The first position that is seen from this one or from a later one."""
        return 0

    def parts(self, projected: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, H, T, d), keys and values (N, K, T, d) of what was projected, at places (T,)."""
        width = self.output.in_features
        key_width = width // self.heads * self.key_heads
        query, key, value = torch.split(projected, [width, key_width, key_width], -1)
        query, key = split_heads(query, self.heads), split_heads(key, self.key_heads)
        query, key = self.score.query(query), self.score.key(key)
        query, key = self.relative.rotate(query, places), self.relative.rotate(key, places)
        return query, key, split_heads(value, self.key_heads)

    def whole(self, projected: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor | None:
        """What heads read, side by side, where nothing stands between the projection and one kernel; else None."""
        depth = self.output.in_features // self.heads
        untold = type(self.relative) is RelativePositions and type(self.score) in (ScaledDot, Dot)
        if not (untold and type(self) is SelfAttention and short_attention.suits_packed(projected, depth)) or watched():
            return None
        dropout = self.dropout if self.training else 0.0
        return short_attention.attend_packed(projected, depth, self.heads, mask, causal, dropout, self.score.scale)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Every position looks at the real ones it sees; mask (B, S)."""
        projected = self.project(x)
        out = self.whole(projected, mask, causal=False)
        if out is not None:
            return self.output(out)  # type: ignore[no-any-return]
        places = torch.arange(x.shape[1], device=x.device)
        query, key, value = self.parts(projected, places)
        if self.in_blocks(x.shape[1]):
            out = self.look_in_blocks(query, key, value, mask, begin=0, start=0, ahead=self.ahead)
        else:
            seen, real = self.sees(places[:, None], places), mask[:, None, None, :]
            out = self.look(query, key, value, places, places, real if seen is None else seen & real)
        joined: Tensor = self.output(join_heads(out))
        return joined

    def extend(self, x: Tensor, past: Cache, length: Tensor | int) -> tuple[Tensor, Cache]:
        """New positions look at the past and at themselves up to their own place.

        `length` as an int: the cache grows, and what can no longer be seen is dropped. As a tensor: the cache was
        made with room to spare, and the new keys are written into it in place at that position (the older state
        must not be used again). An empty tuple as past: nothing came before, and nothing is kept for later.
        """
        new, projected, forgets = x.shape[1], self.project(x), past == ()
        if forgets:
            out = self.whole(projected, None, causal=True)
            if out is not None:
                return self.output(out), ()
            past, length = self.empty(x.shape[0], None, like=projected), 0
        places = length + torch.arange(new, device=x.device)
        query, key, value = self.parts(projected, places)
        if isinstance(past, SharedCache):
            return self.output(join_heads(self._extend_shared(query, key, value, past, places))), past
        if isinstance(length, Tensor):
            key, value = (cache.index_copy_(2, places, part) for cache, part in zip(past, (key, value), strict=True))
            spots = torch.arange(key.shape[2], device=x.device)
            out = self.look(query, key, value, places, spots, self.sees_earlier(places, spots))
            return self.output(join_heads(out)), (key, value)
        begin = length - past[0].shape[2]
        if begin < length:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        if self.in_blocks(new):
            out = self.look_in_blocks(query, key, value, None, begin=begin, start=length, ahead=0)
        else:
            spots = torch.arange(begin, length + new, device=x.device)
            # A single new position sees all that was kept, and a first call of full attention is plainly causal.
            causal = new > 1 and length == 0 and self.block is None
            mask = self.sees_earlier(places, spots) if new > 1 and not causal else None
            out = self.look(query, key, value, places, spots, mask, causal=causal, dropped=begin)
        if forgets:
            return self.output(join_heads(out)), ()
        keep = self.first(length + new) - begin
        return self.output(join_heads(out)), (key[:, :, keep:], value[:, :, keep:])

    def _extend_shared(self, query: Tensor, key: Tensor, value: Tensor, past: SharedCache, places: Tensor) -> Tensor:
        """One new position of every hypothesis, written into the cache of its source in place."""
        unbiased = type(self.relative).bias is RelativePositions.bias
        if unbiased and short_attention.shares(query, past.keys) and not watched():
            scale = query.shape[3] ** -0.5 if self.score.scale is None else self.score.scale
            return short_attention.attend_shared(query, (key, value), past[:2], past.seen, places, scale)
        sources = past.keys.shape[0]
        width = query.shape[0] // sources
        new = places * width + torch.arange(width, device=places.device)
        for cache, part in zip(past[:2], (key, value), strict=True):
            cache.index_copy_(2, new, part.view(sources, width, *part.shape[1:])[:, :, :, 0].transpose(1, 2))
        spots = torch.arange(past.keys.shape[2], device=places.device) // width
        seen = past.seen.view(sources, 1, width, -1)
        return self.look(query, past.keys, past.values, places, spots, seen)

    def empty(self, rows: int, capacity: int | None, like: Tensor) -> Cache:
        """A cache with nothing in it: growing, or with room for `capacity` positions."""
        depth = self.output.in_features // self.heads
        return tuple(like.new_zeros(rows, self.key_heads, capacity or 0, depth) for _ in range(2))

    def sees_earlier(self, query: Tensor, key: Tensor) -> Tensor:
        """(T, S) for places (T,) and (S,): what is seen and not later than oneself."""
        earlier = key <= query[:, None]
        seen = self.sees(query[:, None], key)
        return earlier if seen is None else seen & earlier

    def in_blocks(self, length: int) -> bool:
        """Whether so many queries are worth cutting; whoever watches is shown all weights at once."""
        return self.block is not None and length > 2 * self.block and not watched()

    def look(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        places: Tensor,  # (T,) of the queries
        spots: Tensor,  # (S,) of the keys
        mask: Tensor | None,
        *,
        causal: bool = False,
        dropped: int = 0,
    ) -> Tensor:
        """Queries over keys, told how far they are apart."""
        return attend(
            self,
            query,
            key,
            value,
            mask=mask,
            bias=self.relative.bias(query, spots - places[:, None], self.score.scale),
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            scale=self.score.scale,
            dropped=dropped,
        )

    def look_in_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, begin: int, start: int, ahead: int
    ) -> Tensor:
        """The same for a long sequence; without a mask (B, S) nobody looks ahead."""
        assert self.block is not None
        windows = Windows(self.block, ahead, begin, start, start + query.shape[2])
        places, spots = windows.places(query.device)
        seen = self.sees_earlier(places, spots) if mask is None else self.sees(places[:, None], spots)
        if mask is None:
            mask = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)
        real = windows.real(mask)
        out = self.look(
            windows.queries(query),
            windows.keys(key),
            windows.keys(value),
            places,
            spots,
            real if seen is None else seen & real,
        )
        return windows.join(out)


@dataclass(frozen=True)
class LocalConfig:
    """Every position sees those at most `window` away (FIELD D9)."""

    kind: ClassVar[str] = "local"
    window: Size = setting(128, help="farthest distance that is seen, to either side; in a decoder, back")


class LocalAttention(SelfAttention):
    """Restricted self-attention (FIELD D9; Vaswani et al. 2017, section 4): |i − j| ≤ r."""

    ahead = 1

    def __init__(self, *arguments: Any, config: LocalConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.block: int = config.window

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Within the window."""
        return (query - key).abs() <= self.block

    def first(self, place: int) -> int:
        """A window back."""
        return max(0, place - self.block)


@dataclass(frozen=True)
class SegmentsConfig:
    """Every position sees its own segment and the one before, so that sight grows by a segment a layer."""

    kind: ClassVar[str] = "segments"
    length: Size = setting(128, help="positions in a segment")


class SegmentAttention(SelfAttention):
    """Recurrence over segments (FIELD D13; Dai et al. 2019, Transformer-XL, section 3.2).

    Segments are counted from the first token, however the tokens come, so a split of the calls changes nothing.
    Gradients flow into the segment before, unless the caller detaches the state between calls as the paper does.
    """

    def __init__(self, *arguments: Any, config: SegmentsConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.block: int = config.length

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """In one segment, or the key in the segment before."""
        back = query // self.block - key // self.block
        return (back == 0) | (back == 1)

    def first(self, place: int) -> int:
        """The beginning of the segment before."""
        return max(0, place // self.block - 1) * self.block


@dataclass(frozen=True)
class LinearConfig:
    """Sums in place of comparisons: linear in length, and a decoder's state does not grow."""

    kind: ClassVar[str] = "linear"


class LinearAttention(SelfAttention):
    """Katharopoulos et al. 2020 (FIELD D13), with φ = elu + 1; its cache is one sum of keys times values."""

    def parts(self, projected: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All (N, H, T, d): heads that share keys get copies."""
        query, *shared = super().parts(projected, places)
        key, value = (part.repeat_interleave(self.heads // self.key_heads, 1) for part in shared)
        return query, key, value

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Every position reads the sum over the real ones; mask (B, S)."""
        out = attend_linear(self, *self.parts(self.project(x), torch.arange(x.shape[1], device=x.device)), mask)
        joined: Tensor = self.output(join_heads(out))
        return joined

    def extend(self, x: Tensor, past: Cache, length: Tensor | int) -> tuple[Tensor, Cache]:
        """New positions read the sum so far and themselves up to their own place."""
        parts = self.parts(self.project(x), torch.arange(x.shape[1], device=x.device))
        out, present = extend_linear(self, *parts, past[0], length)
        return self.output(join_heads(out)), (present,)

    def empty(self, rows: int, capacity: int | None, like: Tensor) -> Cache:
        """A sum of nothing (N, H, d, d+1), whatever the capacity."""
        depth = self.output.in_features // self.heads
        precise = torch.promote_types(like.dtype, torch.float32)
        return (like.new_zeros(rows, self.heads, depth, depth + 1, dtype=precise),)


SelfAttentionConfig = FullConfig | LocalConfig | SegmentsConfig | LinearConfig
SELF_ATTENTIONS: dict[type, type[SelfAttention]] = {
    FullConfig: SelfAttention,
    LocalConfig: LocalAttention,
    SegmentsConfig: SegmentAttention,
    LinearConfig: LinearAttention,
}
