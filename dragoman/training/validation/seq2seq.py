"""How good the weights are: loss, perplexity and token accuracy, and text metrics on a decoded part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

import torch

from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.collate import PAIR_COLLATOR, batches_by_length
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizers.language_tags import split_tag
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.search import search
from dragoman.scoring.metric import Units
from dragoman.scoring.registry import EVALUATION_DEFAULTS, metrics_for
from dragoman.scoring.report import score_table
from dragoman.training.validation.result import ValidationResult


def decoded_rows(rows: Iterable[dict[str, Any]], tags: Sequence[str], most: int) -> list[dict[str, Any]]:
    """The first rows, and of every tag as many: a file of one language may stand before those of the others."""
    if not tags:
        return list(islice(rows, most))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        same = found.setdefault(split_tag(row["source"], tags)[0], [])
        if len(same) < most:
            same.append(row)
    in_turn = (row for turn in zip_longest(*found.values()) for row in turn if row is not None)
    return list(islice(in_turn, most))


class Seq2SeqValidator:
    """Measures a model on the validation part of a corpus."""

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
        # Whatever chooses the best weights is measured, besides what every run tells.
        defaults = EVALUATION_DEFAULTS[self.units]
        self.names = (*defaults, *({metric} & metrics_for(self.units).keys() - {*defaults}))
        self.search = replace(search, beam=1)
        frames = corpus.collator != PAIR_COLLATOR  # of which there are many more than tokens
        self.plan = BatchPlan(corpus.valid, budget=32768 if frames else 4096, seed=0, collator=corpus.collator)
        self.rows = 64 if frames else 256
        with corpus.valid_texts.open(encoding="utf-8") as file:
            rows = decoded_rows(map(json.loads, file), corpus.source_tokenizer.tags, decode)
        sources = corpus.source_tokenizer.encode_batch([row["source"] for row in rows])
        # Texts longer than data.max_length are in no store, and more than the model may be able to read.
        longest = max(int(store.source.lengths().max(initial=0)) for store in (corpus.train, corpus.valid))
        kept = [place for place, source in enumerate(sources) if len(source) <= longest]
        self.texts = [rows[place]["source"] for place in kept]
        self.references = [rows[place]["references"] for place in kept]
        self.sources = [sources[place] for place in kept]

    @torch.no_grad()
    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """All scores of a model; None if interrupted."""
        model.eval()
        total, correct, count = 0.0, 0, 0
        epoch = self.plan.epoch(0)
        for place in range(len(epoch)):
            if interrupted():
                return None
            scores = model.score(
                read_batch(self.corpus.valid, epoch[place], collator=self.corpus.collator).to(self.device)
            )
            total -= float(scores.log_probabilities.sum(dtype=torch.float64))
            correct += int(scores.correct.sum())
            count += int(scores.mask.sum())
        loss = total / count if count else math.inf  # not one target that the model could write
        found = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "token_accuracy": correct / max(1, count)}
        if not self.sources:
            return ValidationResult(found)
        written: list[str] = [""] * len(self.sources)
        ratio = self.corpus.report["length_ratio"]
        for indices, batch in batches_by_length(self.sources, self.rows, self.corpus.collator):
            hypotheses = search(model, batch.to(self.device), self.search, ratio)
            for index, (best, *_) in zip(indices, hypotheses, strict=True):
                written[index] = self.corpus.target_tokenizer.decode(best.tokens)
                if interrupted():
                    return None
        scores = score_table(written, self.references, self.names, units=self.units)
        found |= {name: scores[name] for name in self.names}
        return ValidationResult(found, (self.texts[0], written[0]))
