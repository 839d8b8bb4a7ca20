"""Task `caption`: images to text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dragoman.config.settings import setting
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.media import CAPTIONS
from dragoman.models.captioner import Captioner, CaptionerConfig
from dragoman.tasks.base import Config, Starter, too_long
from dragoman.tasks.media import MediaConfig, MediaTask


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
    model_class = Captioner
    default_metrics = ("bleu", "chrf", "meteor_exact_stem", "cider")
    starter = Starter(
        "images with one or more captions each",
        {
            "task": "caption",
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

    def example_format(self, config: Config) -> ExampleFormat:
        return CAPTIONS
