"""How many targets a non-autoregressive model cannot output at all: they contribute no loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import Corpus
from dragoman.models.contracts import NonAutoregressiveModel
from dragoman.models.transcriber import Transcriber
from dragoman.tasks.config import Config

EXAMINED_BATCHES = 200  # random batches whose target lengths are checked
MOST = 0.5  # with a larger share out of reach a model learns from the minority alone: an error
MANY = 0.01  # a smaller share is not worth a warning


class Reach(NamedTuple):
    """The targets that were examined, and those that the model cannot output."""

    examined: int
    too_long: int
    advice: str

    @property
    def share(self) -> float:
        """The share of targets out of reach."""
        return self.too_long / max(1, self.examined)

    def __str__(self) -> str:
        return f"{self.too_long:,} of {self.examined:,} targets ({self.share:.1%}) are too long to be written at all"


@torch.no_grad()
def measure_reach(config: Config, model: nn.Module, corpus: Corpus) -> Reach | None:
    """Examine random batches of the training data; None for a model that can output any target."""
    if not isinstance(model, NonAutoregressiveModel):
        return None
    plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed, collator=corpus.collator)
    epoch = plan.epoch(0)
    batches = [epoch[number] for number in range(min(EXAMINED_BATCHES, len(epoch)))]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    reached = sum(int(model.reachable(read_batch(corpus.train, rows, plan).to(device)).sum()) for rows in batches)
    count = sum(len(rows) for rows in batches)
    advice = (
        "raise model.upsample, lower model.encoder.subsampling, or take larger units for the target"
        if isinstance(model, Transcriber)
        else "raise model.alignment.upsample (or model.alignment.max_length), or take smaller units for the source "
        "than for the target"
    )
    return Reach(count, count - reached, advice)
