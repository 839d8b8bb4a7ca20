"""Inside one attention: queries, keys, products, mask, softmax, values and output; and a worked example as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.base import DataError
from dragoman.inference.align import record_attention
from dragoman.inspect.views.attention_layers import AttentionLayer, attention_layers
from dragoman.inspect.views.figures import CELL, INK, MAX_INCHES, PAPER, chosen, draw_heat, new_figure, suptitle
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.layers import AdditiveScore, CosineScore, Products, SingleHeadAttention, watch_products

MAX_NUMBERS = 1_500_000  # in the vectors of all layers of a page: six megabytes


@dataclass(frozen=True)
class AttentionSums:
    """The vectors of one layer; every other number of the sum follows from them."""

    layer: AttentionLayer
    query: Tensor  # (H, T, d)
    key: Tensor  # (H, S, d)
    value: Tensor  # (H, S, d)
    scale: float  # factor of the products: 1/√d
    bias: Tensor | None  # (H, T, S) of relative positions
    visible: Tensor | None  # (T, S), False where the mask hides a column; None: all are visible
    shares: Tensor | None  # (H, T) ‖W^O of one head's context‖; None: there is no W^O
    output: Tensor  # (T, D) what the layer gives
    score: Tensor | None = None  # (d,) v of additive attention, vᵀ tanh(q + k); None: q·k

    @property
    def context(self) -> Tensor:
        """Σ weights · v (H, T, d)."""
        return self.layer.weights @ self.value

    @property
    def products(self) -> Tensor:
        """q·k, or vᵀ tanh(q + k) of additive attention: (H, T, S)."""
        if self.score is None:
            return self.query @ self.key.transpose(1, 2)
        return torch.tanh(self.query[:, :, None] + self.key[:, None]) @ self.score

    @property
    def formula(self) -> str:
        return "q·k" if self.score is None else "v·tanh(q+k)"

    @property
    def causal(self) -> bool:
        """Whether the mask hides what comes later, and nothing else."""
        return self.visible is not None and torch.equal(self.visible, torch.ones_like(self.visible).tril())

    @property
    def size(self) -> int:
        """Numbers that a page needs beside the weights."""
        parts = (self.query, self.key, self.value, self.output, self.bias, None if self.causal else self.visible)
        return sum(part.numel() for part in parts if part is not None)


@torch.no_grad()
def attention_sums(subject: Subject) -> list[AttentionSums]:
    """The sums of every attention by products or by an additive score, in the order of computation."""
    names = {id(module): name for name, module in subject.model.named_modules()}
    watched: dict[str, list[Products]] = {}
    calls: dict[str, list[tuple[Tensor, ...]]] = {}

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls.setdefault(names[id(module)], []).append((inputs[0], *inputs[1], output))

    single = [module for module in subject.model.modules() if isinstance(module, SingleHeadAttention)]
    hooks = [module.register_forward_hook(keep) for module in single]

    def watch(module: nn.Module, products: Products) -> None:
        watched.setdefault(names.get(id(module), ""), []).append(products)

    try:
        with record_attention(subject.model), watch_products(watch):
            subject.log_probabilities()
    finally:
        for hook in hooks:
            hook.remove()
    sums = []
    for layer in attention_layers(subject):
        module = subject.model.get_submodule(layer.name) if layer.name in names.values() else None
        parts = watched.get(layer.name, [])
        if isinstance(module, SingleHeadAttention) and layer.name in calls:
            sums.append(_single_head(layer, module, calls[layer.name]))
        elif module is not None and len(parts) == 1 and parts[0].query.shape[0] == 1:
            sums.append(_sums(layer, module, parts[0]))
    return sums


def _single_head(layer: AttentionLayer, module: SingleHeadAttention, calls: list[tuple[Tensor, ...]]) -> AttentionSums:
    """The sums of a recurrent decoder, which attends step by step over the same keys (Bahdanau, Luong)."""
    query = torch.cat([call[0][0] for call in calls]).float()  # (T, Q)
    keys, values = (part[0].float() for part in calls[0][1:3])  # (S, …)
    output = torch.cat([call[3][0] for call in calls]).float()
    own, scale, score = module.score, 1.0, None
    if isinstance(own, AdditiveScore):
        query, score = query @ own.query.weight.T, own.score.weight[0].detach().float().cpu()
    elif isinstance(own, CosineScore):
        query, scale = torch.nn.functional.normalize(query, dim=-1), float(own.sharpness)
    else:
        scale = float(own.scale)
    visible = layer.weights[0] > 0  # a window hides the positions outside it
    shown = None if bool(visible.all()) else visible
    query, keys, values = (part.detach().cpu()[None] for part in (query, keys, values))
    return AttentionSums(layer, query, keys, values, scale, None, shown, None, output.detach().cpu(), score)


def _sums(layer: AttentionLayer, module: nn.Module, products: Products) -> AttentionSums:
    heads, rows, columns = layer.weights.shape
    query, key, value = (part[0].float().cpu() for part in products[:3])
    context = layer.weights @ value  # (H, T, d)
    output, shares = context.transpose(0, 1).flatten(1), None
    last = getattr(module, "output", None)
    if isinstance(last, nn.Linear):
        weight = last.weight.detach().float().cpu().view(last.out_features, heads, -1)
        each = torch.einsum("ohd,htd->hto", weight, context)
        shares, output = each.norm(dim=-1), each.sum(0)
        output = output if last.bias is None else output + last.bias.detach().float().cpu()
    shape = (1, heads, rows, columns)
    bias = None if products.bias is None else products.bias.float().cpu().expand(shape)[0]
    visible = None if products.mask is None else products.mask.cpu().expand(shape)[0, 0]
    visible = None if visible is None or bool(visible.all()) else visible
    return AttentionSums(layer, query, key, value, products.scale, bias, visible, shares, output)


def chosen_sum(sums: Sequence[AttentionSums], cell: str) -> tuple[AttentionSums, int, int]:
    """The layer, head and row of "LAYER,HEAD,ROW", each a number from 1; the layer may be a name, the row a token."""
    if not sums:
        raise DataError("--cell: this run has no attention by products or by an additive score")
    layer, head, row = (*cell.split(",", 2), "", "")[:3]
    names = [one.layer.name for one in sums]
    place = _place(layer, names, "layer")
    own = sums[place]
    return own, _place(head or "1", [""] * len(own.query), "head"), _place(row or "1", own.layer.rows.tokens, "row")


def _place(text: str, names: Sequence[str], what: str) -> int:
    if text.strip().isdigit() and 1 <= int(text) <= len(names):
        return int(text) - 1
    if text in names:
        return list(names).index(text)
    known = ", ".join(name for name in names if name)
    raise DataError(
        f"--cell: found {what} {text!r}, expected 1 to {len(names)}{f' or one of {known}' if known else ''}"
    )


def worked_example(sums: AttentionSums, head: int, row: int) -> list[str]:
    """The attention of one position in plain text: products, scaled scores, softmax, and the context."""
    layer, depth = sums.layer, sums.query.shape[2]
    products, weights = sums.products[head, row], layer.weights[head, row]
    width = max(len("column"), *(len(token) for token in layer.columns.tokens))
    scaled = f"× {sums.scale:.4g}"
    lines = [
        f"{layer.name}, head {head + 1} of {len(sums.query)}, row {row + 1}: {layer.rows.tokens[row]}",
        f"q = {_vector(sums.query[head, row])}",
        f"{'column':<{width}}  {sums.formula:>11}  {scaled:>9}  {'+ bias':>8}  {'exp':>9}  {'weight':>7}",
    ]
    scores = products * sums.scale
    bias = torch.zeros_like(scores) if sums.bias is None else sums.bias[head, row]
    hidden = torch.zeros_like(scores).bool() if sums.visible is None else ~sums.visible[row]
    top = float((scores + bias).masked_fill(hidden, -torch.inf).max())
    for column, token in enumerate(layer.columns.tokens):
        total = float(scores[column] + bias[column])
        power = "masked" if hidden[column] else f"{torch.tensor(total - top).exp():.4f}"
        numbers = f"{float(products[column]):11.3f}  {float(scores[column]):9.3f}  {float(bias[column]):8.3f}"
        lines.append(f"{token:<{width}}  {numbers}  {power:>9}  {float(weights[column]):7.4f}")
    lines.append(f"exp is of the score less the largest, {top:.3f}; a weight is its share of their sum. d = {depth}")
    lines.append(f"Σ weights · v = {_vector(sums.context[head, row])}")
    if sums.shares is not None:
        shares = ", ".join(f"{float(share):.3f}" for share in sums.shares[:, row])
        lines.append(f"W^O adds up all heads; length of what each gives: {shares}")
    return lines


def _vector(values: Tensor, most: int = 8) -> str:
    shown = ", ".join(f"{float(value):.3f}" for value in values[:most])
    return f"({shown}{', …' if len(values) > most else ''})"


def inside_view(subject: Subject) -> View | None:
    sums, left = attention_sums(subject), MAX_NUMBERS
    layers = []
    for one in sums:
        left -= one.size + one.layer.weights.numel() + one.context.numel()
        if left < 0:  # the pages of long texts would be too large
            break
        layers.append(
            {
                "name": one.layer.name, "rows": one.layer.rows.as_dict(), "columns": one.layer.columns.as_dict(),
                "query": one.query, "key": one.key, "value": one.value, "scale": one.scale, "bias": one.bias,
                "causal": one.causal, "visible": None if one.causal or one.visible is None else one.visible.float(),
                "shares": one.shares, "output": one.output, "score": one.score, "weights": one.layer.weights,
                "context": one.context,
            }
        )  # fmt: skip
    if not layers:
        return None
    return View(
        "inside",
        "Inside attention",
        "One position asks with its query q, every position answers with its key k. "
        + (
            "Additive attention scores them by v·tanh(q + k), with q = W s of the decoder's state and k = U h of "
            "the encoder's (Bahdanau et al. 2015). Softmax makes weights of the scores, which add up the values."
            if all(one.score is not None for one in sums)
            else "The products q·k are scaled, hidden columns are masked, softmax makes weights of them, and the "
            "values v are added up by these weights. W^O mixes the heads."
        ),
        {"layers": layers, "left_out": len(sums) - len(layers)},
    )


SHOWN = 12  # dimensions of a vector in the figure; .json has all


def draw_inside(view: View, layer: str | None) -> Any:
    """All steps of the first head: the weights α, the values h and the contexts c = Σ α·h, with their numbers."""
    own = chosen(view.data["layers"], layer)
    rows, columns = own["rows"]["tokens"], own["columns"]["tokens"]
    size = own["value"].shape[2]
    dimensions = [str(number) for number in range(1, min(size, SHOWN) + 1)]
    value, context = (own[name][0][:, :SHOWN] for name in ("value", "context"))
    top = float(torch.cat([value, context]).abs().max())
    panels = (
        ("α: weights (row: output, column: input)", own["weights"][0], rows, columns, 1.0),
        ("h: values of the inputs", value, columns, dimensions, top),
        ("c = Σ α·h: contexts of the outputs", context, rows, dimensions, top),
    )
    numbers = max(len(rows), len(columns)) <= 16
    cell = 0.44 if numbers else CELL
    drawing = new_figure(
        min(MAX_INCHES, 3.0 + cell * (len(columns) + 2 * len(dimensions))),
        min(MAX_INCHES, 1.9 + (0.3 if numbers else CELL) * max(len(rows), len(columns))),
    )
    widths = [max(3, len(names)) for _, _, _, names, _ in panels]
    for axes, (title, values, down, across, scale) in zip(
        drawing.subplots(1, 3, width_ratios=widths), panels, strict=True
    ):
        draw_heat(axes, values, down, across, signed=scale is top, top=scale)
        for place in np.ndindex(*values.shape) if numbers else ():
            number = float(values[place])
            ink = PAPER if abs(number) > 0.6 * scale else INK
            text = f"{number:.2f}".replace("-", "−")
            axes.text(place[1], place[0], text, ha="center", va="center", fontsize=7, color=ink)
        axes.set_title(textwrap.fill(title, max(14, int(cell * len(across) * 12))), fontsize=9, color=INK, pad=6)
    shown = "" if size <= SHOWN else f"; {SHOWN} of {size} dimensions"
    head = "" if len(own["value"]) == 1 else ", head 1"
    suptitle(drawing, f"{own['name']}{head}: every step{shown}", 10)
    return drawing
