"""Hard attention and transducers as plain code: the position in the source is latent and summed out, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.tokenizers import EOS, PAD
from dragoman.inspect.views.parts_in_code import Part, Recording, known, plus, weight_of
from dragoman.inspect.views.plain_code import TORCH, Code
from dragoman.models import CopyTransducer, HardAttentionDecoder, MonotoneDecoder

OVER = ("E", "A", "f", "G", "p_ins", "p_sub", "p_del", "p_cp", "p_end", "w", "a", "u", "q")  # of the source
# What moves on without writing: f is the deletion before each position, G the product of those between two.
DELETE = (
    "f = torch.where(i < j, p_del[B], 1.0)",
    "G = torch.where(i <= j, torch.cumprod(f, -1), 0.0)",
    "w = q_prev @ G",
)


def monotone_decoder(recording: Recording, name: str, module: MonotoneDecoder) -> Part | None:
    """A decoder that writes every token at some position of the source, summed over all positions."""
    call, stack, memory = recording.once(name), recording.once(f"{name}.stack"), recording.once("encoder")
    weights, tokens = recording.weights.get(name, []), recording.subject.batch.target[0]
    if call is None or stack is None or memory is None or len(weights) != 1 or len(stack[1][0]) != 1:
        return None
    output, source, values = module.output, call[0][1].static, memory[1].values[0]
    at, state, inputs = torch.arange(len(values)), "h", {"h": stack[1][0][0]}
    if module.attention is not None:
        inputs["c"] = torch.cat([result[0] for _, result in recording.calls[f"{name}.attention"]])
        state = "torch.cat([h, c])"
    inputs["o"] = F.one_hot(tokens[: len(inputs["h"])], output.out_features).double()
    constants: dict[str, Any] = {
        "H": values, "W_h": weight_of(module.from_state), "b_h": module.from_state.bias,
        "W_s": weight_of(module.from_source), "i": at[:, None], "j": at,
    } | known(W_o=weight_of(output), b_o=output.bias)  # fmt: skip
    lines = [f"g = W_h @ {state} + b_h", "Z = torch.tanh(g + H @ W_s.T)"]
    if isinstance(module, HardAttentionDecoder):
        title, where = "Hard attention", "w"
        about = "E scores the positions, w says where the token is written, P what each position would write."
        lines += [
            *_scores(module, constants), f"P = torch.softmax(Z @ W_o.T{plus('b_o', output.bias)}, -1)", "p = w @ P",
            "u = w * (P @ o)",
        ]  # fmt: skip
    else:
        where, about = "a", "A position inserts and stays, substitutes or copies and moves on, or is deleted. "
        about += "C has the token of each position, M what is allowed there, S moves on by one. w says which positions "
        about += "are visited, a where the token is written."
        constants |= {
            "C": F.one_hot(source.copied[0], output.out_features).double(),
            "M": ~cast(Any, module).forbidden(source)[0],
        }
        constants |= {"S": F.pad(torch.eye(len(at) - 1), (0, 1, 1, 0)), "B": (at - 1).clamp(min=0)}
        constants["C"][source.copied[0] == PAD] = 0.0
        copies = isinstance(module, CopyTransducer)
        title = "Copy transducer" if copies else "Edit transducer"
        lines += (_copy_transducer if copies else _edit_transducer)(module, constants)
    code = Code((*lines, "q = u / torch.sum(u, -1)"), constants)
    inputs["q_prev"] = _positions(code, inputs, len(at))
    about += " p sums over the positions; o is the token that was written, and q says where that leaves the writer."
    columns = recording.subject.encoded
    over = OVER if columns is not None and len(columns) == len(at) else ()
    run = {where: weights[0][0, 0], "p": call[1][0][0].exp()}
    return Part(name, title, about, code, run, recording.subject.target, inputs, columns if over else None, over)


def _positions(code: Code, inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Where the writer is before every token: at first on the first position."""
    code, before = code.read_by(TORCH), [torch.eye(size, dtype=torch.float64)[0]]
    for t in range(len(inputs["h"]) - 1):
        before.append(
            code.compute({name: value[t] for name, value in inputs.items()} | {"q_prev": before[-1]}, TORCH)["q"]
        )
    return torch.stack(before)


def _scores(module: HardAttentionDecoder, constants: dict[str, Any]) -> list[str]:
    """From where the writer was to where it writes: a softmax over positions (order 0) or over moves (order 1)."""
    constants["W_k"] = weight_of(module.key)
    if module.order == 0:
        lines, visible = ["E = H @ W_k.T @ h"], "i <= j"
        if not module.monotonic:
            return [*lines, "w = torch.softmax(E, -1)"]
    else:
        moves = constants["j"] - constants["i"]
        constants |= {"b_k": module.key.bias, "W_q": weight_of(module.query), "D": moves.clamp(0, module.jump)}
        constants["M"] = (moves >= 0) & (moves <= module.jump)
        lines, visible = ["e = W_q @ h + H @ W_k.T + b_k", "E = e[i, D]"], "M"
    return [*lines, f"A = torch.softmax(torch.where({visible}, E, -torch.inf), -1)", "w = q_prev @ A"]


def _edit_transducer(module: Any, constants: dict[str, Any]) -> list[str]:
    """One softmax over V insertions, V substitutions, deletion and copying at each position."""
    layers = (module.insert, module.output, module.other)
    biases = [layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
    constants |= {"W_a": torch.cat([weight_of(layer) for layer in layers]), "b_a": torch.cat(biases)}
    constants["n"] = [module.width, module.width, 1, 1]
    del constants["W_o"]
    constants.pop("b_o", None)
    return [
        "P = torch.softmax(torch.where(M, Z @ W_a.T + b_a, -torch.inf), -1)",
        "P_ins, P_sub, P_del, P_cp = torch.split(P, n, -1)",
        "f = torch.where(i < j, P_del[B, 0], 1.0)", *DELETE[1:], "a = w * (1 - P_del[:, 0])",
        "p = w @ (P_ins + P_sub + P_cp * C)",
        "u = w * (P_ins @ o) + S @ (w * ((P_sub + P_cp * C) @ o))",
    ]  # fmt: skip


def _copy_transducer(module: Any, constants: dict[str, Any]) -> list[str]:
    """A softmax over five actions at each position, and one over the vocabulary at each step."""
    constants |= {"W_a": weight_of(module.choice), "b_a": module.choice.bias}
    constants["E_s"] = F.one_hot(torch.tensor(EOS), module.width).double()
    constants["N"] = torch.arange(module.width) != EOS
    return [
        "P = torch.softmax(torch.where(M, Z @ W_a.T + b_a, -torch.inf), -1)",
        "p_ins, p_sub, p_del, p_cp, p_end = torch.unbind(P, -1)",
        *DELETE,
        "a = w * (1 - p_del)",
        f"v = torch.softmax(torch.where(N, W_o @ torch.tanh(g){plus('b_o', module.output.bias)}, -torch.inf), -1)",
        "p = (w @ (p_ins + p_sub)) * v + (w * p_cp) @ C + (w @ p_end) * E_s",
        "u = w * (p_ins * (v @ o) + p_end * (E_s @ o)) + S @ (w * (p_sub * (v @ o) + p_cp * (C @ o)))",
    ]
