"""Triton kernels for softmax attention over short sequences: one program per source and key head, all in registers.

Imported on GPUs only. The backward pass computes the weights again instead of storing them.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _weights(
    query, key, bias, e2, seen, scale, rate, seed, first,
    BIASED: tl.constexpr, DROPS: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Softmax of the scores (BT, BS), the same after dropout, and which are kept; `bias` points to that of a head."""
    scores = tl.dot(query, tl.trans(key)) * scale
    if BIASED:
        added = bias + tl.arange(0, BT)[:, None] * e2 + tl.arange(0, BS)[None, :]
        scores += tl.load(added, mask=seen, other=0.0).to(tl.float32)
    scores = tl.where(seen, scores, -1.0e30)
    weights = tl.where(seen, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total > 0.0, total, 1.0)[:, None]  # a query that sees no key reads zeros
    kept = seen
    dropped = weights
    if DROPS:
        # A number for each weight: eight of one draw, joined and reshaped as in `fused_layers_triton`, are compiled
        # wrongly by Triton 3.6 for blocks of 16 with a mask.
        places = first + tl.arange(0, BT)[:, None] * BS + tl.arange(0, BS)[None, :]
        kept = tl.rand(seed, places) >= rate
        dropped = tl.where(kept, weights / (1.0 - rate), 0.0)
    return weights, dropped, kept


