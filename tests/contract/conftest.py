"""The cases of the contract tests: every encoder with every decoder, small and in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from dragoman.models.config import TransformerConfig
from dragoman.models.convs2s import ConvS2SDecoderConfig
from dragoman.models.decoders.pointer_generator import PointerGeneratorConfig
from dragoman.models.decoders.recurrent import (
    FixedContextDecoderConfig,
    LuongDecoderConfig,
    MaxoutReadout,
    RecurrentDecoderConfig,
)
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.convolutional import MultiKernelConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import CoupledLSTMConfig, GRUConfig, LSTMConfig, PeepholeLSTMConfig, RNNConfig
from dragoman.models.layers.config import (
    LearnedConfig,
    LinearConfig,
    LocalConfig,
    NoPositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RelativeSinusoidalConfig,
    RotaryConfig,
    SegmentsConfig,
    SinusoidalConfig,
)
from dragoman.models.layers.rnn_attention import (
    AdditiveConfig,
    CosineConfig,
    MultiHeadConfig,
    PredictiveConfig,
)
from dragoman.models.registry import DECODERS, ENCODERS
from dragoman.testing import laws

# Windows and segments so short that the rows below span several.
TRANSFORMER_VARIANTS = {
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
    "relative-sinusoidal": TransformerConfig(
        layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=RelativeSinusoidalConfig()
    ),
    "concatenated-positions": TransformerConfig(
        layers=1, width=8, heads=2, feedforward=12, dropout=0.0, positions=SinusoidalConfig(merge="concatenate")
    ),
}  # fmt: skip
# Every registered encoder and decoder by its kind, and variants of the larger families.
ENCODER_CASES: dict[str, Any] = {
    **{entry.example.kind: entry.example for entry in ENCODERS.values()},
    "transformer-post": TransformerConfig(
        layers=2, width=8, heads=4, feedforward=12, dropout=0.0, norm="post", activation="gelu",
        positions=LearnedConfig(max_positions=40),
    ),
    "gru": RecurrentEncoderConfig(cell=GRUConfig(), layers=1, embedding=6, width=8, dropout=0.0),
    "peephole-first-both-residual": RecurrentEncoderConfig(
        cell=PeepholeLSTMConfig(), layers=3, embedding=6, width=8, dropout=0.0, direction="first-both", residual_from=2
    ),
    "gru-before-mean-merge": RecurrentEncoderConfig(
        cell=GRUConfig(reset="before"), layers=1, embedding=6, width=7, dropout=0.0, merge="mean"
    ),
    "plain-backward-norm": RecurrentEncoderConfig(
        cell=RNNConfig(), layers=2, embedding=6, widths=(5, 9), width=9, dropout=0.0, direction="backward", norm=True
    ),
    "multi-kernel-non-local": MultiKernelConfig(
        kernels=(1, 3, 5), layers=2, embedding=6, width=6, dropout=0.0, non_local=True, positions=SinusoidalConfig()
    ),
    **TRANSFORMER_VARIANTS,
}  # fmt: skip
DECODER_CASES: dict[str, Any] = {
    **{entry.example.kind: entry.example for entry in DECODERS.values()},
    "transformer-post": TransformerConfig(
        layers=1, width=8, heads=1, feedforward=12, dropout=0.0, norm="post", activation="silu",
        positions=LearnedConfig(max_positions=40),
    ),
    "gru": RecurrentDecoderConfig(
        cell=GRUConfig(), layers=2, embedding=6, width=8, widths=(6, 8), dropout=0.0,
        attention=AdditiveConfig(width=5, keys=4, values=5),
    ),
    "gnmt": RecurrentDecoderConfig(
        cell=CoupledLSTMConfig(), layers=3, embedding=6, width=8, context_to="all", residual_from=3, dropout=0.0,
        attention=MultiHeadConfig(heads=2, width=4),
    ),
    "fixed-context-every-step": FixedContextDecoderConfig(
        cell=GRUConfig(reset="before"), layers=2, embedding=6, width=7, widths=(9, 7), dropout=0.0,
        context="every-step",
        readout=MaxoutReadout(width=6),
    ),
    "luong-without-input-feeding": LuongDecoderConfig(
        cell=RNNConfig(), embedding=6, width=7, dropout=0.0, input_feeding=False,
        attention=CosineConfig(window=PredictiveConfig(radius=3)),
    ),
    "luong-concatenated": LuongDecoderConfig(
        cell=LSTMConfig(activation="relu", output_activation="sigmoid"), layers=2, embedding=6, width=7,
        widths=(5, 7), dropout=0.0, readout="concatenate",
    ),
    "pointer-transformer": PointerGeneratorConfig(
        inner=TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0)
    ),
    "pointer-convs2s": PointerGeneratorConfig(
        inner=ConvS2SDecoderConfig(
            layers=2, embedding=7, width=6, dropout=0.0, positions=LearnedConfig(max_positions=40)
        )
    ),
    **TRANSFORMER_VARIANTS,
}  # fmt: skip
PAIRS = list(product(ENCODER_CASES, DECODER_CASES))


def every_run(pair: tuple[str, str]) -> bool:
    """Whether every run tests a pair: those of the first encoder or decoder; all others once more."""
    encoder, decoder = list(ENCODER_CASES).index(pair[0]), list(DECODER_CASES).index(pair[1])
    return not encoder or not decoder or (encoder - decoder) % min(len(ENCODER_CASES), len(DECODER_CASES)) == 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A run without slow tests does not collect eight thousand of them only to leave them out."""
    if "built" in metafunc.fixturenames:
        collected = [pair for pair in PAIRS if every_run(pair) or "not slow" not in metafunc.config.option.markexpr]
        cases = [pytest.param(pair, marks=[] if every_run(pair) else pytest.mark.slow) for pair in collected]
        metafunc.parametrize("built", cases, ids=lambda pair: f"{pair[0]}>{pair[1]}", indirect=True, scope="module")


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    with laws.in_float64():
        yield


def build(encoder: str, decoder: str, tie: str = "target", smoothing: float = 0.1) -> EncoderDecoder:
    seed = f"{encoder}>{decoder}"
    return laws.small_model(ENCODER_CASES[encoder], DECODER_CASES[decoder], tie, smoothing, seed)


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> EncoderDecoder:
    with laws.in_float64():
        return build(*request.param).eval()


@pytest.fixture
def model(built: EncoderDecoder) -> EncoderDecoder:
    built.zero_grad()
    return built
