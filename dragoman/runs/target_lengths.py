"""How many targets are too long for a non-autoregressive model to output at all: they contribute no loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import Corpus
from dragoman.errors import RunError
from dragoman.models.contracts import decodes
from dragoman.tasks.config import Config

EXAMINED_BATCHES = 200  # random batches whose target lengths are checked
MOST = 0.5  # with a larger share too long, a model learns from the minority alone: an error
MANY = 0.01  # a smaller share is not worth a warning


class TargetLengths(NamedTuple):
    """The targets that were examined, and those that are too long."""

    examined: int
    too_long: int
    advice: str

    @property
    def share(self) -> float:
        return self.too_long / max(1, self.examined)

    def __str__(self) -> str:
        return f"{self.too_long:,} of {self.examined:,} targets ({self.share:.1%}) are too long to be written at all"


@torch.no_grad()
def measure_target_lengths(config: Config, model: Any, corpus: Corpus) -> TargetLengths | None:
    """Examine random batches of the training data; None for a model that can output any target.

    RunError if the model can output none of them.
    """
    if decodes(model) != "parallel":
        return None
    plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed, collator=corpus.collator)
    epoch = plan.epoch(0)
    batches = [epoch[number] for number in range(min(EXAMINED_BATCHES, len(epoch)))]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    possible = sum(int(model.reachable(read_batch(corpus.train, rows, plan).to(device)).sum()) for rows in batches)
    count = sum(len(rows) for rows in batches)
    if not possible:
        raise RunError(f"no target can be written: {model.length_advice}")
    return TargetLengths(count, count - possible, model.length_advice)


def target_length_warning(config: Config, model: nn.Module, corpus: Corpus) -> Iterator[str]:
    """A warning of targets that the model never learns from, because it cannot output them."""
    lengths = measure_target_lengths(config, model.eval(), corpus)
    if lengths is not None and lengths.share > MANY:
        yield f"{lengths}, so the model never learns from them; {lengths.advice}"
