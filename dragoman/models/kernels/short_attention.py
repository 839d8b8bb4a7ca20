"""Softmax attention over short sequences on a GPU in half precision, with dropout of the weights.

The kernels of torch are made for long sequences: over 32 positions they take five times as long as the memory
transfers, and cuDNN plans every new shape for a tenth of a second. Ours run one program per source and head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.models.kernels.step_buffers import dropout_seed
from dragoman.models.kernels.support import HAS_TRITON

MAX_LENGTH = 64  # queries or keys that fit into registers
DEPTHS = (16, 32, 64, 128)
HALF = (torch.bfloat16, torch.float16)


def half_dtype(x: Tensor) -> torch.dtype | None:
    """The half-precision type of attention over x; None: full precision."""
    if x.dtype in HALF:
        return x.dtype
    if x.is_cuda and x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return None


def supports(query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None = None) -> bool:
    """Whether `attend_short` applies: queries (B, H, T, d), keys (B, K, S, d), a mask per source or none, and a bias of
    all queries and keys or none."""
    return (
        query.is_cuda
        and half_dtype(query) in HALF
        and max(query.shape[2], key.shape[2]) <= MAX_LENGTH
        and query.shape[3] in DEPTHS
        and query.shape[0] == key.shape[0]
        and (mask is None or (mask.dim() == 4 and mask.shape[:3] == (key.shape[0], 1, 1)))
        and (bias is None or (bias.dim() == 4 and bias.shape[2:] == (query.shape[2], key.shape[2])))
        and HAS_TRITON
    )


def attend_short(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention (B, H, T, d); arguments as in `kernels.attention`."""
    half = half_dtype(query)
    assert half is not None
    query, key, value = (contiguous_rows(part.to(half)) for part in (query, key, value))
    seed = dropout_seed(query.device) if dropout else None
    flat = None if mask is None else mask[:, 0, 0]
    if bias is not None:  # rows that share it have the stride 0, and autograd sums their gradients in a fixed order
        bias = contiguous_rows(bias).expand(*query.shape[:3], key.shape[2])
    return _ShortAttention.apply(query, key, value, flat, bias, seed, scale, dropout, causal)  # type: ignore[no-untyped-call]


def shares(query: Tensor, key: Tensor) -> bool:
    """Whether `attend_shared` applies: queries (N, H, 1, d) over the shared cache of their source (B, K, C·k, d)."""
    rows = query.shape[0] // key.shape[0] * (query.shape[1] // key.shape[1])
    half = query.dtype in HALF and query.dtype == key.dtype
    return query.is_cuda and half and query.shape[3] in DEPTHS and rows <= MAX_LENGTH and HAS_TRITON


def attend_shared(
    query: Tensor,
    new: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    entries: tuple[Tensor, ...],
    length: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """One decoding step without gradients → (N, H, 1, d).

    The new keys and values (N, K, 1, d) are written into the cache at position `length`. A hypothesis sees its own, and
    the earlier ones of `entries`, after `advance`. The bias of positions broadcasts to (N, H, 1, C).
    """
    from dragoman.models.kernels import short_attention_triton as triton_kernels

    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    key, value = (contiguous_rows(part) for part in new)
    if bias is not None:
        bias = contiguous_rows(bias).expand(*query.shape[:2], -1, -1)
    triton_kernels.shared(contiguous_rows(query), key, value, *cache, bias, entries, length, out, scale)
    return out


def advances(visible: Tensor) -> bool:
    return visible.is_cuda and HAS_TRITON


def advance(visible: Tensor, listed: Tensor, counts: Tensor, parents: Tensor, length: Tensor) -> None:
    """`SharedEntries.advance` in one kernel; it also writes which entries of a source any hypothesis sees."""
    from dragoman.models.kernels import short_attention_triton as triton_kernels

    triton_kernels.advance(visible, listed, counts, parents, length)


def contiguous_rows(x: Tensor) -> Tensor:
    """With every vector contiguous."""
    return x if x.stride(3) == 1 else x.contiguous()


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None,
        seed: Tensor | None, scale: float, rate: float, causal: bool,
    ) -> Tensor:  # fmt: skip
        from dragoman.models.kernels import short_attention_triton as triton_kernels

        ctx.save_for_backward(query, key, value, mask, bias, seed)
        ctx.numbers = (scale, rate, causal)
        out = joined_layout(query)
        triton_kernels.forward(query, key, value, mask, bias, seed, out, scale, rate, causal)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import short_attention_triton as triton_kernels

        query, key, value, mask, bias, seed = ctx.saved_tensors
        found = packed_layout(query, key, value)
        of_bias = query.new_empty(0 if bias is None else bias.shape, dtype=torch.float32)
        triton_kernels.backward(
            query, key, value, mask, bias, seed, contiguous_rows(above), (*found, of_bias), *ctx.numbers
        )
        return (*found, None, None if bias is None else of_bias.to(bias.dtype), None, None, None, None)


def joined_layout(like: Tensor) -> Tensor:
    """A new tensor (B, H, T, d) with the memory layout (B, T, H, d), so that joining heads copies nothing."""
    rows, heads, length, depth = like.shape
    return like.new_empty(rows, length, heads, depth).transpose(1, 2)


def packed_layout(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`joined_layout` of each; side by side where all are parts of one projection, so that joining them copies nothing.

    The gradient of a projection that was split is then one tensor already (`split_columns`).
    """
    parts = (query, key, value)
    if len({part.untyped_storage().data_ptr() for part in parts}) > 1 or query.shape[2] != key.shape[2]:
        return joined_layout(query), joined_layout(key), joined_layout(value)
    rows, _, length, depth = query.shape
    heads = [part.shape[1] for part in parts]
    every = query.new_empty(rows, length, sum(heads), depth).transpose(1, 2)
    of_query, of_key, of_value = torch.split(every, heads, 1)
    return of_query, of_key, of_value
