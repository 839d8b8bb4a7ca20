"""Validation: the scores of a model on validation data, of each kind of task."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.base import Abandoned, ConfigError, write_text
from dragoman.data import (
    PAIR_COLLATOR,
    Batch,
    BatchPlan,
    BpttPlan,
    Corpus,
    OverlappingBpttPlan,
    batches_by_length,
    read_batch,
)
from dragoman.data.tokenizers import PAD, LabelVocabulary, split_tag
from dragoman.decoding import HeadDecoder, SearchConfig, search
from dragoman.models.kernels import wide
from dragoman.scoring import (
    EVALUATION_DEFAULTS,
    TextLikelihood,
    TextSize,
    Units,
    applicable,
    metrics_by_name,
    metrics_for,
    score_labels,
    score_table,
    text_size,
)

SENTENCES = frozenset({"bleu", "chrf"})
SHOWN = (frozenset({"per", "wer"}), frozenset({"cer", "exact_match"}), frozenset({"wer", "cer"}), SENTENCES)
GENERAL = ("loss", "bleu", "chrf", "accuracy", "perplexity")  # of general text, the first three that a task has
Check = Callable[[], None]  # called for each batch; raises Abandoned if training is to stop


def no_check() -> None:
    """For measurements that nothing interrupts."""


@dataclass(frozen=True)
class ValidationResult:
    """Scores of the model at one step."""

    scores: dict[str, float]
    sample: tuple[str, str] | None = None  # an input and the model's output
    references: tuple[str, ...] = ()  # of the sample

    def line(self, metric: str = "loss") -> str:
        """The scores that matter for the task as one line; metrics.jsonl has all of them.

        `metric` selects the best weights. The error rates of characters and whole outputs go with short outputs, BLEU
        and chrF with sentences.
        """
        metrics = metrics_by_name()
        beside = next((names for names in SHOWN if metric in names and names <= self.scores.keys()), SENTENCES)
        if not beside & self.scores.keys():  # labels, numbers, language models: the first are the usual ones
            beside = frozenset(list(self.scores)[:3])
        shown = [name for name in self.scores if name in {"loss", metric, *beside}]
        return "  ".join(f"{name} {metrics[name].format(self.scores[name])}" for name in shown)

    def sample_line(self) -> str:
        """The sample with its reference, where the output differs from it; empty without a sample."""
        if self.sample is None:
            return ""
        source, output = self.sample
        if not self.references:
            return f"  e.g. {source}  →  {output}"
        right = output in self.references
        return f"  e.g. {source}  →  {output}  {'✓' if right else f'✗  reference: {self.references[0]}'}"


class Validator:
    """Scores a model on the validation data."""

    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """All scores of a model; None if `interrupted` became true on the way."""

        def check() -> None:
            if interrupted():
                raise Abandoned

        model.eval()
        with torch.no_grad(), suppress(Abandoned):
            return self.result(model, check)
        return None

    def result(self, model: Any, check: Check) -> ValidationResult:
        """The scores of a model in evaluation mode; calls `check` once per batch."""
        raise NotImplementedError


class GeneralText:
    """Scores of general text before and during fine-tuning: they show what a model forgets."""

    def __init__(self, validator: Validator, run: Path) -> None:
        self.validator, self.path = validator, run / "general.json"  # the scores before training
        self.before: dict[str, float] = {}

    def start(self, model: Any, step: int) -> str:
        """Measure the weights that training starts with, or read what a run that resumes measured; a line to show."""
        if step == 0 and (result := self.validator.measure(model)) is not None:
            self.before = result.scores
            write_text(self.path, json.dumps(self.before, indent=2))
            return f"general text before training  {result.line()}"
        with suppress(OSError, ValueError, TypeError, AttributeError):
            scores = json.loads(self.path.read_text(encoding="utf-8"))
            self.before = {str(name): float(score) for name, score in scores.items()}
        return ""

    def line(self, result: ValidationResult) -> str:
        """The scores now, each with that before training."""
        metrics, parts = metrics_by_name(), []
        for name in ([name for name in GENERAL if name in result.scores] or list(result.scores))[:3]:
            before = f" (before {metrics[name].format(self.before[name])})" if name in self.before else ""
            parts.append(f"{name} {metrics[name].format(result.scores[name])}{before}")
        return f"general text  {'  '.join(parts)}"


def validation_batches(corpus: Corpus, budget: int = 4096) -> Iterator[Batch]:
    """All validation examples, in the same batches at every validation."""
    epoch = BatchPlan(corpus.valid, budget, seed=0, collator=corpus.collator).epoch(0)
    for index in range(len(epoch)):
        yield read_batch(corpus.valid, epoch[index], collator=corpus.collator)


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


class LanguageModelValidator(Validator):
    """Scores a language model on the whole validation text."""

    def __init__(self, corpus: Corpus, segment: int, device: torch.device) -> None:
        self.device = device
        self.plan = OverlappingBpttPlan(corpus.valid.target, segment)
        with corpus.valid_texts.open(encoding="utf-8") as file:
            self.size = text_size(json.loads(line)["references"][0] for line in file)

    def result(self, model: Any, check: Check) -> ValidationResult:
        likelihood, accuracy = text_likelihood(model, self.plan, self.size, self.device, check)
        return ValidationResult({**likelihood.scores(), "token_accuracy": accuracy})


@torch.no_grad()
def text_likelihood(
    model: Any,  # a LanguageModel in evaluation mode
    plan: BpttPlan,  # not shuffled, so that every token is predicted once
    size: TextSize,
    device: torch.device,
    check: Check = no_check,
    *,
    rows: int = 64,
    progress: Callable[[int], None] = lambda tokens: None,
) -> tuple[TextLikelihood, float]:
    """The likelihood of the whole text, with the state carried over segments, and the accuracy.

    `rows` streams are read at once, which changes time and memory but no result.
    """
    assert plan.skipped == 0, "a shuffled plan leaves tokens out"
    nats = torch.zeros((), dtype=wide(device), device=device)
    correct = torch.zeros((), dtype=torch.long, device=device)
    for first in range(0, plan.streams, rows):
        streams = slice(first, min(first + rows, plan.streams))
        carried = model.empty_carry(streams.stop - first)
        for segment in plan.epoch(0, streams):
            check()
            scores = model.score(replace(segment.to(device), carried=carried))
            nats -= scores.log_probabilities.sum(dtype=nats.dtype)
            correct += scores.correct.sum()
            progress(int((segment.target != PAD).sum()))
    return TextLikelihood(float(nats), plan.count, size), int(correct) / max(1, plan.count)


class MaskedLMValidator(Validator):
    """Scores a masked language model; every validation masks the same tokens."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self.device = corpus, device

    def result(self, model: Any, check: Check) -> ValidationResult:
        batches = (batch.to(self.device) for batch in validation_batches(self.corpus))
        return ValidationResult(masked_lm_scores(model, batches, check))


@torch.no_grad()
def masked_lm_scores(model: Any, batches: Iterable[Batch], check: Check = no_check) -> dict[str, float]:
    """Loss per masked token, accuracy and pseudo-perplexity, of text pairs also their accuracy."""
    total, pair_loss, correct, count, correct_pairs, pairs = 0.0, 0.0, 0, 0, 0, 0
    has_pairs = getattr(model.config, "next_sentence", False)
    for batch in batches:
        check()
        if has_pairs:
            scores, loss, right = model.score_pairs(batch)
            pair_loss, correct_pairs = pair_loss + float(loss), correct_pairs + int(right)
            pairs += len(batch.source)
        else:
            scores = model.score(batch)
        total -= float(scores.log_probabilities.sum(dtype=wide(scores.log_probabilities.device)))
        correct += int(scores.correct.sum())
        count += int(scores.mask.sum())
    results = {
        "loss": (total + pair_loss) / count,
        "accuracy": correct / count,
        "pseudo_perplexity": math.exp(min(total / count, 700)),
    }
    return results | ({"pair_accuracy": correct_pairs / pairs} if has_pairs else {})


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
