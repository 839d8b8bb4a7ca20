"""Walks, deferred products and additive comparisons against autograd through plain steps; on a GPU, the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.kernels.additive_score import COMPARISONS, compared, grown
from dragoman.kernels.deferred_gradients import Deferred
from dragoman.kernels.fused_rnn import GRUBeforeWalk
from dragoman.layers.cells import Cell, CellState, build_cell
from tests.layers.test_cells import CASES, every_cell

ROWS, STEPS, INPUTS, WIDTH = 4, 5, 6, 24
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
on_every_device = pytest.mark.parametrize("device", DEVICES)


def shaken(name: str, device: str) -> Cell:
    torch.manual_seed(3)
    cell = build_cell(CASES[name], INPUTS, WIDTH)
    with torch.no_grad():
        for part in cell.parameters():
            part.add_(0.1 * torch.randn_like(part))
    return cell.to(device)


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference, measured by the largest number."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def gradients(states: CellState, weights: list[Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    total = torch.stack([(part * weight).sum() for part, weight in zip(states, weights, strict=True)]).sum()
    return torch.autograd.grad(total, leaves)


@on_every_device
@every_cell
def test_a_walk_in_float32_is_the_plain_loop(name: str, device: str) -> None:
    """On a GPU this is where the kernels meet autograd."""
    cell = shaken(name, device)
    x = torch.randn(ROWS, STEPS, INPUTS, device=device).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device=device).requires_grad_() for _ in range(cell.parts))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.parts)]
    leaves = [x, *start, *cell.parameters()]
    found, expected = cell.states(x, start), cell.loop(x, start)
    pairs = [*zip(found, expected, strict=True)]
    pairs += zip(gradients(found, weights, leaves), gradients(expected, weights, leaves), strict=True)
    assert max(far(left, right) for left, right in pairs) < 1e-5


@on_every_device
@every_cell
def test_steps_of_a_loop_are_the_walk(name: str, device: str) -> None:
    """`step` with deferred products, which decoders take."""
    cell = shaken(name, device)
    x = torch.randn(ROWS, STEPS, INPUTS, device=device).requires_grad_()
    start = tuple(torch.randn(ROWS, WIDTH, device=device).requires_grad_() for _ in range(cell.parts))
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.parts)]
    leaves = [x, *start, *cell.parameters()]
    products, state, steps = Deferred(), start, []
    for token in x.unbind(1):
        state = cell.step(cell.settle(cell.multiply(token, products)), state, products)
        steps.append(state)
    found, expected = tuple(torch.stack(part, 1) for part in zip(*steps, strict=True)), cell.loop(x, start)
    pairs = [*zip(found, expected, strict=True)]
    pairs += zip(gradients(found, weights, leaves), gradients(expected, weights, leaves), strict=True)
    assert max(far(left, right) for left, right in pairs) < 1e-5


@on_every_device
@every_cell
def test_a_walk_in_half_precision_keeps_its_states(name: str, device: str) -> None:
    """Products in bfloat16, states in float32; as near to float32 as bfloat16 gets."""
    cell = shaken(name, device)
    x, start = torch.randn(ROWS, STEPS, INPUTS, device=device), cell.start(ROWS)
    weights = [torch.randn(ROWS, STEPS, WIDTH, device=device) for _ in range(cell.parts)]
    leaves: list[Tensor] = list(cell.parameters())
    expected = cell.loop(x, start)
    with torch.autocast(device, torch.bfloat16):
        found = cell.states(x, start)
    assert {part.dtype for part in found} == {torch.float32}
    pairs = [*zip(found, expected, strict=True)]
    pairs += zip(gradients(found, weights, leaves), gradients(expected, weights, leaves), strict=True)
    bound = 0.5 if name == "plain-relu" else 0.1  # rounding throws some numbers to the other side of relu's bend
    assert 1e-5 < max(far(left, right) for left, right in pairs) < bound


def test_a_walk_can_be_walked_back_twice_and_in_part() -> None:
    cell = shaken("peephole", "cpu")
    x = torch.randn(ROWS, STEPS, INPUTS).requires_grad_()
    hidden, memory = cell.states(x, cell.start(ROWS))
    once, twice = (torch.autograd.grad(hidden.sum(), [x, cell.hidden_weight], retain_graph=True) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(once, twice, strict=True))
    (part,) = torch.autograd.grad(memory[:, 1].sum(), x)
    assert part[:, :2].abs().max() > 0 == part[:, 2:].abs().max()


def test_a_weight_changed_before_the_way_back_is_heard_of() -> None:
    cell = shaken("lstm", "cpu")
    out = cell.states(torch.randn(ROWS, STEPS, INPUTS), cell.start(ROWS))[0]
    with torch.no_grad():
        cell.hidden_weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_only_the_cell_that_multiplies_twice_steps_by_plain_autograd() -> None:
    assert [name for name in CASES if build_cell(CASES[name], 2, 2).walk is GRUBeforeWalk] == [
        "gru-before",
        "gru-before-silu",
        "gru-before-gelu",
    ]


# Deferred products


def test_deferred_products_have_the_gradients_of_plain_ones() -> None:
    torch.manual_seed(0)
    linear, turn = nn.Linear(5, 6).double(), nn.Linear(6, 5, bias=False).double()
    memory = torch.randn(3, 5, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    leaves = [x, memory, *linear.parameters(), *turn.parameters()]

    def walk(products: Deferred | None) -> Tensor:
        state = torch.zeros(3, 2, 5, dtype=torch.float64)
        for step in x:
            if products is None:
                state = torch.tanh(F.linear(torch.tanh(linear(step + state)), turn.weight) @ memory)
            else:
                inner = torch.tanh(products.map(linear, step + state))
                state = torch.tanh(products.read(products.linear(inner, turn.weight), memory))
        return state.sum()

    expected = torch.autograd.grad(walk(None), leaves)
    total = walk(Deferred())
    torch.autograd.grad(total, [x], retain_graph=True)  # a pass that never asks for the weights leaves nothing behind
    for _ in range(2):
        found = torch.autograd.grad(total, leaves, retain_graph=True)
        for left, right in zip(found, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=0.0, atol=1e-12)


def test_a_frozen_weight_gets_no_gradient() -> None:
    weight, x = torch.randn(3, 2), torch.randn(4, 2, requires_grad=True)
    Deferred().linear(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 2))
    assert weight.grad is None


# Additive comparison


@on_every_device
@pytest.mark.parametrize("fan", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 8.0, 100.0])  # the last beyond the range of e^(−2x)
def test_comparison_without_tanh_is_the_one_with_it(fan: int, scale: float, device: str) -> None:
    torch.manual_seed(0)
    keys = (scale * torch.randn(3, 21, 130, device=device)).requires_grad_()
    vector = torch.randn(1, 130, device=device).requires_grad_()
    queries = [(scale * torch.randn(3, fan, 130, device=device)).requires_grad_() for _ in range(3)]
    weights = [torch.randn(3, fan, 21, device=device) for _ in queries]
    leaves = [keys, vector, *queries]
    if device == "cpu":
        comparison = COMPARISONS["grown"]()(vector, keys, grown(keys.detach()))
    else:
        comparison = COMPARISONS["kernels"]()(vector, keys)
    found = tuple(compared(query, comparison) for query in queries)
    expected = tuple(torch.tanh(query[:, :, None] + keys[:, None]) @ vector[0] for query in queries)
    pairs = [*zip(found, expected, strict=True)]
    pairs += zip(gradients(found, weights, leaves), gradients(expected, weights, leaves), strict=True)
    assert max(far(left, right) for left, right in pairs) < (1e-5 if scale == 1.0 else 1e-4)
