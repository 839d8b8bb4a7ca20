"""Tasks `language-model` and `masked-language-model`: predict the next token of running text, or masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from dragoman.base import Progress
from dragoman.base.config import setting
from dragoman.data import SourceReader
from dragoman.data.formats import ExampleFormat, LanguageModelFormat, MaskedTextFormat
from dragoman.data.tokenizers import Tokenizer
from dragoman.decoding import MaskDecoder
from dragoman.runs.tasks.base import Automatic, Config, Starter, Task
from dragoman.runs.tasks.labels import NoSearchConfig, late_models

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dragoman.data import Collator, Corpus, Lengths
    from dragoman.training import BatchLoader, ProcessGroup, Validator


LANGUAGE_MODELS = late_models(
    {
        "language-model": "models.language_model:LanguageModelConfig,LanguageModel",
        "ngram": "classical.ngram:NGramConfig,NGramModel",
    }
)
MASKED_MODELS = late_models(
    {"masked-lm": "models.masked_lm:MaskedLMConfig,MaskedLM", "bilm": "models.elmo:BiLMConfig,BiLM"}
)
SUBWORDS = {"source": {"kind": "subwords", "vocab_size": 8000}}
SMALL_BERT = {
    "layers": 4, "width": 256, "heads": 4, "feedforward": 1024, "attention_dropout": 0.0, "max_positions": 127,
}  # fmt: skip
STACK = {"kind": "transformer", "layers": 4, "width": 256, "heads": 4, "positions": {"kind": "rotary"}}


@dataclass(frozen=True)
class LanguageModelTaskConfig(Config):
    """Running text."""

    task: Literal["language-model"] = setting("language-model", help="the kind of problem")
    model: Annotated[Any, LANGUAGE_MODELS] = setting(
        default_factory=lambda: LANGUAGE_MODELS["language-model"].config(), help="the model to train"
    )
    output = "likelihood"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.tokenizer.target is not None:
            yield (
                f"tokenizer.target: found {self.tokenizer.target.kind!r} with {self.task_setting}, expected nothing: "
                "a language model has one text"
            )
        unused = (
            "train.decode",
            "train.batch_rows",
            "search",
            "data.units",
            "data.columns",
            "data.header",
            "data.max_length",
        )
        yield from self.unused_settings(unused, f"has no meaning for {self.task_setting}, which reads running text")
        if self.model.kind == "language-model" and self.train.batch_tokens < self.model.segment:
            yield (
                f"train.batch_tokens: found {self.train.batch_tokens}, expected at least model.segment = "
                f"{self.model.segment}: a batch has streams of that many tokens"
            )


class LanguageModelTask(Task):
    """Running text to the next token."""

    config = LanguageModelTaskConfig
    format = LanguageModelFormat()
    is_language_model = True
    starter = Starter(
        "running text: predict the next token; `dragoman complete` continues a prompt",
        {
            "data": {"train": "text.txt"},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
            "model": {"kind": "language-model", "segment": 128, "memory": 128, "stack": STACK},
            "train": {"steps": 10_000, "batch_tokens": 4096},
        },
    )

    def collator(self, config: Config, source: SourceReader) -> Collator:
        """Segments of parallel streams, for truncated back-propagation through time."""
        from dragoman.data import SegmentCollator

        return SegmentCollator()

    def prepare(self, config: Config, note: Progress = lambda doing, count: None, **options: Any) -> Corpus:
        """The tokenised text; an error if it is too short for the batch size."""
        corpus = super().prepare(config, note, **options)
        if config.model.kind == "ngram":
            return corpus
        from dragoman.training import check_streams

        check_streams(corpus, config.train.batch_tokens // config.model.segment * config.train.accumulate, config.train)
        return corpus

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        return LANGUAGE_MODELS.of(config.model).model(config.model, len(target))

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        from dragoman.training import LanguageModelValidator

        return LanguageModelValidator(corpus, config.model.segment, device)

    def loader(self, config: Config, corpus: Corpus, model: nn.Module, processes: ProcessGroup) -> BatchLoader:
        from dragoman.training import BpttLoader

        return BpttLoader(corpus, model, config.model.segment, config.train, processes)


@dataclass(frozen=True)
class MaskedLanguageModelTaskConfig(NoSearchConfig):
    """Texts alone."""

    task: Literal["masked-language-model"] = setting("masked-language-model", help="the kind of problem")
    model: Annotated[Any, MASKED_MODELS] = setting(
        default_factory=lambda: MASKED_MODELS["masked-lm"].config(), help="the model to train"
    )
    output = "masked tokens"


class MaskedLanguageModelTask(Task):
    """Texts to their masked tokens."""

    config = MaskedLanguageModelTaskConfig
    head_decoder = MaskDecoder()
    loss_unit = "masked token (nats)"
    starter = Starter(
        "texts alone: pre-train an encoder for other tasks to start from",
        {
            "data": {"train": "texts.txt", "max_length": 126},
            "tokenizer": SUBWORDS,
            "model": {"kind": "masked-lm", "encoder": SMALL_BERT},
            "train": {"steps": 20_000, "batch_tokens": 8192, "optimizer": {"weight_decay": 0.01}},
        },
    )

    automatic = Automatic(
        {
            "data": {"max_length": 125},  # two texts need one token more than one text
            "tokenizer": SUBWORDS,
            "model": {"encoder": SMALL_BERT},
        },
        "model: a small BERT of 4 layers of 256 over 8,000 sub-words, for classify or tag to start from",
    )

    def example_format(self, config: Config) -> ExampleFormat:
        return MaskedTextFormat(config.data.max_length, getattr(config.model, "next_sentence", False))

    def collator(self, config: Config, source: SourceReader) -> Collator:
        """Padded token rows; batches are sized by the tokens that are predicted."""
        from dragoman.data import Collator
        from dragoman.models import num_masked

        def predicted(source: Lengths, target: Lengths) -> Any:
            if config.model.kind == "masked-lm":
                share = config.model.mlm_probability
                return (num_masked(source.astype(np.int64), share) + num_masked(target.astype(np.int64), share)).numpy()
            return 2 * source.astype(np.int64) + 1  # a token forwards and backwards, and <eos> once

        return Collator(loss_terms=predicted)

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        return MASKED_MODELS.of(config.model).model(config.model, len(source))

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        """Loss and accuracy on the same masked tokens at every validation."""
        from dragoman.training import MaskedLMValidator

        return MaskedLMValidator(corpus, device)
