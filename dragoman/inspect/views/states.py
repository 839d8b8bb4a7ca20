"""Gates, hidden and cell states of recurrent layers over time, and the implicit attention of gated units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.inspect.views.attention_layers import attention_layers
from dragoman.inspect.views.figures import CELL, INK, MAX_INCHES, chosen, draw_heat, new_figure, panel_size, suptitle
from dragoman.inspect.views.subject import Axis, Subject, plain_axis
from dragoman.inspect.views.view import View
from dragoman.models.layers import Cell, CellState, CoupledLSTMCell, GRUCell, Unidirectional, observe_cells

STATE_NAMES = ("hidden state", "cell state")
UNITS = 64  # units in a page: those that vary most


@dataclass
class CellSteps:
    """Every step of one cell: the input, its projection, the state before and the state after."""

    cell: Cell
    inputs: list[Tensor] = field(default_factory=list)  # each (1, I)
    projected: list[Tensor] = field(default_factory=list)  # each (1, blocks·D)
    before: list[CellState] = field(default_factory=list)
    after: list[CellState] = field(default_factory=list)


@contextmanager
def record_cells(model: nn.Module) -> Iterator[dict[str, CellSteps]]:
    """Collect every step of the model's recurrent cells inside the block, by module name; tensors keep their graph."""
    names = {id(module): name for name, module in model.named_modules() if isinstance(module, Cell)}
    recorded: dict[str, CellSteps] = {}

    def record(cell: Cell, x: Tensor, projected: Tensor, before: CellState, after: CellState) -> None:
        if id(cell) in names:
            steps = recorded.setdefault(names[id(cell)], CellSteps(cell))
            steps.inputs.append(x)
            steps.projected.append(projected)
            steps.before.append(before)
            steps.after.append(after)

    with observe_cells(record):
        yield recorded


@dataclass(frozen=True)
class CellTrace:
    """The values of one recurrent layer for one example, in the order of the text."""

    name: str
    kind: str  # class of the cell
    backward: bool  # reads the text from its end
    axis: Axis
    values: dict[str, Tensor]  # gates, candidate, hidden state, cell state by name: (T, D)
    start: Tensor  # (D,) the hidden state before the first step that the cell reads
    implicit: Tensor | None  # (T, T + 1) implicit attention; column 0 is the start state

    def varying_units(self, count: int) -> list[int]:
        """The units whose hidden state varies most over time, most first."""
        spread = self.values[STATE_NAMES[0]].var(0, unbiased=False)
        return [int(unit) for unit in spread.argsort(descending=True)[:count]]


def implicit_attention(keep: Tensor) -> Tensor:
    """The weight of every past candidate in a gated state, averaged over units: (T, T + 1).

    Unrolling h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ ĥ_t gives candidate i the weight (∏_{j>i} u_j) ⊙ (1 − u_i) and the start
    state ∏ u_j (column 0); together they are 1. `keep` (T, D) is u: the update gate of a GRU, the forget gate of an
    LSTM with coupled gates.
    """
    steps, units = keep.shape
    weights = keep.new_zeros(steps, steps + 1, units)
    current = keep.new_zeros(steps + 1, units)
    current[0] = 1.0
    for t in range(steps):
        current = current * keep[t]
        current[t + 1] = 1 - keep[t]
        weights[t] = current
    return weights.mean(2)


@torch.no_grad()
def cell_traces(subject: Subject) -> list[CellTrace]:
    """Gates and states of every recurrent layer for the subject; empty: the model has no recurrent cell."""
    with record_cells(subject.model) as recorded:
        subject.log_probabilities()
    return [_trace(subject, name, steps) for name, steps in recorded.items() if steps.projected[0].shape[0] == 1]


def cell_axis(subject: Subject, name: str, cell: Cell, steps: int) -> tuple[Axis, bool]:
    """What a cell reads in so many steps, in the order of the text, and whether it reads it from its end."""
    layer = subject.model.get_submodule(name.rpartition(".")[0])
    backward = name.endswith("backward_cell") or (isinstance(layer, Unidirectional) and layer.backward_reading)
    in_encoder = subject.encoder is not None and any(module is cell for module in subject.encoder.modules())
    axis = subject.source if in_encoder and subject.source is not None else subject.target.shifted()
    if len(axis) != steps:
        axis = plain_axis([str(number) for number in range(1, steps + 1)])
    return axis, backward


def _trace(subject: Subject, name: str, steps: CellSteps) -> CellTrace:
    projected, before, after = torch.cat(steps.projected), joined_states(steps.before), joined_states(steps.after)
    axis, backward = cell_axis(subject, name, steps.cell, len(projected))
    gates = steps.cell.gates(projected, before)
    values = {key: value for key, value in gates.items() if not (key == "candidate" and len(gates) == 1)}
    values |= dict(zip(STATE_NAMES, after, strict=False))
    keep = None
    if isinstance(steps.cell, GRUCell):
        keep = gates["update gate"]
    elif isinstance(steps.cell, CoupledLSTMCell):
        keep = gates["forget gate"]
    implicit = None if keep is None else implicit_attention(keep.float())
    if backward:  # the cell read the text from its end; shown in the order of the text
        values = {key: value.flip(0) for key, value in values.items()}
        implicit = None if implicit is None else torch.cat([implicit[:, :1], implicit[:, 1:].flip(1)], 1).flip(0)
    return CellTrace(
        name,
        type(steps.cell).__name__.removesuffix("Cell"),
        backward,
        axis,
        {key: value.float().cpu() for key, value in values.items()},
        before[0][0].float().cpu(),
        None if implicit is None else implicit.cpu(),
    )


def joined_states(states: list[CellState]) -> CellState:
    """The states of all steps, each tensor (T, D)."""
    return tuple(torch.cat(part) for part in zip(*states, strict=True))


def states_view(subject: Subject) -> View | None:
    traces = cell_traces(subject)
    if not traces:
        return None
    cross = next((layer for layer in attention_layers(subject) if layer.kind == "cross"), None)
    return View(
        "states",
        "Gates and states",
        "Each row is a unit of a recurrent layer, each column a step through the text. A gate near 1 lets everything "
        "through and a gate near 0 nothing: a forget or update gate near 1 means that the unit keeps its memory.",
        {
            "cells": [
                {
                    "name": trace.name,
                    "kind": trace.kind,
                    "backward": trace.backward,
                    "axis": trace.axis.as_dict(),
                    "units": (units := trace.varying_units(UNITS)),
                    "width": trace.start.shape[0],
                    "values": {name: value[:, units].T for name, value in trace.values.items()},  # (units, T)
                    "start": trace.start[units],
                    "implicit": trace.implicit,
                }
                for trace in traces
            ],
            "cross": None if cross is None else {"weights": cross.weights.mean(0), "columns": cross.columns.as_dict()},
        },
    )


def draw_states(view: View, layer: str | None) -> Any:
    cell = chosen(view.data["cells"], layer)
    names, tokens = list(cell["values"]), cell["axis"]["tokens"]
    units = [str(unit) for unit in cell["units"][:20]]
    across = min(len(names), 3, max(1, int(20 / (1.6 + CELL * len(tokens)))))  # panels side by side
    down = -(-len(names) // across)
    width, height = panel_size(len(units), len(tokens), across)
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
