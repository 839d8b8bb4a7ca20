"""Validation of language models: the likelihood of the whole validation text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dragoman.data.bptt import BpttPlan, OverlappingBpttPlan, TokenStream
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizers.base import PAD
from dragoman.scoring.perplexity import TextLikelihood, TextSize, text_size
from dragoman.training.validation.result import ValidationResult


class LanguageModelValidator:
    """Scores a language model on the validation part of a corpus."""

    def __init__(self, corpus: Corpus, segment: int, device: torch.device) -> None:
        self.device = device
        self.plan = OverlappingBpttPlan(TokenStream(corpus.valid.target), segment)
        with corpus.valid_texts.open(encoding="utf-8") as file:
            self.size = text_size(json.loads(line)["references"][0] for line in file)

    @torch.no_grad()
    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        model.eval()
        found = text_likelihood(model, self.plan, self.size, self.device, interrupted)
        if found is None:
            return None
        likelihood, accuracy = found
        return ValidationResult({**likelihood.scores(), "token_accuracy": accuracy})


@torch.no_grad()
def text_likelihood(
    model: Any,  # a LanguageModel in evaluation mode
    plan: BpttPlan,  # not shuffled, so that every token is predicted once
    size: TextSize,
    device: torch.device,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    rows: int = 64,
    progress: Callable[[int], None] = lambda tokens: None,
) -> tuple[TextLikelihood, float] | None:
    """The likelihood of the whole text, with the state carried over segments, and the accuracy; None if interrupted.

    `rows` streams are read at once, which changes time and memory but no result.
    """
    assert plan.skipped == 0, "a shuffled plan leaves tokens out"
    nats = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.long, device=device)
    for first in range(0, plan.streams, rows):
        streams = slice(first, min(first + rows, plan.streams))
        carried = model.empty_carry(streams.stop - first)
        for segment in plan.epoch(0, streams):
            if interrupted():
                return None
            scores = model.score(replace(segment.to(device), carried=carried))
            nats -= scores.log_probabilities.sum(dtype=torch.float64)
            correct += scores.correct.sum()
            progress(int((segment.target != PAD).sum()))
    return TextLikelihood(float(nats), plan.count, size), int(correct) / max(1, plan.count)
