"""The pointwise part of a step as one kernel each way, for NVIDIA GPUs; see `walk` for what they say in plain torch.

All compute in float32, whatever types gates (autocast) and states have.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.kernels.fused_rnn import EPSILON, CoupledWalk, GRUWalk, LSTMWalk, NormalisedWalk, PeepholeWalk, Walk

BLOCK = 512  # numbers a program
LSTM, PEEPHOLE, COUPLED = 0, 1, 2
KINDS = {LSTMWalk: LSTM, PeepholeWalk: PEEPHOLE, CoupledWalk: COUPLED}
TANH, RELU, GELU, SILU = 0, 1, 2, 3
BENDS = {"tanh": TANH, "relu": RELU, "gelu": GELU, "silu": SILU}


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _bend(x, BEND: tl.constexpr):
    if BEND == 0:
        return _tanh(x)
    elif BEND == 1:
        return tl.maximum(x, 0.0)
    elif BEND == 2:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x * tl.sigmoid(x)


@triton.jit
def _slope(x, bent, BEND: tl.constexpr):
    if BEND == 0:
        return 1.0 - bent * bent
    elif BEND == 1:
        return tl.where(bent > 0.0, 1.0, 0.0)
    elif BEND == 2:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        gate = tl.sigmoid(x)
        return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def _get(pointer, place, real):
    return tl.load(pointer + place, mask=real, other=0.0).to(tl.float32)


@triton.jit
def _put(pointer, place, value, real):
    tl.store(pointer + place, value.to(pointer.dtype.element_ty), mask=real)


@triton.jit
def _arriving(carried, outer, stride, place, row, column, real, OUTER: tl.constexpr):
    gradient = _get(carried, place, real)
    if OUTER:
        gradient += _get(outer, row * stride + column, real)
    return gradient


# The plain cell


@triton.jit
def _plain_forward(gates, hidden, seen, size, BEND: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    value = _bend(_get(gates, place, real), BEND)
    _put(hidden, place, value, real)
    if LOW:
        _put(seen, place, value, real)


@triton.jit
def _plain_backward(
    hidden, carried, outer, stride, d_gates, size,
    BEND: tl.constexpr, OUTER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    gradient = _arriving(carried, outer, stride, place, place // WIDTH, place % WIDTH, real, OUTER)
    value = _get(hidden, place, real)
    _put(d_gates, place, gradient * _slope(value, value, BEND), real)


# LSTM, peephole and coupled


@triton.jit
def _lstm_forward(
    gates, holes, before, after, hidden, seen, size,
    KIND: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    row, column = place // WIDTH, place % WIDTH
    memory = _get(before, place, real)
    if KIND == 2:
        base = row * (3 * WIDTH) + column
        forget = tl.sigmoid(_get(gates, base, real))
        output = tl.sigmoid(_get(gates, base + WIDTH, real))
        candidate = _tanh(_get(gates, base + 2 * WIDTH, real))
        memory = candidate + forget * (memory - candidate)
        _put(gates, base, forget, real)
        _put(gates, base + WIDTH, output, real)
        _put(gates, base + 2 * WIDTH, candidate, real)
    else:
        base = row * (4 * WIDTH) + column
        write = _get(gates, base, real)
        forget = _get(gates, base + WIDTH, real)
        candidate = _tanh(_get(gates, base + 2 * WIDTH, real))
        output = _get(gates, base + 3 * WIDTH, real)
        if KIND == 1:
            write += _get(holes, column, real) * memory
            forget += _get(holes, column + WIDTH, real) * memory
        write, forget = tl.sigmoid(write), tl.sigmoid(forget)
        memory = forget * memory + write * candidate
        if KIND == 1:
            output += _get(holes, column + 2 * WIDTH, real) * memory
        output = tl.sigmoid(output)
        _put(gates, base, write, real)
        _put(gates, base + WIDTH, forget, real)
        _put(gates, base + 2 * WIDTH, candidate, real)
        _put(gates, base + 3 * WIDTH, output, real)
    value = output * _tanh(memory)
    _put(after, place, memory, real)
    _put(hidden, place, value, real)
    if LOW:
        _put(seen, place, value, real)


@triton.jit
def _lstm_backward(
    gates, holes, before, after, carried, outer, stride, carried_memory, outer_memory, stride_memory, d_gates, size,
    KIND: tl.constexpr, OUTER: tl.constexpr, OUTER_MEMORY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    row, column = place // WIDTH, place % WIDTH
    d_hidden = _arriving(carried, outer, stride, place, row, column, real, OUTER)
    d_memory = _arriving(carried_memory, outer_memory, stride_memory, place, row, column, real, OUTER_MEMORY)
    old = _get(before, place, real)
    shown = _tanh(_get(after, place, real))
    if KIND == 2:
        base = row * (3 * WIDTH) + column
        forget = _get(gates, base, real)
        output = _get(gates, base + WIDTH, real)
        candidate = _get(gates, base + 2 * WIDTH, real)
        d_memory += d_hidden * output * (1.0 - shown * shown)
        _put(d_gates, base, d_memory * (old - candidate) * forget * (1.0 - forget), real)
        _put(d_gates, base + WIDTH, d_hidden * shown * output * (1.0 - output), real)
        _put(d_gates, base + 2 * WIDTH, d_memory * (1.0 - forget) * (1.0 - candidate * candidate), real)
        d_memory = d_memory * forget
    else:
        base = row * (4 * WIDTH) + column
        write = _get(gates, base, real)
        forget = _get(gates, base + WIDTH, real)
        candidate = _get(gates, base + 2 * WIDTH, real)
        output = _get(gates, base + 3 * WIDTH, real)
        d_output = d_hidden * shown * output * (1.0 - output)
        d_memory += d_hidden * output * (1.0 - shown * shown)
        if KIND == 1:
            d_memory += d_output * _get(holes, column + 2 * WIDTH, real)
        d_write = d_memory * candidate * write * (1.0 - write)
        d_forget = d_memory * old * forget * (1.0 - forget)
        _put(d_gates, base, d_write, real)
        _put(d_gates, base + WIDTH, d_forget, real)
        _put(d_gates, base + 2 * WIDTH, d_memory * write * (1.0 - candidate * candidate), real)
        _put(d_gates, base + 3 * WIDTH, d_output, real)
        d_memory = d_memory * forget
        if KIND == 1:
            d_memory += d_write * _get(holes, column, real) + d_forget * _get(holes, column + WIDTH, real)
    _put(carried_memory, place, d_memory, real)


# The normalised LSTM: a row a program


@triton.jit
def _normalised_forward(
    projected, products, gates, gain, memory_gain, memory_shift, spread, inner, inner_spread, before, after, hidden,
    seen, EPSILON: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    real = column < WIDTH
    base = row * (4 * WIDTH) + column
    write = _get(products, base, real)
    forget = _get(products, base + WIDTH, real)
    candidate = _get(products, base + 2 * WIDTH, real)
    output = _get(products, base + 3 * WIDTH, real)
    mean = tl.sum(write + forget + candidate + output, 0) / (4 * WIDTH)
    write = tl.where(real, write - mean, 0.0)
    forget = tl.where(real, forget - mean, 0.0)
    candidate = tl.where(real, candidate - mean, 0.0)
    output = tl.where(real, output - mean, 0.0)
    squares = write * write + forget * forget + candidate * candidate + output * output
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / (4 * WIDTH) + EPSILON)
    tl.store(spread + row, scale)
    write, forget, candidate, output = write * scale, forget * scale, candidate * scale, output * scale
    _put(products, base, write, real)
    _put(products, base + WIDTH, forget, real)
    _put(products, base + 2 * WIDTH, candidate, real)
    _put(products, base + 3 * WIDTH, output, real)
    write = tl.sigmoid(_get(projected, base, real) + write * _get(gain, column, real))
    forget = tl.sigmoid(_get(projected, base + WIDTH, real) + forget * _get(gain, column + WIDTH, real))
    candidate = _tanh(_get(projected, base + 2 * WIDTH, real) + candidate * _get(gain, column + 2 * WIDTH, real))
    output = tl.sigmoid(_get(projected, base + 3 * WIDTH, real) + output * _get(gain, column + 3 * WIDTH, real))
    _put(gates, base, write, real)
    _put(gates, base + WIDTH, forget, real)
    _put(gates, base + 2 * WIDTH, candidate, real)
    _put(gates, base + 3 * WIDTH, output, real)
    place = row * WIDTH + column
    memory = tl.where(real, forget * _get(before, place, real) + write * candidate, 0.0)
    _put(after, place, memory, real)
    centred = tl.where(real, memory - tl.sum(memory, 0) / WIDTH, 0.0)
    inner_scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + EPSILON)
    tl.store(inner_spread + row, inner_scale)
    normed = centred * inner_scale
    _put(inner, place, normed, real)
    value = output * _tanh(_get(memory_shift, column, real) + normed * _get(memory_gain, column, real))
    _put(hidden, place, value, real)
    if LOW:
        _put(seen, place, value, real)


@triton.jit
def _normalised_backward(
    products, gates, gain, memory_gain, memory_shift, spread, inner, inner_spread, before, carried, outer, stride,
    carried_memory, outer_memory, stride_memory, d_gates, d_products, d_shown,
    OUTER: tl.constexpr, OUTER_MEMORY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    real = column < WIDTH
    base, place = row * (4 * WIDTH) + column, row * WIDTH + column
    d_hidden = _arriving(carried, outer, stride, place, row, column, real, OUTER)
    d_memory = _arriving(carried_memory, outer_memory, stride_memory, place, row, column, real, OUTER_MEMORY)
    write = _get(gates, base, real)
    forget = _get(gates, base + WIDTH, real)
    candidate = _get(gates, base + 2 * WIDTH, real)
    output = _get(gates, base + 3 * WIDTH, real)
    normed, scale = _get(inner, place, real), _get(memory_gain, column, real)
    shown = _tanh(_get(memory_shift, column, real) + normed * scale)
    d_output = d_hidden * shown * output * (1.0 - output)
    d_tanh = d_hidden * output * (1.0 - shown * shown)
    _put(d_shown, place, d_tanh, real)
    d_normed = d_tanh * scale  # zero beyond the width, as the gain is
    mean, along = tl.sum(d_normed, 0) / WIDTH, tl.sum(d_normed * normed, 0) / WIDTH
    d_memory += (d_normed - mean - normed * along) * tl.load(inner_spread + row)
    d_write = d_memory * candidate * write * (1.0 - write)
    d_forget = d_memory * _get(before, place, real) * forget * (1.0 - forget)
    d_candidate = d_memory * write * (1.0 - candidate * candidate)
    _put(carried_memory, place, d_memory * forget, real)
    _put(d_gates, base, d_write, real)
    _put(d_gates, base + WIDTH, d_forget, real)
    _put(d_gates, base + 2 * WIDTH, d_candidate, real)
    _put(d_gates, base + 3 * WIDTH, d_output, real)
    d_write *= _get(gain, column, real)
    d_forget *= _get(gain, column + WIDTH, real)
    d_candidate *= _get(gain, column + 2 * WIDTH, real)
    d_output *= _get(gain, column + 3 * WIDTH, real)
    write = _get(products, base, real)
    forget = _get(products, base + WIDTH, real)
    candidate = _get(products, base + 2 * WIDTH, real)
    output = _get(products, base + 3 * WIDTH, real)
    mean = tl.sum(d_write + d_forget + d_candidate + d_output, 0) / (4 * WIDTH)
    along = d_write * write + d_forget * forget + d_candidate * candidate + d_output * output
    along = tl.sum(along, 0) / (4 * WIDTH)
    scale = tl.load(spread + row)
    _put(d_products, base, (d_write - mean - write * along) * scale, real)
    _put(d_products, base + WIDTH, (d_forget - mean - forget * along) * scale, real)
    _put(d_products, base + 2 * WIDTH, (d_candidate - mean - candidate * along) * scale, real)
    _put(d_products, base + 3 * WIDTH, (d_output - mean - output * along) * scale, real)


# GRU with the reset after the product


@triton.jit
def _gru_forward(
    projected, products, gates, bare, before, hidden, seen, size,
    BEND: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    base = place // WIDTH * (3 * WIDTH) + place % WIDTH
    reset = tl.sigmoid(_get(projected, base, real) + _get(products, base, real))
    update = tl.sigmoid(_get(projected, base + WIDTH, real) + _get(products, base + WIDTH, real))
    inner = _get(projected, base + 2 * WIDTH, real) + reset * _get(products, base + 2 * WIDTH, real)
    candidate = _bend(inner, BEND)
    _put(bare, place, inner, real)
    _put(gates, base, reset, real)
    _put(gates, base + WIDTH, update, real)
    _put(gates, base + 2 * WIDTH, candidate, real)
    value = candidate + update * (_get(before, place, real) - candidate)
    _put(hidden, place, value, real)
    if LOW:
        _put(seen, place, value, real)


@triton.jit
def _gru_backward(
    products, gates, bare, before, carried, outer, stride, direct, d_gates, d_products, size,
    BEND: tl.constexpr, OUTER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    row, column = place // WIDTH, place % WIDTH
    base = row * (3 * WIDTH) + column
    d_hidden = _arriving(carried, outer, stride, place, row, column, real, OUTER)
    reset = _get(gates, base, real)
    update = _get(gates, base + WIDTH, real)
    candidate = _get(gates, base + 2 * WIDTH, real)
    d_update = d_hidden * (_get(before, place, real) - candidate) * update * (1.0 - update)
    d_candidate = d_hidden * (1.0 - update) * _slope(_get(bare, place, real), candidate, BEND)
    d_reset = d_candidate * _get(products, base + 2 * WIDTH, real) * reset * (1.0 - reset)
    _put(d_gates, base, d_reset, real)
    _put(d_gates, base + WIDTH, d_update, real)
    _put(d_gates, base + 2 * WIDTH, d_candidate, real)
    _put(d_products, base, d_reset, real)
    _put(d_products, base + WIDTH, d_update, real)
    _put(d_products, base + 2 * WIDTH, d_candidate * reset, real)
    _put(direct, place, d_hidden * update, real)


# Launching


def _outer(walk: Walk, step: int, part: int) -> tuple[Tensor, int, bool]:
    """The gradient from outside of a state after a step, its rows' stride, and whether there is one."""
    outer = walk.outer[part]
    if outer is None:
        return walk.carried[part], 0, False
    return outer[step], outer.stride(1), True


