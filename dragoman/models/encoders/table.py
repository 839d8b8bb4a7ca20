"""The table of encoders that read a row of tokens, or a row of vectors that stand for something smaller."""

from __future__ import annotations

from typing import Any

from dragoman.models.convs2s import ConvolutionalEncoder, ConvolutionalEncoderConfig
from dragoman.models.encoders.dense import DenseEncoder, DenseEncoderConfig
from dragoman.models.encoders.kalchbrenner import SentenceConvolutionConfig, SentenceConvolutionEncoder
from dragoman.models.encoders.multi_kernel import MultiKernelConfig, MultiKernelEncoder
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.transformer import TransformerConfig, TransformerEncoder

RowEncoderConfig = (
    TransformerConfig
    | RecurrentEncoderConfig
    | ConvolutionalEncoderConfig
    | SentenceConvolutionConfig
    | MultiKernelConfig
    | DenseEncoderConfig
)
ROW_ENCODERS: dict[type, Any] = {
    TransformerConfig: TransformerEncoder,
    RecurrentEncoderConfig: RecurrentEncoder,
    ConvolutionalEncoderConfig: ConvolutionalEncoder,
    SentenceConvolutionConfig: SentenceConvolutionEncoder,
    MultiKernelConfig: MultiKernelEncoder,
    DenseEncoderConfig: DenseEncoder,
}
