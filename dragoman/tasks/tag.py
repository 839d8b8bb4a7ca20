"""Task `tag`: one tag for every word of a sentence, step of a series or frame of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from dragoman.classical.hmm_tagger import HMMTagger, HMMTaggerConfig
from dragoman.config.settings import setting
from dragoman.data.collate import TagCollator
from dragoman.data.formats.labels import MediaTagFormat, SeriesTagFormat, TagFormat
from dragoman.data.media.images import PictureConfig
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumbersConfig
from dragoman.decoding.labels import TagDecoder
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.tasks.base import MEDIA, Automatic, Config, Starter
from dragoman.tasks.labels import LabelFormats, LabelTask, NoSearchConfig


@dataclass(frozen=True)
class TagConfig(NoSearchConfig):
    """Tagged sentences, series or recordings."""

    task: Literal["tag"] = setting("tag", help="the kind of problem")
    model: TaggerConfig | HMMTaggerConfig = setting(TaggerConfig(), help="the model to train")
    output = "tags"
    reads_media = True
    reads_series = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        source, model = self.tokenizer.source, self.model
        if isinstance(source, PictureConfig):
            yield f'tokenizer.source: found "{source.kind}", which has no frames to tag; expected recordings or text'
        if isinstance(source, NumbersConfig) and getattr(model, "read", "first") != "first":
            yield "model.read: found 'mean', but steps have one vector each; leave it out"
        if isinstance(model, HMMTaggerConfig) and isinstance(source, (NumbersConfig, *MEDIA)):
            yield f'model.kind: "hmm" reads words, found tokenizer.source = "{source.kind}"'


class Tag(LabelTask):
    """Words to tags."""

    config = TagConfig
    model_class = Tagger
    formats = LabelFormats(TagFormat(), SeriesTagFormat(), MediaTagFormat())
    targets = TagCollator()
    head_decoder = TagDecoder()
    loss_unit = "word (nats)"
    starter = Starter(
        "words with a tag each: parts of speech, names",
        {
            "task": "tag",
            "data": {"train": "words.tsv", "max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {"kind": TaggerConfig.kind, "crf": True, "encoder": {"kind": "character-words"}},
            "train": {"steps": 3000, "metric": "accuracy"},
        },
    )

    automatic = Automatic(
        {
            "data": {"max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {
                "encoder": {
                    "kind": "character-words", "embedding": 32, "kernels": [2, 3, 4], "filters": [64, 64, 64],
                    "longest_word": 24, "hashed": 50_000, "hashed_dropout": 0.3, "dropout": 0.3,
                    "inner": {"kind": "recurrent", "embedding": 128, "width": 256, "dropout": 0.3},
                },
            },
        },
        "model: a bidirectional LSTM of 256 over words built from characters, because endings show the tags of unseen "
        "words",
    )  # fmt: skip

    automatic_series = Automatic(
        {
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"encoder": {"kind": "recurrent", "embedding": 1, "width": 64}},
        },
        "model: a bidirectional LSTM of 64 over the numbers, because every source is a series",
    )

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        if isinstance(config.model, HMMTaggerConfig):
            return HMMTagger(config.model, source, len(target))
        return super().model(config, source, target)