def _grid(walk: Walk) -> tuple[int]:
    return (triton.cdiv(walk.rows * walk.width, BLOCK),)


def _wide(walk: Walk) -> dict[str, Any]:
    return {"WIDTH": walk.width, "BLOCK": BLOCK}


def point(walk: Any, step: int) -> None:
    """`walk.point`, and h' in the product's own type."""
    low, size = walk.seen is not walk.states[0], walk.rows * walk.width
    ends = walk.states[0][step + 1], walk.seen[step + 1]
    gates = walk.gates[step]
    if type(walk) is Walk:
        _plain_forward[_grid(walk)](gates, *ends, size, BEND=BENDS[walk.bend], LOW=low, BLOCK=BLOCK)
    elif type(walk) is GRUWalk:
        _gru_forward[_grid(walk)](
            walk.projected[step], walk.products[step], gates, walk.before[step], walk.states[0][step], *ends, size,
            BEND=BENDS[walk.bend], LOW=low, **_wide(walk),
        )  # fmt: skip
    elif type(walk) is NormalisedWalk:
        _normalised_forward[(walk.rows,)](
            walk.projected[step], walk.products[step], gates, *walk.extras, walk.spread[step], walk.inner[step],
            walk.inner_spread[step], walk.states[1][step], walk.states[1][step + 1], *ends,
            EPSILON=EPSILON, LOW=low, WIDTH=walk.width, BLOCK=triton.next_power_of_2(walk.width),
        )  # fmt: skip
    else:
        holes = walk.extras[0] if walk.extras else gates
        _lstm_forward[_grid(walk)](
            gates, holes, walk.states[1][step], walk.states[1][step + 1], *ends, size,
            KIND=KINDS[type(walk)], LOW=low, **_wide(walk),
        )  # fmt: skip


