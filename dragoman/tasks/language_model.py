"""Task `language-model`: predict the next token of running text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.config.settings import setting
from dragoman.data.bptt import SegmentCollator
from dragoman.data.collate import Collator
from dragoman.data.config import DataConfig
from dragoman.data.corpus import Corpus
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.texts import LanguageModelFormat
from dragoman.data.source_reader import SourceReader
from dragoman.data.split import Progress
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.models.language_model import LanguageModel, LanguageModelConfig
from dragoman.tasks.base import Config, Starter, Task
from dragoman.training.config import TrainConfig
from dragoman.training.distributed import ProcessGroup
from dragoman.training.loaders import BatchLoader, BpttLoader, check_streams
from dragoman.training.validation.language_model import LanguageModelValidator
from dragoman.training.validation.result import Validator

_FORMAT = LanguageModelFormat()


@dataclass(frozen=True)
class LanguageModelTaskConfig(Config):
    """Running text."""

    task: Literal["language-model"] = setting("language-model", help="the kind of problem")
    model: LanguageModelConfig | NGramConfig = setting(LanguageModelConfig(), help="the model to train")
    output = "likelihood"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.tokenizer.target is not None:
            yield (
                f"tokenizer.target: found {self.tokenizer.target.kind!r} with {self.task_setting}, expected nothing: "
                "a language model has one text"
            )
        default = DataConfig(train="")
        unused = {
            "train.decode": (self.train.decode, TrainConfig().decode),
            "search": (self.search, SearchConfig()),
        } | {
            f"data.{name}": (getattr(self.data, name), getattr(default, name))
            for name in ("units", "columns", "header", "max_length")
        }
        yield from self.unused_settings(unused, f"has no meaning for {self.task_setting}, which reads running text")
        if isinstance(self.model, LanguageModelConfig) and self.train.batch_tokens < self.model.segment:
            yield (
                f"train.batch_tokens: found {self.train.batch_tokens}, expected at least model.segment = "
                f"{self.model.segment}: a batch has streams of that many tokens"
            )


class LanguageModelTask(Task):
    """Running text to the next token."""

    config = LanguageModelTaskConfig
    is_language_model = True
    starter = Starter(
        "running text: predict the next token; `dragoman complete` continues a prompt",
        {
            "task": "language-model",
            "data": {"train": "text.txt"},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
            "model": {
                "kind": LanguageModelConfig.kind,
                "segment": 128,
                "memory": 128,
                "stack": {
                    "kind": "transformer",
                    "layers": 4,
                    "width": 256,
                    "heads": 4,
                    "positions": {"kind": "rotary"},
                },
            },
            "train": {"steps": 10_000, "batch_tokens": 4096},
        },
    )

    def example_format(self, config: Config) -> ExampleFormat:
        return _FORMAT

    def collator(self, config: Config, source: SourceReader) -> Collator:
        """Segments of parallel streams, for truncated back-propagation through time."""
        return SegmentCollator()

    def prepare(self, config: Config, note: Progress = lambda doing, count: None) -> Corpus:
        """The tokenised text; an error if it is too short for the batch size."""
        corpus = super().prepare(config, note)
        if isinstance(config.model, NGramConfig):
            return corpus
        check_streams(corpus, config.train.batch_tokens // config.model.segment * config.train.accumulate, config.train)
        return corpus

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        if isinstance(config.model, NGramConfig):
            return NGramModel(config.model, len(target))
        return LanguageModel(config.model, len(target))

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        return LanguageModelValidator(corpus, config.model.segment, device)

    def loader(self, config: Config, corpus: Corpus, model: nn.Module, processes: ProcessGroup) -> BatchLoader:
        return BpttLoader(corpus, model, config.model.segment, config.train, processes)
