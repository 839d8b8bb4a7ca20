"""The base class of whole models: what most of them answer to the trainer."""

from __future__ import annotations

from torch import nn


class BaseModel(nn.Module):
    """Defaults of `contracts.TrainableModel`; a model overrides those that differ."""

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can write; None: no limit."""
        return None

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients."""
        return False

    @property
    def graph_blockers(self) -> list[str]:
        """Reasons why a training step cannot be captured as a CUDA graph."""
        return []

    def set_step(self, step: int) -> None:
        """Ignore the step: most models have no schedule inside."""
