"""All encoders and decoders. To add one, write its file and add one `Entry` here.

An encoder that can also read vectors in place of tokens (frames, image patches, words made of characters) belongs in
the table of `encoders/sequence.py` instead. From the tables follow the kinds that settings accept and help shows, the
modules that get built, and the cases of the contract tests.
"""

from __future__ import annotations

from typing import Annotated, Any

from torch import nn

from dragoman.models import config as model_config
from dragoman.models import contracts
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Decoder, Encoder
from dragoman.models.convs2s import ConvS2SDecoder, ConvS2SDecoderConfig
from dragoman.models.decoders.copy_transducer import CopyTransducer, CopyTransducerConfig
from dragoman.models.decoders.edit_transducer import EditTransducer, EditTransducerConfig
from dragoman.models.decoders.hard_attention import HardAttentionDecoder, HardAttentionDecoderConfig
from dragoman.models.decoders.pointer_generator import PointerGenerator, PointerGeneratorConfig
from dragoman.models.decoders.recurrent import (
    FixedContextDecoder,
    FixedContextDecoderConfig,
    LuongDecoder,
    LuongDecoderConfig,
    RecurrentDecoder,
    RecurrentDecoderConfig,
)
from dragoman.models.elmo import ElmoEncoder, ElmoEncoderConfig
from dragoman.models.encoders.bert import BertEncoder, BertEncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig, CharacterWordsEncoder
from dragoman.models.encoders.frames import FramesConfig, FramesEncoder
from dragoman.models.encoders.images import (
    PatchesConfig,
    PatchesEncoder,
    ResNetConfig,
    ResNetEncoder,
    TorchvisionConfig,
    TorchvisionEncoder,
)
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SEQUENCE_ENCODERS
from dragoman.models.entries import DecoderEntry, EncoderEntry, FeatureEncoderEntry, table_of
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.layers.config import LearnedConfig, SinusoidalConfig
from dragoman.models.layers.rnn_attention import AdditiveConfig, GeneralConfig, MonotonicConfig
from dragoman.models.transformer import TransformerDecoder

