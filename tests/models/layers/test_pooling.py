"""Every pooling against plain loops over the real positions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dragoman.models.layers.pooling import (
    POOLINGS,
    LastConfig,
    MaxConfig,
    MeanConfig,
    QueriesConfig,
    StepWeightsConfig,
    TimeAttentionConfig,
)

WIDTH = 5
MASK = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])


def mean(pool: object, states: Tensor, final: Tensor) -> Tensor:
    return torch.stack([sum(states[:, feature]) / len(states) for feature in range(WIDTH)])  # type: ignore[arg-type]


def largest(pool: object, states: Tensor, final: Tensor) -> Tensor:
    return torch.tensor([max(row) for row in states.t().tolist()], dtype=states.dtype)


def attention(pool: torch.nn.Module, states: Tensor, final: Tensor) -> Tensor:
    biases = pool.bias if pool.bias is not None else torch.zeros(len(states), dtype=states.dtype)
    shares = [math.exp(math.tanh(float(h @ pool.weight + b))) for h, b in zip(states, biases, strict=False)]  # type: ignore[arg-type,operator]
    return sum(share / sum(shares) * h for share, h in zip(shares, states, strict=True))  # type: ignore[return-value]


def step_weights(pool: torch.nn.Module, states: Tensor, final: Tensor) -> Tensor:
    return sum(pool.weight[step] * h for step, h in enumerate(states)) + pool.bias  # type: ignore[return-value,index,operator]


def queries(pool: torch.nn.Module, states: Tensor, final: Tensor) -> Tensor:
    read = []
    for query in pool.queries:  # type: ignore[union-attr]
        shares = [math.exp(float(query @ pool.keys(h)) / math.sqrt(WIDTH)) for h in states]  # type: ignore[operator]
        read.append(sum(share / sum(shares) * h for share, h in zip(shares, states, strict=True)))
    return torch.cat(read)  # type: ignore[arg-type]


CASES = {
    "last": (LastConfig(), lambda pool, states, final: final),
    "mean": (MeanConfig(), mean),
    "max": (MaxConfig(), largest),
    "attention": (TimeAttentionConfig(), attention),
    "attention with steps": (TimeAttentionConfig(steps=6), attention),
    "step weights": (StepWeightsConfig(steps=6), step_weights),
    "queries": (QueriesConfig(count=3), queries),
}


def test_every_pooling_has_a_case() -> None:
    assert {type(config) for config, _ in CASES.values()} == set(POOLINGS)


@pytest.mark.parametrize("name", CASES)
def test_pooling_is_its_definition_whatever_stands_on_padding(name: str) -> None:
    config, expected = CASES[name]
    torch.manual_seed(1)
    pool = POOLINGS[type(config)](config, WIDTH).double()
    for part in pool.parameters():
        part.data = torch.randn_like(part)
        part.requires_grad_(False)
    states, final = torch.randn(3, 4, WIDTH).double(), torch.randn(3, WIDTH).double()
    found = pool(states, MASK, final)
    assert found.shape == (3, pool.width)
    for row in range(3):
        truth = expected(pool, states[row, : int(MASK[row].sum())], final[row])  # type: ignore[operator]
        torch.testing.assert_close(found[row], truth, rtol=0.0, atol=1e-12)
    other = states.masked_fill(~MASK[:, :, None], 1e6)
    torch.testing.assert_close(pool(other, MASK, final), found, rtol=0.0, atol=1e-12)
