"""Sources that are no tokens, for models that read any kind of source: series of numbers, recordings and pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.models.contracts import BaseModel, Encoder, Memory
from dragoman.models.encoders.frames import Standardizer
from dragoman.models.layers.augmentation import Augmentation, AugmentationConfig
from dragoman.models.layers.embeddings import WordDropout
from dragoman.models.registry import (
    AnyEncoderConfig,
    build_encoder,
    build_feature_encoder,
)


class SeriesInput(nn.Module):
    """Takes the place of an embedding for series of numbers: the C numbers of a step, or W of them, W (C, D)."""

    def __init__(self, width: int, channels: int = 1) -> None:
        """A width of C leaves the numbers unchanged."""
        super().__init__()
        self.width, self.channels = width, channels
        shape = (width,) if channels == 1 else (channels, width)
        self.weight = nn.Parameter(torch.randn(shape) * channels**-0.5) if width != channels else None
        self.register_buffer("like", torch.zeros(()), persistent=False)  # has the precision of the model

    like: Tensor

    def forward(self, series: Tensor) -> Tensor:
        """(B, S) or (B, S, C), NaN on padding → (B, S, D)."""
        x = series.nan_to_num().to(self.like.dtype)
        if self.channels == 1:
            x = x[..., None]
            return x if self.weight is None else x * self.weight
        return x if self.weight is None else x @ self.weight


class FeatureInput(nn.Module):
    """Standardises the features of recordings or pictures, and augments them in training."""

    def __init__(self, features: int, augment: AugmentationConfig, scale: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.features = features
        self.standardizer = Standardizer(features)
        self.standardizer.set_scale(*scale)
        self.augment = Augmentation(augment)

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), mask (B, T) → (B, T, F)."""
        return self.augment(self.standardizer(source, mask), mask)


class FeatureReader(Encoder):
    """A feature input and the encoder that reads it."""

    encoder: Encoder

    def __init__(self, config: AnyEncoderConfig, inputs: FeatureInput) -> None:
        super().__init__()
        self.inputs = inputs
        self.encoder = build_feature_encoder(config, inputs.features)
        self.width = self.encoder.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        return self.encoder(self.inputs(source, mask), mask)


class LabelModel(BaseModel):
    """The common part of models that predict labels or numbers of any kind of source."""

    encoder: Encoder
    has_unused_parameters = True  # a pooling may ignore the final states, or all others

    def __init__(self, config: Any, inputs: nn.Module, keep_from: int) -> None:
        """`inputs`: an embedding, a SeriesInput or a FeatureInput.

        Word dropout never drops token ids from `keep_from` on: they are no words.
        """
        super().__init__()
        self.config = config
        self.space: int | None = getattr(inputs, "space", None)
        self.word_dropout = WordDropout(config.word_dropout, keep_from, self.space)
        if isinstance(inputs, FeatureInput):
            self.encoder = FeatureReader(config.encoder, inputs)
        else:
            self.encoder = build_encoder(config.encoder, inputs)


class FeatureModel(BaseModel):
    """The common part of models that read features (B, T, F) of images or audio."""

    encoder: Encoder

    def __init__(self, config: Any, features: int) -> None:
        super().__init__()
        self.config = config
        self.standardizer = Standardizer(features)
        self.augment = Augmentation(config.augment)
        self.encoder = build_feature_encoder(config.encoder, features)

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Encode features (B, T, F), mask (B, T); images have rows of pixels, (B, H, W·3)."""
        return self.encoder(self.augment(self.standardizer(source, mask), mask), mask)
