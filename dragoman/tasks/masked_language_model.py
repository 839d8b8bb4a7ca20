"""Task `masked-language-model`: pre-train an encoder by filling in masked tokens, as BERT and ELMo do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from dragoman.config.settings import setting
from dragoman.data.collate import Collator, LossTerms
from dragoman.data.corpus import Corpus
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.texts import MaskedTextFormat
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.decoding.fill_mask import MaskDecoder
from dragoman.models.bilm import BiLM, BiLMConfig
from dragoman.models.masked_lm import MaskedLM, MaskedLMConfig, num_masked
from dragoman.tasks.base import Automatic, Config, Starter, Task
from dragoman.tasks.labels import NoSearchConfig
from dragoman.training.validation.language_model import MaskedLMValidator
from dragoman.training.validation.result import Validator

MODELS: dict[type, Any] = {MaskedLMConfig: MaskedLM, BiLMConfig: BiLM}


@dataclass(frozen=True)
class MaskedLanguageModelTaskConfig(NoSearchConfig):
    """Texts alone."""

    task: Literal["masked-language-model"] = setting("masked-language-model", help="the kind of problem")
    model: MaskedLMConfig | BiLMConfig = setting(MaskedLMConfig(), help="the model to train")
    output = "masked tokens"


def predicted_tokens(config: Config) -> LossTerms:
    """How many tokens of rows with these lengths the model predicts."""
    model = config.model
    if isinstance(model, MaskedLMConfig):
        share = model.mlm_probability
        return lambda source, target: (
            num_masked(source.astype(np.int64), share) + num_masked(target.astype(np.int64), share)
        )
    return lambda source, target: 2 * source.astype(np.int64) + 1  # a token forwards and backwards, and <eos> once


class MaskedLanguageModelTask(Task):
    """Texts to their masked tokens."""

    config = MaskedLanguageModelTaskConfig
    head_decoder = MaskDecoder()
    loss_unit = "masked token (nats)"
    starter = Starter(
        "texts alone: pre-train an encoder for other tasks to start from",
        {
            "task": "masked-language-model",
            "data": {"train": "texts.txt", "max_length": 126},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
            "model": {
                "kind": MaskedLMConfig.kind,
                "encoder": {
                    "layers": 4,
                    "width": 256,
                    "heads": 4,
                    "feedforward": 1024,
                    "attention_dropout": 0.0,
                    "max_positions": 127,
                },
            },
            "train": {"steps": 20_000, "batch_tokens": 8192, "optimizer": {"weight_decay": 0.01}},
        },
    )

    automatic = Automatic(
        {
            "data": {"max_length": 125},  # two texts need one token more than one text
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
            "model": {
                "encoder": {
                    "layers": 4, "width": 256, "heads": 4, "feedforward": 1024, "attention_dropout": 0.0,
                    "max_positions": 127,
                }
            },
        },
        "model: a small BERT of 4 layers of 256 over 8,000 sub-words, for classify or tag to start from",
    )  # fmt: skip

    def example_format(self, config: Config) -> ExampleFormat:
        return MaskedTextFormat(config.data.max_length, getattr(config.model, "next_sentence", False))

    def collator(self, config: Config, source: SourceReader) -> Collator:
        """Padded token rows; batches are sized by the tokens that are predicted."""
        return Collator(loss_terms=predicted_tokens(config))

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        model: nn.Module = MODELS[type(config.model)](config.model, len(source))
        return model

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        """Loss and accuracy on the same masked tokens at every validation."""
        return MaskedLMValidator(corpus, device)
