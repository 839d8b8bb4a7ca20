"""Gradient flow through time: how much a loss, or the last state, depends on earlier states.

Hochreiter 1991 and Bengio et al. 1994: in a plain recurrent network ‖∂h_T/∂h_t‖ is at most (γ σ₁(W_hh))^(T−t), where γ
bounds the derivative of the activation and σ₁ is the largest singular value. It vanishes or explodes exponentially.
In an LSTM ∂c_T/∂c_t contains ∏ f_j, which a forget gate near 1 keeps near 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.analysis.states import CellSteps, record_cells
from dragoman.analysis.subject import Axis, Subject
from dragoman.kernels.deferred_gradients import immediate_gradients
from dragoman.layers.cells import RNNCell
from dragoman.layers.recurrence import Cell, CellState


@dataclass(frozen=True)
class GradientFlow:
    """The gradients of one recurrent layer for one example."""

    name: str
    kind: str
    backward: bool
    loss: Tensor  # (targets, T) ‖∂loss of a target / ∂h_t‖, t in the order that the cell reads
    state: Tensor  # (T,) ‖∂h_T/∂h_t‖₂ by distance T − t, from distance 0
    bound: Tensor | None  # (T,) (γ σ₁)^(T−t) of a plain recurrent network; γ = 1 for tanh and relu
    gates: Tensor | None  # (T,) mean over units of ∏ f_j, the direct path ∂c_T/∂c_t of an LSTM
    radius: float  # largest singular value of W_hh (of the candidate's block)
    slope: float  # of log₁₀ ‖∂h_T/∂h_t‖ per step, by least squares

    def by_distance(self) -> Tensor:
        """The mean of ‖∂loss/∂h_t‖ by the distance T − t between the last state read and h_t: (T,)."""
        return self.loss.mean(0).flip(0)


def gradient_flow(subject: Subject) -> list[GradientFlow]:
    """The gradient flow of every recurrent layer; empty: the model has none."""
    with immediate_gradients(), torch.enable_grad(), record_cells(subject.model) as recorded:
        losses = -subject.log_probabilities()
        flows = []
        for name, steps in recorded.items():
            hidden = [after[0] for after in steps.after]
            if hidden[0].shape[0] != 1 or not hidden[-1].requires_grad:
                continue
            flows.append(_flow(name, steps, loss_gradients(losses, hidden)))
    return flows


def loss_gradients(losses: Tensor, states: Sequence[Tensor]) -> Tensor:
    """‖∂loss_t/∂h_s‖ (targets, states): all paths count, through later states and through attention."""
    rows = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, states, retain_graph=True, allow_unused=True)
        rows.append([0.0 if gradient is None else float(gradient.norm()) for gradient in gradients])
    return torch.tensor(rows)


def step_jacobians(cell: Cell, projected: Sequence[Tensor], before: Sequence[CellState]) -> list[Tensor]:
    """∂(state after)/∂(state before) of every step, over the whole state of n tensors: (n·D, n·D) each."""

    def whole_step(flat: Tensor, given: Tensor) -> Tensor:
        state = tuple(flat.unsqueeze(0).chunk(cell.num_states, -1))
        return torch.cat(cell.step(given, state), -1)[0]

    return [
        torch.func.jacrev(whole_step)(torch.cat(state, -1)[0].detach(), given.detach())
        for given, state in zip(projected, before, strict=True)
    ]


def state_gradients(jacobians: Sequence[Tensor], width: int) -> Tensor:
    """‖∂h_T/∂h_t‖₂ for t = T, T−1, …, 0 steps before the last: the largest singular value of a product of Jacobians."""
    size = jacobians[0].shape[0]
    product = torch.eye(size, dtype=jacobians[0].dtype, device=jacobians[0].device)[:width]  # ∂h_T/∂(state T)
    norms = [1.0]
    for jacobian in reversed(jacobians[1:]):
        product = product @ jacobian
        norms.append(float(torch.linalg.matrix_norm(product[:, :width], 2)))
    return torch.tensor(norms)


def largest_singular_value(cell: Cell) -> float:
    """σ₁ of W_hh; of a gated cell that of the candidate's block."""
    block = cell.block_names.index("candidate")
    weight = cell.hidden_weight[block * cell.width : (block + 1) * cell.width]
    return float(torch.linalg.matrix_norm(weight.detach().float(), 2))


@torch.no_grad()
def _flow(name: str, steps: CellSteps, losses: Tensor) -> GradientFlow:
    cell, largest = steps.cell, largest_singular_value(steps.cell)
    norms = state_gradients(step_jacobians(cell, steps.projected, steps.before), cell.width)
    products = None
    if "forget gate" in cell.block_names:
        gates = [cell.gates(*step)["forget gate"] for step in zip(steps.projected, steps.before, strict=True)]
        forget = torch.cat(gates)
        later = torch.cat([forget.new_ones(1, cell.width), forget[1:].flip(0)])  # from distance 0
        products = later.cumprod(0).mean(1).float().cpu()
    return GradientFlow(
        name,
        type(cell).__name__.removesuffix("Cell"),
        "backward" in name,
        losses,
        norms,
        largest ** torch.arange(len(norms), dtype=torch.float32) if isinstance(cell, RNNCell) else None,
        products,
        largest,
        decay_slope(norms.tolist()),
    )


def decay_slope(norms: Sequence[float]) -> float:
    """The slope of log₁₀ of values by their index, by least squares; −0.3 halves at every step. NaN: too few values."""
    points = [(index, math.log10(value)) for index, value in enumerate(norms) if value > 1e-30]
    if len(points) < 2:
        return math.nan
    xs, ys = zip(*points, strict=True)
    return float(statistics.linear_regression(xs, ys).slope)


def flow_axis(subject: Subject, flow: GradientFlow) -> Axis:
    """The tokens that the states of a layer read, in the order of reading."""
    axis = subject.source if subject.source is not None and flow.loss.shape[1] == len(subject.source) else None
    return axis or subject.target.shifted()
