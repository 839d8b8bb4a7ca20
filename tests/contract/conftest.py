"""The tables the laws run over: every encoder with every decoder, small and in float64."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product

import pytest
import torch

from dragoman.data.batches import Batch, batch_of
from dragoman.layers.positions import LearnedConfig, NoPositionsConfig, SinusoidalConfig
from dragoman.layers.relations import RelativeBiasConfig, RelativeConfig, RotaryConfig
from dragoman.layers.self_attention import LinearConfig, LocalConfig, SegmentsConfig
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.recurrent import RecurrentDecoderConfig, RecurrentEncoderConfig
from dragoman.models.transformer import TransformerConfig

VOCABULARY = 11

# The Transformer's relatives, with windows and segments so short that the rows below are cut into several.
RELATIVES = {
    "rotary-rms-gated-grouped": TransformerConfig(
        layers=2, width=8, heads=4, feedforward=12, dropout=0.0, positions=RotaryConfig(base=50.0),
        norm_kind="rms", gated=True, activation="silu", key_heads=2, bias=False,
    ),
    "relative-local": TransformerConfig(
        layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=RelativeConfig(distance=2),
        attention=LocalConfig(window=2), score="dot",
    ),
    "relative-bias-segments": TransformerConfig(
        layers=2, width=8, heads=2, feedforward=12, dropout=0.0, norm="post",
        positions=RelativeBiasConfig(buckets=4, distance=5), attention=SegmentsConfig(length=2),
    ),
    "linear": TransformerConfig(
        layers=2, width=8, heads=4, feedforward=12, dropout=0.0, attention=LinearConfig(), key_heads=2
    ),
    "cosine": TransformerConfig(
        layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=NoPositionsConfig(), score="cosine",
        gated=True, activation="gelu-tanh",
    ),
}  # fmt: skip
ENCODER_CASES = {
    "transformer-pre": TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0),
    "transformer-post": TransformerConfig(
        layers=2, width=8, heads=4, feedforward=12, dropout=0.0, norm="post", activation="gelu",
        positions=LearnedConfig(maximum=40),
    ),
    "lstm": RecurrentEncoderConfig(cell="lstm", layers=2, embedding=6, width=10, dropout=0.0),
    "gru": RecurrentEncoderConfig(cell="gru", layers=1, embedding=6, width=8, dropout=0.0),
    **RELATIVES,
}  # fmt: skip
DECODER_CASES = {
    "transformer-pre": TransformerConfig(
        layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=SinusoidalConfig(layout="halves")
    ),
    "transformer-post": TransformerConfig(
        layers=1, width=8, heads=1, feedforward=12, dropout=0.0, norm="post", activation="silu",
        positions=LearnedConfig(maximum=40),
    ),
    "lstm": RecurrentDecoderConfig(cell="lstm", layers=2, embedding=6, width=9, attention=7, dropout=0.0),
    "gru": RecurrentDecoderConfig(cell="gru", layers=1, embedding=6, width=8, attention=5, dropout=0.0),
    **RELATIVES,
}  # fmt: skip
# Every family with every other; relatives differ only inside their blocks, so each meets itself and two strangers.
PAIRS = list(product(ENCODER_CASES.keys() - RELATIVES.keys(), DECODER_CASES.keys() - RELATIVES.keys()))
PAIRS = sorted(PAIRS) + [pair for name in RELATIVES for pair in ((name, name), (name, "gru"), ("lstm", name))]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(encoder: str, decoder: str, tie: str = "target", smoothing: float = 0.1) -> EncoderDecoder:
    torch.manual_seed(zlib.crc32(f"{encoder}>{decoder}".encode()))
    config = EncoderDecoderConfig(
        tie=tie,  # type: ignore[arg-type]
        label_smoothing=smoothing,
        encoder=ENCODER_CASES[encoder],
        decoder=DECODER_CASES[decoder],
    )
    model = EncoderDecoder(config, VOCABULARY + 2, VOCABULARY)
    with torch.no_grad():  # away from the tidy start, so that biases and norms matter
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))
    return model


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}>{pair[1]}")
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return build(*request.param).eval()


SOURCES = [[5, 6, 7, 8, 9], [10, 4], [12, 11, 7], [4]]
TARGETS = [[4, 5, 6], [7, 8, 9, 10, 4, 5], [6], [5, 5]]


@pytest.fixture
def batch() -> Batch:
    return batch_of(SOURCES, TARGETS)
