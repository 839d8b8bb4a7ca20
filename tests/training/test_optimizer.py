"""Schedules against their formulas, and what of an optimiser must survive a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError
from dragoman.training.config import MovingAverageConfig, OptimizerConfig
from dragoman.training.optimizer import (
    MovingAverage,
    averaged_weights,
    build_optimizer,
    learning_rate_at,
    load_weights,
    mean_weights,
    optimizer_tensors,
    restore_optimizer,
)


@given(st.integers(1, 5000), st.integers(1, 20_000), st.integers(1, 1024))
def test_inverse_square_root_is_noams_schedule_up_to_a_constant(warmup: int, step: int, width: int) -> None:
    """Vaswani et al. 2017, equation 3: width^-½ · min(step^-½, step · warmup^-1.5)."""
    noam = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    highest = width**-0.5 * warmup**-0.5
    rate = learning_rate_at(OptimizerConfig(learning_rate=3e-3, schedule="inverse-sqrt", warmup=warmup), step, 10_000)
    assert rate == pytest.approx(3e-3 * noam / highest, rel=1e-12)


@given(st.integers(0, 500), st.integers(1, 1500))
def test_cosine_falls_from_the_highest_rate_to_zero(warmup: int, step: int) -> None:
    config = OptimizerConfig(learning_rate=0.5, schedule="cosine", warmup=warmup)
    rate = learning_rate_at(config, step, 1000)
    if step <= warmup:
        assert rate == 0.5 * step / warmup
    elif step >= 1000:
        assert rate == pytest.approx(0.0, abs=1e-12)
    else:
        expected = 0.25 * (1 + math.cos(math.pi * (step - warmup) / (1000 - warmup)))
        assert rate == pytest.approx(expected, rel=1e-12)
        assert rate > learning_rate_at(config, step + 1, 1000)


def test_constant_stays_after_its_warmup() -> None:
    config = OptimizerConfig(learning_rate=0.5, schedule="constant", warmup=4)
    assert [learning_rate_at(config, step, 10) for step in (1, 2, 4, 5, 100)] == [0.125, 0.25, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "constant"])
def test_without_a_warmup_the_first_step_has_the_highest_rate_or_nearly(schedule: str) -> None:
    config = settings.build(OptimizerConfig, {"learning_rate": 0.5, "schedule": schedule, "warmup": 0})
    assert learning_rate_at(config, 1, 100) == pytest.approx(0.5, rel=1e-3)
    assert learning_rate_at(config, 50, 100) <= 0.5


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.0), ("beta1", 1.0), ("beta2", -0.1), ("epsilon", 0.0), ("warmup", -1)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"train.optimizer.{name}: found {value}"):
        settings.build(OptimizerConfig, {name: value}, "train.optimizer")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 7))


def backward(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for part in model.parameters():
        part.grad = torch.randn(part.shape, generator=generator)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: part.detach().clone() for name, part in model.named_parameters()}


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    model = network()
    before = weights(model)
    optimizer = build_optimizer(OptimizerConfig(learning_rate=0.1, weight_decay=0.5), model)
    for part in model.parameters():
        part.grad = torch.zeros_like(part)
    optimizer.step()
    for name, part in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if part.dim() > 1 else 1.0
        torch.testing.assert_close(part.detach(), before[name] * factor)
    grouped = [part for group in optimizer.param_groups for part in group["params"]]
    assert {id(part) for part in grouped} == {id(part) for part in model.parameters()}
    assert len(grouped) == len(list(model.parameters()))


def test_a_step_follows_adamw() -> None:
    """Loshchilov and Hutter 2019, algorithm 2, two steps by hand."""
    config = OptimizerConfig(learning_rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-8, weight_decay=0.3)
    model = nn.Linear(3, 2, bias=False)
    weight = model.weight.detach().double().clone()
    optimizer = build_optimizer(config, model)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in (1, 2):
        backward(model, step)
        assert model.weight.grad is not None
        gradient = model.weight.grad.double()
        optimizer.step()
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        update = (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-8)
        weight = weight - 0.01 * (update + 0.3 * weight)
    torch.testing.assert_close(model.weight.detach().double(), weight, rtol=1e-6, atol=1e-7)


def test_steps_are_those_of_torch_to_the_bit() -> None:
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    model, other = network(), network()
    other.load_state_dict(model.state_dict())
    optimizer = build_optimizer(config, model, {"1.weight": 0.5})
    groups = [
        {"params": [part], "lr": 0.005 if name == "1.weight" else 0.01, "weight_decay": 0.1 if part.dim() > 1 else 0.0}
        for name, part in other.named_parameters()
    ]
    peer = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * group["factor"]
    for seed in range(5):
        for network_, steps in ((model, optimizer), (other, peer)):
            backward(network_, seed)
            if seed == 3:
                next(network_.parameters()).grad = None  # a part that the batch did not use
            steps.step()
            steps.zero_grad()
    for name, part in weights(model).items():
        assert torch.equal(part, weights(other)[name]), name
    own = optimizer_tensors(optimizer, model)
    for name, part in other.named_parameters():
        for key, value in peer.state[part].items():
            assert torch.equal(own[f"{name}.{key}"], value)


def test_a_restored_optimizer_takes_the_identical_next_step() -> None:
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    model = network()
    optimizer = build_optimizer(config, model)
    for seed in range(3):
        backward(model, seed)
        optimizer.step()
    tensors = {name: value.clone() for name, value in optimizer_tensors(optimizer, model).items()}
    stood = weights(model)
    backward(model, 9)
    optimizer.step()
    expected = weights(model)

    other = network()
    load_weights(other, stood)
    forgetful = build_optimizer(config, other)
    backward(other, 9)
    forgetful.step()
    assert not torch.equal(weights(other)["1.weight"], expected["1.weight"]), "the state must matter"

    load_weights(other, stood)
    again = build_optimizer(config, other)
    restore_optimizer(again, other, tensors)
    backward(other, 9)
    again.step()
    for name, part in weights(other).items():
        assert torch.equal(part, expected[name]), name
    assert all(
        torch.equal(value, optimizer_tensors(again, other)[name])
        for name, value in optimizer_tensors(optimizer, model).items()
    )


def test_a_shared_weight_is_saved_once() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = build_optimizer(OptimizerConfig(), model)
    backward(model, 0)
    optimizer.step()
    assert set(optimizer_tensors(optimizer, model)) == {"0.weight.step", "0.weight.exp_avg", "0.weight.exp_avg_sq"}


def test_the_moving_average_follows_its_formula() -> None:
    model = network()
    average = MovingAverage(MovingAverageConfig(decay=0.5), model)
    expected = {name: part.double() for name, part in weights(model).items()}
    for step in range(1, 20):
        with torch.no_grad():
            for part in model.parameters():
                part.add_(torch.randn_like(part))
        average.update(model, average.new_weight(step))
        decay = min(0.5, (1 + step) / (10 + step))
        for name, part in weights(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * part.double()
    assert (1 + 1) / (10 + 1) < 0.5 < (1 + 19) / (10 + 19), "both branches of the decay were used"
    for name, part in average.weights.items():
        torch.testing.assert_close(part.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_the_mean_of_weights_is_summed_in_double_precision() -> None:
    parts = [{"a": torch.tensor([16777216.0])}, {"a": torch.tensor([1.0])}, {"a": torch.tensor([1.0])}]
    assert mean_weights(list(parts))["a"].item() == torch.tensor((16777216.0 + 2) / 3).item()
    assert mean_weights(list(parts))["a"].dtype == torch.float32


def test_swapped_weights_come_back() -> None:
    model = network()
    before = weights(model)
    average = MovingAverage(MovingAverageConfig(), model)
    for part in average.weights.values():
        part.zero_()
    with averaged_weights(model, average):
        assert all(not part.any() for part in weights(model).values())
    assert all(torch.equal(part, before[name]) for name, part in weights(model).items())