ENCODERS = table_of(
    "encoder",
    EncoderEntry(
        CharacterWordsConfig,
        CharacterWordsEncoder,
        example=CharacterWordsConfig(
            embedding=4,
            kernels=(1, 3),
            filters=(3, 4),
            longest_word=3,
            inner=RecurrentEncoderConfig(cell=GRUConfig(), embedding=5, width=6, dropout=0.0),
        ),
    ),
    EncoderEntry(
        BertEncoderConfig,
        BertEncoder,
        example=BertEncoderConfig(
            layers=2, width=8, heads=2, feedforward=12, max_positions=9, dropout=0.0, attention_dropout=0.0
        ),
    ),
    EncoderEntry(ElmoEncoderConfig, ElmoEncoder, example=ElmoEncoderConfig(layers=2, width=5, dropout=0.0)),
    includes=SEQUENCE_ENCODERS,
)
# Encoders of images and audio: they read features (B, T, F) in place of tokens.
FEATURE_ENCODERS = table_of(
    "encoder of features",
    FeatureEncoderEntry(
        ResNetConfig, ResNetEncoder, example=ResNetConfig(channels=(8, 8), blocks=1, width=10, dropout=0.0)
    ),
    FeatureEncoderEntry(
        PatchesConfig,
        PatchesEncoder,
        example=PatchesConfig(size=4, inner=TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0)),
    ),
    FeatureEncoderEntry(TorchvisionConfig, TorchvisionEncoder, example=TorchvisionConfig(width=8, dropout=0.0)),
    FeatureEncoderEntry(
        FramesConfig,
        FramesEncoder,
        example=FramesConfig(dropout=0.0, inner=RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0)),
    ),
)
DECODERS = table_of(
    "decoder",
    DecoderEntry(
        TransformerConfig,
        TransformerDecoder,
        example=TransformerConfig(
            layers=2, width=8, heads=2, feedforward=12, dropout=0.0, positions=SinusoidalConfig(layout="halves")
        ),
    ),
    DecoderEntry(
        RecurrentDecoderConfig,
        RecurrentDecoder,
        example=RecurrentDecoderConfig(layers=2, embedding=6, width=9, attention=AdditiveConfig(width=7), dropout=0.0),
    ),
    DecoderEntry(
        FixedContextDecoderConfig,
        FixedContextDecoder,
        example=FixedContextDecoderConfig(layers=2, embedding=6, width=7, dropout=0.0),
    ),
    DecoderEntry(
        LuongDecoderConfig,
        LuongDecoder,
        example=LuongDecoderConfig(
            layers=2, embedding=6, width=7, dropout=0.0, attention=GeneralConfig(window=MonotonicConfig(radius=2))
        ),
    ),
    DecoderEntry(
        ConvS2SDecoderConfig,
        ConvS2SDecoder,
        example=ConvS2SDecoderConfig(
            layers=3,
            embedding=7,
            widths=(6, 6, 5),
            kernels=(3, 1, 2),
            dropout=0.0,
            positions=LearnedConfig(max_positions=40),
        ),
    ),
    DecoderEntry(
        PointerGeneratorConfig,
        PointerGenerator,
        example=PointerGeneratorConfig(
            pointer=5,
            inner=RecurrentDecoderConfig(embedding=6, width=8, attention=AdditiveConfig(width=7), dropout=0.0),
        ),
        larger_example=PointerGeneratorConfig(
            inner=RecurrentDecoderConfig(embedding=24, width=32, attention=AdditiveConfig(width=24), dropout=0.0)
        ),
    ),
    DecoderEntry(
        HardAttentionDecoderConfig,
        HardAttentionDecoder,
        example=HardAttentionDecoderConfig(embedding=6, width=7, dropout=0.0, jump=2),
        larger_example=HardAttentionDecoderConfig(embedding=24, width=32, dropout=0.0),
        monotone=True,
    ),
    DecoderEntry(
        EditTransducerConfig,
        EditTransducer,
        example=EditTransducerConfig(layers=2, embedding=6, width=7, dropout=0.0, context=True),
        larger_example=EditTransducerConfig(embedding=24, width=32, dropout=0.0),
        monotone=True,
    ),
    DecoderEntry(
        CopyTransducerConfig,
        CopyTransducer,
        example=CopyTransducerConfig(embedding=6, width=7, dropout=0.0),
        larger_example=CopyTransducerConfig(embedding=24, width=32, dropout=0.0),
    ),
)

# An interface for the type checker; for the settings loader, the settings of any entry of the table.
EncoderConfig = Annotated[model_config.EncoderConfig, ENCODERS]
FeatureEncoderConfig = Annotated[contracts.FeatureEncoderConfig, FEATURE_ENCODERS]
DecoderConfig = Annotated[model_config.DecoderConfig, DECODERS]
AnyEncoderConfig = Annotated[Any, ENCODERS, FEATURE_ENCODERS]


def build_encoder(config: EncoderConfig, embedding: nn.Module) -> Encoder:
    return ENCODERS.of(config).module(config, embedding)


def build_feature_encoder(config: FeatureEncoderConfig, features: int) -> Encoder:
    """Build the encoder of images or audio that the settings name, for this many features per row."""
    return FEATURE_ENCODERS.of(config).module(config, features)


def build_decoder(config: DecoderConfig, embedding: nn.Module, memory_width: int) -> Decoder:
    """Build the decoder that the settings name, over a memory of this width."""
    return DECODERS.of(config).module(config, embedding, memory_width)


def decoder_class(config: DecoderConfig) -> type[Decoder]:
    return DECODERS.of(config).module


def has_attention(config: DecoderConfig) -> bool:
    """Whether the decoder attends over the memory: otherwise encoder weights behind the values get no gradient."""
    return "values" not in decoder_class(config).unused_memory
