"""Attention of recurrent decoders: every score and window against its equation, position by position."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dragoman.models.layers.attention import observe_attention
from dragoman.models.layers.rnn_attention import (
    AdditiveConfig,
    CosineConfig,
    DotConfig,
    GeneralConfig,
    MonotonicConfig,
    MultiHeadConfig,
    PredictiveConfig,
    RNNAttentionConfig,
    ScaledDotConfig,
    build_rnn_attention,
)

LENGTHS = [6, 1, 4]
SOURCES, LONGEST, QUERY, MEMORY = len(LENGTHS), max(LENGTHS), 5, 5
CASES: dict[str, RNNAttentionConfig] = {
    "additive": AdditiveConfig(width=7),
    "dot": DotConfig(),
    "scaled-dot": ScaledDotConfig(),
    "general": GeneralConfig(),
    "cosine": CosineConfig(),
    "keys and values apart": DotConfig(keys=3, values=4),
    "additive, apart": AdditiveConfig(width=7, keys=3, values=2),
}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def mask() -> Tensor:
    return torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]


def build(config: RNNAttentionConfig, memory: int = MEMORY) -> torch.nn.Module:
    torch.manual_seed(3)
    attention = build_rnn_attention(config, QUERY, memory)
    assert isinstance(attention, torch.nn.Module)
    for part in attention.parameters():
        part.data.add_(0.3 * torch.randn_like(part))
    return attention


def score(attention: torch.nn.Module, config: RNNAttentionConfig, query: Tensor, key: Tensor) -> Tensor:
    """One number for one query and one place of the memory, from the equations."""
    weights = dict(attention.named_parameters())
    if "keys.weight" in weights:
        key = weights["keys.weight"] @ key  # C5
    if isinstance(config, AdditiveConfig):
        inner = weights["score.query.weight"] @ query + weights["score.key.weight"] @ key + weights["score.key.bias"]
        return weights["score.score.weight"][0] @ torch.tanh(inner)
    if "score.key.weight" in weights:
        key = weights["score.key.weight"] @ key
    if isinstance(config, CosineConfig):
        cosine = query @ key / (query.norm() * key.norm())
        return weights["score.sharpness"] * cosine
    return query @ key / (math.sqrt(QUERY) if isinstance(config, ScaledDotConfig) else 1.0)


def value(attention: torch.nn.Module, one: Tensor) -> Tensor:
    weights = dict(attention.named_parameters())
    return weights["values.weight"] @ one if "values.weight" in weights else one


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("hypotheses", [1, 2])
def test_each_score_is_its_equation(name: str, hypotheses: int, mask: Tensor) -> None:
    config = CASES[name]
    attention = build(config)
    query = torch.randn(SOURCES * hypotheses, 3, QUERY)
    keys, values = torch.randn(SOURCES, LONGEST, MEMORY), torch.randn(SOURCES, LONGEST, MEMORY)
    found = attention(query, attention.read(keys, values), mask, 0)
    assert found.shape[2] == attention.width
    for row in range(SOURCES * hypotheses):
        source = row // hypotheses
        places = range(LENGTHS[source])
        for step in range(3):
            scores = torch.stack([score(attention, config, query[row, step], keys[source, place]) for place in places])
            shares = scores.exp() / scores.exp().sum()
            expected = sum(shares[place] * value(attention, values[source, place]) for place in places)
            torch.testing.assert_close(found[row, step], expected, rtol=0.0, atol=1e-10)


def test_a_memory_of_another_size_is_projected_for_dot_products(mask: Tensor) -> None:
    attention = build(DotConfig(), memory=8)
    keys = torch.randn(SOURCES, LONGEST, 8)
    assert attention.read(keys, keys)[0].shape == (SOURCES, LONGEST, QUERY)
    assert attention(torch.randn(SOURCES, 2, QUERY), attention.read(keys, keys), mask, 0).shape == (SOURCES, 2, 8)


def test_local_m_sees_the_places_around_its_own(mask: Tensor) -> None:
    """Luong 2015 section 3.2, monotonic: p_t = t; beyond the source the window stays at its end."""
    attention = build(DotConfig(window=MonotonicConfig(radius=1)))
    keys, query = torch.randn(SOURCES, LONGEST, MEMORY), torch.randn(SOURCES, 8, QUERY)
    seen: list[Tensor] = []
    with observe_attention(lambda module, weights: seen.append(weights)):
        whole = attention(query, attention.read(keys, keys), mask, 0)
        later = attention(query[:, 3:], attention.read(keys, keys), mask, 3)
    torch.testing.assert_close(later, whole[:, 3:], rtol=0.0, atol=1e-12)
    for source, length in enumerate(LENGTHS):
        for step in range(8):
            centre = min(step, length - 1)
            inside = {place for place in range(length) if abs(place - centre) <= 1}
            assert set(seen[0][source, 0, step].nonzero()[:, 0].tolist()) == inside
            scores = {place: float(query[source, step] @ keys[source, place]) for place in inside}
            total = sum(math.exp(one) for one in scores.values())
            expected = sum(math.exp(scores[place]) / total * keys[source, place] for place in inside)
            torch.testing.assert_close(whole[source, step], expected, rtol=0.0, atol=1e-10)


def test_local_p_predicts_its_centre(mask: Tensor) -> None:
    """Luong 2015 eq. 9 and 10: p_t = S·sigmoid(vᵀ tanh(W h)), weights times exp(−(s−p)²/2σ²) with σ = D/2."""
    radius = 2
    attention = build(GeneralConfig(window=PredictiveConfig(radius=radius)))
    parts = {name: part.detach() for name, part in attention.named_parameters()}
    keys, query = torch.randn(SOURCES, LONGEST, MEMORY), torch.randn(SOURCES, 3, QUERY)
    found = attention(query, attention.read(keys, keys), mask, 0)
    for source, length in enumerate(LENGTHS):
        for step in range(3):
            one = query[source, step]
            inner = torch.tanh(parts["window.inner.weight"] @ one)
            centre = length * float(torch.sigmoid(parts["window.centre.weight"][0] @ inner))
            inside = [place for place in range(length) if abs(place - centre) <= radius]
            scores = {p: float(one @ parts["score.key.weight"] @ keys[source, p]) for p in inside}
            total = sum(math.exp(each) for each in scores.values())
            expected = torch.zeros(MEMORY)
            for place in inside:
                bell = math.exp(-((place - centre) ** 2) / (2 * (radius / 2) ** 2))
                expected += math.exp(scores[place]) / total * bell * keys[source, place]
            torch.testing.assert_close(found[source, step], expected, rtol=0.0, atol=1e-10)


def test_multi_head_is_torchs(mask: Tensor) -> None:
    """Against torch.nn.MultiheadAttention with the same weights."""
    config = MultiHeadConfig(heads=2, width=6)
    torch.manual_seed(0)
    attention = build_rnn_attention(config, 6, MEMORY)
    assert isinstance(attention, torch.nn.Module)
    theirs = torch.nn.MultiheadAttention(6, 2, kdim=MEMORY, vdim=MEMORY, batch_first=True)
    with torch.no_grad():
        for part in attention.parameters():
            part.add_(0.2 * torch.randn_like(part))
        theirs.q_proj_weight.copy_(attention.query.weight)
        theirs.k_proj_weight.copy_(attention.key.weight)
        theirs.v_proj_weight.copy_(attention.value.weight)
        theirs.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key.bias, attention.value.bias]))
        theirs.out_proj.weight.copy_(attention.output.weight)
        theirs.out_proj.bias.copy_(attention.output.bias)
    query, keys, values = torch.randn(3, 4, 6), torch.randn(3, LONGEST, MEMORY), torch.randn(3, LONGEST, MEMORY)
    found = attention(query, attention.read(keys, values), mask, 0)
    expected = theirs(query, keys, values, key_padding_mask=~mask)[0]
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10)


WINDOWED = {
    **CASES,
    "multi-head": MultiHeadConfig(heads=2, width=4),
    "local-m": AdditiveConfig(width=3, window=MonotonicConfig(radius=1)),
    "local-p": ScaledDotConfig(window=PredictiveConfig(radius=9)),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_gradients_are_those_of_small_steps(name: str, mask: Tensor) -> None:
    attention = build(WINDOWED[name])

    def run(query: Tensor, keys: Tensor, values: Tensor, *parts: Tensor) -> Tensor:
        named = dict(zip(dict(attention.named_parameters()), parts, strict=True))
        memory = torch.func.functional_call(
            _Reader(attention), {f"attention.{k}": v for k, v in named.items()}, (keys, values)
        )
        out: Tensor = torch.func.functional_call(attention, named, (query, memory, mask, 0))
        return out

    inputs = [
        torch.randn(SOURCES, 2, QUERY),
        torch.randn(SOURCES, LONGEST, MEMORY),
        torch.randn(SOURCES, LONGEST, MEMORY),
    ]
    inputs += [part.detach().clone() for part in attention.parameters()]
    assert torch.autograd.gradcheck(run, [part.requires_grad_() for part in inputs])


class _Reader(torch.nn.Module):
    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        read: tuple[Tensor, ...] = self.attention.read(keys, values)
        return read
