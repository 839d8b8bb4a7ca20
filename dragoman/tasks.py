"""One table from configuration to model: a new whole is a new row."""

from __future__ import annotations

from typing import Any

from torch import nn

from dragoman.config import Config
from dragoman.data.tokenizers import Tokenizer
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.instant import Instant, InstantConfig

MODELS: dict[type, Any] = {
    EncoderDecoderConfig: EncoderDecoder,
    InstantConfig: Instant,
}


def build_model(
    config: Config, source_vocabulary: int, target_vocabulary: int, *, tags: int = 0, space: int | None = None
) -> nn.Module:
    """The untrained model a configuration describes; what is known only from data comes as arguments."""
    kind = MODELS[type(config.model)]
    model: nn.Module = kind(config.model, source_vocabulary, target_vocabulary, tags=tags, space=space)
    return model


def model_for(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
    """The untrained model for these tokenizers."""
    return build_model(config, len(source), len(target), tags=len(source.tags), space=source.space)
