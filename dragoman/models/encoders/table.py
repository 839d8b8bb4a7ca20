"""The table of encoders that read a row of tokens, or a row of vectors that stand for something smaller."""

from __future__ import annotations

from typing import Any

from dragoman.models.convs2s import ConvS2SEncoder, ConvS2SEncoderConfig
from dragoman.models.encoders.dense import DenseEncoder, DenseEncoderConfig
from dragoman.models.encoders.kalchbrenner import KalchbrennerConfig, KalchbrennerEncoder
from dragoman.models.encoders.multi_kernel import MultiKernelConfig, MultiKernelEncoder
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.transformer import TransformerConfig, TransformerEncoder

RowEncoderConfig = (
    TransformerConfig
    | RecurrentEncoderConfig
    | ConvS2SEncoderConfig
    | KalchbrennerConfig
    | MultiKernelConfig
    | DenseEncoderConfig
)
ROW_ENCODERS: dict[type, Any] = {
    TransformerConfig: TransformerEncoder,
    RecurrentEncoderConfig: RecurrentEncoder,
    ConvS2SEncoderConfig: ConvS2SEncoder,
    KalchbrennerConfig: KalchbrennerEncoder,
    MultiKernelConfig: MultiKernelEncoder,
    DenseEncoderConfig: DenseEncoder,
}
