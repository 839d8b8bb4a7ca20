"""Tasks `transcribe` and `caption`: recordings or images to text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dragoman.base.config import setting
from dragoman.data import Collator, SourceReader
from dragoman.data.formats import CAPTIONS, TRANSCRIPTS
from dragoman.data.media import (
    AudioConfig,
    LineImageConfig,
    PictureConfig,
    VideoConfig,
    WaveformConfig,
    WhisperMelConfig,
    extractor_of,
)
from dragoman.data.tokenizers import NumbersConfig, Tokenizer
from dragoman.decoding import SearchConfig
from dragoman.models import (
    Captioner,
    CaptionerConfig,
    JointAttentionConfig,
    SpeechToText,
    SpeechToTextConfig,
    Transcriber,
    TranscriberConfig,
)
from dragoman.models.encoders import (
    FramesConfig,
    PatchesConfig,
    PictureFramesConfig,
    ResNetConfig,
    TorchvisionConfig,
    WaveformConvolutionsConfig,
)
from dragoman.models.layers import ImageAugmentConfig, LineAugmentConfig, NoAugmentationConfig, SpecAugmentConfig
from dragoman.runs.tasks.base import MEDIA, Config, Starter, Task, too_long

# Which features an encoder reads, and which features an augmentation changes.
READ_BY: dict[Any, tuple[Any, ...]] = {
    FramesConfig: (AudioConfig, WaveformConfig, WhisperMelConfig, LineImageConfig, VideoConfig),
    ResNetConfig: (PictureConfig,),
    PatchesConfig: (PictureConfig,),
    TorchvisionConfig: (PictureConfig,),
}
AUGMENTED_BY: dict[Any, tuple[Any, ...]] = {
    NoAugmentationConfig: MEDIA,
    SpecAugmentConfig: (AudioConfig, WhisperMelConfig, LineImageConfig),
    LineAugmentConfig: (LineImageConfig,),
    ImageAugmentConfig: (PictureConfig,),
}


def quoted(table: Mapping[Any, tuple[Any, ...]], source: Any) -> str:
    """The kinds of a table that go with a source."""
    return " or ".join(f'"{part.kind}"' for part, sources in table.items() if isinstance(source, sources))


def feature_problems(config: Config) -> Iterator[str]:
    """Errors of a source, encoder and augmentation that do not go together."""
    source, encoder, augment = config.tokenizer.source, config.model.encoder, config.model.augment
    if isinstance(source, MEDIA) and not isinstance(source, AUGMENTED_BY[type(augment)]):
        yield (
            f'model.augment: found "{augment.kind}", which does not go with tokenizer.source "{source.kind}"; set '
            f"model.augment.kind = {quoted(AUGMENTED_BY, source)}"
        )
    fitting = READ_BY.get(type(encoder), ())
    if not isinstance(source, fitting):
        kinds = " or ".join(f'"{features.kind}"' for features in fitting) or "text or numbers"
        other = (
            quoted(READ_BY, source) if isinstance(source, MEDIA) else "another, such as model.encoder.kind=recurrent"
        )
        advice = f"; set model.encoder.kind = {other}" if isinstance(source, MEDIA) else f"; take {other}"
        found = f'found "{source.kind}", but model.encoder.kind = "{encoder.kind}" reads {kinds}'
        yield f"tokenizer.source: {found}{advice}"
        return
    if isinstance(encoder, FramesConfig):
        subsampling = encoder.subsampling
        if isinstance(subsampling, WaveformConvolutionsConfig) != isinstance(source, WaveformConfig):
            yield (
                f'model.encoder.subsampling: found "{subsampling.kind}" with tokenizer.source "{source.kind}", '
                f'expected "{WaveformConfig.kind}" for both or for neither'
            )
        elif isinstance(subsampling, PictureFramesConfig) and not isinstance(source, VideoConfig):
            yield (
                f'model.encoder.subsampling: found "{subsampling.kind}" with tokenizer.source "{source.kind}", '
                f'expected tokenizer.source "{VideoConfig.kind}"'
            )
        elif isinstance(subsampling, WaveformConvolutionsConfig) and source.min_samples < subsampling.receptive_field:
            yield (
                f"tokenizer.source.min_samples: found {source.min_samples}, expected at least "
                f"{subsampling.receptive_field}, what one output sees"
            )
    if isinstance(encoder, PatchesConfig) and isinstance(source, PictureConfig) and source.size % encoder.size:
        yield f"model.encoder.size: found {encoder.size}, expected a divisor of tokenizer.source.size = {source.size}"


@dataclass(frozen=True)
class MediaConfig(Config):
    """Settings of a task that reads recordings or images and writes text."""

    may_resplit = True
    reads_media = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        target, problems = self.tokenizer.target, list(feature_problems(self))
        yield from problems
        if not problems and (target is None or isinstance(target, NumbersConfig)):
            yield (
                f"tokenizer.target: found {target.kind if target else 'nothing'} with {self.task_setting}, expected a "
                'tokenizer of text, such as "characters"'
            )


class MediaTask(Task):
    """A task that reads recordings or images and writes text by search."""

    models: ClassVar[dict[type, Any]]  # the class of each model by that of its settings

    def collator(self, config: Config, source: Any) -> Collator:
        return Collator(extractor_of(source).collator)

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        """A model that standardises features by the mean and deviation of the training data."""
        model: Any = self.models[type(config.model)](config.model, len(source), len(target))
        model.standardizer.set_scale(*extractor_of(source).scale)
        return model


@dataclass(frozen=True)
class TranscribeConfig(MediaConfig):
    """Recordings or line images with their text."""

    task: Literal["transcribe"] = setting("transcribe", help="the kind of problem")
    model: TranscriberConfig | SpeechToTextConfig = setting(TranscriberConfig(), help="the model to train")
    # CTC processes texts by their whole probability, without a length penalty.
    search: SearchConfig = setting(SearchConfig(length_penalty=0.0), help="how to decode its output")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if isinstance(self.model, SpeechToTextConfig):
            yield from too_long(self, "decoder", self.model.decoder)
        elif isinstance(self.model.attention_decoder, JointAttentionConfig):
            yield from too_long(self, "attention_decoder.decoder", self.model.attention_decoder.decoder)


class Transcribe(MediaTask):
    """Speech and line images to text."""

    config = TranscribeConfig
    format = TRANSCRIPTS
    models: ClassVar = {TranscriberConfig: Transcriber, SpeechToTextConfig: SpeechToText}
    default_metrics = ("wer", "cer", "exact_match")
    counts_edit_types = True
    starter = Starter(
        "recordings or images of text lines with their text: speech recognition and OCR",
        {
            "data": {"train": "recordings.tsv", "media": ""},
            "tokenizer": {"source": {"kind": "audio"}, "target": {"kind": "characters"}},
            "model": {
                "kind": TranscriberConfig.kind,
                "augment": {"kind": "specaugment"},
                "encoder": {"kind": "frames", "inner": {"kind": "recurrent", "layers": 2}},
            },
            "train": {"steps": 10_000, "batch_tokens": 20_000, "metric": "wer"},
        },
    )


@dataclass(frozen=True)
class CaptionConfig(MediaConfig):
    """Images with captions."""

    task: Literal["caption"] = setting("caption", help="the kind of problem")
    model: CaptionerConfig = setting(CaptionerConfig(), help="the model to train")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from too_long(self, "decoder", self.model.decoder)


class Caption(MediaTask):
    """Images to captions."""

    config = CaptionConfig
    format = CAPTIONS
    models: ClassVar = {CaptionerConfig: Captioner}
    default_metrics = ("bleu", "chrf", "meteor_exact_stem", "cider")
    starter = Starter(
        "images with one or more captions each",
        {
            "data": {"train": "pictures.tsv", "media": ""},
            "tokenizer": {"source": {"kind": "picture"}, "target": {"kind": "words", "min_count": 5}},
            "model": {
                "kind": CaptionerConfig.kind,
                "augment": {"kind": "picture"},
                "encoder": {"kind": "resnet"},
                "decoder": {"kind": "recurrent"},
            },
            "train": {"steps": 10_000, "batch_tokens": 10_000, "metric": "bleu"},
        },
    )
