"""Blocks of ConvS2S, and poolings, as plain code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.inspect.views.attention_layers import AttentionLayer
from dragoman.inspect.views.parts_in_code import Part, Recording, plus, weight_of
from dragoman.inspect.views.plain_code import Code
from dragoman.inspect.views.subject import Axis, plain_axis
from dragoman.models import ConvS2SDecoderLayer, ConvS2SEncoderLayer
from dragoman.models.layers import QueryPooling, StepWeights, TimeAttention

# A row of U is a window of positions beside each other; GLU of a convolution with normalised kernels.
GATED = (
    "U = torch.reshape(torch.cat([Z, X, Z_r])[J], (n, -1))",
    "W = s * F.normalize(V, dim=-1)",
    "A, B = torch.chunk(U @ W.T + b, 2, -1)",
    "G = A * torch.sigmoid(B)",
)


def gated_convolution(recording: Recording, name: str, layer: Any) -> Part | None:
    """A block of ConvS2S: a gated convolution, in a decoder with its attention, and the residual sum."""
    call, decoder = recording.once(name), isinstance(layer, ConvS2SDecoderLayer)
    if call is None or len(call[0][0]) != 1:
        return None
    x, kernel = call[0][0][0], layer.convolution.kernel
    first, last = (kernel - 1, 0) if decoder else ((kernel - 1) // 2, kernel // 2)
    convolution = layer.convolution.convolution
    constants: dict[str, Any] = {
        "X": x, "Z": call[0][1][0] if decoder else x.new_zeros(first, x.shape[1]), "Z_r": x.new_zeros(last, x.shape[1]),
        "J": torch.arange(len(x))[:, None] + torch.arange(kernel), "n": len(x), "s": convolution.scale[:, None],
        "V": convolution.direction.detach().transpose(1, 2).flatten(1), "b": convolution.bias,
    }  # fmt: skip
    lines, y, carried = list(GATED), "G", "X"
    if not isinstance(layer.shortcut, torch.nn.Identity):
        constants |= {"W_x": layer.shortcut.weight()[:, :, 0], "b_x": layer.shortcut.bias}
        carried = "(X @ W_x.T + b_x)"
    state, about = {"O": (call[1][0] if decoder else call[1])[0]}, "A row of U has the vectors that a kernel sees."
    if decoder:
        (keys, values, _), attention = call[0][3], layer.attention
        constants |= {"Y": call[0][2][0], "K": keys[0, 0], "H_v": values[0, 0]}
        for letter, linear in (("q", attention.query), ("c", attention.output)):
            constants |= {f"W_{letter}": linear.weight()[:, :, 0], f"b_{letter}": linear.bias}
        lines += [
            "Q = (G @ W_q.T + b_q + Y) * 0.5 ** 0.5", "E = torch.softmax(Q @ K.T, -1)",
            "R = (E @ H_v @ W_c.T + b_c + G) * 0.5 ** 0.5",
        ]  # fmt: skip
        y, state["E"] = "R", recording.weights[f"{name}.attention"][0][0, 0]
        about += " Y has the embeddings of the tokens, K and H_v what the encoder left; E is the attention."
    code = Code((*lines, f"O = ({y} + {carried}) * 0.5 ** 0.5"), constants)
    side = "decoder" if decoder else "encoder"
    axis = recording.subject.target if decoder else recording.subject.encoded
    rows = _fitting(axis, len(x))
    columns = _fitting(recording.subject.encoded, len(constants["K"])) if decoder else None
    return Part(name, f"Gated convolution (ConvS2S {side})", about, code, state, rows, columns=columns,
                over_columns=("E",) if decoder else (), whole=("W", "b"))  # fmt: skip


def _fitting(axis: Axis | None, size: int) -> Axis:
    return axis if axis is not None and len(axis) == size else plain_axis([str(at) for at in range(1, size + 1)])


def pooling(recording: Recording, layer: AttentionLayer) -> Part | None:
    """Weights over the states of a text, which become one vector."""
    module, call = recording.module(layer.name), recording.once(layer.name)
    if call is None or len(call[0][0]) != 1 or not isinstance(module, TimeAttention | StepWeights | QueryPooling):
        return None
    states: Tensor = call[0][0][0]
    constants: dict[str, Any] = {"H": states}
    result = call[1][0]
    if isinstance(module, TimeAttention):
        title = "Pooling by attention over time"
        constants |= {"w": module.weight[None]} | ({} if module.bias is None else {"b": module.bias[: len(states)]})
        lines = [f"E = torch.tanh(w @ H.T{plus('b', module.bias)})", "A = torch.softmax(E, -1)", "C = A @ H"]
    elif isinstance(module, StepWeights):
        title, lines = "Pooling by a weight for each step", ["C = A @ H + b"]
        constants |= {"A": module.weight[None, : len(states)], "b": module.bias}
    else:
        title = "Pooling by learned queries"
        constants |= {"Q": module.queries, "W_k": weight_of(module.keys), "b_k": module.keys.bias, "d": states.shape[1]}
        lines = ["K = H @ W_k.T + b_k", "E = Q @ K.T / d ** 0.5", "A = torch.softmax(E, -1)", "C = A @ H"]
    state = {"C": result.reshape(-1, states.shape[1])}
    if not isinstance(module, StepWeights):
        state["A"] = layer.weights[0] if len(layer.weights) == 1 else layer.weights[:, 0]
    about = "The rows of H are the states of the encoder; C is the one vector that the rest of the model reads."
    return Part(layer.name, title, about, Code(tuple(lines), constants), state, layer.rows, columns=layer.columns,
                over_columns=("E", "A"), whole=("K",))  # fmt: skip


CONVOLUTIONS = (ConvS2SEncoderLayer, ConvS2SDecoderLayer)
