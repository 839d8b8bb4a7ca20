"""Validation of classifiers, regressors and taggers: loss and every metric of the task, on all validation examples."""

from __future__ import annotations

import json
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from dragoman.base import ConfigError
from dragoman.data import Corpus, read_batch
from dragoman.data.tokenizers import LabelVocabulary
from dragoman.decoding import HeadDecoder
from dragoman.scoring import applicable, metrics_for, score_labels
from dragoman.training.validation.result import Check, ValidationResult, Validator, validation_batches

FIRST = np.zeros(1, dtype=np.int64)  # the first row of a store
MAX_TEXTS_READ = 100  # to find the text of the first stored row


class LabelValidator(Validator):
    """Scores a model that predicts labels, numbers or tags on the validation part of a corpus."""

    def __init__(self, corpus: Corpus, head_decoder: HeadDecoder, metric: str, device: torch.device) -> None:
        self.corpus, self.head_decoder, self.device = corpus, head_decoder, device
        self.tokenizer = corpus.target_tokenizer
        self.labels = self.tokenizer.names if isinstance(self.tokenizer, LabelVocabulary) else ()
        self.metrics = metrics_for(head_decoder.outputs)
        if metric == "loss":
            return
        references = [
            reference
            for batch in validation_batches(corpus)
            for reference in head_decoder.references(batch, self.tokenizer)
        ]
        possible = applicable(self.metrics, references, references, self.labels)
        if metric not in possible:
            raise ConfigError(
                f"train.metric: found '{metric}', which these targets do not have; expected loss, {', '.join(possible)}"
            )

    def result(self, model: Any, check: Check) -> ValidationResult:
        total, count = 0.0, 0
        predictions: list[Any] = []
        expected: list[Any] = []
        for batch in validation_batches(self.corpus):
            check()
            expected += self.head_decoder.references(batch, self.tokenizer)
            batch = batch.to(self.device)
            loss = model(batch)
            total, count = total + float(loss.total), count + int(loss.count)
            predictions += [answer.value for answer in self.head_decoder.decode(model, batch, self.tokenizer)]
        scores = score_labels(self.metrics, predictions, expected, labels=self.labels)
        return ValidationResult({"loss": total / count, **scores}, *self._sample(model))

    def _sample(self, model: Any) -> tuple[tuple[str, str], tuple[str, ...]]:
        """The first text with its answer, and the right answer where that is a text."""
        batch = read_batch(self.corpus.valid, FIRST, collator=self.corpus.collator)
        (expected,) = self.head_decoder.references(batch, self.tokenizer)
        answer = self.head_decoder.decode(model, batch.to(self.device), self.tokenizer)[0]
        if self.head_decoder.outputs not in ("labels", "tags"):
            return (self._first_text, answer.text), ()
        return (self._first_text, answer.text), (expected if isinstance(expected, str) else " ".join(expected),)

    @cached_property
    def _first_text(self) -> str:
        """The text of the first row as it was written, unknown words and all; else what its tokens say."""
        if self.corpus.source_tokenizer.reads_files:
            return str(self.corpus.valid.source.path(0))
        row, tokenizer = self.corpus.valid.source.rows(FIRST)[0].tolist(), self.corpus.source_tokenizer
        with self.corpus.valid_texts.open(encoding="utf-8") as file:
            for line in islice(file, MAX_TEXTS_READ):  # of which the first may have been left out
                text: str = json.loads(line)["source"]
                if tokenizer.encode(text) == row:
                    return text
        return tokenizer.decode(row)
