"""How good the weights of a language model are: the likelihood of the whole validation text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from dragoman.data.bptt import OverlappingBpttPlan, TokenStream
from dragoman.data.corpus import Corpus
from dragoman.decoding.likelihood import text_likelihood
from dragoman.scoring.perplexity import text_size
from dragoman.training.validation.result import ValidationResult


class LanguageModelValidator:
    """Measures a language model on the validation part of a corpus."""

    def __init__(self, corpus: Corpus, segment: int, device: torch.device) -> None:
        self.device = device
        self.plan = OverlappingBpttPlan(TokenStream(corpus.valid.target), segment)
        with corpus.valid_texts.open(encoding="utf-8") as file:
            self.size = text_size(json.loads(line)["references"][0] for line in file)

    @torch.no_grad()
    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """All scores of a model; None if interrupted."""
        model.eval()
        found = text_likelihood(model, self.plan, self.size, self.device, interrupted)
        if found is None:
            return None
        likelihood, accuracy = found
        return ValidationResult({**likelihood.scores(), "token_accuracy": accuracy})
