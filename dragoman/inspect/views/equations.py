"""Equations beside code beside numbers: each cell, attention and decoder of a run as plain PyTorch that is computed."""

from __future__ import annotations

import textwrap
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
    left, kept = MAX_NUMBERS, []
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
        "numbers": value[:, :MAX_STEPS, :MAX_ROWS, :entries].float(),
    }  # fmt: skip


def draw_equations(view: View, layer: str | None) -> Any:
    """Formulas, code and the numbers of the first step of one part."""
    part = chosen(view.data["parts"], layer)
    values = {value["name"]: value for value in part["values"]}
    rows = [(f"{as_text(one['formula'])} is given", "", [one["name"]]) for one in part["inputs"]]
    rows += list(zip(part["text"], part["code"], part["names"], strict=True))
    lines: list[tuple[str, str, str]] = []
    for text, code, names in rows:
        cells = [textwrap.wrap(text, 52), textwrap.wrap(code, 62, subsequent_indent="    "), []]
        cells[2] = [f"{name} = {_vector(values[name]['numbers'])}" for name in names]
        height = max(map(len, cells))
        lines += [tuple(cell[row] if row < len(cell) else "" for cell in cells) for row in range(height)]  # type: ignore[misc]
        lines.append(("", "", ""))
    drawing = new_figure(17.5, 1.2 + 0.2 * len(lines))
    axes = drawing.subplots()
    axes.set_axis_off()
    axes.set_title(f"{part['name']}: {part['title']}, at {part['rows']['tokens'][0]}", fontsize=11, color=INK)
    axes.set(xlim=(0, 1), ylim=(len(lines), -1))
    for column, name in zip((0.0, 0.29, 0.63), ("formula", "plain PyTorch", "numbers of the run"), strict=True):
        axes.text(column, -0.6, name, fontsize=9, color=INK, weight="bold")
    for row, line in enumerate(lines):
        for column, text in zip((0.0, 0.29, 0.63), line, strict=True):
            axes.text(column, row + 0.5, text, fontsize=8.5, color=INK, family="monospace" if column else None)
    return drawing


def _vector(numbers: Tensor) -> str:
    row = numbers[0, 0, 0]
    return f"({', '.join(f'{float(value):.3f}' for value in row[:5])}{', …' if len(row) > 5 else ''})"
