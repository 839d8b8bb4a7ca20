"""Token-level knowledge distillation: learn the distributions of trained models at every target position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dragoman.base.config import Range, Share, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.decoding import Ensemble
from dragoman.models import Loss
from dragoman.training.objectives.base import Objective
from dragoman.training.objectives.consistency import ConsistencyConfig


@dataclass(frozen=True)
class TokenDistillationConfig(ConsistencyConfig):
    """Token-level distillation (Kim and Rush 2016): the mean distribution of trained runs is the target."""

    kind: ClassVar[str] = "token-distillation"
    includes: ClassVar[str] = "the divergence from the teachers"
    teachers: tuple[str, ...] = setting(
        (), help="run folders whose probabilities are averaged; of an ensemble all members. Same vocabularies"
    )
    share: Share = setting(0.5, help="λ: share of the divergence from the teachers; the rest is the likelihood")
    temperature: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        1.0, help="τ: both distributions are p^(1/τ), normalised; above 1 unlikely tokens count more"
    )

    @property
    def runs(self) -> tuple[str, ...]:
        return self.teachers

    @property
    def memory_factor(self) -> int:
        return 1  # the teachers keep no activations

    def problems(self) -> Iterator[str]:
        if not self.teachers:
            yield 'teachers: found none, expected at least one run folder, as in ["runs/five"]'


class TaughtBatch(NamedTuple):
    """A batch and the teachers' log-probabilities at its target positions."""

    batch: Batch
    taught: Tensor  # (B, T, V)


class TokenDistillation(Objective):
    """(1 − λ) CE + λ τ² KL(q‖p), summed over target tokens; q is the mean of the teachers, p the student.

    τ² keeps the gradients as large as without a temperature (Hinton et al. 2015). The teachers read the same tokens as
    the student, without dropout, so a step depends on nothing but the batch and resumes exactly.
    """

    ensemble: Ensemble | None = None

    def set_teachers(self, models: Sequence[Any]) -> None:
        for model in models:
            model.requires_grad_(False).eval()
        self.ensemble = Ensemble(models)

    @torch.no_grad()
    def prepare(self, model: Any, batch: Batch) -> TaughtBatch:
        assert self.ensemble is not None, "`set_teachers` comes first"
        return TaughtBatch(batch, self.ensemble.logits(batch))

    def loss(self, model: Any, batch: TaughtBatch) -> Loss:
        pairs, taught = batch
        losses, scores = model.scored_losses(pairs)
        words = min(scores.shape[-1], taught.shape[-1])  # one of both may copy unknown words
        share, temperature = self.config.share, self.config.temperature
        q, p = ((each[..., :words] / temperature).log_softmax(-1) for each in (taught, scores))
        real = pairs.target != PAD
        # A pointer or transducer rules tokens out: 0 · −∞ counts nothing, and −∞ of the student alone is bounded.
        divergence = (q.exp() * (q - p.clamp(min=-100.0)).masked_fill(q.isneginf(), 0.0)).sum(-1)
        total = (1 - share) * losses.sum() + share * temperature**2 * (divergence * real).sum()
        return Loss(total, real.sum())
