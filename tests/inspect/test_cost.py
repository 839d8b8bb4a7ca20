"""Time and memory of layers against the sequence length."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dragoman.inspect.measure.cost import (
    THEORY,
    LayerCost,
    benchmark_layers,
    growth_exponents,
    measure_layers,
    power_law_exponent,
    saved_bytes,
    size_growth,
)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7, 2.0])
def test_the_exponent_of_a_power_law_is_recovered(power: float) -> None:
    assert power_law_exponent([(n, 3e-4 * n**power) for n in (64, 128, 256, 512)]) == pytest.approx(power, abs=1e-12)


def test_a_constant_cost_at_short_lengths_does_not_hide_the_exponent() -> None:
    """A large constant at short lengths is left out of the fit."""
    costs = [
        LayerCost("self-attention", n, 1e-3 if n <= 128 else 1e-9 * n**2, 100 * n) for n in (32, 64, 128, 4096, 8192)
    ]
    (fit,) = growth_exponents(costs[2:])
    assert fit.seconds > 1.5
    assert fit.saved == pytest.approx(1.0)
    assert fit.expected == 2.0


def test_a_linear_layer_saves_its_input_and_nothing_else() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(5, 8, requires_grad=True)
    assert saved_bytes(layer, lambda: layer(x)) == 5 * 8 * 4


def test_every_layer_is_measured_at_every_length() -> None:
    told: list[LayerCost] = []
    costs = measure_layers([16, 32, 64], told.append, min_seconds=0.0)
    assert costs == told
    assert [cost.length for cost in costs] == [16, 32, 64] * len(THEORY)
    assert benchmark_layers(16, 2).keys() == THEORY.keys() == {cost.layer for cost in costs}
    assert all(cost.seconds > 0 and cost.saved > 0 for cost in costs)
    memory = {fit.layer: fit.saved for fit in growth_exponents(costs)}
    assert memory["LSTM"] == pytest.approx(1.0, abs=0.1)
    assert memory["convolution"] == pytest.approx(1.0, abs=0.1)


def test_theory_is_that_of_the_transformer_paper() -> None:
    table = {name: (one.operations, one.sequential, one.path) for name, one in THEORY.items()}
    assert table["self-attention"] == ("n²·d", "1", "1")
    assert table["LSTM"] == ("n·d²", "n", "n")
    assert table["convolution"] == ("k·n·d²", "1", "log_k(n)")
    assert table["local attention"] == ("r·n·d", "1", "n/r")
    assert {name: one.time for name, one in THEORY.items() if one.time != 1} == {"self-attention": 2.0}
    assert {one.memory for one in THEORY.values()} == {1.0}


@pytest.mark.slow
def test_time_grows_with_width_kernel_and_window() -> None:
    found = {(one.layer, one.size): one for one in size_growth()}
    assert found["LSTM", "d"].expected == found["convolution", "d"].expected == 2.0
    assert all(one.seconds > 0.1 for one in found.values())  # a busy machine measures little more
