"""Validation of sequence-to-sequence models: loss, perplexity, token accuracy, and text metrics on decoded inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

import torch

from dragoman.data import PAIR_COLLATOR, Corpus, batches_by_length
from dragoman.data.tokenizers import split_tag
from dragoman.decoding import SearchConfig, search
from dragoman.models.kernels import wide
from dragoman.scoring import EVALUATION_DEFAULTS, Units, metrics_for, score_table
from dragoman.training.validation.result import Check, ValidationResult, Validator, validation_batches


def rows_to_decode(rows: Iterable[dict[str, Any]], tags: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The first `limit` rows; with language tags, equally many rows of each tag in turn."""
    if not tags:
        return list(islice(rows, limit))
    by_tag: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        same_tag = by_tag.setdefault(split_tag(row["source"], tags)[0], [])
        if len(same_tag) < limit:
            same_tag.append(row)
    interleaved = (row for group in zip_longest(*by_tag.values()) for row in group if row is not None)
    return list(islice(interleaved, limit))


def with_all_references(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A source with several different targets as one row with all of them as references, at its first place."""
    kept = list(rows)
    references: dict[str, list[str]] = {}
    for row in kept:
        known = references.setdefault(row["source"], [])
        known += [text for text in dict.fromkeys(row["references"]) if text not in known]
    # Sources of rows with different references; equal rows stay.
    several = {row["source"] for row in kept if {*row["references"]} < {*references[row["source"]]}}
    done: set[str] = set()
    for row in kept:
        source = row["source"]
        if source not in several:
            yield row
        elif source not in done:
            done.add(source)
            yield row | {"references": references[source]}


class Seq2SeqValidator(Validator):
    """Scores a model on the validation part of a corpus."""

    def __init__(
        self,
        corpus: Corpus,
        search: SearchConfig,
        decode: int,
        device: torch.device,
        units: str = "words",
        metric: str = "loss",
    ) -> None:
        self.corpus, self.device = corpus, device
        self.units: Units = "phonemes" if units == "phonemes" else "words"
        # The metric that selects the best weights, besides those that every run reports.
        defaults = EVALUATION_DEFAULTS[self.units]
        self.names = (*defaults, *({metric} & metrics_for(self.units).keys() - {*defaults}))
        self.search = replace(search, beam=1)
        frames = corpus.collator != PAIR_COLLATOR  # media have many more frames than texts have tokens
        self.budget, self.rows = (32768, 64) if frames else (4096, 256)
        with corpus.valid_texts.open(encoding="utf-8") as file:
            rows = rows_to_decode(with_all_references(map(json.loads, file)), corpus.source_tokenizer.tags, decode)
        sources = corpus.codec.encode_sources([row["source"] for row in rows])
        # The stores hold no text longer than data.max_length; the model may be unable to read longer ones.
        longest = max(int(store.source.lengths().max(initial=0)) for store in (corpus.train, corpus.valid))
        usable = [index for index, source in enumerate(sources) if len(source) <= longest]
        self.texts = [rows[index]["source"] for index in usable]
        self.references = [rows[index]["references"] for index in usable]
        self.sources = [sources[index] for index in usable]

    def result(self, model: Any, check: Check) -> ValidationResult:
        scores = self.likelihood(model, check)
        if not self.sources:
            return ValidationResult(scores)
        outputs: list[str] = [""] * len(self.sources)
        ratio = self.corpus.report["length_ratio"]
        for indices, batch in batches_by_length(self.sources, self.rows, self.corpus.collator):
            hypotheses = search(model, batch.to(self.device), self.search, ratio)
            for index, (best, *_) in zip(indices, hypotheses, strict=True):
                outputs[index] = self.corpus.codec.target_of(self.texts[index]).decode(best.tokens)
                check()
        decoded = score_table(outputs, self.references, self.names, units=self.units)
        scores |= {name: decoded[name] for name in self.names}
        return ValidationResult(scores, (self.texts[0], outputs[0]), tuple(self.references[0]))

    def likelihood(self, model: Any, check: Check) -> dict[str, float]:
        """Loss, perplexity and token accuracy, as far as the model has them."""
        total, correct, count = 0.0, 0, 0
        known = model.likelihood
        if known == "none":
            return {}
        for batch in validation_batches(self.corpus, self.budget):
            check()
            scores = model.score(batch.to(self.device))
            total -= float(scores.log_probabilities.sum(dtype=wide(self.device)))
            correct += int(scores.correct.sum())
            count += int(scores.mask.sum())
        loss = total / count if count else math.inf  # the model can produce none of the targets
        results = {"loss": loss, "perplexity": math.exp(min(loss, 700))}
        return results | ({"token_accuracy": correct / max(1, count)} if known == "tokens" else {})
