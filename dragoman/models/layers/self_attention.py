"""Self-attention: full, restricted to a window, over segments, or linear in length.

Linear attention (Katharopoulos et al. 2020) has no softmax: the weight of a key is φ(q)·φ(k), so keys and values can be
summed before the query is known (eq. 6), and a decoder is a recurrent network whose state is that sum (eq. 18–20). A
one is appended to every value, so that the sum contains its own normaliser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels import short_attention
from dragoman.models.kernels.fused_layers import split_columns
from dragoman.models.layers.attention import SCORES, attend, join_heads, observed, show, split_heads
from dragoman.models.layers.config import FullConfig, LinearConfig, LocalConfig, SegmentsConfig
from dragoman.models.layers.kv_cache import FixedCache, GrowingCache, NoCache, SharedCache
from dragoman.models.layers.linear import Linear, glorot
from dragoman.models.layers.positions import RelativePositions

CHUNK = 64  # positions compared pairwise; between chunks only sums are passed


def features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1 (eq. 7), in full precision, because these are summed over the whole sequence."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


def with_one(value: Tensor) -> Tensor:
    """(…, e) → (…, e+1)."""
    return F.pad(value.to(torch.promote_types(value.dtype, torch.float32)), (0, 1), value=1.0)


def normalised(read: Tensor) -> Tensor:
    """(…, e+1) → (…, e); zeros where no key was visible."""
    total, weight = read[..., :-1], read[..., -1:]
    return total / weight.masked_fill(weight == 0, 1.0)


def attend_linear(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Every query over every real key (eq. 6); all (B, H, S, d), mask (B, S)."""
    with torch.autocast(query.device.type, enabled=False):
        real = mask[:, None, :, None]
        left, right = features(query), features(key) * real
        if observed():
            show(module, weights_of(left @ right.transpose(-2, -1)))
        total = right.transpose(-2, -1) @ with_one(value)  # (B, H, d, e+1)
        return normalised(left @ total).to(value.dtype)


def extend_linear(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, past: Tensor, length: Tensor | int
) -> tuple[Tensor, Tensor]:
    """New positions over the sum of the past (N, H, d, e+1) and over each other, causally; and the new sum.

    Single keys of the past are unknown: an observer sees zeros there, in rows that then sum to the share of the new
    positions.
    """
    new = query.shape[2]
    with torch.autocast(query.device.type, enabled=False):
        left, right, extended = features(query), features(key), with_one(value)
        if observed():
            pairs = (left @ right.transpose(-2, -1)).tril()
            show(module, F.pad(weights_of(pairs, (left @ past)[..., -1:]), (int(length), 0)))
        chunk = min(new, CHUNK)
        left, right, extended = (in_chunks(tensor, chunk) for tensor in (left, right, extended))
        within = (left @ right.transpose(-2, -1)).tril() @ extended
        sums = torch.cat([past[:, :, None], right.transpose(-2, -1) @ extended], 2).cumsum(2)  # (N, H, n+1, d, e+1)
        read = (within + left @ sums[:, :, :-1]).flatten(2, 3)[:, :, :new]
        return normalised(read).to(value.dtype), sums[:, :, -1]


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(N, H, T, e) → (N, H, n, chunk, e), with zeros at the end."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).contiguous()
    return x.view(*x.shape[:2], -1, chunk, x.shape[3])


def weights_of(pairs: Tensor, past: Tensor | float = 0.0) -> Tensor:
    """Products (N, H, T, S) divided by their sum, the past (N, H, T, 1) included."""
    total = pairs.sum(-1, keepdim=True) + past
    return pairs / total.masked_fill(total == 0, 1.0)


