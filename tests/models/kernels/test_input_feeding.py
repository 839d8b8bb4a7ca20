"""The loop of a Luong decoder as one autograd function against the plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.models.contracts import Memory
from dragoman.models.decoders.recurrent import LuongDecoder, LuongDecoderConfig
from dragoman.models.kernels import input_feeding
from dragoman.models.kernels.deferred_gradients import immediate_gradients
from dragoman.models.layers.attention import observe_attention
from dragoman.models.layers.cells import GRUConfig, LSTMConfig, PeepholeLSTMConfig
from dragoman.models.layers.embeddings import build_embedding
from dragoman.models.layers.rnn_attention import (
    AdditiveConfig,
    DotConfig,
    GeneralConfig,
    PredictiveConfig,
    ScaledDotConfig,
)

ROWS, SOURCE, WIDTH = 3, 5, 6


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each call of the kernel."""
    seen: list[None] = []

    class CountedLoop(input_feeding._Loop):
        def forward(self) -> None:
            seen.append(None)
            super().forward()

    monkeypatch.setattr(input_feeding, "_Loop", CountedLoop)
    return seen


def decoder(**settings: Any) -> LuongDecoder:
    torch.manual_seed(0)
    config = LuongDecoderConfig(**{"embedding": 4, "width": 7, "attentional": 5, "dropout": 0.0, **settings})
    model = LuongDecoder(config, build_embedding(11, 4, 0), WIDTH).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def outputs_and_gradients(model: LuongDecoder, source: Tensor, mask: Tensor, chunks: int) -> list[Tensor]:
    tokens = torch.arange(1, 3 * 6 + 1).view(ROWS, 6) % 11
    state, outputs = model.start(Memory(source, source, mask, (source.mean(1),))), []
    for chunk in tokens.chunk(chunks, 1):
        hidden, state = model(chunk, state)
        outputs.append(hidden)
    together = torch.cat(outputs, 1)
    total = (together * torch.linspace(-1, 1, together.numel(), dtype=torch.float64).view_as(together)).sum()
    total = total + sum(part.square().sum() for part in state.cache[0][0])
    used = [source, *model.parameters()]
    return [together, *torch.autograd.grad(total, used, retain_graph=True), *torch.autograd.grad(total, used)]


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("attention", [GeneralConfig(), ScaledDotConfig(keys=7, values=3)], ids=lambda part: part.kind)
def test_outputs_and_gradients_equal_those_of_the_plain_loop(attention: Any, chunks: int, calls: list[None]) -> None:
    model = decoder(attention=attention)
    source = torch.randn(ROWS, SOURCE, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(SOURCE) < torch.tensor([[5], [2], [0]])  # the last row has no source at all
    found = outputs_and_gradients(model, source, mask, chunks)
    assert len(calls) == chunks
    with immediate_gradients():
        expected = outputs_and_gradients(model, source, mask, chunks)
    assert len(calls) == chunks
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [
        {"cell": GRUConfig()},
        {"cell": PeepholeLSTMConfig()},
        {"cell": LSTMConfig(activation="relu")},
        {"layers": 2},
        {"attention": AdditiveConfig(width=3)},
        {"attention": DotConfig(window=PredictiveConfig())},
        {"attention": DotConfig(gate=True)},
        {"readout": "concatenate", "attentional": 0},
    ],
    ids=str,
)
def test_other_decoders_run_the_plain_loop(settings: dict[str, Any], calls: list[None]) -> None:
    source = torch.randn(ROWS, SOURCE, WIDTH, dtype=torch.float64)
    outputs_and_gradients(decoder(**settings), source.requires_grad_(), torch.ones(ROWS, SOURCE, dtype=torch.bool), 1)
    assert not calls


def test_an_observer_of_attention_sees_every_step(calls: list[None]) -> None:
    model, source = decoder(), torch.randn(ROWS, SOURCE, WIDTH, dtype=torch.float64)
    state = model.start(Memory(source, source, torch.ones(ROWS, SOURCE, dtype=torch.bool), (source.mean(1),)))
    seen: list[Tensor] = []
    with observe_attention(lambda module, weights: seen.append(weights)):
        model(torch.ones(ROWS, 4, dtype=torch.long), state)
    assert len(seen) == 4
    assert not calls


def test_weights_changed_between_the_passes_are_an_error() -> None:
    model, source = decoder(), torch.randn(ROWS, SOURCE, WIDTH, dtype=torch.float64)
    state = model.start(Memory(source, source, torch.ones(ROWS, SOURCE, dtype=torch.bool), (source.mean(1),)))
    hidden, _ = model(torch.ones(ROWS, 4, dtype=torch.long), state)
    assert model.combine is not None
    with torch.no_grad():
        model.combine.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.sum().backward()
