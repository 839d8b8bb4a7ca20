"""Recurrences over time against autograd through plain steps; on a GPU, the Triton kernels."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from dragoman.models import kernels
from dragoman.models.kernels import fused_rnn
from dragoman.models.kernels.deferred_gradients import deferred_gradients
from dragoman.models.layers.cells import build_cell
from dragoman.models.layers.recurrence import Cell, CellState, all_states, plain_loop, run, unrolled
from tests.models.kernels.helpers import largest_error, needs_gpu, on_every_device
from tests.models.layers.test_cells import CASES, every_cell

ROWS, STEPS, INPUTS, WIDTH = 4, 5, 6, 24

# The compiler says so for every GPU that has them; the tests compare in full precision.
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")


def random_cell(name: str, device: str) -> Cell:
    """A cell whose parameters have all moved away from their initial values."""
    torch.manual_seed(3)
    cell = build_cell(CASES[name], INPUTS, WIDTH)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return cell.to(device)


class PointwiseInTorch:
    """The place of `fused_rnn_triton` on a machine without a GPU: the cell's step and autograd's gradient of it."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.sums: dict[int, Tensor] = {}

    def step(self, rnn: Any, step: int) -> tuple[CellState, list[Tensor]]:
        """The state after the step, and the leaves: projected, product (adds_product: their sum), state before."""
        before = [state[step].detach().clone().requires_grad_() for state in rnn.states]
        if rnn.adds_product:
            inputs = [self.sums[step].clone().requires_grad_()]
        else:
            inputs = [part[step].detach().clone().requires_grad_() for part in (rnn.projected, rnn.products)]
        sums = patch.object(Cell, "add_hidden", lambda *given: inputs[0])
        with torch.enable_grad(), sums, patch("dragoman.models.layers.cells.linear", lambda *given: inputs[-1]):
            return self.cell.step(inputs[0], tuple(before)), [*inputs, *before]

    def pointwise_forward(self, rnn: Any, step: int) -> None:
        if rnn.adds_product:
            self.sums[step] = rnn.gates[step].clone()
        for state, value in zip(rnn.states, self.step(rnn, step)[0], strict=True):
            state[step + 1] = value.detach()

    def pointwise_backward(self, rnn: Any, step: int) -> None:
        after, leaves = self.step(rnn, step)
        arriving = [
            later if output is None else later + output[step]
            for later, output in zip(rnn.state_gradients, rnn.output_gradients, strict=True)
        ]
        gradients = torch.autograd.grad(after, leaves, arriving, allow_unused=True)
        rnn.d_gates[step] = gradients[0]
        before = gradients[1:]
        if not rnn.adds_product:
            rnn.d_products[step], rnn.direct_gradient = gradients[1], gradients[2]
            before = gradients[2:]
        rnn.state_gradients = (rnn.state_gradients[0], *before[1:])


@pytest.mark.parametrize("name", ["rnn-relu", "lstm", "peephole", "coupled", "gru-after"])
def test_the_autograd_function_around_the_kernels_equals_the_plain_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products, gradients of W_hh, of peepholes and of the first state, with a stand-in for the kernels."""
    cell = random_cell(name, "cpu").double()
    monkeypatch.setattr(kernels, "fused_rnn_triton", PointwiseInTorch(cell), raising=False)
    monkeypatch.setattr(fused_rnn, "supports", lambda *given: True)
    x = torch.randn(ROWS, STEPS, INPUTS, dtype=torch.float64).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(cell.num_states))
    weights = [torch.randn(ROWS, STEPS, WIDTH, dtype=torch.float64) for _ in range(cell.num_states)]
    leaves = [x, *start, *cell.parameters()]
    assert largest_error(all_states(cell, x, start), plain_loop(cell, x, start), weights, leaves) < 1e-12


@needs_gpu
@every_cell
def test_a_recurrence_in_float32_equals_the_plain_loop(name: str) -> None:
    cell = random_cell(name, "cuda")
    x = torch.randn(ROWS, STEPS, INPUTS, device="cuda").requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device="cuda").requires_grad_() for _ in range(cell.num_states))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device="cuda") for _ in range(cell.num_states)]
    leaves = [x, *start, *cell.parameters()]
    assert largest_error(all_states(cell, x, start), plain_loop(cell, x, start), weights, leaves) < 1e-5


@on_every_device
@every_cell
def test_single_steps_equal_the_plain_loop(name: str, device: str) -> None:
    """As a decoder runs them: step by step, with deferred gradients."""
    cell = random_cell(name, device)
    x = torch.randn(ROWS, STEPS, INPUTS, device=device).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device=device).requires_grad_() for _ in range(cell.num_states))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves = [x, *start, *cell.parameters()]
    expected = plain_loop(cell, x, start)
    state, steps = start, []
    with deferred_gradients(STEPS):
        for token in x.split(1, 1):
            _, state = run(cell, token, state)
            steps.append(state)
    states = tuple(torch.stack(part, 1) for part in zip(*steps, strict=True))
    assert largest_error(states, expected, weights, leaves) < 1e-5


@on_every_device
@every_cell
@pytest.mark.parametrize("steps", [1, STEPS])
def test_a_stepper_equals_steps_over_joined_inputs(name: str, device: str, steps: int) -> None:
    cell = random_cell(name, device)
    x = torch.randn(ROWS, steps, 4, device=device).requires_grad_()
    contexts = torch.randn(ROWS, steps, INPUTS - 4, device=device).requires_grad_()
    weights = [torch.randn(ROWS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves = [x, contexts, *cell.parameters()]
    state = cell.start(ROWS)
    with unrolled(cell, x) as step:
        for t in range(steps):
            state = step(t, contexts[:, t], state)
    expected = tuple(part[:, -1] for part in plain_loop(cell, torch.cat([x, contexts], -1), cell.start(ROWS)))
    assert largest_error(state, expected, weights, leaves) < 1e-5


@on_every_device
@every_cell
def test_a_recurrence_in_half_precision_keeps_its_states_in_float32(name: str, device: str) -> None:
    """Products in bfloat16, states in float32; as near to float32 as bfloat16 allows."""
    cell = random_cell(name, device)
    x, start = torch.randn(ROWS, STEPS, INPUTS, device=device), cell.start(ROWS)
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves: list[Tensor] = list(cell.parameters())
    expected = plain_loop(cell, x, start)
    with torch.autocast(device, torch.bfloat16):
        states = all_states(cell, x, start)
    assert {state.dtype for state in states} == {torch.float32}
    bound = 0.5 if name == "rnn-relu" else 0.1  # rounding moves some numbers to the other side of relu's kink
    assert 1e-5 < largest_error(states, expected, weights, leaves) < bound


def test_the_backward_pass_runs_twice_and_from_single_outputs() -> None:
    cell = random_cell("peephole", "cpu")
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    hidden, memory = all_states(cell, x, cell.start(ROWS))
    once, twice = (torch.autograd.grad(hidden.sum(), [x, cell.hidden_weight], retain_graph=True) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(once, twice, strict=True))
    (gradient,) = torch.autograd.grad(memory[:, 1].sum(), x)
    assert gradient[:, :2].abs().max() > 0 == gradient[:, 2:].abs().max()


def test_a_weight_changed_before_the_backward_pass_is_an_error() -> None:
    cell = random_cell("lstm", "cpu")
    out = all_states(cell, torch.randn(ROWS, STEPS, INPUTS), cell.start(ROWS))[0]
    with torch.no_grad():
        cell.hidden_weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
