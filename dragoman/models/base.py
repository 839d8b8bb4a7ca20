"""The base class of whole models: what most of them answer to the trainer."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from dragoman.models.contracts import Decodes, Likelihood


class BaseModel(nn.Module):
    """Defaults of `contracts.TrainableModel`; a model overrides those that differ."""

    likelihood: ClassVar[Likelihood] = "tokens"
    decodes: ClassVar[Decodes] = "none"
    steps_in_graphs: ClassVar[bool] = False  # its decoding steps may be captured as CUDA graphs; it has a `decoder`

    @property
    def max_positions(self) -> int | None:
        return None

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients."""
        return False

    @property
    def graph_blockers(self) -> list[str]:
        """Those of its encoders and decoders."""
        parts = (part for part in self.modules() if part is not self)
        return [reason for part in parts for reason in getattr(part, "graph_blockers", ())]

    def positions(self, source: int, target: int) -> int:
        """How many positions a training step computes for rows of these lengths."""
        return target

    def set_step(self, step: int) -> None:
        """Ignore the step: most models have no schedule inside."""
