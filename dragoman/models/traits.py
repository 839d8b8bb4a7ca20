"""What the trainer, a validator and a search ask of every model, whatever computes it. Nothing here imports torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

# What `score` can say of a given target: nothing, the probability of the whole, or one for every token.
Likelihood = Literal["none", "sequence", "tokens"]
# How a search gets outputs: token by token (`start`, `step`, `read`), all at once (`emissions`), from the model's own
# search (`transduce`), or not at all, since the model predicts labels.
Decodes = Literal["stepwise", "parallel", "own-search", "none"]


def decodes(model: Any) -> Decodes:
    """How a search gets outputs of a model; one that does not say so, such as a user's own module, goes by steps."""
    return getattr(model, "decodes", "stepwise")


class ModelTraits:
    """The base of all models: defaults, of which a model overrides those that differ."""

    likelihood: ClassVar[Likelihood] = "tokens"
    decodes: ClassVar[Decodes] = "none"
    steps_in_graphs: ClassVar[bool] = False  # its decoding steps may be captured as CUDA graphs; it has a `decoder`

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can write, <eos> included; None: no limit."""
        return None

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a training step may leave some parameters without gradients (DDP must then look for them)."""
        return False

    def positions(self, source: int, target: int) -> int:
        """How many positions a training step computes for rows of these lengths."""
        return target

    def set_step(self, step: int) -> None:
        """Learn how many training steps are done, before every step, for schedules inside the model."""
