"""One table from task to model: a new shape of problem is a new row."""

from __future__ import annotations

from torch import nn

from dragoman.config import Config
from dragoman.models.encoder_decoder import EncoderDecoder

MODELS = {"translate": EncoderDecoder}


def build_model(config: Config, source_vocabulary: int, target_vocabulary: int, tags: int = 0) -> nn.Module:
    """The untrained model a configuration describes; sizes known only from data come as arguments."""
    return MODELS[config.task](config.model, source_vocabulary, target_vocabulary, tags)
