"""What transcribe and caption share: sources are recordings or images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from dragoman.data.collate import Collator, FrameCollator, PictureCollator, SourceCollator
from dragoman.data.media.audio import AudioConfig, WaveformConfig, WhisperMelConfig
from dragoman.data.media.feature_extractor import FeatureExtractor, extractor_of
from dragoman.data.media.images import LineImageConfig, PictureConfig
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumbersConfig
from dragoman.layers.augmentation import ImageAugmentConfig, LineAugmentConfig, NoAugmentationConfig, SpecAugmentConfig
from dragoman.models.encoders.frames import FramesConfig, SubsamplingConfig
from dragoman.models.encoders.images import PatchesConfig, ResNetConfig, TorchvisionConfig
from dragoman.models.encoders.waveform import WaveformConvolutionsConfig
from dragoman.tasks.base import MEDIA, Config, Task

# Which features an encoder reads, and which features an augmentation changes.
READ_BY: dict[type, tuple[Any, ...]] = {
    FramesConfig: (AudioConfig, WaveformConfig, WhisperMelConfig, LineImageConfig),
    ResNetConfig: (PictureConfig,),
    PatchesConfig: (PictureConfig,),
    TorchvisionConfig: (PictureConfig,),
}
AUGMENTED_BY: dict[type, tuple[Any, ...]] = {
    NoAugmentationConfig: MEDIA,
    SpecAugmentConfig: (AudioConfig, WhisperMelConfig, LineImageConfig),
    LineAugmentConfig: (LineImageConfig,),
    ImageAugmentConfig: (PictureConfig,),
}


def feature_problems(config: Config) -> Iterator[str]:
    """Errors of a source, encoder and augmentation that do not go together."""
    source, encoder, augment = config.tokenizer.source, config.model.encoder, config.model.augment
    fitting = READ_BY.get(type(encoder), ())
    if not isinstance(source, fitting):
        kinds = " or ".join(f'"{one.kind}"' for one in fitting) or "text or numbers"
        yield f'tokenizer.source: found "{source.kind}", but model.encoder.kind = "{encoder.kind}" reads {kinds}'
        return
    if isinstance(encoder, FramesConfig):
        yield from waveform_problems(source, encoder.subsampling)
    if not isinstance(source, AUGMENTED_BY[type(augment)]):
        yield f'model.augment: found "{augment.kind}", which does not go with tokenizer.source "{source.kind}"'
    if isinstance(encoder, PatchesConfig) and isinstance(source, PictureConfig) and source.size % encoder.size:
        yield f"model.encoder.size: found {encoder.size}, expected a divisor of tokenizer.source.size = {source.size}"


def waveform_problems(source: Any, subsampling: SubsamplingConfig) -> Iterator[str]:
    """Errors of raw samples without the convolutions that read them, or the other way round."""
    if isinstance(subsampling, WaveformConvolutionsConfig) != isinstance(source, WaveformConfig):
        both = f'"{WaveformConfig.kind}"'
        yield (
            f'model.encoder.subsampling: found "{subsampling.kind}" with tokenizer.source "{source.kind}", '
            f"expected {both} for both or for neither"
        )
    elif isinstance(subsampling, WaveformConvolutionsConfig) and source.min_samples < subsampling.receptive_field:
        found, least = source.min_samples, subsampling.receptive_field
        yield f"tokenizer.source.min_samples: found {found}, expected at least {least}, what one output sees"


def feature_collator(source: FeatureExtractor) -> SourceCollator:
    """How the features of recordings or pictures are collated."""
    features = source.config
    if isinstance(features, PictureConfig):
        return PictureCollator(features.size, features.features)
    return FrameCollator(features.features, features.dtype)


@dataclass(frozen=True)
class MediaConfig(Config):
    """Settings of a task that reads recordings or images and writes text."""

    reads_media = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        target = self.tokenizer.target
        if wrong := list(feature_problems(self)):
            yield from wrong
            return
        if target is None or isinstance(target, NumbersConfig):
            found = target.kind if target else "nothing"
            yield (
                f"tokenizer.target: found {found} with {self.task_setting}, expected a tokenizer of text, such as "
                '"characters"'
            )


class MediaTask(Task):
    """A task that reads recordings or images and writes text by search."""

    model_class: ClassVar[Any]  # of config.model, or a table of them by its class

    def collator(self, config: Config, source: Any) -> Collator:
        return Collator(feature_collator(extractor_of(source)))

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        """A model that standardises features by the mean and deviation of the training data."""
        kind = self.model_class[type(config.model)] if isinstance(self.model_class, dict) else self.model_class
        model: Any = kind(config.model, len(source), len(target))
        model.standardizer.set_scale(*extractor_of(source).scale)
        return model  # type: ignore[no-any-return]