def unpoint(walk: Any, step: int) -> None:
    """`walk.unpoint`."""
    size, gates, d_gates = walk.rows * walk.width, walk.gates[step], walk.d_gates[step]
    outer, stride, has_outer = _outer(walk, step, 0)
    if type(walk) is Walk:
        _plain_backward[_grid(walk)](
            walk.states[0][step + 1], walk.carried[0], outer, stride, d_gates, size,
            BEND=BENDS[walk.bend], OUTER=has_outer, **_wide(walk),
        )  # fmt: skip
        return
    if type(walk) is GRUWalk:
        walk.direct = torch.empty_like(walk.states[0][0])
        _gru_backward[_grid(walk)](
            walk.products[step], gates, walk.before[step], walk.states[0][step], walk.carried[0], outer, stride,
            walk.direct, d_gates, walk.d_products[step], size,
            BEND=BENDS[walk.bend], OUTER=has_outer, **_wide(walk),
        )  # fmt: skip
        return
    outer_memory, stride_memory, has_outer_memory = _outer(walk, step, 1)
    arriving = walk.carried[0], outer, stride, walk.carried[1], outer_memory, stride_memory
    if type(walk) is NormalisedWalk:
        _normalised_backward[(walk.rows,)](
            walk.products[step], gates, *walk.extras, walk.spread[step], walk.inner[step], walk.inner_spread[step],
            walk.states[1][step], *arriving, d_gates, walk.d_products[step], walk.d_shown[step],
            OUTER=has_outer, OUTER_MEMORY=has_outer_memory, WIDTH=walk.width,
            BLOCK=triton.next_power_of_2(walk.width),
        )  # fmt: skip
        return
    holes = walk.extras[0] if walk.extras else gates
    _lstm_backward[_grid(walk)](
        gates, holes, walk.states[1][step], walk.states[1][step + 1], *arriving, d_gates, size,
        KIND=KINDS[type(walk)], OUTER=has_outer, OUTER_MEMORY=has_outer_memory, **_wide(walk),
    )  # fmt: skip