@dataclass(frozen=True)
class Windows:
    """Queries at `start` … `end` in blocks that begin at multiples of `block`; keys from `cache_start` to `end`.

    A block sees the keys of the block before it, its own and those of `ahead` blocks after it. All blocks relate to
    their windows in the same way, so one mask and one bias by distance serve all of them.
    """

    block: int
    ahead: int
    cache_start: int
    start: int
    end: int

    @property
    def first(self) -> int:
        """The position where the first block begins."""
        return self.start // self.block * self.block

    @property
    def count(self) -> int:
        return -(-(self.end - self.first) // self.block)

    @property
    def width(self) -> int:
        return (2 + self.ahead) * self.block

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of queries (block,) and keys (width,), counted from the beginning of their block."""
        return torch.arange(self.block, device=device), torch.arange(self.width, device=device) - self.block

    def queries(self, x: Tensor) -> Tensor:
        """(N, H, T, d) → (N·blocks, H, block, d)."""
        front = self.start - self.first
        x = F.pad(x, (0, 0, front, self.count * self.block - front - x.shape[2])).contiguous()
        return x.view(*x.shape[:2], self.count, self.block, -1).transpose(1, 2).flatten(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(N, K, S, d) → (N·blocks, K, width, d)."""
        return F.pad(x, (0, 0, *self.margins)).unfold(2, self.width, self.block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    def mask(self, mask: Tensor) -> Tensor:
        """(B, S) → (B·blocks, 1, 1, width); False outside the sequence."""
        return F.pad(mask, self.margins, value=False).unfold(1, self.width, self.block).flatten(0, 1)[:, None, None, :]

    def join(self, x: Tensor) -> Tensor:
        """(N·blocks, H, block, d) → (N, H, T, d)."""
        x = x.reshape(-1, self.count, *x.shape[1:]).transpose(1, 2).flatten(2, 3)
        return x[:, :, self.start - self.first : self.end - self.first]

    @property
    def margins(self) -> tuple[int, int]:
        """Keys to add before and after, so that every window is complete; negative: keys to leave out."""
        last = self.first + (self.count + self.ahead) * self.block
        return self.cache_start - (self.first - self.block), last - self.end


class SelfAttention(nn.Module):
    """Multi-head self-attention over a whole sequence, or over a cache of earlier positions.

    A restricted kind overrides `visible`, `first_visible` and `block`; long sequences are then computed block by block.
    """

    shares_cache: ClassVar[bool] = True  # a SharedCache serves it: a hypothesis sees all its earlier positions
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
        head_width: int = 0,  # 0: width / heads
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.dropout = heads, key_heads or heads, dropout
        depth = head_width or width // heads
        self.project = Linear(width, (heads + 2 * self.key_heads) * depth, bias=bias)
        self.output = Linear(heads * depth, width, bias=bias)
        self.score = SCORES[score](heads, depth)
        self.relative = relative or RelativePositions()
        glorot(self.project, gain=2**-0.5)  # as three square matrices
        glorot(self.output)

    def visible(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Whether query positions see key positions, of any shapes that broadcast; None: they all do."""
        return None

    def first_visible(self, position: int) -> int:
        """The first position that this one or a later one sees."""
        return 0

    def split_projection(self, projected: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, H, T, d), keys and values (N, K, T, d) of the projection; positions (T,)."""
        width = self.output.in_features
        key_width = width // self.heads * self.key_heads
        query, key, value = split_columns(projected, [width, key_width, key_width])
        query, key = split_heads(query, self.heads), split_heads(key, self.key_heads)
        query, key = self.score.query(query), self.score.key(key)
        query, key = self.relative.rotate(query, positions), self.relative.rotate(key, positions)
        return query, key, split_heads(value, self.key_heads)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Every position attends to the real positions that it sees; mask (B, S)."""
        positions = torch.arange(x.shape[1], device=x.device)
        query, key, value = self.split_projection(self.project(x), positions)
        if self.is_blockwise(x.shape[1]):
            out = self.attend_blockwise(query, key, value, mask, cache_start=0, start=0, ahead=self.ahead)
        else:
            visible, real = self.visible(positions[:, None], positions), mask[:, None, None, :]
            out = self.attend(query, key, value, positions, positions, real if visible is None else visible & real)
        return self.output(join_heads(out))

    def extend(self, x: Tensor, past: Any, length: Tensor | int) -> tuple[Tensor, Any]:
        """New positions attend to a cache (`kv_cache`) and to themselves, causally; returns the cache after them.

        `length`, the number of earlier positions, is a tensor where the cache has a fixed capacity.
        """
        new = x.shape[1]
        if isinstance(length, Tensor) and new == 1:
            positions = length.reshape(1)  # no kernel of its own in a captured step
        else:
            positions = length + torch.arange(new, device=x.device)
        query, key, value = self.split_projection(self.project(x), positions)
        if isinstance(past, SharedCache) and short_attention.shares(query, past.keys) and not observed():
            scale = query.shape[3] ** -0.5 if self.score.scale is None else self.score.scale
            bias = self._shared_bias(query, past, positions, scale)
            shared = short_attention.attend_shared(query, (key, value), past[:2], past.entries, positions, scale, bias)
            return self.output(join_heads(shared)), past
        seen = past.update(key, value, positions)
        key, value, mask, cache = seen.keys, seen.values, seen.visible, seen.cache
        start, causal = 0, False
        if isinstance(length, int):
            start = length + new - key.shape[2]
            cache = cache.drop(self.first_visible(length + new) - start)
            if self.is_blockwise(new):
                out = self.attend_blockwise(query, key, value, None, cache_start=start, start=length, ahead=0)
                return self.output(join_heads(out)), cache
            causal = new > 1 and length == 0 and self.block is None  # the first call of full attention
        key_positions = torch.arange(start, start + key.shape[2], device=x.device) // seen.hypotheses
        sees_all = isinstance(length, int) and new == 1  # a growing cache has no position that the newest cannot see
        if mask is None and not causal and not sees_all:
            mask = self.causal_mask(positions, key_positions)
        out = self.attend(query, key, value, positions, key_positions, mask, causal=causal, dropped=start)
        return self.output(join_heads(out)), cache

    def _shared_bias(self, query: Tensor, past: SharedCache, positions: Tensor, scale: float) -> Tensor | None:
        """The bias of all positions for which a shared cache has room, for queries at `positions` (1,)."""
        if type(self.relative).bias is RelativePositions.bias:
            return None
        capacity = past.keys.shape[2] * past.keys.shape[0] // query.shape[0]
        distance = torch.arange(capacity, device=query.device) - positions[:, None]
        return self.relative.bias(query, distance, scale)

    def init_cache(self, rows: int, capacity: int | None, like: Tensor) -> Any:
        """An empty cache: growing, or with room for `capacity` positions."""
        depth = self.output.in_features // self.heads
        parts = (like.new_zeros(rows, self.key_heads, capacity or 0, depth) for _ in range(2))
        return GrowingCache(*parts) if capacity is None else FixedCache(*parts)

    def without_cache(self, past: Any) -> Any:
        """The cache for a call that nothing comes before or after."""
        return NoCache()

    def causal_mask(self, query: Tensor, key: Tensor) -> Tensor:
        """(T, S) for positions (T,) and (S,): which keys are visible and not later than the query."""
        earlier = key <= query[:, None]
        visible = self.visible(query[:, None], key)
        return earlier if visible is None else visible & earlier

    def is_blockwise(self, length: int) -> bool:
        """Whether so many queries are worth splitting into blocks; an observer gets all weights at once."""
        return self.block is not None and length > 2 * self.block and not observed()

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_positions: Tensor,  # (T,)
        key_positions: Tensor,  # (S,)
        mask: Tensor | None,
        *,
        causal: bool = False,
        dropped: int = 0,
    ) -> Tensor:
        """Attention with the bias of relative positions."""
        return attend(
            self,
            query,
            key,
            value,
            mask=mask,
            bias=self.relative.bias(query, key_positions - query_positions[:, None], self.score.scale),
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            scale=self.score.scale,
            dropped=dropped,
        )

    def attend_blockwise(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        cache_start: int,
        start: int,
        ahead: int,
    ) -> Tensor:
        """`attend` over a long sequence; without a mask (B, S) it is causal."""
        assert self.block is not None
        windows = Windows(self.block, ahead, cache_start, start, start + query.shape[2])
        query_positions, key_positions = windows.positions(query.device)
        if mask is None:
            visible: Tensor | None = self.causal_mask(query_positions, key_positions)
            mask = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)
        else:
            visible = self.visible(query_positions[:, None], key_positions)
        real = windows.mask(mask)
        out = self.attend(
            windows.queries(query),
            windows.keys(key),
            windows.keys(value),
            query_positions,
            key_positions,
            real if visible is None else visible & real,
        )
        return windows.join(out)


class LocalAttention(SelfAttention):
    """Restricted self-attention (Vaswani et al. 2017, section 4): |i − j| ≤ r."""

    ahead = 1
    shares_cache = False

    def __init__(self, *arguments: Any, config: LocalConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.block: int = config.window

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= self.block

    def first_visible(self, position: int) -> int:
        return max(0, position - self.block)


class SegmentAttention(SelfAttention):
    """Segment-level recurrence (Dai et al. 2019, Transformer-XL, section 3.2).

    Segments are counted from the first token, so that splitting a sequence over several calls changes nothing.
    Gradients flow into the segment before, unless the caller detaches the state between calls as the paper does.
    """

    shares_cache = False

    def __init__(self, *arguments: Any, config: SegmentsConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.block: int = config.length

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        back = query // self.block - key // self.block
        return (back == 0) | (back == 1)

    def first_visible(self, position: int) -> int:
        return max(0, position // self.block - 1) * self.block


class RunningSum(NamedTuple):
    """The cache of linear attention, as large after many positions as after one."""

    total: Tensor  # (N, H, d, d + 1) Σ φ(k) [v; 1]ᵀ


class LinearAttention(SelfAttention):
    """Katharopoulos et al. 2020, with φ = elu + 1; the cache is one sum of keys times values."""

    shares_cache = False

    def split_projection(self, projected: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, *shared = super().split_projection(projected, positions)
        key, value = (tensor.repeat_interleave(self.heads // self.key_heads, 1) for tensor in shared)
        return query, key, value

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        out = attend_linear(self, *self.split_projection(self.project(x), positions), mask)
        return self.output(join_heads(out))

    def extend(self, x: Tensor, past: RunningSum, length: Tensor | int) -> tuple[Tensor, RunningSum]:
        positions = torch.arange(x.shape[1], device=x.device)
        out, total = extend_linear(self, *self.split_projection(self.project(x), positions), past.total, length)
        return self.output(join_heads(out)), RunningSum(total)

    def init_cache(self, rows: int, capacity: int | None, like: Tensor) -> RunningSum:
        depth = self.output.in_features // self.heads
        precise = torch.promote_types(like.dtype, torch.float32)
        return RunningSum(like.new_zeros(rows, self.heads, depth, depth + 1, dtype=precise))

    def without_cache(self, past: RunningSum) -> RunningSum:
        return past


SELF_ATTENTIONS: dict[type, type[SelfAttention]] = {
    FullConfig: SelfAttention,
    LocalConfig: LocalAttention,
    SegmentsConfig: SegmentAttention,
    LinearConfig: LinearAttention,
}
