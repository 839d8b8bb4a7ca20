"""Validation of language models: the likelihood of running text, and that of masked tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from dragoman.data import Batch, BpttPlan, Corpus, OverlappingBpttPlan
from dragoman.data.tokenizers import PAD
from dragoman.models.kernels import wide
from dragoman.scoring import TextLikelihood, TextSize, text_size
from dragoman.training.validation.result import Check, ValidationResult, Validator, no_check, validation_batches


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
