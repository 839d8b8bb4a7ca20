"""Equations beside code beside numbers: the parts of a run as plain PyTorch that is computed."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dragoman.inspect.views.attention_in_code import attention_part
from dragoman.inspect.views.attention_layers import attention_layers
from dragoman.inspect.views.decoders_in_code import cell_parts, decoder_parts
from dragoman.inspect.views.figures import INK, chosen, new_figure
from dragoman.inspect.views.parts_in_code import Part, record
from dragoman.inspect.views.plain_code import Code, as_text, assigned
from dragoman.inspect.views.subject import Axis, Subject
from dragoman.inspect.views.view import View

MAX_STEPS, MAX_ROWS, MAX_ENTRIES = 40, 6, 8  # numbers of each value in a page: its beginning
GIVEN = ("X", "Q", "K", "V", "H", "H_v")  # constants that are no weights
MAX_NUMBERS = 400_000  # of all parts: two megabytes


@torch.no_grad()
def plain_parts(subject: Subject) -> list[Part]:
    """The parts of a model as plain code, in the order of computation: cells, attentions, decoders."""
    recording = record(subject)
    parts = cell_parts(recording)
    parts += [part for layer in attention_layers(subject) if (part := attention_part(recording, layer))]
    return [*parts, *decoder_parts(recording, {part.name: part for part in parts})]


def equations_view(subject: Subject) -> View | None:
    parts = plain_parts(subject)
    if not parts:
        return None
    names = {id(part.code): part.name for part in parts}
    shown = [_shown(part, names) for part in parts]
    first = {tuple(one["text"]): place for place, one in reversed(list(enumerate(shown)))}.values()
    left, kept = MAX_NUMBERS, list[int]()
    for place in dict.fromkeys([*first, *range(len(shown))]):  # one of each kind comes before all others
        left -= sum(value["numbers"].numel() for value in shown[place]["values"])
        kept += [place] if left >= 0 or not kept else []
    return View(
        "equations",
        "Equations",
        "Every part of the model as formulas, as plain PyTorch, and in the numbers of this text. The formulas are "
        "parsed from the code, the code was run when this page was made, and its results are those of the model.",
        {"parts": [shown[place] for place in sorted(kept)], "left_out": len(shown) - len(kept)},
    )


def _shown(part: Part, names: dict[int, str]) -> dict[str, Any]:
    """What a page shows of a part: of long vectors and texts the beginning. `names`: the parts by their code."""
    code = part.code
    given = {name: code.constants[name] for name in GIVEN if name in code.constants} | part.inputs
    values = {**given, **part.values}
    return {
        "name": part.name, "title": part.title, "about": part.about, "formulas": code.formulas, "text": code.text,
        "code": list(code.lines), "names": [assigned(line) for line in code.lines],
        "inputs": [{"name": name, "formula": code.symbol(name)} for name in given],
        "rows": _cut(part.rows), "columns": None if part.columns is None else _cut(part.columns),
        "values": [_value(part, name, value) for name, value in values.items()],
        "given": [
            {"name": name, "shape": list(value.shape)}
            for name, value in code.constants.items()
            if isinstance(value, Tensor) and name not in GIVEN
        ],
        "functions": [
            {"name": name, "part": names[id(value)]}
            for name, value in code.constants.items()
            if isinstance(value, Code)
        ],
        "difference": part.difference(),
    }  # fmt: skip


def _cut(axis: Axis) -> dict[str, Any]:
    return {"tokens": list(axis.tokens[:MAX_STEPS]), "unit": axis.unit}


def _value(part: Part, name: str, value: Tensor) -> dict[str, Any]:
    """A value as (heads, steps, rows, entries), each 1 where it has none, and the shape of one step."""
    given = name in GIVEN and name in part.code.constants
    is_whole = name in part.whole or (given and (part.inputs or name in GIVEN[2:]))
    value = value.double()
    if name not in part.per_head:
        value = value[None]
    if is_whole:
        value = value[:, None]
    shape = list(value.shape[2:])
    value = value.flatten(3) if value.dim() > 3 else value[(..., *[None] * (4 - value.dim()))].transpose(2, 3)
    if value.shape[1] > 1 and bool((value == value[:, :1]).all()):  # the same at every step
        value = value[:, :1]
    entries = MAX_STEPS if name in part.over_columns else MAX_ENTRIES
    return {
        "name": name, "shape": shape, "over": "columns" if name in part.over_columns else "",
        "numbers": value[:, :MAX_STEPS, :MAX_ROWS, :entries].detach().float(),
    }  # fmt: skip


def draw_equations(view: View, layer: str | None) -> Any:
    """Formulas, code and the numbers of the first step of one part."""
    part = chosen(view.data["parts"], layer)
    values = {value["name"]: value for value in part["values"]}
    rows = [(f"{as_text(one['formula'])} is given", "", [one["name"]]) for one in part["inputs"]]
    rows += list(zip(part["text"], part["code"], part["names"], strict=True))
    placed, height = [(-1.0, ["formula", "plain PyTorch", "numbers of the run"])], 0.5
    for text, code, names in rows:
        numbers = [f"{name} = {_vector(values[name]['numbers'])}" for name in names]
        columns = (textwrap.wrap(text, 50), textwrap.wrap(code, 58, subsequent_indent="    "), numbers)
        placed += [(height + row, list(line)) for row, line in enumerate(zip_longest(*columns, fillvalue=""))]
        height = placed[-1][0] + 1.5
    drawing = new_figure(13, 0.8 + 0.19 * (height + 1.5))
    axes = drawing.subplots()
    axes.set_axis_off()
    axes.set_title(f"{part['name']}: {part['title']}, at {part['rows']['tokens'][0]}", fontsize=11, color=INK, pad=10)
    axes.set(xlim=(0, 1), ylim=(height, -1.5))
    for row, line in placed:
        for x, text in zip((0.0, 0.27, 0.62), line, strict=True):
            style = {"weight": "bold"} if row < 0 else {"family": "monospace"} if x else {}
            axes.text(x, row, text, fontsize=8.5, color=INK, **style)
    return drawing


def _vector(numbers: Tensor) -> str:
    row = numbers[0, 0, 0]
    return f"({', '.join(f'{float(value):.3f}' for value in row[:5])}{', …' if len(row) > 5 else ''})"
