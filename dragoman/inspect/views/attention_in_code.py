"""Every attention as plain code: the scores of recurrent decoders, and multi-head attention of Transformers."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.inspect.views.attention_layers import AttentionLayer
from dragoman.inspect.views.layers_in_code import pooling
from dragoman.inspect.views.parts_in_code import Part, Recording, known, plus, weight_of
from dragoman.inspect.views.plain_code import Code
from dragoman.models.layers import (
    AdditiveScore,
    CosineScore,
    CrossAttention,
    LinearAttention,
    MonotonicWindow,
    PredictiveWindow,
    SelfAttention,
    SingleHeadAttention,
)

ATTEND = "a = torch.softmax(e, -1)"


def single_head(recording: Recording, layer: AttentionLayer) -> Part | None:
    """Attention of a recurrent decoder: a query s over the rows of the memory H."""
    module, calls = recording.module(layer.name), recording.calls.get(layer.name, [])
    if not isinstance(module, SingleHeadAttention) or any(len(call[0][0]) != 1 for call in calls):
        return None
    ((memory,), _), ((values,), _) = (recording.calls[f"{layer.name}.{side}"][0] for side in ("keys", "values"))
    lines, constants, title = _score(module)
    visible, more = _window(module)
    lines += [*visible, ATTEND]
    if isinstance(module.window, MonotonicWindow | PredictiveWindow):
        lines[-1] = "a = torch.softmax(torch.where(abs(j - mu) <= r, e, -torch.inf), -1)"
    if isinstance(module.window, PredictiveWindow):
        lines[-1] += " * torch.exp(-2 * (j - mu) ** 2 / r ** 2)"
    constants |= more | {"H": memory[0]}
    read = "H"
    if isinstance(module.values, nn.Linear):
        constants["W_v"], read = module.values.weight, "(H @ W_v.T)"
    elif values is not memory:
        constants["V"], read = values[0], "V"
    context = f"a @ {read}"
    if module.gate is not None:
        constants |= {"w_g": weight_of(module.gate)[0], "b_g": module.gate.bias[0]}
        context = f"torch.sigmoid(w_g @ s + b_g) * ({context})"
    inputs = {"s": torch.cat([call[0][0][0] for call in calls])}
    starts = [int(call[0][3]) + t for call in calls for t in range(call[0][0].shape[1])]
    if isinstance(module.window, MonotonicWindow):
        inputs["mu"] = torch.tensor(starts).clamp(max=len(memory[0]) - 1)
    if isinstance(module.window, MonotonicWindow | PredictiveWindow):
        constants |= {"j": torch.arange(len(memory[0])), "r": module.window.radius, "n": len(memory[0])}
    code = Code((*lines, f"c = {context}"), constants, ("s", *(["mu"] if "mu" in inputs else [])), ("c",))
    state = {"a": layer.weights[0], "c": torch.cat([result[0] for _, result in calls])}
    about = "The query s is a state of the decoder; the rows of H are the states of the encoder."
    if "r" in constants:
        about += " Positions j more than r away from μ are hidden."
    return Part(layer.name, title, about, code, state, layer.rows, inputs, layer.columns, ("e", "a"))


def _score(module: SingleHeadAttention) -> tuple[list[str], dict[str, Any], str]:
    score, keys, constants = module.score, "H", {}
    lines: list[str] = []
    if isinstance(module.keys, nn.Linear):
        constants["W_k"], keys = module.keys.weight, "K"
        lines = ["K = H @ W_k.T"]
    if isinstance(score, AdditiveScore):
        constants |= {"W": weight_of(score.query), "U": score.key.weight, "b": score.key.bias}
        constants["v"] = score.score.weight[0]
        return [*lines, f"e = torch.tanh(W @ s + {keys} @ U.T + b) @ v"], constants, "Additive attention (Bahdanau)"
    title = "Dot-product attention"
    if isinstance(score.key, nn.Linear):
        constants["W"], title = score.key.weight, "General attention (Luong)"
        keys = f"({keys} @ W.T)"
    if isinstance(score, CosineScore):
        line = f"e = g * (F.normalize({keys}, dim=-1) @ F.normalize(s, dim=-1))"
        return [*lines, line], constants | {"g": score.sharpness}, "Cosine attention"
    if score.scale != 1:
        constants["d"], title = round(score.scale**-2), "Scaled dot-product attention"
        return [*lines, f"e = {keys} @ s / d ** 0.5"], constants, title
    return [*lines, f"e = {keys} @ s"], constants, title


def _window(module: SingleHeadAttention) -> tuple[list[str], dict[str, Any]]:
    """The centre μ of what is visible, where the model predicts it."""
    window = module.window
    if not isinstance(window, PredictiveWindow):
        return [], {}
    constants = {"W_p": window.inner.weight, "v_p": window.centre.weight[0]}
    return ["mu = n * torch.sigmoid(v_p @ torch.tanh(W_p @ s))"], constants


def _by_head(weight: Tensor, bias: Tensor | None, heads: int, repeated: int) -> tuple[Tensor, Tensor | None]:
    parts = weight.view(heads, -1, weight.shape[1]).transpose(1, 2).repeat_interleave(repeated, 0)
    return parts, None if bias is None else bias.detach().view(heads, 1, -1).repeat_interleave(repeated, 0)


def multi_head(recording: Recording, layer: AttentionLayer) -> Part | None:
    """Self-attention of X, or attention of X over the memory H, all heads at once."""
    module = recording.module(layer.name)
    if not isinstance(module, SelfAttention | CrossAttention):
        return None
    over, module = "X" if isinstance(module, SelfAttention) else "H", cast(Any, module)
    if over == "X":
        read = recording.once(f"{layer.name}.project")
        memory = read
        sizes = [size * module.output.in_features // module.heads for size in (module.heads, *[module.key_heads] * 2)]
        weights = torch.split(weight_of(module.project), sizes)
        biases = (None,) * 3 if module.project.bias is None else torch.split(module.project.bias, sizes)
    else:
        read, memory = recording.joined(f"{layer.name}.query"), recording.once(f"{layer.name}.key")
        weights = tuple(weight_of(one) for one in (module.query, module.key, module.value))
        biases = (module.query.bias, module.key.bias, module.value.bias)
    result = recording.joined(f"{layer.name}.output")
    if read is None or memory is None or result is None or len(read[0][0]) != 1:
        return None
    shared = module.heads // module.key_heads
    constants: dict[str, Any] = {"X": read[0][0][0]} | ({} if over == "X" else {"H": memory[0][0][0]})
    sides = dict(zip("qkv", ("X", over, over), strict=True))
    if over == "H" and (values := recording.calls[f"{layer.name}.value"][0][0][0]) is not memory[0][0]:
        constants["H_v"], sides["v"] = values[0], "H_v"
    lines = []
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        own = (module.heads, 1) if name == "q" else (module.key_heads, shared)
        matrix, vector = _by_head(weight, bias, *own)
        constants |= known(**{f"W_{name}": matrix, f"b_{name}": vector})
        lines.append(f"{name.upper()} = {sides[name]} @ W_{name}{plus(f'b_{name}', bias)}")
    more, title, added = _products(recording, layer, module)
    constants |= added
    heads, outs = module.heads, module.output.out_features
    constants["W_o"] = weight_of(module.output).view(outs, heads, -1).permute(1, 2, 0)
    constants |= known(b_o=module.output.bias)
    lines += [*more, "C = A @ V", f"O = (C @ W_o).sum(0){plus('b_o', module.output.bias)}"]
    state = {"A": layer.weights, "O": result[1][0]}
    if over == "H":
        title = title.replace("Self-attention", "Cross-attention")
    about = (
        f"All heads at once: every matrix has a part for each of the {heads} heads, and the last line adds them up."
        + (f" {shared} heads share their keys and values." if shared > 1 else "")
    )
    vectors = [f"{name}{step}" for name in "QK" for step in ("", "_n", "_a", "_b", "_r", "_f")]
    about += " M marks what a row may see." if "M" in constants else ""
    about += " B is what the relative positions add." if "B" in constants else ""
    takes = ("X",) if over == "X" else ("X", "H")
    return Part(
        layer.name, title, about, Code(tuple(lines), constants, takes, ("O",)), state, layer.rows,
        columns=layer.columns, over_columns=("E", "A"), per_head=(*vectors, "V", "E", "A", "C"),
        whole=("V", *(name for name in vectors if name[0] == "K")),
    )  # fmt: skip


def _products(recording: Recording, layer: AttentionLayer, module: Any) -> tuple[list[str], str, dict[str, Any]]:
    """From queries and keys to weights."""
    constants: dict[str, Any] = {}
    lines, query, key, kind = [], "Q", "K", "dot products"
    if hasattr(module.score, "sharpness"):
        lines = ["Q_n = g * F.normalize(Q, dim=-1)", "K_n = F.normalize(K, dim=-1)"]
        query, key, kind, constants["g"] = "Q_n", "K_n", "cosines", module.score.sharpness.exp()
    if angles := getattr(getattr(module, "relative", None), "angles", None):
        angle = angles(torch.arange(layer.weights.shape[1]), module.output.in_features // module.heads)
        constants |= {"cos": angle.cos(), "sin": angle.sin()}
        for name in (query, key):
            lines += [
                f"{name[0]}_a, {name[0]}_b = torch.chunk({name}, 2, -1)",
                "{0}_r = torch.cat([{0}_a * cos - {0}_b * sin, {0}_b * cos + {0}_a * sin], -1)".format(name[0]),
            ]
        query, key, kind = "Q_r", "K_r", f"{kind} of rotated vectors"
    if isinstance(module, LinearAttention):
        lines += [f"Q_f = F.elu({query}) + 1", f"K_f = F.elu({key}) + 1"]
        visible = layer.weights[0] > 0
        product = "Q_f @ K_f.mT"
        if not bool(visible.all()):
            constants["M"], product = visible.double(), f"M * ({product})"
        lines += [f"E = {product}", "A = E / torch.sum(E, -1, keepdim=True)"]
        return lines, "Linear self-attention", constants
    products = recording.products[layer.name][0]
    product = f"E = {query} @ {key}.mT"
    if products.scale != 1:
        product, constants["d"], kind = f"{product} / d ** 0.5", round(products.scale**-2), f"scaled {kind}"
    if products.bias is not None:
        product, constants["B"] = f"{product} + B", products.bias.expand(1, *layer.weights.shape)[0]
        kind += " and relative positions"
    scores, mask = "E", products.mask
    if mask is not None and not bool(mask.all()):
        constants["M"] = mask.expand(1, 1, *layer.weights.shape[1:])[0]
        scores = "torch.where(M, E, -torch.inf)"
    return [*lines, product, f"A = torch.softmax({scores}, -1)"], f"Self-attention by {kind}", constants


def by_products(recording: Recording, layer: AttentionLayer) -> Part | None:
    """Any other attention by products, from the queries, keys and values that the run has."""
    if len(products := recording.products.get(layer.name, [])) != 1 or len(products[0].query) != 1:
        return None
    one = products[0]
    constants: dict[str, Any] = {"Q": one.query[0], "K": one.key[0], "V": one.value[0], "d": round(one.scale**-2)}
    lines = ["E = Q @ K.mT / d ** 0.5", "A = torch.softmax(E, -1)", "C = A @ V"]
    if one.mask is not None and not bool(one.mask.all()):
        constants["M"] = one.mask.expand(1, 1, *layer.weights.shape[1:])[0]
        lines[1] = "A = torch.softmax(torch.where(M, E, -torch.inf), -1)"
    return Part(
        layer.name, "Attention by scaled dot products", "Queries, keys and values are those of the run.",
        Code(tuple(lines), constants), {"A": layer.weights}, layer.rows, columns=layer.columns,
        over_columns=("E", "A"), per_head=("Q", "K", "V", "E", "A", "C"),
    )  # fmt: skip


def attention_part(recording: Recording, layer: AttentionLayer) -> Part | None:
    if layer.name not in dict(recording.subject.model.named_modules()):
        return None
    for build in (single_head, multi_head, pooling, by_products):
        if part := build(recording, layer):
            return part
    return None
