"""How well a model knows what is hidden from it: every validation hides the same tokens (FIELD A6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import Corpus
from dragoman.decoding.fill_mask import hidden_scores
from dragoman.training.validation.result import ValidationResult


class MaskedLMValidator:
    """Measures a model that tells hidden tokens on the validation part of a corpus."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self.device = corpus, device
        self.plan = BatchPlan(corpus.valid, budget=4096, seed=0, collator=corpus.collator)

    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """All scores of a model; None if interrupted."""
        model.eval()
        epoch = self.plan.epoch(0)
        places = range(len(epoch))
        batches = (
            read_batch(self.corpus.valid, epoch[place], collator=self.corpus.collator).to(self.device)
            for place in places
        )
        found = hidden_scores(model, batches, interrupted)
        return None if found is None else ValidationResult(found)
