"""Fused recurrences against autograd through plain steps; on a GPU, the Triton kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.kernels.deferred_gradients import deferred_gradients
from dragoman.kernels.fused_gru import FusedGRUResetBefore
from dragoman.layers.cells import Cell, build_cell
from tests.kernels.helpers import largest_error, on_every_device
from tests.layers.test_cells import CASES, every_cell

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


@on_every_device
@every_cell
def test_a_fused_recurrence_in_float32_equals_the_plain_loop(name: str, device: str) -> None:
    cell = random_cell(name, device)
    x = torch.randn(ROWS, STEPS, INPUTS, device=device).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device=device).requires_grad_() for _ in range(cell.num_states))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves = [x, *start, *cell.parameters()]
    assert largest_error(cell.all_states(x, start), cell.plain_loop(x, start), weights, leaves) < 1e-5


@on_every_device
@every_cell
def test_single_fused_steps_equal_the_plain_loop(name: str, device: str) -> None:
    """As a decoder runs them: step by step, with deferred gradients."""
    cell = random_cell(name, device)
    x = torch.randn(ROWS, STEPS, INPUTS, device=device).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device=device).requires_grad_() for _ in range(cell.num_states))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves = [x, *start, *cell.parameters()]
    expected = cell.plain_loop(x, start)
    state, steps = start, []
    with deferred_gradients(STEPS):
        for token in x.split(1, 1):
            _, state = cell.run(token, state)
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
    step = cell.stepper(x)
    with deferred_gradients(steps):
        for t in range(steps):
            state = step(t, contexts[:, t], state)
    expected = tuple(part[:, -1] for part in cell.plain_loop(torch.cat([x, contexts], -1), cell.start(ROWS)))
    assert largest_error(state, expected, weights, leaves) < 1e-5


@on_every_device
@every_cell
def test_a_fused_recurrence_in_half_precision_keeps_its_states_in_float32(name: str, device: str) -> None:
    """Products in bfloat16, states in float32; as near to float32 as bfloat16 allows."""
    cell = random_cell(name, device)
    x, start = torch.randn(ROWS, STEPS, INPUTS, device=device), cell.start(ROWS)
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.num_states)]
    leaves: list[Tensor] = list(cell.parameters())
    expected = cell.plain_loop(x, start)
    with torch.autocast(device, torch.bfloat16):
        states = cell.all_states(x, start)
    assert {state.dtype for state in states} == {torch.float32}
    bound = 0.5 if name == "rnn-relu" else 0.1  # rounding moves some numbers to the other side of relu's kink
    assert 1e-5 < largest_error(states, expected, weights, leaves) < bound


def test_the_backward_pass_runs_twice_and_from_single_outputs() -> None:
    cell = random_cell("peephole", "cpu")
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    hidden, memory = cell.all_states(x, cell.start(ROWS))
    once, twice = (torch.autograd.grad(hidden.sum(), [x, cell.hidden_weight], retain_graph=True) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(once, twice, strict=True))
    (gradient,) = torch.autograd.grad(memory[:, 1].sum(), x)
    assert gradient[:, :2].abs().max() > 0 == gradient[:, 2:].abs().max()


def test_a_weight_changed_before_the_backward_pass_is_an_error() -> None:
    cell = random_cell("lstm", "cpu")
    out = cell.all_states(torch.randn(ROWS, STEPS, INPUTS), cell.start(ROWS))[0]
    with torch.no_grad():
        cell.hidden_weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_only_the_cell_with_two_products_per_step_has_no_fused_step() -> None:
    assert [name for name in CASES if build_cell(CASES[name], 2, 2).fused is FusedGRUResetBefore] == [
        "gru-before",
        "gru-before-silu",
        "gru-before-gelu",
    ]
