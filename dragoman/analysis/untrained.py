"""Gradients of untrained recurrent cells: which of them vanish or explode before anything is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.analysis.gradients import decay_slope, largest_singular_value, state_gradients, step_jacobians
from dragoman.layers.cells import GRUConfig, LSTMConfig, RNNConfig, build_cell
from dragoman.layers.recurrence import CellState

WIDTH, STEPS = 64, 50
RADII = (0.5, 0.8, 1.0, 1.2, 1.5)  # largest singular values of the recurrent matrix


class UntrainedFlow(NamedTuple):
    """‖∂h_T/∂h_t‖ by distance, in the form of `GradientFlow`."""

    name: str
    kind: str
    state: Tensor  # (T,)
    bound: Tensor | None  # (T,) σ₁^(T−t) of a plain network
    gates: None
    radius: float
    slope: float


@dataclass(frozen=True)
class Residual:
    """h ← h + f(h): a cell with a skip connection over every step, as deep residual networks have over layers."""

    inner: Any
    width: int
    num_states: int = 1

    def step(self, projected: Tensor, state: CellState) -> CellState:
        return (state[0] + self.inner.step(projected, state)[0],)


@torch.no_grad()
def _flow(name: str, kind: str, cell: Any, inner: Any, inputs: Tensor, *, bounded: bool) -> UntrainedFlow:
    projected = inner.project(inputs).unbind(0)
    state, before = inner.start(1), []
    for given in projected:
        before.append(state)
        state = cell.step(given, state)
    norms = state_gradients(step_jacobians(cell, projected, before), inner.width)
    largest = largest_singular_value(inner)
    bound = largest ** torch.arange(len(norms), dtype=torch.float32) if bounded else None
    return UntrainedFlow(name, kind, norms, bound, None, largest, decay_slope(norms.tolist()))


@torch.no_grad()
def untrained_cells(seed: int = 1, width: int = WIDTH, steps: int = STEPS) -> list[UntrainedFlow]:
    """A plain network, an LSTM, a GRU and a residual network as they are initialised, on the same random inputs."""
    torch.manual_seed(seed)
    inputs = torch.randn(steps, 1, width) * width**-0.5
    flows = []
    for name, config in (
        ("plain", RNNConfig(recurrent_init="uniform")), ("LSTM", LSTMConfig()), ("GRU", GRUConfig()),
    ):  # fmt: skip
        cell = build_cell(config, width, width)
        flows.append(_flow(name, config.kind, cell, cell, inputs, bounded=name == "plain"))
    cell = build_cell(RNNConfig(recurrent_init="uniform"), width, width)
    return [*flows, _flow("residual", "h + rnn(h)", Residual(cell, width), cell, inputs, bounded=False)]


@torch.no_grad()
def by_recurrent_weight(seed: int = 1, width: int = WIDTH, steps: int = STEPS) -> list[UntrainedFlow]:
    """Plain networks whose recurrent matrix is a rotation times a factor: below 1 gradients vanish, above they explode.

    The inputs are small, so that tanh stays near its linear part and the factor alone decides.
    """
    torch.manual_seed(seed)
    inputs = torch.randn(steps, 1, width) * 1e-12
    flows = []
    for radius in RADII:
        cell = build_cell(RNNConfig(), width, width)
        cell.hidden_weight.mul_(radius / largest_singular_value(cell))
        cell.bias.zero_()
        flows.append(_flow(f"σ₁ = {radius}", "rnn", cell, cell, inputs, bounded=True))
    return flows
