"""Triton kernels for the pointwise part of a recurrent step, one forward and one backward per cell.

The cells of `layers.cells` have the same equations in plain torch. The kernels compute in float32, whatever the types
of gates and states. Imported on GPUs only.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # numbers per program
LSTM_KINDS = {"lstm": 0, "peephole-lstm": 1, "coupled-lstm": 2}
ACTIVATIONS = {"tanh": 0, "relu": 1, "gelu": 2, "silu": 3}


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _activation(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        return _tanh(x)
    elif ACTIVATION == 1:
        return tl.maximum(x, 0.0)
    elif ACTIVATION == 2:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x * tl.sigmoid(x)


@triton.jit
def _activation_slope(x, activated, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        return 1.0 - activated * activated
    elif ACTIVATION == 1:
        return tl.where(activated > 0.0, 1.0, 0.0)
    elif ACTIVATION == 2:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        gate = tl.sigmoid(x)
        return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def _load(pointer, index, valid):
    return tl.load(pointer + index, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, index, value, valid):
    tl.store(pointer + index, value.to(pointer.dtype.element_ty), mask=valid)


@triton.jit
def _state_gradient(d_next, d_out, stride, index, row, column, valid, HAS_D_OUT: tl.constexpr):
    gradient = _load(d_next, index, valid)
    if HAS_D_OUT:
        gradient += _load(d_out, row * stride + column, valid)
    return gradient


# Elman RNN


@triton.jit
def _rnn_forward(gates, hidden, rounded, size, ACTIVATION: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    value = _activation(_load(gates, index, valid), ACTIVATION)
    _store(hidden, index, value, valid)
    if LOW:
        _store(rounded, index, value, valid)


@triton.jit
def _rnn_backward(
    hidden, d_next, d_out, stride, d_gates, size,
    ACTIVATION: tl.constexpr, HAS_D_OUT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    gradient = _state_gradient(d_next, d_out, stride, index, index // WIDTH, index % WIDTH, valid, HAS_D_OUT)
    value = _load(hidden, index, valid)
    _store(d_gates, index, gradient * _activation_slope(value, value, ACTIVATION), valid)


# LSTM, with peepholes, with coupled gates


@triton.jit
def _lstm_forward(
    gates, peepholes, before, after, hidden, rounded, size,
    KIND: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    row, column = index // WIDTH, index % WIDTH
    memory = _load(before, index, valid)
    if KIND == 2:
        base = row * (3 * WIDTH) + column
        forget = tl.sigmoid(_load(gates, base, valid))
        output = tl.sigmoid(_load(gates, base + WIDTH, valid))
        candidate = _tanh(_load(gates, base + 2 * WIDTH, valid))
        memory = candidate + forget * (memory - candidate)
        _store(gates, base, forget, valid)
        _store(gates, base + WIDTH, output, valid)
        _store(gates, base + 2 * WIDTH, candidate, valid)
    else:
        base = row * (4 * WIDTH) + column
        ingate = _load(gates, base, valid)
        forget = _load(gates, base + WIDTH, valid)
        candidate = _tanh(_load(gates, base + 2 * WIDTH, valid))
        output = _load(gates, base + 3 * WIDTH, valid)
        if KIND == 1:
            ingate += _load(peepholes, column, valid) * memory
            forget += _load(peepholes, column + WIDTH, valid) * memory
        ingate, forget = tl.sigmoid(ingate), tl.sigmoid(forget)
        memory = forget * memory + ingate * candidate
        if KIND == 1:
            output += _load(peepholes, column + 2 * WIDTH, valid) * memory
        output = tl.sigmoid(output)
        _store(gates, base, ingate, valid)
        _store(gates, base + WIDTH, forget, valid)
        _store(gates, base + 2 * WIDTH, candidate, valid)
        _store(gates, base + 3 * WIDTH, output, valid)
    value = output * _tanh(memory)
    _store(after, index, memory, valid)
    _store(hidden, index, value, valid)
    if LOW:
        _store(rounded, index, value, valid)


@triton.jit
def _lstm_backward(
    gates, peepholes, before, after, d_next, d_out, stride, d_next_memory, d_out_memory, stride_memory, d_gates, size,
    KIND: tl.constexpr, HAS_D_OUT: tl.constexpr, HAS_D_OUT_MEMORY: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    row, column = index // WIDTH, index % WIDTH
    d_hidden = _state_gradient(d_next, d_out, stride, index, row, column, valid, HAS_D_OUT)
    d_memory = _state_gradient(d_next_memory, d_out_memory, stride_memory, index, row, column, valid, HAS_D_OUT_MEMORY)
    old = _load(before, index, valid)
    tanh_memory = _tanh(_load(after, index, valid))
    if KIND == 2:
        base = row * (3 * WIDTH) + column
        forget = _load(gates, base, valid)
        output = _load(gates, base + WIDTH, valid)
        candidate = _load(gates, base + 2 * WIDTH, valid)
        d_memory += d_hidden * output * (1.0 - tanh_memory * tanh_memory)
        _store(d_gates, base, d_memory * (old - candidate) * forget * (1.0 - forget), valid)
        _store(d_gates, base + WIDTH, d_hidden * tanh_memory * output * (1.0 - output), valid)
        _store(d_gates, base + 2 * WIDTH, d_memory * (1.0 - forget) * (1.0 - candidate * candidate), valid)
        d_memory = d_memory * forget
    else:
        base = row * (4 * WIDTH) + column
        ingate = _load(gates, base, valid)
        forget = _load(gates, base + WIDTH, valid)
        candidate = _load(gates, base + 2 * WIDTH, valid)
        output = _load(gates, base + 3 * WIDTH, valid)
        d_output = d_hidden * tanh_memory * output * (1.0 - output)
        d_memory += d_hidden * output * (1.0 - tanh_memory * tanh_memory)
        if KIND == 1:
            d_memory += d_output * _load(peepholes, column + 2 * WIDTH, valid)
        d_ingate = d_memory * candidate * ingate * (1.0 - ingate)
        d_forget = d_memory * old * forget * (1.0 - forget)
        _store(d_gates, base, d_ingate, valid)
        _store(d_gates, base + WIDTH, d_forget, valid)
        _store(d_gates, base + 2 * WIDTH, d_memory * ingate * (1.0 - candidate * candidate), valid)
        _store(d_gates, base + 3 * WIDTH, d_output, valid)
        d_memory = d_memory * forget
        if KIND == 1:
            d_memory += d_ingate * _load(peepholes, column, valid) + d_forget * _load(peepholes, column + WIDTH, valid)
    _store(d_next_memory, index, d_memory, valid)


# LSTM with layer norm: one row per program


@triton.jit
def _layer_norm_lstm_forward(
    projected, products, gates, gain, memory_gain, memory_bias, product_scale, normed_memory, memory_scale,
    before, after, hidden, rounded, EPSILON: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    valid = column < WIDTH
    base = row * (4 * WIDTH) + column
    ingate = _load(products, base, valid)
    forget = _load(products, base + WIDTH, valid)
    candidate = _load(products, base + 2 * WIDTH, valid)
    output = _load(products, base + 3 * WIDTH, valid)
    mean = tl.sum(ingate + forget + candidate + output, 0) / (4 * WIDTH)
    ingate = tl.where(valid, ingate - mean, 0.0)
    forget = tl.where(valid, forget - mean, 0.0)
    candidate = tl.where(valid, candidate - mean, 0.0)
    output = tl.where(valid, output - mean, 0.0)
    squares = ingate * ingate + forget * forget + candidate * candidate + output * output
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / (4 * WIDTH) + EPSILON)
    tl.store(product_scale + row, scale)
    ingate, forget, candidate, output = ingate * scale, forget * scale, candidate * scale, output * scale
    _store(products, base, ingate, valid)
    _store(products, base + WIDTH, forget, valid)
    _store(products, base + 2 * WIDTH, candidate, valid)
    _store(products, base + 3 * WIDTH, output, valid)
    ingate = tl.sigmoid(_load(projected, base, valid) + ingate * _load(gain, column, valid))
    forget = tl.sigmoid(_load(projected, base + WIDTH, valid) + forget * _load(gain, column + WIDTH, valid))
    candidate = _tanh(_load(projected, base + 2 * WIDTH, valid) + candidate * _load(gain, column + 2 * WIDTH, valid))
    output = tl.sigmoid(_load(projected, base + 3 * WIDTH, valid) + output * _load(gain, column + 3 * WIDTH, valid))
    _store(gates, base, ingate, valid)
    _store(gates, base + WIDTH, forget, valid)
    _store(gates, base + 2 * WIDTH, candidate, valid)
    _store(gates, base + 3 * WIDTH, output, valid)
    index = row * WIDTH + column
    memory = tl.where(valid, forget * _load(before, index, valid) + ingate * candidate, 0.0)
    _store(after, index, memory, valid)
    centred = tl.where(valid, memory - tl.sum(memory, 0) / WIDTH, 0.0)
    inner_scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + EPSILON)
    tl.store(memory_scale + row, inner_scale)
    normed = centred * inner_scale
    _store(normed_memory, index, normed, valid)
    value = output * _tanh(_load(memory_bias, column, valid) + normed * _load(memory_gain, column, valid))
    _store(hidden, index, value, valid)
    if LOW:
        _store(rounded, index, value, valid)


@triton.jit
def _layer_norm_lstm_backward(
    products, gates, gain, memory_gain, memory_bias, product_scale, normed_memory, memory_scale,
    before, d_next, d_out, stride,
    d_next_memory, d_out_memory, stride_memory, d_gates, d_products, d_tanh_memory,
    HAS_D_OUT: tl.constexpr, HAS_D_OUT_MEMORY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    valid = column < WIDTH
    base, index = row * (4 * WIDTH) + column, row * WIDTH + column
    d_hidden = _state_gradient(d_next, d_out, stride, index, row, column, valid, HAS_D_OUT)
    d_memory = _state_gradient(d_next_memory, d_out_memory, stride_memory, index, row, column, valid, HAS_D_OUT_MEMORY)
    ingate = _load(gates, base, valid)
    forget = _load(gates, base + WIDTH, valid)
    candidate = _load(gates, base + 2 * WIDTH, valid)
    output = _load(gates, base + 3 * WIDTH, valid)
    normed, scale = _load(normed_memory, index, valid), _load(memory_gain, column, valid)
    tanh_memory = _tanh(_load(memory_bias, column, valid) + normed * scale)
    d_output = d_hidden * tanh_memory * output * (1.0 - output)
    d_tanh = d_hidden * output * (1.0 - tanh_memory * tanh_memory)
    _store(d_tanh_memory, index, d_tanh, valid)
    d_normed = d_tanh * scale  # zero beyond the width, as the gain is
    mean, along = tl.sum(d_normed, 0) / WIDTH, tl.sum(d_normed * normed, 0) / WIDTH
    d_memory += (d_normed - mean - normed * along) * tl.load(memory_scale + row)
    d_ingate = d_memory * candidate * ingate * (1.0 - ingate)
    d_forget = d_memory * _load(before, index, valid) * forget * (1.0 - forget)
    d_candidate = d_memory * ingate * (1.0 - candidate * candidate)
    _store(d_next_memory, index, d_memory * forget, valid)
    _store(d_gates, base, d_ingate, valid)
    _store(d_gates, base + WIDTH, d_forget, valid)
    _store(d_gates, base + 2 * WIDTH, d_candidate, valid)
    _store(d_gates, base + 3 * WIDTH, d_output, valid)
    d_ingate *= _load(gain, column, valid)
    d_forget *= _load(gain, column + WIDTH, valid)
    d_candidate *= _load(gain, column + 2 * WIDTH, valid)
    d_output *= _load(gain, column + 3 * WIDTH, valid)
    ingate = _load(products, base, valid)
    forget = _load(products, base + WIDTH, valid)
    candidate = _load(products, base + 2 * WIDTH, valid)
    output = _load(products, base + 3 * WIDTH, valid)
    mean = tl.sum(d_ingate + d_forget + d_candidate + d_output, 0) / (4 * WIDTH)
    along = d_ingate * ingate + d_forget * forget + d_candidate * candidate + d_output * output
    along = tl.sum(along, 0) / (4 * WIDTH)
    scale = tl.load(product_scale + row)
    _store(d_products, base, (d_ingate - mean - ingate * along) * scale, valid)
    _store(d_products, base + WIDTH, (d_forget - mean - forget * along) * scale, valid)
    _store(d_products, base + 2 * WIDTH, (d_candidate - mean - candidate * along) * scale, valid)
    _store(d_products, base + 3 * WIDTH, (d_output - mean - output * along) * scale, valid)


# GRU with the reset gate after the product


@triton.jit
def _gru_forward(
    projected, products, gates, preactivation, before, hidden, rounded, size,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    base = index // WIDTH * (3 * WIDTH) + index % WIDTH
    reset = tl.sigmoid(_load(projected, base, valid) + _load(products, base, valid))
    update = tl.sigmoid(_load(projected, base + WIDTH, valid) + _load(products, base + WIDTH, valid))
    candidate_input = _load(projected, base + 2 * WIDTH, valid) + reset * _load(products, base + 2 * WIDTH, valid)
    candidate = _activation(candidate_input, ACTIVATION)
    _store(preactivation, index, candidate_input, valid)
    _store(gates, base, reset, valid)
    _store(gates, base + WIDTH, update, valid)
    _store(gates, base + 2 * WIDTH, candidate, valid)
    value = candidate + update * (_load(before, index, valid) - candidate)
    _store(hidden, index, value, valid)
    if LOW:
        _store(rounded, index, value, valid)


@triton.jit
def _gru_backward(
    products, gates, preactivation, before, d_next, d_out, stride, d_direct, d_gates, d_products, size,
    ACTIVATION: tl.constexpr, HAS_D_OUT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    row, column = index // WIDTH, index % WIDTH
    base = row * (3 * WIDTH) + column
    d_hidden = _state_gradient(d_next, d_out, stride, index, row, column, valid, HAS_D_OUT)
    reset = _load(gates, base, valid)
    update = _load(gates, base + WIDTH, valid)
    candidate = _load(gates, base + 2 * WIDTH, valid)
    d_update = d_hidden * (_load(before, index, valid) - candidate) * update * (1.0 - update)
    d_candidate = (
        d_hidden * (1.0 - update) * _activation_slope(_load(preactivation, index, valid), candidate, ACTIVATION)
    )
    d_reset = d_candidate * _load(products, base + 2 * WIDTH, valid) * reset * (1.0 - reset)
    _store(d_gates, base, d_reset, valid)
    _store(d_gates, base + WIDTH, d_update, valid)
    _store(d_gates, base + 2 * WIDTH, d_candidate, valid)
    _store(d_products, base, d_reset, valid)
    _store(d_products, base + WIDTH, d_update, valid)
    _store(d_products, base + 2 * WIDTH, d_candidate * reset, valid)
    _store(d_direct, index, d_hidden * update, valid)


# Launching


def _output_gradient(rnn: Any, step: int, index: int) -> tuple[Tensor, int, bool]:
    """The gradient of a state from the output of a step, the stride of its rows, and whether there is one."""
    gradients = rnn.output_gradients[index]
    if gradients is None:
        return rnn.state_gradients[index], 0, False
    return gradients[step], gradients.stride(1), True


def _grid(rnn: Any) -> tuple[int]:
    return (triton.cdiv(rnn.rows * rnn.width, BLOCK),)


def _sizes(rnn: Any) -> dict[str, Any]:
    return {"WIDTH": rnn.width, "BLOCK": BLOCK}


def pointwise_forward(rnn: Any, step: int) -> None:
    """`pointwise_forward` of a `FusedRNN`; also rounds h to the type of the product."""
    low, size = rnn.hidden_inputs is not rnn.states[0], rnn.rows * rnn.width
    new_hidden = rnn.states[0][step + 1], rnn.hidden_inputs[step + 1]
    gates = rnn.gates[step]
    if rnn.kernel == "rnn":
        _rnn_forward[_grid(rnn)](gates, *new_hidden, size, ACTIVATION=ACTIVATIONS[rnn.activation], LOW=low, BLOCK=BLOCK)
    elif rnn.kernel == "gru":
        _gru_forward[_grid(rnn)](
            rnn.projected[step], rnn.products[step], gates, rnn.preactivation[step], rnn.states[0][step], *new_hidden,
            size, ACTIVATION=ACTIVATIONS[rnn.activation], LOW=low, **_sizes(rnn),
        )  # fmt: skip
    elif rnn.kernel == "layer-norm-lstm":
        _layer_norm_lstm_forward[(rnn.rows,)](
            rnn.projected[step], rnn.products[step], gates, *rnn.extras, rnn.product_scale[step],
            rnn.normed_memory[step], rnn.memory_scale[step], rnn.states[1][step], rnn.states[1][step + 1], *new_hidden,
            EPSILON=rnn.epsilon, LOW=low, WIDTH=rnn.width, BLOCK=triton.next_power_of_2(rnn.width),
        )  # fmt: skip
    else:
        peepholes = rnn.extras[0] if rnn.extras else gates
        _lstm_forward[_grid(rnn)](
            gates, peepholes, rnn.states[1][step], rnn.states[1][step + 1], *new_hidden, size,
            KIND=LSTM_KINDS[rnn.kernel], LOW=low, **_sizes(rnn),
        )  # fmt: skip


def pointwise_backward(rnn: Any, step: int) -> None:
    """`pointwise_backward` of a `FusedRNN`."""
    size, gates, d_gates = rnn.rows * rnn.width, rnn.gates[step], rnn.d_gates[step]
    from_output, stride, has_output = _output_gradient(rnn, step, 0)
    if rnn.kernel == "rnn":
        _rnn_backward[_grid(rnn)](
            rnn.states[0][step + 1], rnn.state_gradients[0], from_output, stride, d_gates, size,
            ACTIVATION=ACTIVATIONS[rnn.activation], HAS_D_OUT=has_output, **_sizes(rnn),
        )  # fmt: skip
        return
    if rnn.kernel == "gru":
        rnn.direct_gradient = torch.empty_like(rnn.states[0][0])
        _gru_backward[_grid(rnn)](
            rnn.products[step], gates, rnn.preactivation[step], rnn.states[0][step], rnn.state_gradients[0],
            from_output, stride, rnn.direct_gradient, d_gates, rnn.d_products[step], size,
            ACTIVATION=ACTIVATIONS[rnn.activation], HAS_D_OUT=has_output, **_sizes(rnn),
        )  # fmt: skip
        return
    memory_from_output, memory_stride, has_output_memory = _output_gradient(rnn, step, 1)
    gradients = rnn.state_gradients[0], from_output, stride, rnn.state_gradients[1], memory_from_output, memory_stride
    if rnn.kernel == "layer-norm-lstm":
        _layer_norm_lstm_backward[(rnn.rows,)](
            rnn.products[step], gates, *rnn.extras, rnn.product_scale[step], rnn.normed_memory[step],
            rnn.memory_scale[step], rnn.states[1][step], *gradients, d_gates, rnn.d_products[step],
            rnn.d_tanh_memory[step], HAS_D_OUT=has_output, HAS_D_OUT_MEMORY=has_output_memory, WIDTH=rnn.width,
            BLOCK=triton.next_power_of_2(rnn.width),
        )  # fmt: skip
        return
    peepholes = rnn.extras[0] if rnn.extras else gates
    _lstm_backward[_grid(rnn)](
        gates, peepholes, rnn.states[1][step], rnn.states[1][step + 1], *gradients, d_gates, size,
        KIND=LSTM_KINDS[rnn.kernel], HAS_D_OUT=has_output, HAS_D_OUT_MEMORY=has_output_memory, **_sizes(rnn),
    )  # fmt: skip
