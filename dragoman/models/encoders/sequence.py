"""The table of sequence encoders: they read embedded tokens, or vectors made of characters, frames or image patches."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from dragoman.models.config import EncoderConfig, TransformerConfig
from dragoman.models.contracts import Encoder
from dragoman.models.convs2s import ConvS2SEncoder, ConvS2SEncoderConfig
from dragoman.models.encoders.convolutional import (
    KalchbrennerConfig,
    KalchbrennerEncoder,
    MultiKernelConfig,
    MultiKernelEncoder,
)
from dragoman.models.encoders.dense import DenseEncoder, DenseEncoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.entries import SequenceEncoderEntry, table_of
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.transformer import TransformerEncoder

SEQUENCE_ENCODERS = table_of(
    "encoder",
    SequenceEncoderEntry(
        TransformerConfig,
        TransformerEncoder,
        example=TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0),
        scales_embeddings=True,
    ),
    SequenceEncoderEntry(
        RecurrentEncoderConfig,
        RecurrentEncoder,
        example=RecurrentEncoderConfig(layers=2, embedding=6, width=10, dropout=0.0),
    ),
    SequenceEncoderEntry(
        ConvS2SEncoderConfig,
        ConvS2SEncoder,
        example=ConvS2SEncoderConfig(
            layers=2, embedding=7, widths=(6, 5), kernels=(3, 4), dropout=0.0, positions=LearnedConfig(max_positions=40)
        ),
    ),
    SequenceEncoderEntry(
        KalchbrennerConfig,
        KalchbrennerEncoder,
        example=KalchbrennerConfig(width=6, max_positions=8, dropout=0.0),
    ),
    SequenceEncoderEntry(
        MultiKernelConfig,
        MultiKernelEncoder,
        example=MultiKernelConfig(kernels=(1, 3, 5), layers=2, embedding=6, width=6, dropout=0.0),
        scales_embeddings=True,
    ),
    SequenceEncoderEntry(
        DenseEncoderConfig,
        DenseEncoder,
        example=DenseEncoderConfig(max_positions=7, layers=2, embedding=4, hidden=9, width=5, dropout=0.0),
    ),
)
SequenceEncoderConfig = Annotated[EncoderConfig, SEQUENCE_ENCODERS]


class IdentityEmbedding(nn.Module):
    """Takes the place of an embedding where the inputs are vectors already."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, S, D) unchanged."""
        return x


def encoder_of_vectors(config: SequenceEncoderConfig) -> Encoder:
    """Build a sequence encoder that reads vectors (B, S, embedding) in place of tokens."""
    return SEQUENCE_ENCODERS.of(config).module(config, IdentityEmbedding(config.embedding))


def vector_scale(config: SequenceEncoderConfig) -> float:
    """The factor for vectors in place of embeddings; it cancels the √width of encoders that scale their embeddings."""
    return float(config.embedding**-0.5) if SEQUENCE_ENCODERS.of(config).scales_embeddings else 1.0
