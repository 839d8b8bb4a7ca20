"""One table from configuration to model: a new whole is a new row."""

from __future__ import annotations

from typing import Any

from torch import nn

from dragoman.config import Config
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.instant import Instant, InstantConfig

MODELS: dict[type, Any] = {
    EncoderDecoderConfig: EncoderDecoder,
    InstantConfig: Instant,
}


def build_model(config: Config, source_vocabulary: int, target_vocabulary: int) -> nn.Module:
    """The untrained model a configuration describes; sizes known only from data come as arguments."""
    model: nn.Module = MODELS[type(config.model)](config.model, source_vocabulary, target_vocabulary)
    return model
