"""Softmax attention over short sequences on a GPU, in half precision, with dropout of its weights.

The kernels that torch chooses are made for long sequences: over 32 positions they take five times as long as reading
and writing does, and cuDNN plans each new shape for a tenth of a second. Ours need one program a source and head. They
are an operator of torch, so that compiled code may hold them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.kernels.triton_support import HAS_TRITON

LONGEST = 64  # positions on either side that fit into registers
DEPTHS = (16, 32, 64, 128)
HALF = (torch.bfloat16, torch.float16)


def half_of(x: Tensor) -> torch.dtype | None:
    """The half precision in which attention over x would be computed; None: in none."""
    if x.dtype in HALF:
        return x.dtype
    if x.is_cuda and x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return None


def suits(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether these kernels serve: queries (B, H, T, d) over keys (B, K, S, d), masked by source or not at all."""
    return (
        query.is_cuda
        and half_of(query) in HALF
        and max(query.shape[2], key.shape[2]) <= LONGEST
        and query.shape[3] in DEPTHS
        and query.shape[0] == key.shape[0]
        and (mask is None or (mask.dim() == 4 and mask.shape[:3] == (key.shape[0], 1, 1)))
        and HAS_TRITON
    )


def attend_short(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float, scale: float
) -> Tensor:
    """As `attend`; → (B, H, T, d)."""
    half = half_of(query)
    assert half is not None
    query, key, value = (_rows_apart(part.to(half)) for part in (query, key, value))
    seed = torch.randint(2**31, (1,), device=query.device) if dropout else query.new_zeros(1, dtype=torch.long)
    flat = None if mask is None else mask[:, 0, 0]
    out: Tensor = _attention(query, key, value, flat, seed, scale, dropout, causal)
    return out


def suits_packed(packed: Tensor, depth: int) -> bool:
    """Whether `attend_packed` serves: queries, keys and values side by side (B, T, (H + 2K)·d) in half precision."""
    fits = packed.dtype in HALF and packed.shape[1] <= LONGEST and depth in DEPTHS
    return packed.is_cuda and fits and packed.stride(2) == 1 and HAS_TRITON


def attend_packed(
    packed: Tensor, depth: int, heads: int, mask: Tensor | None, causal: bool, dropout: float, scale: float
) -> Tensor:
    """Of every position over all of its sequence; mask (B, T); → (B, T, H·d), and nothing is copied on the way back."""
    seed = torch.randint(2**31, (1,), device=packed.device) if dropout else packed.new_zeros(1, dtype=torch.long)
    out: Tensor = _packed(packed, mask, seed, depth, heads, scale, dropout, causal)
    return out


def shares(query: Tensor, key: Tensor) -> bool:
    """Whether `attend_shared` serves: hypotheses (N, H, 1, d) over what those of their source wrote (B, K, C·k, d)."""
    rows = query.shape[0] // key.shape[0] * (query.shape[1] // key.shape[1])
    half = query.dtype in HALF and query.dtype == key.dtype
    return query.is_cuda and half and query.shape[3] in DEPTHS and rows <= LONGEST and HAS_TRITON


def attend_shared(
    query: Tensor,
    new: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    seen: Tensor,
    length: Tensor,
    scale: float,
) -> Tensor:
    """Without gradients: hypotheses see their new keys and values (N, K, 1, d), which are written into the cache at
    position `length`, and of what stands before it what `seen` (N, C·k) says; → (N, H, 1, d)."""
    from dragoman.kernels import short_attention_triton as short_kernels

    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    key, value = (_rows_apart(part) for part in new)
    short_kernels.shared(_rows_apart(query), key, value, *cache, seen, length, out, scale)
    return out


def _rows_apart(x: Tensor) -> Tensor:
    """With numbers of one vector side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


@torch.library.custom_op("dragoman::short_attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    scale: float,
    rate: float,
    causal: bool,
) -> Tensor:
    from dragoman.kernels import short_attention_triton as short_kernels

    out = _beside(query)
    short_kernels.forward(query, key, value, mask, seed, out, scale, rate, causal)
    return out


@torch.library.custom_op("dragoman::short_attention_backward", mutates_args=())
def _gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    gradient: Tensor,
    scale: float,
    rate: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from dragoman.kernels import short_attention_triton as short_kernels

    found = (_beside(query), _beside(key), _beside(value))
    gradient = _rows_apart(gradient)
    short_kernels.backward(query, key, value, mask, seed, gradient, found, scale, rate, causal)
    return found


def _beside(like: Tensor) -> Tensor:
    """Room for something like (B, H, T, d) whose heads lie side by side, so that joining them copies nothing."""
    rows, heads, length, depth = like.shape
    return like.new_empty(rows, length, heads, depth).transpose(1, 2)


@_attention.register_fake
def _(query: Tensor, *others: Any) -> Tensor:
    return _beside(query)


@_gradients.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _beside(query), _beside(key), _beside(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, mask, seed, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, mask, seed)


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, mask, seed = ctx.saved_tensors
    return (*_gradients(query, key, value, mask, seed, gradient, *ctx.numbers), None, None, None, None, None)


_attention.register_autograd(_back, setup_context=_keep)


def _apart(packed: Tensor, depth: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, T, d), keys and values (B, K, T, d) as views."""
    parts = packed.view(*packed.shape[:2], -1, depth).transpose(1, 2)
    keys = (parts.shape[1] - heads) // 2
    return parts[:, :heads], parts[:, heads : heads + keys], parts[:, heads + keys :]


@torch.library.custom_op("dragoman::packed_attention", mutates_args=())
def _packed(
    packed: Tensor, mask: Tensor | None, seed: Tensor, depth: int, heads: int, scale: float, rate: float, causal: bool
) -> Tensor:
    from dragoman.kernels import short_attention_triton as short_kernels

    out = packed.new_empty(*packed.shape[:2], heads * depth)
    room = out.view(*out.shape[:2], heads, depth).transpose(1, 2)
    short_kernels.forward(*_apart(packed, depth, heads), mask, seed, room, scale, rate, causal)
    return out


@torch.library.custom_op("dragoman::packed_attention_backward", mutates_args=())
def _packed_gradient(
    packed: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    gradient: Tensor,
    depth: int,
    heads: int,
    scale: float,
    rate: float,
    causal: bool,
) -> Tensor:
    from dragoman.kernels import short_attention_triton as short_kernels

    found = packed.new_empty(packed.shape)
    above = gradient.contiguous().view(*gradient.shape[:2], heads, depth).transpose(1, 2)
    rooms = _apart(found, depth, heads)
    short_kernels.backward(*_apart(packed, depth, heads), mask, seed, above, rooms, scale, rate, causal)
    return found


@_packed.register_fake
def _(packed: Tensor, mask: Tensor | None, seed: Tensor, depth: int, heads: int, *others: Any) -> Tensor:
    return packed.new_empty(*packed.shape[:2], heads * depth)


@_packed_gradient.register_fake
def _(packed: Tensor, *others: Any) -> Tensor:
    return packed.new_empty(packed.shape)


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    packed, mask, seed, *ctx.numbers = inputs
    ctx.save_for_backward(packed, mask, seed)


def _back_packed(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    packed, mask, seed = ctx.saved_tensors
    return (_packed_gradient(packed, mask, seed, gradient, *ctx.numbers), *[None] * 7)


_packed.register_autograd(_back_packed, setup_context=_keep_packed)
