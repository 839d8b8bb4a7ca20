"""The table of encoders that read a row of tokens, or a row of vectors that stand for something smaller."""

from __future__ import annotations

from typing import Any

from dragoman.models.convolutional import ConvolutionalEncoder, ConvolutionalEncoderConfig
from dragoman.models.dense import DenseEncoder, DenseEncoderConfig
from dragoman.models.multi_kernel import MultiKernelConfig, MultiKernelEncoder
from dragoman.models.recurrent_encoder import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.sentence_convolution import SentenceConvolutionConfig, SentenceConvolutionEncoder
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
