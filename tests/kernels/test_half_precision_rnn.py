"""Torch's recurrent kernels under autocast (FIELD B1, B2, B5): small gradients survive, zeros change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.kernels import half_precision_rnn as half
from dragoman.kernels.half_precision_rnn import filled_up, in_half_precision, spare_units, with_scaled_gradients
from dragoman.layers.cells import Cell, GRUConfig, LSTMConfig, PlainConfig, build_cell

CELLS = {"plain": PlainConfig(), "relu": PlainConfig("relu"), "lstm": LSTMConfig(), "gru": GRUConfig()}
INPUTS, WIDTH, ROWS, STEPS = 5, 6, 3, 4


def drawn(name: str) -> tuple[Cell, Tensor, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    cell = build_cell(CELLS[name], INPUTS, WIDTH).double()
    x = torch.randn(ROWS, STEPS, INPUTS, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(cell.parts))
    return cell, x, state


def gradients(found: tuple[Tensor, tuple[Tensor, ...]], size: float, *wanted: Tensor) -> tuple[Tensor, ...]:
    """Of a loss that sees all outputs and the last state; `size` says how large they are."""
    out, after = found
    torch.manual_seed(2)
    loss = sum(size * (part * torch.randn_like(part)).sum() for part in (out, *after))
    return torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("alignment", [0, 8])
def test_results_and_gradients_are_those_without(name: str, alignment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if alignment:
        monkeypatch.setitem(half.ALIGNED, "cpu", alignment)
    cell, x, state = drawn(name)
    wanted = (x, *state, cell.input_weight, cell.hidden_weight, cell.bias)
    widths = []

    def watched(x: Tensor, state: Any, weights: Any) -> Any:
        widths.append((x.shape[-1], state[0].shape[-1]))
        return cell.torchs(x, state, weights)

    for size in (1.0, 1e-9, 1e9, 0.0):
        plain = cell.torchs(x, state, cell._weights())
        ours = in_half_precision(watched, x, state, cell._weights(), cell.blocks)
        torch.testing.assert_close(ours, plain)
        torch.testing.assert_close(gradients(ours, size, *wanted), gradients(plain, size, *wanted))
    assert set(widths) == {(8, 32) if alignment == 8 else (INPUTS, WIDTH)}


def test_gradients_too_small_for_float16_survive_it() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def kernel(x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return (x.half() @ weights[0].half()).tanh(), state

    state = (torch.zeros(1),)
    for size in (1e-10, 1e-6, 1.0, 1e6):
        torch.manual_seed(3)
        noise = size * torch.randn(4, 8)
        exact = torch.autograd.grad(((x @ weight).tanh() * noise).sum(), (x, weight))
        scaled, _ = with_scaled_gradients(kernel, x, state, [weight], torch.float32)
        for one, true in zip(torch.autograd.grad((scaled * noise).sum(), (x, weight)), exact, strict=True):
            assert float((one - true).norm() / true.norm()) < 5e-3
    lost = torch.autograd.grad((kernel(x, state, [weight])[0].float() * 1e-10 * noise.sign()).sum(), (x, weight))
    assert not any(part.any() for part in lost)  # which is what happens without


def test_aligned_sizes_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(half.ALIGNED, "cpu", 3)
    monkeypatch.setattr(half, "NARROW", 6)
    x, state, weights = torch.rand(2, 4, 3), (torch.rand(2, 6),), [torch.rand(6, 3), torch.rand(6, 6), torch.rand(6)]
    found = filled_up(x, state, weights, 1)
    assert found[0] is x
    assert found[2] == weights


@pytest.mark.parametrize(
    ("width", "filled"), [(1, 32), (40, 64), (64, 64), (176, 192), (250, 256), (256, 256), (1150, 1152)]
)
def test_narrow_layers_are_filled_up_further(width: int, filled: int) -> None:
    assert width + spare_units(width, torch.device("cuda")) == filled
    assert spare_units(width, torch.device("cpu")) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["lstm", "gru", "plain"])
@pytest.mark.parametrize("width", [6, 40, 56, 64, 100, 136, 176, 192, 200, 250, 264])
def test_a_gpu_adds_each_unit_its_own_bias(name: str, width: int) -> None:
    torch.manual_seed(0)
    cell = build_cell(CELLS[name], 36, width).cuda()
    torch.nn.init.normal_(cell.bias)
    for rows in (7, 16):
        x = torch.randn(rows, 6, 36, device="cuda")
        exact = cell.loop(x, cell.start(rows))[0].detach()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            cast, _ = cell.sequence(x, cell.start(rows))
        cell.bfloat16()
        with torch.no_grad():
            halves, _ = cell.sequence(x.bfloat16(), cell.start(rows))
        cell.float()
        for ours in (cast, halves):
            assert ours.dtype == torch.bfloat16
            assert float((ours.float() - exact).norm() / exact.norm()) < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["lstm", "gru", "plain"])
@pytest.mark.parametrize("tokens", [1e2, 1e6])
def test_a_gpu_keeps_the_gradients_of_a_mean_over_many_tokens(name: str, tokens: float) -> None:
    torch.manual_seed(0)
    cell = build_cell(CELLS[name], 36, 50).cuda()
    x = torch.randn(16, 30, 36, device="cuda", requires_grad=True)
    wanted = (x, cell.input_weight, cell.hidden_weight, cell.bias)

    def found(enabled: bool) -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            result = cell.sequence(x, cell.start(16))
            assert result[0].dtype == (torch.bfloat16 if enabled else torch.float32)
        return gradients((result[0].float(), tuple(part.float() for part in result[1])), 1 / tokens, *wanted)

    for ours, exact in zip(found(True), found(False), strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.02
