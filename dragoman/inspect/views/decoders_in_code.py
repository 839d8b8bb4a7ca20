"""Recurrent cells, recurrent decoders, pointer-generators and Transformer blocks as plain code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.inspect.views.layers_in_code import CONVOLUTIONS, gated_convolution
from dragoman.inspect.views.monotone_in_code import monotone_decoder
from dragoman.inspect.views.parts_in_code import Part, Recording, known, plus, weight_of
from dragoman.inspect.views.plain_code import Code
from dragoman.inspect.views.states import cell_axis, joined_states
from dragoman.inspect.views.subject import Axis, plain_axis
from dragoman.models import (
    FixedContextDecoder,
    LuongDecoder,
    MonotoneDecoder,
    PointerGenerator,
    RecurrentDecoder,
    Stream,
    TransformerBlock,
)
from dragoman.models.layers import SingleHeadAttention

Parts = Mapping[str, Part]
FEED_FORWARD = {"relu": "F.relu({})", "gelu": "F.gelu({})", "silu": "F.silu({})"} | {
    "gelu-tanh": 'F.gelu({}, approximate="tanh")'
}


def cell_parts(recording: Recording) -> list[Part]:
    """Every recurrent cell that states its equations and reads one row."""
    parts = []
    for name, steps in recording.cells.items():
        lines, cell = steps.cell.equations(), steps.cell
        if not lines or len(steps.inputs[0]) != 1:
            continue
        before, after = joined_states(steps.before), joined_states(steps.after)
        inputs = {"x": torch.cat(steps.inputs)} | dict(zip(("h_prev", "c_prev"), before, strict=False))
        axis, backward = cell_axis(recording.subject, name, cell, len(before[0]))
        if backward:
            axis = plain_axis(axis.tokens[::-1])
        gives = ("h", "c")[: cell.num_states]
        code = Code(lines, cell.symbols(), tuple(inputs), gives)
        about = "x is the input of this step, h what the cell gives" + (", c its memory." if len(gives) > 1 else ".")
        about += " It reads the text from its end." if backward else ""
        parts.append(Part(name, cell.title, about, code, dict(zip(gives, after, strict=True)), axis, inputs))
    return parts


@dataclass
class _Steps:
    """The lines of a decoder while they are put together."""

    recording: Recording
    parts: Parts
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)

    def cells(
        self, names: Sequence[str], x: str, *, first: int, layers: int, extra: str = "", residual: int = 0
    ) -> str:
        """Read x by cells on top of each other; the name of what the top one gives."""
        for number, name in enumerate(names, first):
            part, last = self.parts[name], f"_{number}" if layers > 1 else ""
            own = [f"{letter}{last}" for letter in "sm"[: len(part.state)]]
            before = [f"{letter}_prev" for letter in own]
            self.constants[f"cell{last}"] = part.code
            read = f"torch.cat([{x}, {extra}])" if extra else x
            self.lines.append(f"{', '.join(own)} = cell{last}({', '.join([read, *before])})")
            self.state |= dict(zip(own, part.state.values(), strict=True))
            self.inputs |= dict(zip(before, list(part.inputs.values())[1:], strict=True))
            if 0 < residual <= number:
                self.lines.append(f"x_{number} = {x} + {own[0]}")
            x = f"x_{number}" if 0 < residual <= number else own[0]
        return x

    def attend(self, name: str, query: str) -> None:
        """c, the context of a query; of several heads as the run has it."""
        part = self.parts.get(name)
        if part is None or not isinstance(self.recording.module(name), SingleHeadAttention):
            self.inputs["c"] = torch.cat([result[0] for _, result in self.recording.calls[name]])
            return
        self.constants["attention"] = part.code
        centre = ", mu" if "mu" in part.inputs else ""
        self.inputs |= {"mu": part.inputs["mu"]} if centre else {}
        self.lines.append(f"c = attention({query}{centre})")
        self.state["c"] = part.state["c"]

    def read_out(self, module: Any, parts: Sequence[str]) -> None:
        """r, from the state of the top layer and what else the output layer sees."""
        if module.kind == "state":
            self.lines.append(f"r = {parts[0]}")
            return
        total = f"W_r @ torch.cat([{', '.join(parts)}]) + b_r"
        self.constants |= {"W_r": module.linear.weight, "b_r": module.linear.bias}
        tanh = module.kind == "tanh"
        self.lines.append(
            f"r = torch.tanh({total})" if tanh else f"r = torch.amax(torch.unflatten({total}, -1, (-1, 2)), -1)"
        )

    def probabilities(self, name: str) -> None:
        """p, where the decoder is the one that writes."""
        model = self.recording.subject.model
        call, output = self.recording.once("output"), getattr(model, "output", None)
        if name == "decoder" and isinstance(output, nn.Linear) and call is not None:
            self.constants |= known(W_o=weight_of(output), b_o=output.bias)
            self.lines.append(f"p = torch.softmax(W_o @ r{plus('b_o', output.bias)}, -1)")
            self.state["p"] = call[1][0].float().softmax(-1)

    def part(self, name: str, title: str, about: str) -> Part:
        code = Code(tuple(self.lines), self.constants)
        return Part(name, title, about, code, self.state, _rows(self.recording, self.inputs), self.inputs)


def _rows(recording: Recording, inputs: Mapping[str, Tensor]) -> Axis:
    steps, axis = len(next(iter(inputs.values()))), recording.subject.target
    return axis if len(axis) == steps else plain_axis([str(number) for number in range(1, steps + 1)])


def recurrent_decoder(recording: Recording, name: str, module: Any, parts: Parts) -> Part | None:
    """The step of a decoder by Bahdanau, by Luong, or with a fixed context."""
    embedded, result = recording.calls.get(f"{name}.embedding", []), recording.once(name)
    if result is None or not embedded or len(result[1][0]) != 1:
        return None
    built = _Steps(recording, parts)
    built.inputs["y"] = embedded[0][1][0]
    built.state["r"] = result[1][0][0]
    stack = module.upper if isinstance(module, RecurrentDecoder) else module.stack
    below = f"{name}.upper.cells" if isinstance(module, RecurrentDecoder) else f"{name}.stack.cells"
    layers = len(stack.cells) + isinstance(module, RecurrentDecoder)
    names = [f"{below}.{number}" for number in range(len(stack.cells))]
    shared = {id(steps.cell): own for own, steps in recording.cells.items()}  # with the encoder they have its names
    names = [shared.get(id(cell), own) for cell, own in zip(stack.cells, names, strict=True)]
    if any(own not in parts for own in names):
        return None
    if any(len(parts[own].rows) != len(built.inputs["y"]) for own in names):
        return None  # cells that read the source as well
    after = "s_1" if layers > 1 else "s"
    about = "y is the embedding of the token before, s the state of the cells, r what the output layer reads. "
    if isinstance(module, RecurrentDecoder):
        built.attend(f"{name}.attention", f"{after}_prev")
        built.cells([f"{name}.bottom"], "torch.cat([y, c])", first=1, layers=layers)
        top = built.cells(
            names, "s_1" if names else "s", first=2, layers=layers, extra="c" if module.to_all else "",
            residual=stack.residual_from,
        )  # fmt: skip
        built.read_out(module.readout, [top, "c", "y"])
        title = "Decoder with attention before the cell (Bahdanau)"
        about += "The state before this step attends."
        about += " Of each pair of entries the larger one is kept." if module.readout.kind == "maxout" else ""
    elif isinstance(module, LuongDecoder):
        x = "y"
        if module.input_feeding:
            start = torch.zeros_like(built.state["r"][:1])
            built.inputs["r_prev"], x = torch.cat([start, built.state["r"][:-1]]), "torch.cat([y, r_prev])"
        top = built.cells(names, x, first=1, layers=layers, residual=stack.residual_from)
        built.attend(f"{name}.attention", top)
        if module.combine is None:
            built.lines.append(f"r = torch.cat([{top}, c])")
        else:
            built.constants["W_r"] = weight_of(module.combine)
            built.lines.append(f"r = torch.tanh(W_r @ torch.cat([c, {top}]))")
        title = "Decoder with attention after the cell (Luong)"
        about += "The state after this step attends."
    else:
        context = []
        if module.every_step:
            built.constants["z"], context = recording.calls[name][0][0][1].static[0][0], ["z"]
        top = built.cells(
            names, "torch.cat([y, z])" if context else "y", first=1, layers=layers, residual=stack.residual_from
        )
        built.read_out(module.readout, [top, *context, "y"])
        title = "Decoder with a fixed context"
        about += "It sees the source as one vector."
    built.probabilities(name)
    return built.part(name, title, about)


def pointer_generator(recording: Recording, name: str, module: Any) -> Part | None:
    call, inner = recording.once(name), recording.once(f"{name}.inner")
    memory = recording.once("encoder")
    if call is None or inner is None or memory is None or len(inner[1][0]) != 1:
        return None
    tokens, vocabulary, output = call[0][1].static[4][0], module.vocabulary, module.output
    constants = known(
        H=memory[1].keys[0], V=memory[1].values[0], W_k=weight_of(module.key), W_q=weight_of(module.query),
        d=module.query.out_features, w_g=module.gate.weight[0], b_g=module.gate.bias[0], W_o=weight_of(output),
        b_o=output.bias, W_c=module.context.weight,
        T=F.one_hot(tokens.clamp(max=vocabulary), vocabulary + 1)[:, :vocabulary].double(),
    )  # fmt: skip
    lines = (
        "K = H @ W_k.T",
        "a = torch.softmax(K @ (W_q @ h) / d ** 0.5, -1)",
        "c = a @ V",
        "g = torch.sigmoid(w_g @ torch.cat([c, h, y]) + b_g)",
        f"v = torch.softmax(W_o @ (h + W_c @ c){plus('b_o', output.bias)}, -1)",
        "p = g * v + (1 - g) * (a @ T)",
    )
    inputs = {"h": inner[1][0][0], "y": recording.calls[f"{name}.embedding"][-1][1][0]}
    state = {"p": call[1][0][0].exp()[:, :vocabulary]}
    about = (
        "h is the vector of the decoder inside, y the embedding of the token before. A row of T is the token of one "
        "position of the source: the gate g mixes writing a token with copying one."
    )
    columns = recording.subject.source if len(tokens) == len(recording.subject.source or ()) else None
    rows = _rows(recording, inputs)
    return Part(name, "Pointer-generator", about, Code(lines, constants), state, rows, inputs, columns, ("a",))


def transformer_block(
    recording: Recording, name: str, module: TransformerBlock, parts: Parts, rows: Axis
) -> Part | None:
    """One block of a Transformer over all positions."""
    call = recording.once(name)
    names = {"self_attention": f"{name}.attention"}
    names |= {"cross_attention": f"{name}.cross"} if hasattr(module, "cross") else {}
    if call is None or any(own not in parts for own in names.values()):
        return None
    constants: dict[str, Any] = {function: parts[own].code for function, own in names.items()}
    if any(not code.takes for code in constants.values()):
        return None
    norms, lines, x = [module.attention_norm, module.feedforward_norm], [], "X"
    sums = ["self_attention({})"]
    if "cross_attention" in names:
        norms.insert(1, module.cross_norm)
        sums.append("cross_attention({}, H)")
        constants["H"] = parts[names["cross_attention"]].code.constants["H"]
    for number, (own, norm, after) in enumerate(zip(sums, norms, "YZ", strict=False), 1):
        normed = _norm(norm, number, constants)
        read = normed.format(x) if module.pre_norm else x
        total = f"{x} + {own.format(read)}"
        lines.append(f"{after} = {total if module.pre_norm else normed.format(total)}")
        x = after
    normed = _norm(norms[-1], len(norms), constants)
    if module.pre_norm:
        lines.append(f"N = {normed.format(x)}")
    layer, read = module.feedforward, "N" if module.pre_norm else x
    constants |= known(W_1=weight_of(layer.widen), b_1=layer.widen.bias)
    constants |= known(W_2=weight_of(layer.narrow), b_2=layer.narrow.bias)
    wide, activation = f"{read} @ W_1.T{plus('b_1', layer.widen.bias)}", FEED_FORWARD[layer.activation]
    if layer.gate is not None:
        constants |= known(W_g=weight_of(layer.gate), b_g=layer.gate.bias)
        inner = f"{activation.format(f'{read} @ W_g.T' + plus('b_g', layer.gate.bias))} * ({wide})"
    else:
        inner = activation.format(wide)
    total = f"{x} + F_2"
    lines += [f"F_1 = {inner}", f"F_2 = F_1 @ W_2.T{plus('b_2', layer.narrow.bias)}"]
    lines.append(f"O = {total if module.pre_norm else normed.format(total)}")
    stream = call[1] if isinstance(call[1], Stream) else call[1][0]
    constants["X"] = _total(call[0][0])
    where = "before" if module.pre_norm else "after"
    title = f"Transformer {'decoder' if 'cross_attention' in names else 'block'}, norm {where} each part"
    about = "Rows of X are positions. The parts self_attention" + (" and cross_attention" if len(names) > 1 else "")
    about += " are shown on their own."
    return Part(name, title, about, Code(tuple(lines), constants), {"O": _total(stream)}, rows)


def _total(stream: Stream) -> Tensor:
    return (stream.x if stream.out is None else stream.x + stream.out)[0]


def _norm(norm: Any, number: int, constants: dict[str, Any]) -> str:
    """A norm as a template of code."""
    gamma, beta = f"gamma_{number}", f"beta_{number}"
    constants |= known(**{gamma: norm.weight, beta: getattr(norm, "bias", None)}, eps=norm.eps)
    if isinstance(norm, nn.RMSNorm):
        return f"F.rms_norm({{}}, {gamma}.shape, {gamma}, eps)"
    return f"F.layer_norm({{}}, {gamma}.shape, {gamma}, {beta if norm.bias is not None else None}, eps)"


RECURRENT = (RecurrentDecoder, LuongDecoder, FixedContextDecoder)


def decoder_parts(recording: Recording, parts: Parts) -> list[Part]:
    """Decoders and blocks that are made of these cells and attentions."""
    found = []
    for name, module in recording.subject.model.named_modules():
        part = None
        if isinstance(module, RECURRENT):
            part = recurrent_decoder(recording, name, module, parts)
        elif isinstance(module, PointerGenerator):
            part = pointer_generator(recording, name, module)
        elif isinstance(module, MonotoneDecoder):
            part = monotone_decoder(recording, name, module)
        elif isinstance(module, CONVOLUTIONS):
            part = gated_convolution(recording, name, module)
        elif isinstance(module, TransformerBlock) and f"{name}.attention" in parts:
            part = transformer_block(recording, name, module, parts, parts[f"{name}.attention"].rows)
        found += [] if part is None else [part]
    return found
