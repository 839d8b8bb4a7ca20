"""What transcribe and caption share: sources are recordings or images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dragoman.data.collate import Collator, FrameCollator, PictureCollator
from dragoman.data.corpus import Corpus
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.media.images import LineImageConfig, PictureConfig
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumbersConfig
from dragoman.layers.augmentation import ImageAugmentConfig, LineAugmentConfig, NoAugmentationConfig, SpecAugmentConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.encoders.images import PatchesConfig, ResNetConfig, TorchvisionConfig
from dragoman.tasks.base import MEDIA, Config, Task
from dragoman.training.objectives import LikelihoodConfig
from dragoman.training.validation.result import Validator
from dragoman.training.validation.seq2seq import Seq2SeqValidator

# Which features an encoder reads, and which features an augmentation changes.
READ_BY: dict[type, tuple[Any, ...]] = {
    FramesConfig: (AudioConfig, LineImageConfig),
    ResNetConfig: (PictureConfig,),
    PatchesConfig: (PictureConfig,),
    TorchvisionConfig: (PictureConfig,),
}
AUGMENTED_BY: dict[type, tuple[Any, ...]] = {
    NoAugmentationConfig: MEDIA,
    SpecAugmentConfig: (AudioConfig, LineImageConfig),
    LineAugmentConfig: (LineImageConfig,),
    ImageAugmentConfig: (PictureConfig,),
}


@dataclass(frozen=True)
class MediaConfig(Config):
    """Settings of a task that reads recordings or images and writes text."""

    reads_media = True

    def problems(self) -> Iterator[str]:
        """Cross-field validation errors."""
        yield from super().problems()
        source, encoder, target = self.tokenizer.source, self.model.encoder, self.tokenizer.target
        fitting = READ_BY[type(encoder)]
        if not isinstance(source, fitting):
            kinds = " or ".join(f'"{config.kind}"' for config in fitting)
            yield f'tokenizer.source: found "{source.kind}", but model.encoder.kind = "{encoder.kind}" reads {kinds}'
            return
        if target is None or isinstance(target, NumbersConfig):
            found = target.kind if target else "nothing"
            yield (
                f"tokenizer.target: found {found} with {self.task_setting}, expected a tokenizer of text, such as "
                '"characters"'
            )
        if not isinstance(source, AUGMENTED_BY[type(self.model.augment)]):
            yield (
                f'model.augment: found "{self.model.augment.kind}", which does not go with tokenizer.source '
                f'"{source.kind}"'
            )
        if isinstance(encoder, PatchesConfig) and isinstance(source, PictureConfig) and source.size % encoder.size:
            yield (
                f"model.encoder.size: found {encoder.size}, expected a divisor of tokenizer.source.size = {source.size}"
            )
        if not isinstance(self.train.objective, LikelihoodConfig):
            yield (
                f'train.objective: found "{self.train.objective.kind}", which reads tokens; '
                f"the sources of {self.task_setting} have none"
            )


class MediaTask(Task):
    """A task that reads recordings or images and writes text by search."""

    model_class: Any

    def collator(self, config: Config, source: Any) -> Collator:
        """Padded features with padded token rows."""
        assert isinstance(source, FeatureExtractor)
        features = source.config
        if isinstance(features, PictureConfig):
            return Collator(PictureCollator(features.size, features.features))
        return Collator(FrameCollator(features.features, features.dtype))

    def model(self, config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        """A model that standardises features by the mean and deviation of the training data."""
        assert isinstance(source, FeatureExtractor)
        model: Any = self.model_class(config.model, len(source), len(target))
        model.standardizer.set_scale(*source.scale)
        return model  # type: ignore[no-any-return]

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        """Loss, and text metrics of decoded examples."""
        return Seq2SeqValidator(
            corpus, config.search, config.train.decode, device, config.data.units, config.train.metric
        )
