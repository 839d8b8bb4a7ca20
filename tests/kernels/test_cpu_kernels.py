"""The kernels for training on a CPU against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dragoman.kernels.cpu_dropout import Dropout, dropout, keep_mask
from dragoman.layers.attention import attend


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a sum with fixed weights, so that no two places count alike."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return list(torch.autograd.grad((out * weights).sum(), inputs))


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(1)
    count = 2_000_000
    mask = keep_mask((count // 1000, 1000), rate, torch.empty(0))
    dropped = float((mask == 0).double().mean())
    deviation = math.sqrt(rate * (1 - rate) / count)
    assert abs(dropped - rate) < 5 * deviation + 1 / 65536
    assert abs(float(mask.double().mean()) - 1) < 6 * deviation / (1 - rate)
    assert abs(float(mask.double().var()) * (1 - rate) / rate - 1) < 0.02
    assert set(mask.unique().tolist()) == {0.0, float(torch.tensor(65536 / round((1 - rate) * 65536)))}


def test_dropped_numbers_are_independent() -> None:
    torch.manual_seed(2)
    first, second = (keep_mask((500_000,), 0.3, torch.empty(0)) == 0 for _ in range(2))
    for shift in range(1, 9):  # four draws share a word: neighbours must not know of each other
        assert abs(float((first[shift:] & first[:-shift]).double().mean()) - 0.09) < 0.003
    assert abs(float((first & second).double().mean()) - 0.09) < 0.003


def test_dropout_follows_from_the_seed() -> None:
    x = torch.randn(7, 33)
    layer = Dropout(0.4)
    torch.manual_seed(5)
    first, then = layer(x), layer(x)
    torch.manual_seed(5)
    assert torch.equal(first, layer(x))
    assert torch.equal(then, layer(x))
    assert not torch.equal(first, then)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("rate", [0.0, 1e-7, 1.0])
def test_dropout_at_its_ends(rate: float) -> None:
    x = torch.randn(50, 50)
    assert torch.allclose(dropout(x, rate), torch.zeros_like(x) if rate == 1.0 else x)


def test_gradients_pass_where_numbers_did() -> None:
    x = torch.randn(40, 40, requires_grad=True)
    out = dropout(x, 0.5)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(gradient * x, out)
    assert {0.0, 2.0} == set(gradient.unique().tolist())


def test_attention_drops_its_weights() -> None:
    query, key, value = (torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    torch.manual_seed(9)
    ours = attend(nn.Identity(), query, key, value, dropout=0.5)
    torch.manual_seed(9)
    drops = keep_mask((2, 2, 6, 6), 0.5, query)
    plain = ((query @ key.transpose(-2, -1) / 2).softmax(-1) * drops) @ value
    assert torch.allclose(ours, plain, atol=1e-10)
    inputs = [query, key, value]
    for one, other in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
        assert torch.allclose(one, other, atol=1e-10)