@triton.jit(do_not_specialize=["length", "read", "m0", "e0", "e1", "e2"])
def _forward(
    query, key, value, mask, bias, out, seeds, scale, rate,
    length, read, key_heads, groups,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, m0, e0, e1, e2,
    D: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row, head = (pid // key_heads).to(tl.int64), pid % key_heads
    t, s, d = tl.arange(0, BT), tl.arange(0, BS), tl.arange(0, D)
    keys = tl.load(key + row * k0 + head * k1 + s[:, None] * k2 + d[None, :], mask=s[:, None] < read, other=0.0)
    values = tl.load(value + row * v0 + head * v1 + s[:, None] * v2 + d[None, :], mask=s[:, None] < read, other=0.0)
    real = s < read
    if MASKED:
        real = real & (tl.load(mask + row * m0 + s, mask=s < read, other=0) != 0)
    seen = real[None, :] & (t[:, None] < length)
    if CAUSAL:
        seen = seen & (s[None, :] <= t[:, None])
    seed = 0
    if DROPS:
        seed = tl.load(seeds)
    for group in range(groups):
        number = head * groups + group
        queries = tl.load(
            query + row * q0 + number * q1 + t[:, None] * q2 + d[None, :], mask=t[:, None] < length, other=0.0
        )
        first = (pid * groups + group) * (BT * BS)
        added = bias + row * e0 + number * e1
        _, dropped, _ = _weights(queries, keys, added, e2, seen, scale, rate, seed, first, BIASED, DROPS, BT, BS)
        found = tl.dot(dropped.to(values.dtype), values)
        place = out + row * o0 + number * o1 + t[:, None] * o2 + d[None, :]
        tl.store(place, found.to(values.dtype), mask=t[:, None] < length)


@triton.jit(do_not_specialize=["length", "read", "m0", "e0", "e1", "e2"])
def _backward(
    query, key, value, mask, bias, gradient, of_query, of_key, of_value, of_bias, seeds, scale, rate,
    length, read, key_heads, groups,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, g0, g1, g2, a0, a1, a2, b0, b1, b2, c0, c1, c2, m0, e0, e1, e2,
    D: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row, head = (pid // key_heads).to(tl.int64), pid % key_heads
    t, s, d = tl.arange(0, BT), tl.arange(0, BS), tl.arange(0, D)
    keys = tl.load(key + row * k0 + head * k1 + s[:, None] * k2 + d[None, :], mask=s[:, None] < read, other=0.0)
    values = tl.load(value + row * v0 + head * v1 + s[:, None] * v2 + d[None, :], mask=s[:, None] < read, other=0.0)
    real = s < read
    if MASKED:
        real = real & (tl.load(mask + row * m0 + s, mask=s < read, other=0) != 0)
    seen = real[None, :] & (t[:, None] < length)
    if CAUSAL:
        seen = seen & (s[None, :] <= t[:, None])
    seed = 0
    if DROPS:
        seed = tl.load(seeds)
    sum_key = tl.zeros((BS, D), dtype=tl.float32)
    sum_value = tl.zeros((BS, D), dtype=tl.float32)
    for group in range(groups):
        number = head * groups + group
        inside = t[:, None] < length
        queries = tl.load(query + row * q0 + number * q1 + t[:, None] * q2 + d[None, :], mask=inside, other=0.0)
        above = tl.load(gradient + row * g0 + number * g1 + t[:, None] * g2 + d[None, :], mask=inside, other=0.0)
        first = (pid * groups + group) * (BT * BS)
        added = bias + row * e0 + number * e1
        weights, dropped, kept = _weights(
            queries, keys, added, e2, seen, scale, rate, seed, first, BIASED, DROPS, BT, BS
        )
        sum_value += tl.dot(tl.trans(dropped.to(above.dtype)), above)
        of_weights = tl.dot(above, tl.trans(values))
        if DROPS:
            of_weights = tl.where(kept, of_weights / (1.0 - rate), 0.0)
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])
        if BIASED:
            place = ((row * key_heads * groups + number) * length + t[:, None]) * read + s[None, :]
            tl.store(of_bias + place, of_scores, mask=inside & (s[None, :] < read))
        of_scores = (of_scores * scale).to(keys.dtype)
        sum_key += tl.dot(tl.trans(of_scores), queries)
        found = tl.dot(of_scores, keys)
        tl.store(of_query + row * a0 + number * a1 + t[:, None] * a2 + d[None, :], found.to(keys.dtype), mask=inside)
    inside = s[:, None] < read
    tl.store(of_key + row * b0 + head * b1 + s[:, None] * b2 + d[None, :], sum_key.to(keys.dtype), mask=inside)
    tl.store(of_value + row * c0 + head * c1 + s[:, None] * c2 + d[None, :], sum_value.to(keys.dtype), mask=inside)


@triton.jit(do_not_specialize=["width", "capacity"])
def _advance(
    visible, listed, counts, parents, lengths, width, capacity, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per source: its hypotheses see what their parents saw and their own new entry."""
    source = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, WIDTH)
    parent = tl.load(parents + source * width + r, mask=r < width, other=0)
    last = tl.load(lengths).to(tl.int32) * width
    count = 0
    for first in range(0, last + width, BLOCK):
        s = first + tl.arange(0, BLOCK)
        inside = (r < width)[:, None] & (s < capacity)[None, :]
        seen = tl.load(visible + parent[:, None] * capacity + s[None, :], mask=inside, other=0).to(tl.int32)
        tl.debug_barrier()  # all rows are read before any is written
        own = tl.where(s[None, :] == last + r[:, None], 1, seen)
        tl.store(visible + (source * width + r)[:, None] * capacity + s[None, :], own.to(tl.uint8), mask=inside)
        used = tl.where(s < last, tl.max(seen, 0), 0)
        tl.store(listed + source * capacity + count + tl.cumsum(used, 0) - used, s, mask=used != 0)
        count += tl.sum(used, 0)
    tl.store(counts + source, count)


def advance(visible: Tensor, listed: Tensor, counts: Tensor, parents: Tensor, length: Tensor) -> None:
    (sources, capacity), rows = listed.shape, visible.shape[0]
    _advance[(sources,)](
        visible.view(torch.uint8), listed, counts, parents, length, rows // sources, capacity,
        WIDTH=triton.next_power_of_2(rows // sources), BLOCK=128,
    )  # fmt: skip


@triton.jit(do_not_specialize=["width", "e0", "e1"])
def _shared(
    query, new_key, new_value, key, value, bias, seen, listed, counts, out, lengths, scale, key_heads, groups, width,
    q0, q1, a0, a1, b0, b1, k0, k1, k2, v0, v1, v2, s0, o0, o1, e0, e1,
    D: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, LISTED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row, head = (pid // key_heads).to(tl.int64), pid % key_heads
    r, d = tl.arange(0, BT), tl.arange(0, D)
    inside = r < groups * width
    mine = row * width + r % width  # hypotheses, all heads of a group one after another
    number = head * groups + r // width
    queries = tl.load(query + mine[:, None] * q0 + number[:, None] * q1 + d[None, :], mask=inside[:, None], other=0.0)
    last = tl.load(lengths) * width
    # A hypothesis sees itself; what it adds is written once for all heads that read it.
    own_key = tl.load(new_key + mine[:, None] * a0 + head * a1 + d[None, :], mask=inside[:, None], other=0.0)
    own_value = tl.load(new_value + mine[:, None] * b0 + head * b1 + d[None, :], mask=inside[:, None], other=0.0)
    there = last + r[:, None]
    tl.store(key + row * k0 + head * k1 + there * k2 + d[None, :], own_key, mask=r[:, None] < width)
    tl.store(value + row * v0 + head * v1 + there * v2 + d[None, :], own_value, mask=r[:, None] < width)
    highest = tl.sum(queries.to(tl.float32) * own_key.to(tl.float32), 1) * scale
    added = bias + mine * e0 + number * e1  # one number per position, of which each hypothesis has an entry
    if BIASED:
        highest += tl.load(added + tl.load(lengths), mask=inside, other=0.0).to(tl.float32)
    total = tl.full((BT,), 1.0, dtype=tl.float32)
    sums = own_value.to(tl.float32)
    count = last
    if LISTED:  # most earlier entries of a wide beam belong to hypotheses that were dropped: they are not read
        count = tl.load(counts + row)
    for first in range(0, count, BS):
        s = first + tl.arange(0, BS)
        real = s < count
        if LISTED:
            s = tl.load(listed + row * s0 + s, mask=real, other=0)
        sees = tl.load(seen + mine[:, None] * s0 + s[None, :], mask=inside[:, None] & real[None, :], other=0) != 0
        keys = tl.load(key + row * k0 + head * k1 + s[:, None] * k2 + d[None, :], mask=real[:, None], other=0.0)
        values = tl.load(value + row * v0 + head * v1 + s[:, None] * v2 + d[None, :], mask=real[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        if BIASED:
            scores += tl.load(added[:, None] + (s // width)[None, :], mask=sees, other=0.0).to(tl.float32)
        scores = tl.where(sees, scores, -1.0e30)
        new = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(sees, tl.exp(scores - new[:, None]), 0.0)
        shrunk = tl.exp(highest - new)
        total = total * shrunk + tl.sum(weights, 1)
        sums = sums * shrunk[:, None] + tl.dot(weights.to(values.dtype), values)
        highest = new
    found = sums / total[:, None]
    place = out + mine[:, None] * o0 + number[:, None] * o1 + d[None, :]
    tl.store(place, found.to(out.dtype.element_ty), mask=inside[:, None])


def shared(
    query: Tensor, new_key: Tensor, new_value: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
    entries: tuple[Tensor, ...], length: Tensor, out: Tensor, scale: float,
) -> None:  # fmt: skip
    """Write attention of hypotheses (N, H, 1, d) over themselves and what those of a source wrote before to `out`.

    New keys and values (N, K, 1, d) go into the cache (B, K, C·k, d) at position `length`; `entries`: SharedEntries;
    bias (N, H, 1, C).
    """
    rows, heads = query.shape[:2]
    sources, key_heads = key.shape[:2]
    width, groups = rows // sources, heads // key_heads
    strides = [step for part in (query, new_key, new_value) for step in part.stride()[:2]]
    strides += [*key.stride()[:3], *value.stride()[:3], entries[0].stride(0), *out.stride()[:2]]
    strides += [0, 0] if bias is None else bias.stride()[:2]
    _shared[(sources * key_heads,)](
        query, new_key, new_value, key, value, query if bias is None else bias, *entries, out, length, scale,
        key_heads, groups, width, *strides,
        D=query.shape[3], BT=max(16, triton.next_power_of_2(width * groups)), BS=16,
        LISTED=width > 1, BIASED=bias is not None, num_warps=1, num_stages=3 if width > 1 else 2,
    )  # fmt: skip


def _sizes(
    query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None, rate: float, causal: bool
) -> dict[str, Any]:
    block = {name: max(16, triton.next_power_of_2(part.shape[2])) for name, part in (("BT", query), ("BS", key))}
    flags = {"CAUSAL": causal, "MASKED": mask is not None, "BIASED": bias is not None, "DROPS": rate > 0.0}
    return {**block, **flags, "D": query.shape[3], "num_warps": 4 if max(block.values()) > 32 else 2}


def _strides(parts: tuple[Tensor, ...], mask: Tensor | None, bias: Tensor | None) -> list[int]:
    steps = [step for part in parts for step in part.stride()[:3]]
    return [*steps, 0 if mask is None else mask.stride(0), *((0, 0, 0) if bias is None else bias.stride()[:3])]


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, seed: Tensor | None,
    out: Tensor, scale: float, rate: float, causal: bool,
) -> None:  # fmt: skip
    """Write attention of (B, H, T, d) over (B, K, S, d) to `out`; mask (B, S), bias (B, H, T, S)."""
    rows, heads, length, _ = query.shape
    key_heads, read = key.shape[1:3]
    _forward[(rows * key_heads,)](
        query, key, value, query if mask is None else mask, query if bias is None else bias, out, seed, scale, rate,
        length, read, key_heads, heads // key_heads, *_strides((query, key, value, out), mask, bias),
        **_sizes(query, key, mask, bias, rate, causal),
    )  # fmt: skip


def backward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, seed: Tensor | None,
    gradient: Tensor, found: tuple[Tensor, Tensor, Tensor, Tensor], scale: float, rate: float, causal: bool,
) -> None:  # fmt: skip
    """Write the gradients of queries, keys, values and bias to `found`."""
    rows, heads, length, _ = query.shape
    key_heads, read = key.shape[1:3]
    strides = _strides((query, key, value, gradient, *found[:3]), mask, bias)
    sizes = _sizes(query, key, mask, bias, rate, causal) | {"num_warps": 4}
    _backward[(rows * key_heads,)](
        query, key, value, query if mask is None else mask, query if bias is None else bias, gradient, *found, seed,
        scale, rate, length, read, key_heads, heads // key_heads, *strides, **sizes,
    )  # fmt: skip
