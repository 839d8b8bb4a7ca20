"""torch's recurrent functions in half precision: small gradients survive, padding with zeros changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.models.kernels import torch_rnn as half
from dragoman.models.kernels.alignment import ALIGNMENT
from dragoman.models.kernels.torch_rnn import (
    in_half_precision,
    in_one_chunk,
    padded,
    torch_rnn,
    unit_padding,
    with_scaled_gradients,
)
from dragoman.models.layers.cells import GRUConfig, LSTMConfig, RNNConfig, build_cell
from dragoman.models.layers.recurrence import Cell, plain_loop
from tests.models.kernels.helpers import needs_gpu

CELLS = {"rnn": RNNConfig(), "relu": RNNConfig("relu"), "lstm": LSTMConfig(), "gru": GRUConfig()}
INPUTS, WIDTH, ROWS, STEPS = 5, 6, 3, 4


def random_case(name: str) -> tuple[Cell, Tensor, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    cell = build_cell(CELLS[name], INPUTS, WIDTH).double()
    x = torch.randn(ROWS, STEPS, INPUTS, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(cell.num_states))
    return cell, x, state


def gradients(found: tuple[Tensor, tuple[Tensor, ...]], size: float, *wanted: Tensor) -> tuple[Tensor, ...]:
    """Of a loss of all outputs and the last state; `size` scales the gradients."""
    out, after = found
    torch.manual_seed(2)
    loss = sum(size * (part * torch.randn_like(part)).sum() for part in (out, *after))
    return torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("alignment", [0, 8])
def test_padding_and_scaling_change_no_result(name: str, alignment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if alignment:
        monkeypatch.setitem(ALIGNMENT, "cpu", alignment)
    cell, x, state = random_case(name)
    wanted = (x, *state, cell.input_weight, cell.hidden_weight, cell.bias)
    widths = []

    def recorded(x: Tensor, state: Any, weights: Any) -> Any:
        widths.append((x.shape[-1], state[0].shape[-1]))
        return torch_rnn(cell.torch_kernel, x, state, weights)

    for size in (1.0, 1e-9, 1e9, 0.0):
        plain = torch_rnn(cell.torch_kernel, x, state, cell.torch_weights())
        ours = in_half_precision(recorded, x, state, cell.torch_weights())
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
    assert not any(part.any() for part in lost)  # float16 without scaling rounds them to zero


def test_aligned_sizes_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIGNMENT, "cpu", 3)
    monkeypatch.setattr(half, "NARROW", 6)
    x, state, weights = torch.rand(2, 4, 3), (torch.rand(2, 6),), [torch.rand(6, 3), torch.rand(6, 6), torch.rand(6)]
    same_x, _, same_weights = padded(x, state, weights)
    assert same_x is x
    assert same_weights == weights


@pytest.mark.parametrize(
    ("width", "padded_width"), [(1, 32), (40, 64), (64, 64), (176, 192), (250, 256), (256, 256), (1150, 1152)]
)
def test_narrow_layers_are_padded_further(width: int, padded_width: int) -> None:
    assert width + unit_padding(width, torch.device("cuda")) == padded_width
    assert unit_padding(width, torch.device("cpu")) == 0


@needs_gpu
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("width", [6, 40, 56, 64, 100, 136, 176, 192, 200, 250, 264])
def test_on_a_gpu_every_unit_gets_its_own_bias(name: str, width: int) -> None:
    torch.manual_seed(0)
    cell = build_cell(CELLS[name], 36, width).cuda()
    torch.nn.init.normal_(cell.bias)
    for rows in (7, 16):
        x = torch.randn(rows, 6, 36, device="cuda")
        exact = plain_loop(cell, x, cell.start(rows))[0].detach()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            cast, _ = cell(x, cell.start(rows))
        cell.bfloat16()
        with torch.no_grad():
            halves, _ = cell(x.bfloat16(), cell.start(rows))
        cell.float()
        for ours in (cast, halves):
            assert ours.dtype == torch.bfloat16
            assert float((ours.float() - exact).norm() / exact.norm()) < 0.02


@needs_gpu
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("tokens", [1e2, 1e6])
def test_on_a_gpu_gradients_of_a_mean_over_many_tokens_survive(name: str, tokens: float) -> None:
    torch.manual_seed(0)
    cell = build_cell(CELLS[name], 36, 50).cuda()
    x = torch.randn(16, 30, 36, device="cuda", requires_grad=True)
    wanted = (x, cell.input_weight, cell.hidden_weight, cell.bias)

    def found(enabled: bool) -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            result = cell(x, cell.start(16))
            assert result[0].dtype == (torch.bfloat16 if enabled else torch.float32)
        return gradients((result[0].float(), tuple(part.float() for part in result[1])), 1 / tokens, *wanted)

    for ours, exact in zip(found(True), found(False), strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("name", CELLS)
def test_weights_in_one_chunk_give_the_same_result(name: str) -> None:
    """In the order that cuDNN expects, without gaps, and with gradients for every weight."""
    cell, x, state = random_case(name)
    wanted = (x, *state, *cell.parameters())
    weights = in_one_chunk(cell.torch_weights())
    addresses = [weight.data_ptr() for weight in weights]
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    assert addresses == [addresses[0] + sum(sizes[:index]) for index in range(4)]
    assert weights[0].storage_offset() == 0
    separate = torch_rnn(cell.torch_kernel, x, state, cell.torch_weights())
    joined = torch_rnn(cell.torch_kernel, x, state, weights)
    torch.testing.assert_close(joined, separate, rtol=0.0, atol=0.0)
    torch.testing.assert_close(gradients(joined, 1.0, *wanted), gradients(separate, 1.0, *wanted))


@needs_gpu
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("half_precision", [False, True])
def test_cudnn_reads_the_weights_from_one_chunk(name: str, half_precision: bool) -> None:
    """Otherwise torch warns, and a warning is an error here."""
    cell = build_cell(CELLS[name], 36, 50).cuda()
    x = torch.randn(16, 30, 36, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=half_precision):
        out, _ = cell(x, cell.start(16))
    out.float().sum().backward()
    assert all(parameter.grad is not None for parameter in cell.parameters())
