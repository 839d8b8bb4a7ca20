"""The views of an inspection as figures for papers, by matplotlib (extra 'plots')."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.analysis.attention_layers import over_words
from dragoman.analysis.subject import Axis
from dragoman.errors import DataError
from dragoman.reports.inspection import Inspection
from dragoman.reports.plots import INK, MAX_INCHES, draw_heat, new_figure, one_line_labels, save_plot, suptitle
from dragoman.reports.view import View

CELL = 0.24  # inches of a cell with a label
BLUE, RED, GREEN, GREY = "#2f5bd8", "#b42318", "#15803d", "#c3cad5"


def draw_view(inspection: Inspection, path: str | Path, kind: str | None, layer: str | None) -> Path:
    """Draw one view; by default the first that has a figure. `layer` chooses among several."""
    drawable = [view.kind for view in inspection.views if view.kind in FIGURES]
    if not drawable:
        raise DataError("this run has no view with a figure")
    if kind is not None and kind not in drawable:
        raise DataError(f"--view: found {kind!r}, expected one of {', '.join(drawable)}")
    view = inspection.view(kind or drawable[0])
    return save_plot(FIGURES[view.kind](view, layer), path)


def chosen(items: Sequence[dict[str, Any]], layer: str | None) -> dict[str, Any]:
    """The item of a layer, by name or number from 1; by default the last."""
    names = [item["name"] for item in items]
    if layer is None:
        return items[-1]
    if layer.isdigit() and 1 <= int(layer) <= len(items):
        return items[int(layer) - 1]
    if layer in names:
        return items[names.index(layer)]
    raise DataError(f"--layer: found {layer!r}, expected 1 to {len(items)} or one of {', '.join(names)}")


def _size(rows: int, columns: int, panels: int = 1) -> tuple[float, float]:
    return (
        min(MAX_INCHES, panels * (1.6 + CELL * max(columns, 6))),
        min(MAX_INCHES, 1.6 + CELL * max(rows, 6)),
    )


def _heat(values: Any, rows: Sequence[str], columns: Sequence[str], label: str = "", **options: Any) -> tuple[Any, Any]:
    """A figure with one heat map, and its axes."""
    drawing = new_figure(*_size(*values.shape))
    axes = drawing.subplots()
    image = draw_heat(axes, values, rows, columns, **options)
    if label:
        drawing.colorbar(image, ax=axes, shrink=0.6, label=label)
    return drawing, axes


def _attention(view: View, layer: str | None) -> Any:
    crosses = [layer_data for layer_data in view.data["layers"] if layer_data["kind"] == "cross"]
    if not view.data["layers"]:
        return _attribution(view, layer)
    own = chosen(view.data["layers"], layer if layer or not crosses else crosses[-1]["name"])
    axes_of = (Axis("", *(own[side][key] for key in ("tokens", "words", "word_of"))) for side in ("rows", "columns"))
    weights, row_names, column_names = over_words(own["weights"], *axes_of)
    heads, shares = weights.shape[0], own["sums_to_one"]
    top = 1.0 if shares else float(weights.abs().max()) or 1.0
    shown = [("mean of all heads" if heads > 1 else "attention", weights.mean(0))]
    shown += [
        (f"head {head + 1}" + (f" ({float(own['entropy'][head]):.2f} bits)" if shares else ""), weights[head])
        for head in range(heads)
        if heads > 1
    ]
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    width, height = _size(len(row_names), len(column_names), across)
    drawing = new_figure(width, min(MAX_INCHES, height * down))
    suptitle(drawing, f"{own['about']} ({own['name']})")
    image = None
    for number, (name, values) in enumerate(shown, 1):
        axes = drawing.add_subplot(down, across, number)
        image = draw_heat(axes, values, row_names, column_names, signed=not shares, top=top)
        earlier = view.data["earlier"]
        axes.set_xlabel(earlier if own["kind"] == "decoder" else "input", fontsize=9, color=INK)
        written = earlier.removeprefix("earlier ")
        axes.set_ylabel("input" if own["kind"] == "encoder" else written, fontsize=9, color=INK)
        axes.set_title(name, fontsize=9, color=INK, pad=4)
    drawing.colorbar(image, ax=drawing.axes, shrink=0.6, label="attention weight")
    return drawing


def _attribution(view: View, layer: str | None) -> Any:
    method, sides = next(iter(view.data["attribution"].items()))
    side = "source" if sides["source"] is not None else "prefix"
    axis = view.data["source"] if side == "source" else view.data["prefix"]
    values = sides[side]
    top, label = float(values.abs().max()) or 1.0, method.replace("-x-", " × ").replace("-", " ")
    outputs = view.data["target"]["tokens"][: len(values)]
    drawing, axes = _heat(values, outputs, axis["tokens"], label, signed=True, top=top)
    axes.set(ylabel="output", xlabel="input" if side == "source" else "earlier output")
    return drawing


def _states(view: View, layer: str | None) -> Any:
    cell = chosen(view.data["cells"], layer)
    names, tokens = list(cell["values"]), cell["axis"]["tokens"]
    units = [str(unit) for unit in cell["units"][:20]]
    across = min(len(names), 3, max(1, int(20 / (1.6 + CELL * len(tokens)))))  # panels side by side
    down = -(-len(names) // across)
    width, height = _size(len(units), len(tokens), across)
    drawing = new_figure(width, min(MAX_INCHES, (height + 0.3) * down))
    suptitle(drawing, f"{cell['name']} ({cell['kind']}): gates and states of the {len(units)} units that vary most")
    for number, name in enumerate(names, 1):
        axes = drawing.add_subplot(down, across, number)
        values = cell["values"][name][:20]
        signed = name in ("candidate", "hidden state", "cell state")
        top = float(values.abs().max()) if name == "cell state" else 1.0
        image = draw_heat(axes, values, units, tokens, signed=signed, top=top)
        axes.set_title(name, fontsize=10, color=INK, pad=4)
        if number % across == 1 or across == 1:
            axes.set_ylabel("unit", fontsize=9, color=INK)
        drawing.colorbar(image, ax=axes, shrink=0.8)
    return drawing


def _gradients(view: View, layer: str | None) -> Any:
    drawing = new_figure(7, 4.4)
    axes = drawing.subplots()
    for number, flow in enumerate(view.data["flows"]):
        colour = f"C{number}"
        label = f"{flow['name']} ({flow['kind']}), ×{10 ** flow['slope']:.2f} per step"
        axes.semilogy(flow["state"].numpy(), marker="o", ms=3, color=colour, label=label)
        for key, style, name in (("bound", "--", "spectral bound"), ("gates", ":", "∏ forget gates")):
            if flow[key] is not None:
                axes.semilogy(flow[key].numpy(), style, color=colour, lw=1, label=f"{flow['name']}: {name}")
    axes.set(xlabel="distance T − t in steps", ylabel="‖∂h(T) / ∂h(t)‖₂")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)
    return drawing


def _bars(labels: Sequence[str], values: Sequence[float], title: str, unit: str) -> Any:
    drawing = new_figure(7, min(MAX_INCHES, 1.2 + 0.26 * len(labels)))
    axes = drawing.subplots()
    _draw_bars(axes, labels, values, [RED if value < 0 else BLUE for value in values])
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11, color=INK)
    axes.tick_params(labelsize=9, colors=INK)
    return drawing


def _draw_bars(axes: Any, labels: Sequence[str], values: Sequence[float], colours: Sequence[str]) -> None:
    axes.barh(range(len(labels)), values, color=colours)
    axes.set_yticks(range(len(labels)), one_line_labels(labels))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _next(view: View, layer: str | None) -> Any:
    data = view.data
    steps = min(len(data["pieces"]), 12)
    drawing = new_figure(11, 2.3 * -(-steps // 4) + 0.5)
    for step in range(steps):
        axes = drawing.add_subplot(-(-steps // 4), 4, step + 1)
        shares = data["logits"][step][:6].exp().tolist()
        colours = [GREEN if token == data["chosen"][step] else BLUE for token in data["tokens"][step][:6]]
        _draw_bars(axes, data["pieces"][step][:6], shares, colours)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_xlim(0, 1)
        axes.set_title(f"step {step + 1}", fontsize=9, color=INK)
    drawing.supxlabel("probability of the next token (green: the output's token)", fontsize=10)
    return drawing


def _what_if(view: View, layer: str | None) -> Any:
    changes = [change for change in view.data["changes"] if change["kind"] != "token"]
    changes = sorted(changes, key=lambda change: change["difference"])[:30]
    names = [f"without {change['name']}" if change["kind"] != "gate" else change["name"] for change in changes]
    return _bars(names, [change["difference"] for change in changes], view.title, "change of log p of the output")


def _surprise(view: View, layer: str | None) -> Any:
    tokens = view.data["target"]["tokens"]
    return _bars(tokens[:80], view.data["bits"][:80].tolist(), view.title, "bits")


def _labels(view: View, layer: str | None) -> Any:
    drawing, axes = _heat(view.data["probabilities"], view.data["rows"], view.data["labels"], "probability")
    axes.set_xlabel("label", color=INK)
    return drawing


def _tables(view: View, layer: str | None) -> Any:
    table = chosen(view.data["tables"], layer)
    values = table["scores"].clone()
    finite = values[values.isfinite()]
    values = values.masked_fill(~values.isfinite(), float(finite.min()))
    low, high = float(values.min()), float(values.max())
    drawing, axes = _heat((values - low) / max(high - low, 1e-9) * 0.8, table["rows"], table["columns"])
    if values.numel() <= 600:
        for row in range(values.shape[0]):
            for column in range(values.shape[1]):
                axes.text(column, row, f"{float(values[row, column]):.3g}", ha="center", va="center", fontsize=6)
    path = np.asarray(table["path"])
    axes.plot(path[:, 1], path[:, 0], color=RED, marker="o", ms=3, lw=1.5)
    axes.set_title(f"{table['name']}: {table['about']}", fontsize=10, color=INK)
    return drawing


def _positions(view: View, layer: str | None) -> Any:
    picture = chosen(view.data["pictures"], layer or "1")
    drawing = new_figure(11, 4.4)
    values = picture["vectors"] if picture["vectors"] is not None else picture["bias"]
    left, right = drawing.subplots(1, 2)
    top = float(values.abs().max())
    image = left.imshow(values.numpy(), cmap="RdBu", aspect="auto", vmin=-top, vmax=top)
    names = ("dimension", "position") if picture["vectors"] is not None else ("distance", "head")
    left.set(xlabel=names[0], ylabel=names[1])
    drawing.colorbar(image, ax=left, shrink=0.8)
    if picture["dots"] is not None:
        right.plot(torch.arange(len(picture["dots"])) - len(picture["dots"]) // 2, picture["dots"], color=BLUE)
        right.set(xlabel="distance from the middle position", ylabel="dot product, as a share of its own")
        right.grid(alpha=0.3)
    suptitle(drawing, f"{picture['name']} ({picture['kind']})")
    return drawing


def _beam(view: View, layer: str | None) -> Any:
    """The kept and finished branches as a tree, and pruned ones in grey where there are few."""
    nodes = {node["number"]: node for node in view.data["nodes"]}
    shown = [node for node in nodes.values() if len(nodes) <= 120 or node["fate"] in ("kept", "complete")]
    children: dict[int, list[int]] = {}
    for node in sorted(shown, key=lambda node: -node["score"]):
        children.setdefault(node["parent"], []).append(node["number"])
    lines: dict[int, float] = {}
    free = 0
    stack: list[tuple[int, bool]] = [(0, False)]
    while stack:
        number, ready = stack.pop()
        own = children.get(number, [])
        if own and not ready:
            stack.append((number, True))
            stack += [(child, False) for child in reversed(own)]
        elif own:
            lines[number] = lines[own[0]]
        else:
            lines[number], free = float(free), free + 1
    steps = max((node["step"] for node in shown), default=1)
    drawing = new_figure(min(MAX_INCHES, 1.5 + 0.95 * steps), min(MAX_INCHES, 0.8 + 0.24 * free))
    axes = drawing.subplots()
    for node in shown:
        kept = node["fate"] in ("kept", "complete")
        parent = nodes.get(node["parent"])
        begin = (0, lines[0]) if parent is None else (parent["step"] + 0.42, lines[parent["number"]])
        colour = GREEN if node["fate"] == "complete" else BLUE if kept else GREY
        axes.plot((begin[0], node["step"] - 0.42), (begin[1], lines[node["number"]]), color=colour, lw=1)
        text = f"{one_line_labels([node['piece']])[0][:8]} {node['normalised']:.2f}"
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": colour, "lw": 0.8}
        ink = INK if kept else "#7b8794"
        axes.text(node["step"], lines[node["number"]], text, ha="center", va="center", fontsize=7, color=ink, bbox=box)
    axes.set_xlim(-0.2, steps + 0.7)
    axes.set_ylim(free, -1)
    axes.set_yticks([])
    axes.set_xlabel("step; each box: token and score (green: finished, grey: pruned)", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return drawing


FIGURES: dict[str, Callable[[View, str | None], Any]] = {
    "attention": _attention, "labels": _labels, "surprise": _surprise, "next": _next, "beam": _beam, "states": _states,
    "gradients": _gradients, "whatif": _what_if, "tables": _tables, "positions": _positions,
}  # fmt: skip
