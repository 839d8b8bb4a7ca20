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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.inspect.views.figures import new_figure
from dragoman.inspect.views.states import CellSteps, record_cells
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.kernels import immediate_gradients
from dragoman.models.layers import Cell, CellState, GRUConfig, LSTMConfig, RNNCell, RNNConfig, build_cell

WIDTH, STEPS = 64, 50
RADII = (0.5, 0.8, 1.0, 1.2, 1.5)  # largest singular values of the recurrent matrix


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


# --- cells before training: which of them vanish or explode before anything is learned


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
def _untrained_flow(name: str, kind: str, cell: Any, inner: Any, inputs: Tensor, *, bounded: bool) -> UntrainedFlow:
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
        flows.append(_untrained_flow(name, config.kind, cell, cell, inputs, bounded=name == "plain"))
    cell = build_cell(RNNConfig(recurrent_init="uniform"), width, width)
    return [*flows, _untrained_flow("residual", "h + rnn(h)", Residual(cell, width), cell, inputs, bounded=False)]


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
        flows.append(_untrained_flow(f"σ₁ = {radius}", "rnn", cell, cell, inputs, bounded=True))
    return flows


# --- the view


def gradients_view(subject: Subject) -> View | None:
    flows = gradient_flow(subject)
    if not flows:
        return None
    shown = []
    for flow in flows:
        axis = subject.source  # of what the layer reads
        if axis is None or flow.loss.shape[1] != len(axis):
            axis = subject.target.shifted()
        by_distance = flow.loss.mean(0).flip(0)  # mean of ‖∂loss/∂h_t‖ by T − t, from the last state read: (T,)
        shown.append({**vars(flow), "by_distance": by_distance, "axis": axis.as_dict()})
    return View(
        "gradients",
        "Gradient flow",
        "The curve shows how strongly the last state depends on a state some steps earlier; a steep fall is a "
        "vanishing gradient. A plain recurrent network stays below its spectral bound (dashed), while the forget gates "
        "of an LSTM keep a path open.",
        {"flows": shown, "target": subject.target.as_dict()},
    )


def draw_gradients(view: View, layer: str | None) -> Any:
    drawing = new_figure(7, 4.4)
    axes = drawing.subplots()
    for number, flow in enumerate(view.data["flows"]):
        colour = f"C{number}"
        label = f"{flow['name']} ({flow['kind']}), ×{10 ** flow['slope']:.2f} per step"
        axes.semilogy(flow["state"].numpy(), marker="o", ms=3, color=colour, label=label)
        for key, style, name in (("bound", "--", "spectral bound"), ("gates", ":", "∏ forget gates")):
            if flow[key] is not None:
                axes.semilogy(flow[key].numpy(), style, color=colour, lw=1, label=f"{flow['name']}: {name}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="distance T − t in steps", ylabel="‖∂h(T) / ∂h(t)‖₂")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")  # powers of ten are formulas by default, which `save_plot` shows as text
    axes.yaxis.set_minor_formatter("{x:g}" if high < 20 * low else "")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)
    return drawing
