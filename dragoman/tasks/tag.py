"""Task `tag`: one tag for every word of a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from dragoman.classical.hmm_tagger import HMMTagger, HMMTaggerConfig
from dragoman.config.settings import setting
from dragoman.data.collate import Collator, TagCollator
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.tags import TagFormat
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.decoding.labels import TagDecoder
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.tasks.base import Automatic, Config, Starter
from dragoman.tasks.labels import LabelTask, NoSearchConfig, source_collator

_FORMAT = TagFormat()


@dataclass(frozen=True)
class TagConfig(NoSearchConfig):
    """Tagged sentences."""

    task: Literal["tag"] = setting("tag", help="the kind of problem")
    model: TaggerConfig | HMMTaggerConfig = setting(TaggerConfig(), help="the model to train")
    output = "tags"


class Tag(LabelTask):
    """Words to tags."""

    config = TagConfig
    model_class = Tagger
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

    def model(self, config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        """A neural tagger, or a hidden Markov model."""
        if isinstance(config.model, HMMTaggerConfig):
            return HMMTagger(config.model, source, len(target))
        return super().model(config, source, target)

    def example_format(self, config: Config) -> ExampleFormat:
        """Token rows with the first token of every word, and tags."""
        return _FORMAT

    def collator(self, config: Config, source: Tokenizer) -> Collator:
        """Padded sources with a tag for every word."""
        return Collator(source_collator(config, source), TagCollator())
