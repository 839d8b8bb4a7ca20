"""Validation of masked language models; every validation masks the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dragoman.data.batch import Batch
from dragoman.data.corpus import Corpus
from dragoman.training.validation.result import ValidationResult, validation_batches


class MaskedLMValidator:
    """Scores a masked language model on the validation part of a corpus."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self.device = corpus, device

    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        model.eval()
        batches = (batch.to(self.device) for batch in validation_batches(self.corpus))
        scores = masked_lm_scores(model, batches, interrupted)
        return None if scores is None else ValidationResult(scores)


@torch.no_grad()
def masked_lm_scores(
    model: Any, batches: Iterable[Batch], interrupted: Callable[[], bool] = lambda: False
) -> dict[str, float] | None:
    """Loss per masked token, accuracy and pseudo-perplexity, of text pairs also their accuracy; None if interrupted."""
    total, pair_loss, correct, count, correct_pairs, pairs = 0.0, 0.0, 0, 0, 0, 0
    has_pairs = getattr(model.config, "next_sentence", False)
    for batch in batches:
        if interrupted():
            return None
        if has_pairs:
            scores, loss, right = model.score_pairs(batch)
            pair_loss, correct_pairs = pair_loss + float(loss), correct_pairs + int(right)
            pairs += len(batch.source)
        else:
            scores = model.score(batch)
        total -= float(scores.log_probabilities.sum(dtype=torch.float64))
        correct += int(scores.correct.sum())
        count += int(scores.mask.sum())
    results = {
        "loss": (total + pair_loss) / count,
        "accuracy": correct / count,
        "pseudo_perplexity": math.exp(min(total / count, 700)),
    }
    return results | ({"pair_accuracy": correct_pairs / pairs} if has_pairs else {})
