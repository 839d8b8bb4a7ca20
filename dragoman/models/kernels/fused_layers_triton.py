"""Triton kernels between the matrix products of a Transformer: residual sums with norms, activations, cross-entropy.

Imported on GPUs only. No kernel stores a dropout mask: the backward pass draws the same numbers again from the seed.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.models.kernels.cpu_dropout import levels

# `NORM` and `KIND` of the kernels are the numbers in `fused_layers.NORMS` and `fused_layers.ACTIVATIONS`.
_ROUNDS = tl.constexpr(7)  # of Philox; its authors found no fault from 7 on


@triton.jit
def _kept(seed, first, kept, SIZE: tl.constexpr):
    """Which of SIZE consecutive numbers dropout keeps: those whose 16 random bits are below `kept`.

    One draw of Philox serves eight numbers: its multiplications take longer than the memory transfers.
    """
    places = (first // 8 + tl.arange(0, SIZE // 8)).to(tl.int32)  # 64 bits would take another, slower Philox
    a, b, c, d = tl.randint4x(seed, places, _ROUNDS)
    words = tl.join(tl.join(a, b), tl.join(c, d)).to(tl.uint32, bitcast=True)
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (SIZE,)) < kept


@triton.jit
def _residual_forward(
    x, out, weight, bias, total, normed, mean_of, scale_of, seeds, kept, scale_kept, epsilon, width,
    SIZE: tl.constexpr, HAS_OUT: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, SIZE)
    inside = place < width
    value = tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_OUT:
        added = tl.load(out + row * width + place, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            added = tl.where(_kept(tl.load(seeds), row * SIZE, kept, SIZE), added * scale_kept, 0.0)
        rounded = (value + added).to(total.dtype.element_ty)
        tl.store(total + row * width + place, rounded, mask=inside)
        value = rounded.to(tl.float32)  # the norm reads the stream as it is stored, like the plain code
    if NORM:
        mean = 0.0
        centred = value
        if NORM == 1:
            mean = tl.sum(value, 0) / width
            centred = tl.where(inside, value - mean, 0.0)
            tl.store(mean_of + row, mean)
        scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + epsilon)
        tl.store(scale_of + row, scale)
        result = centred * scale * tl.load(weight + place, mask=inside, other=0.0)
        if HAS_BIAS:
            result += tl.load(bias + place, mask=inside, other=0.0)
        tl.store(normed + row * width + place, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _residual_backward(
    total, weight, mean_of, scale_of, above_total, above_normed, of_x, of_out, shares, seeds, kept, scale_kept, rows,
    width,
    SIZE: tl.constexpr, HAS_TOTAL: tl.constexpr, HAS_OUT: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Each program reads every n-th row, and leaves its shares: of the gradients of weight and bias, and of the sum of
    the gradients of out."""
    program = tl.program_id(0)
    place = tl.arange(0, SIZE)
    inside = place < width
    seed = 0
    if DROPS:
        seed = tl.load(seeds)
    if NORM:
        factors = tl.load(weight + place, mask=inside, other=0.0)
        sum_weight = tl.zeros((SIZE,), dtype=tl.float32)
        sum_bias = tl.zeros((SIZE,), dtype=tl.float32)
    sum_out = tl.zeros((SIZE,), dtype=tl.float32)
    step = tl.full((), width, dtype=tl.int64)  # places of a large batch need 64 bits
    for row in range(program, rows, tl.num_programs(0)):
        start = row * step
        gradient = tl.zeros((SIZE,), dtype=tl.float32)
        if HAS_TOTAL:
            gradient += tl.load(above_total + start + place, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            above = tl.load(above_normed + start + place, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(total + start + place, mask=inside, other=0.0).to(tl.float32)
            scale = tl.load(scale_of + row)
            mean = 0.0
            if NORM == 1:
                mean = tl.load(mean_of + row)
            unit = tl.where(inside, (value - mean) * scale, 0.0)
            scaled = above * factors
            inner = scaled - unit * (tl.sum(scaled * unit, 0) / width)
            if NORM == 1:
                inner -= tl.sum(scaled, 0) / width
            gradient += inner * scale
            sum_weight += above * unit
            if HAS_BIAS:
                sum_bias += above
        tl.store(of_x + start + place, gradient.to(of_x.dtype.element_ty), mask=inside)
        if HAS_OUT:
            if DROPS:
                gradient = tl.where(_kept(seed, row * SIZE, kept, SIZE), gradient * scale_kept, 0.0)
            tl.store(of_out + start + place, gradient.to(of_out.dtype.element_ty), mask=inside)
            if SUMS:
                sum_out += gradient
    share = shares + program * ((NORM > 0) + HAS_BIAS + SUMS) * width + place
    if NORM:
        tl.store(share, sum_weight, mask=inside)
        if HAS_BIAS:
            tl.store(share + width, sum_bias, mask=inside)
    if SUMS:
        tl.store(share + ((NORM > 0) + HAS_BIAS) * width, sum_out, mask=inside)


@triton.jit
def _activate(x, KIND: tl.constexpr):
    """activation(x) and its derivative."""
    if KIND == 1:
        value = tl.maximum(x, 0.0)
        slope = tl.where(x > 0.0, 1.0, 0.0)
    elif KIND == 2:
        below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        value = x * below
        slope = below + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif KIND == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        tanh = 2.0 * tl.sigmoid(2.0 * inner) - 1.0
        value = 0.5 * x * (1.0 + tanh)
        slope = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * 0.7978845608028654 * (1.0 + 0.134145 * x * x)
    else:
        sigmoid = tl.sigmoid(x)
        value = x * sigmoid
        slope = sigmoid * (1.0 + x * (1.0 - sigmoid))
    return value, slope


@triton.jit
def _draws(a, b, c, d, PART: tl.constexpr):
    """16 of the 128 random bits of a draw of Philox."""
    if PART // 2 == 0:
        word = a
    elif PART // 2 == 1:
        word = b
    elif PART // 2 == 2:
        word = c
    else:
        word = d
    word = word.to(tl.uint32, bitcast=True)
    return (word >> 16) if PART % 2 else (word & 0xFFFF)


# A mask by a number that is not specialised keeps Triton from loading 16 bytes at a time: three times the time.
@triton.jit
def _activation_forward(
    x, gate, out, seeds, kept, scale_kept, count,
    KIND: tl.constexpr, GATED: tl.constexpr, DROPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Eight parts of SIZE numbers: each takes 16 bits of the same draws, which then stay in their registers."""
    first = tl.program_id(0).to(tl.int64) * (8 * SIZE)
    if DROPS:
        a, b, c, d = tl.randint4x(tl.load(seeds), tl.program_id(0) * SIZE + tl.arange(0, SIZE), _ROUNDS)
    for part in tl.static_range(8):
        place = first + part * SIZE + tl.arange(0, SIZE)
        inside = place < count
        wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            value, _ = _activate(tl.load(gate + place, mask=inside, other=0.0).to(tl.float32), KIND)
            value *= wide
        else:
            value, _ = _activate(wide, KIND)
        if DROPS:
            value = tl.where(_draws(a, b, c, d, part) < kept, value * scale_kept, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _activation_backward(
    x, gate, above, of_x, of_gate, seeds, kept, scale_kept, count,
    KIND: tl.constexpr, GATED: tl.constexpr, DROPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * (8 * SIZE)
    if DROPS:
        a, b, c, d = tl.randint4x(tl.load(seeds), tl.program_id(0) * SIZE + tl.arange(0, SIZE), _ROUNDS)
    for part in tl.static_range(8):
        place = first + part * SIZE + tl.arange(0, SIZE)
        inside = place < count
        wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(above + place, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            gradient = tl.where(_draws(a, b, c, d, part) < kept, gradient * scale_kept, 0.0)
        if GATED:
            value, slope = _activate(tl.load(gate + place, mask=inside, other=0.0).to(tl.float32), KIND)
            tl.store(of_gate + place, (gradient * wide * slope).to(of_gate.dtype.element_ty), mask=inside)
            tl.store(of_x + place, (gradient * value).to(of_x.dtype.element_ty), mask=inside)
        else:
            _, slope = _activate(wide, KIND)
            tl.store(of_x + place, (gradient * slope).to(of_x.dtype.element_ty), mask=inside)


@triton.jit
def _entropy_forward(logits, target, losses, sums, smoothing, stride, words, pad, SIZE: tl.constexpr):
    """log Σ exp of a row in one pass, with the maximum so far."""
    row = tl.program_id(0).to(tl.int64)
    highest = float("-inf")
    total = 0.0
    plain_sum = 0.0
    for first in range(0, words, SIZE):
        place = first + tl.arange(0, SIZE)
        inside = place < words
        scores = tl.load(logits + row * stride + place, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(scores, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(scores - higher), 0)
        highest = higher
        plain_sum += tl.sum(tl.where(inside, scores, 0.0), 0)
    log_sum = highest + tl.log(total)
    truth = tl.load(target + row)
    chosen = tl.load(logits + row * stride + truth).to(tl.float32)
    loss = log_sum - (1.0 - smoothing) * chosen - smoothing * plain_sum / words
    tl.store(sums + row, log_sum)
    tl.store(losses + row, tl.where(truth == pad, 0.0, loss))


@triton.jit
def _entropy_backward(logits, target, sums, above, of_logits, smoothing, stride, words, pad, SIZE: tl.constexpr):
    """Also writes zeros for the columns after the last word, which pad the rows of logits."""
    row = tl.program_id(0).to(tl.int64)
    truth = tl.load(target + row)
    gradient = tl.where(truth == pad, 0.0, tl.load(above + row).to(tl.float32))
    log_sum = tl.load(sums + row)
    for first in range(0, stride, SIZE):
        place = first + tl.arange(0, SIZE)
        scores = tl.load(logits + row * stride + place, mask=place < words, other=float("-inf")).to(tl.float32)
        found = tl.exp(scores - log_sum) - smoothing / words - tl.where(place == truth, 1.0 - smoothing, 0.0)
        found = tl.where(place < words, found * gradient, 0.0)
        tl.store(of_logits + row * stride + place, found.to(of_logits.dtype.element_ty), mask=place < stride)


@triton.jit(do_not_specialize=["length"])
def _rotary(
    x, positions, out, rate, sign, length, heads, half, x0, x1, x2, y0, y1, y2,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Rotate the pairs (i, i + half) of all heads at one position; `rate` is −log₂(base) / half."""
    program = tl.program_id(0)
    row, place = (program // length).to(tl.int64), program % length
    head, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    angle = tl.load(positions + place).to(tl.float32) * tl.exp2(pair.to(tl.float32) * rate)
    cosine, sine = tl.cos(angle), tl.sin(angle) * sign
    start = x + row * x0 + head * x1 + place * x2 + pair
    left = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(start + half, mask=inside, other=0.0).to(tl.float32)
    end = out + row * y0 + head * y1 + place * y2 + pair
    tl.store(end, (left * cosine - right * sine).to(out.dtype.element_ty), mask=inside)
    tl.store(end + half, (right * cosine + left * sine).to(out.dtype.element_ty), mask=inside)


def rotary(x: Tensor, positions: Tensor, base: float, sign: float, out: Tensor) -> None:
    """x (N, H, T, d) rotated by sign · position · base^(−2i/d), into `out`."""
    rows, heads, length, depth = x.shape
    half = depth // 2
    _rotary[(rows * length,)](
        x, positions, out, -math.log2(base) / half, sign, length, heads, half, *x.stride()[:3], *out.stride()[:3],
        HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(half),
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _distance_bias(table, buckets, distances, out, count, furthest, heads, SIZE: tl.constexpr):
    """One program per head and SIZE distances."""
    head = tl.program_id(1)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    distance = tl.load(distances + place, mask=inside, other=0)
    distance = tl.minimum(tl.maximum(distance, -furthest), furthest)
    bucket = tl.load(buckets + distance + furthest, mask=inside, other=0)
    tl.store(out + head * count + place, tl.load(table + bucket * heads + head, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _distance_bias_backward(buckets, distances, above, of_table, count, furthest, heads, SIZE: tl.constexpr):
    """One program per bucket and head reads all gradients of the head, so that their order is always the same."""
    bucket, head = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((SIZE,), dtype=tl.float32)
    for first in range(0, count, SIZE):
        place = first + tl.arange(0, SIZE)
        inside = place < count
        distance = tl.load(distances + place, mask=inside, other=0)
        distance = tl.minimum(tl.maximum(distance, -furthest), furthest)
        here = tl.load(buckets + distance + furthest, mask=inside, other=-1) == bucket
        total += tl.load(above + head * count + place, mask=here, other=0.0).to(tl.float32)
    tl.store(of_table + bucket * heads + head, tl.sum(total, 0))


def distance_bias(table: Tensor, buckets: Tensor, distance: Tensor) -> Tensor:
    """The entries (1, H, T, S) of a table (buckets, H) for distances (T, S); `buckets`: those of −d … d."""
    heads, count = table.shape[1], distance.numel()
    out = table.new_empty(1, heads, *distance.shape)
    grid = (triton.cdiv(count, 256), heads)
    _distance_bias[grid](table, buckets, distance, out, count, len(buckets) // 2, heads, SIZE=256)
    return out


def distance_bias_backward(buckets: Tensor, distance: Tensor, above: Tensor, of_table: Tensor) -> None:
    """Write the gradient of the table."""
    count = distance.numel()
    _distance_bias_backward[tuple(of_table.shape)](
        buckets, distance, above, of_table, count, len(buckets) // 2, of_table.shape[1], SIZE=1024
    )


@triton.jit(do_not_specialize=["rows", "each", "parts"])
def _column_sums(
    x, shares, out, counters, rows, width, each, parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The sums of `each` consecutive rows; the last program of some columns adds the shares, in their order."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = columns[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    last = tl.minimum((part + 1) * each, rows)
    for first in range(part * each, last, ROWS):
        row = (first + tl.arange(0, ROWS)[:, None]).to(tl.int64)
        total += tl.load(x + row * width + place, mask=(row < last) & (place < width), other=0.0).to(tl.float32)
    tl.store(shares + part * width + columns, tl.sum(total, 0), mask=columns < width)
    tl.debug_barrier()  # all threads have stored before the count says so
    if tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel") == parts - 1:
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for first in range(0, parts, ROWS):
            row = first + tl.arange(0, ROWS)[:, None]
            inside = (row < parts) & (place < width)
            total += tl.load(shares + row * width + place, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(out + columns, tl.sum(total, 0), mask=columns < width)
        tl.store(counters + tl.program_id(0), 0)  # for the next sums


_counters: dict[tuple[torch.device, int], Tensor] = {}  # of each stream, on which kernels follow one another
_MAX_COUNTERS = 4096


def _counters_of(x: Tensor) -> Tensor:
    """Zeros. A graph that is captured first of all gets its own, which every replay fills with zeros."""
    stream = torch.cuda.current_stream(x.device).cuda_stream
    found = _counters.get((x.device, stream))
    if found is None:
        found = torch.zeros(_MAX_COUNTERS, dtype=torch.int32, device=x.device)
        if not torch.cuda.is_current_stream_capturing():
            _counters[x.device, stream] = found
    return found


def column_sums(x: Tensor) -> Tensor:
    """The sums (W,) of x (N, W) in float32; always in the same order, unlike atomic additions."""
    rows, width = x.shape
    each = max(64, triton.cdiv(rows, 128))
    parts = triton.cdiv(rows, each)
    columns = 128
    while width > columns * _MAX_COUNTERS:
        columns *= 2
    shares, out = torch.empty(parts, width, device=x.device), torch.empty(width, device=x.device)
    _column_sums[(triton.cdiv(width, columns), parts)](
        x, shares, out, _counters_of(x), rows, width, each, parts, 64, columns, num_warps=8
    )
    return out


def _warps(size: int) -> int:
    return max(1, min(8, size // 256))


def residual_forward(
    x: Tensor, out: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, rate: float,
    norm: int, epsilon: float, half: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x + dropout(out), its norm in `half`, and the mean and scale of every row."""
    width = x.shape[-1]
    rows = x.numel() // width
    total = x if out is None else torch.empty_like(x)
    normed = torch.empty_like(x, dtype=half) if norm else x
    mean, scale = (torch.empty(rows, device=x.device) for _ in range(2))
    size = triton.next_power_of_2(width)
    _residual_forward[(rows,)](
        x, x if out is None else out, weight, bias, total, normed, mean, scale, seed, *levels(rate), epsilon, width,
        SIZE=size, HAS_OUT=out is not None, DROPS=rate > 0, NORM=norm, HAS_BIAS=bias is not None,
        num_warps=_warps(size),
    )  # fmt: skip
    return total, normed, mean, scale


def residual_backward(
    total: Tensor, weight: Tensor | None, has_bias: bool, mean: Tensor, scale: Tensor, above_total: Tensor | None,
    above_normed: Tensor | None, out_type: torch.dtype | None, seed: Tensor | None, rate: float, norm: int,
    programs: int, sums_out: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of x, out, weight and bias, and with `sums_out` the sum (D,) of those of out over all rows."""
    width = total.shape[-1]
    rows = total.numel() // width
    programs = min(rows, programs)
    of_x = torch.empty_like(total)
    of_out = None if out_type is None else torch.empty_like(total, dtype=out_type)
    shares = torch.empty(programs, (norm > 0) + has_bias + sums_out, width, device=total.device)
    size = triton.next_power_of_2(width)
    _residual_backward[(programs,)](
        total, weight, mean, scale, above_total, above_normed, of_x, of_out, shares, seed, *levels(rate), rows,
        width, SIZE=size, HAS_TOTAL=above_total is not None, HAS_OUT=out_type is not None, DROPS=rate > 0, NORM=norm,
        HAS_BIAS=has_bias, SUMS=sums_out, num_warps=_warps(size),
    )  # fmt: skip
    sums: Iterator[Tensor] = iter(column_sums(shares.flatten(1)).view(-1, width)) if shares.numel() else iter(())
    wanted = (norm > 0, has_bias, sums_out)
    of_weight, of_bias, of_rows = (next(sums) if is_wanted else None for is_wanted in wanted)
    return of_x, of_out, of_weight, of_bias, of_rows


_BLOCK = 1024  # an eighth of what a program reads


def activation_forward(x: Tensor, gate: Tensor | None, seed: Tensor | None, rate: float, kind: int) -> Tensor:
    """dropout(activation(x)), or dropout(activation(gate) · x)."""
    out = torch.empty_like(x)
    _activation_forward[(triton.cdiv(x.numel(), 8 * _BLOCK),)](
        x, x if gate is None else gate, out, seed, *levels(rate), x.numel(), kind, gate is not None, rate > 0, _BLOCK
    )
    return out


def activation_backward(
    x: Tensor, gate: Tensor | None, above: Tensor, seed: Tensor | None, rate: float, kind: int
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and gate."""
    of_x, of_gate = torch.empty_like(x), None if gate is None else torch.empty_like(gate)
    _activation_backward[(triton.cdiv(x.numel(), 8 * _BLOCK),)](
        x, x if gate is None else gate, above, of_x, of_gate, seed, *levels(rate), x.numel(), kind,
        gate is not None, rate > 0, _BLOCK,
    )  # fmt: skip
    return of_x, of_gate


_COLUMNS = 2048


def entropy_forward(logits: Tensor, target: Tensor, smoothing: float, words: int, pad: int) -> tuple[Tensor, Tensor]:
    """Losses of logits (N, ≥ words) and the logarithm of the sum of each row's exponentials."""
    rows = logits.shape[0]
    losses, sums = (torch.empty(rows, device=logits.device) for _ in range(2))
    _entropy_forward[(rows,)](
        logits, target, losses, sums, smoothing, logits.stride(0), words, pad, _COLUMNS, num_warps=8
    )
    return losses, sums


def entropy_backward(
    logits: Tensor, target: Tensor, sums: Tensor, above: Tensor, smoothing: float, words: int, pad: int
) -> Tensor:
    """The gradient of the logits."""
    of_logits = torch.empty_like(logits)
    _entropy_backward[(logits.shape[0],)](
        logits, target, sums, above, of_logits, smoothing, logits.stride(0), words, pad, _COLUMNS, num_warps=8
    )
    return of_logits
