"""Consistency training: two passes over the same pairs should predict the same (R-Drop, SimCut).

Both passes are one call of the model with every row twice, so that a step stays one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from dragoman.base.config import Range, Share, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models import EncoderDecoderConfig, Loss
from dragoman.models.heads import teacher_inputs
from dragoman.training.objectives.base import Objective, ObjectiveConfig

Weight = Annotated[float, Range(0.0, None)]
WARMUP = "steps over which the weight rises from 0: a model that knows nothing agrees with itself best"


def encoder_decoder_conflicts(kind: str, activity: str, config: Any) -> Iterator[str]:
    """Errors of a run whose model is no encoder-decoder with the full softmax under teacher forcing."""
    model = config.model
    if not isinstance(model, EncoderDecoderConfig):
        yield (
            f'train.objective: "{kind}" {activity}, expected model.kind = "{EncoderDecoderConfig.kind}"; found '
            f'"{model.kind}" with {config.task_setting}'
        )
        return
    for name, choice in (("forcing", model.forcing), ("softmax", model.softmax)):
        if choice.kind not in ("teacher", "full"):
            yield f"model.{name}: found {choice.kind!r}, which {kind} training does not use; leave it out"


@dataclass(frozen=True)
class ConsistencyConfig(ObjectiveConfig):
    """What both objectives have in common."""

    includes: ClassVar[str] = "the divergence of two passes"

    @property
    def memory_factor(self) -> int:
        return 2

    def conflicts(self, config: Any) -> Iterator[str]:
        yield from encoder_decoder_conflicts(self.kind, "compares the distributions of target tokens", config)
        if isinstance(config.model, EncoderDecoderConfig) and config.model.truncate:
            yield f"model.truncate: found {config.model.truncate}, expected 0 with {self.kind} training"


@dataclass(frozen=True)
class RDropConfig(ConsistencyConfig):
    """R-Drop (Wu et al. 2021): two dropout masks give like distributions. A step takes twice the time."""

    kind: ClassVar[str] = "r-drop"
    weight: Weight = setting(5.0, help="α: weight of the divergence of both passes beside the two likelihoods")
    warmup: Annotated[int, Range(0, None)] = setting(0, help=WARMUP)


@dataclass(frozen=True)
class SimCutConfig(ConsistencyConfig):
    """SimCut (Gao et al. 2022): inputs with hidden tokens give like distributions. A step takes twice the time."""

    kind: ClassVar[str] = "simcut"
    weight: Weight = setting(3.0, help="α: weight of the divergence from the pass over hidden tokens")
    cut: Share = setting(0.05, help="share of the tokens that one pass does not see, on both sides")
    warmup: Annotated[int, Range(0, None)] = setting(0, help=WARMUP)


def twice(batch: Batch) -> Batch:
    """Every row a second time, after all others."""
    return batch.map(lambda rows: torch.cat([rows, rows]))


class Consistency(Objective):
    """An objective whose second term has a weight that may rise with the steps."""

    _share: Tensor | None = None  # of the weight; one tensor for all steps, so that CUDA graphs read the new value

    def set_step(self, step: int, device: torch.device) -> None:
        if self.config.warmup:
            self._share = torch.zeros((), device=device) if self._share is None else self._share
            self._share.fill_(min(1.0, step / self.config.warmup))

    def weighted(self, divergence: Tensor) -> Tensor:
        weight: float = self.config.weight
        return weight * divergence if self._share is None else weight * self._share * divergence


class RDrop(Consistency):
    """½ (CE₁ + CE₂) + α/4 (KL(p₁‖p₂) + KL(p₂‖p₁)), summed over target tokens.

    This is half of equation 4 of the paper: a loss per token is as large as under maximum likelihood, and so are the
    learning rates that suit it.
    """

    def loss(self, model: Any, batch: Batch) -> Loss:
        losses, scores = model.scored_losses(twice(batch))
        first, second = scores.chunk(2)  # (B, T, V)
        real = batch.target != PAD
        both = ((first.exp() - second.exp()) * (first - second)).sum(-1)  # KL(p₁‖p₂) + KL(p₂‖p₁)
        return Loss(losses.sum() / 2 + self.weighted((both * real).sum()) / 4, real.sum())


class SimCut(Consistency):
    """CE + α KL(p‖p_cut), summed over target tokens; gradients pass through both distributions.

    A hidden token is read as <unk>, whose embedding is learned; the paper reads zeros. A pointer still copies the true
    token.
    """

    def loss(self, model: Any, batch: Batch) -> Loss:
        sources, inputs = batch.source.data, teacher_inputs(batch.target)
        read = (
            with_hidden(sources, model.source_dropout, self.config.cut),
            with_hidden(inputs, model.target_dropout, self.config.cut),
        )
        losses, scores = model.scored_losses(twice(batch), read)
        first, second = scores.chunk(2)  # (B, T, V)
        real = batch.target != PAD
        divergence = (first.exp() * (first - second)).sum(-1)
        total = losses.chunk(2)[0].sum() + self.weighted((divergence * real).sum())
        return Loss(total, real.sum())


def with_hidden(tokens: Tensor, dropout: Any, share: float) -> Tensor:
    """The rows (B, S) as they are, then with hidden tokens: (2B, S)."""
    return torch.cat([tokens, dropout.hide(tokens, share)])
