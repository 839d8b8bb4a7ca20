"""What the trainer, a validator and a search ask of every model, whatever computes it. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

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
    # Whether a text is continued and scored from arrays, by `order`, `distribution` and `text_scores`, without torch.
    array_text: ClassVar[bool] = False
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


class CellLayout(NamedTuple):
    """The recurrent cells of an encoder that reads in one direction, for decoders that start from or share them."""

    cell: Any  # settings of the cells
    layers: int
    width: int
    embedding: int
    residual_from: int
    norm: bool


class ModelContext(NamedTuple):
    """What the settings of a decoder must go with in a model."""

    cells: CellLayout | None = None  # of the encoder
    share_cells: bool = False  # encoder and decoder share their cells
    in_chunks: bool = False  # training reads a target in several calls


class EncoderTraits:
    """What settings are checked by, of every encoder: defaults, of which one overrides those that differ."""

    @classmethod
    def cell_layout(cls, config: Any) -> CellLayout | None:
        """The cells whose states a decoder may start from; None: it has none."""
        return None


class DecoderTraits:
    """What settings are checked by, of every decoder: defaults, of which one overrides those that differ."""

    own_likelihood: ClassVar[bool] = False  # it needs the full softmax, and gives log-probabilities
    copies_words: ClassVar[bool] = False  # it can write source words that the target vocabulary lacks

    @classmethod
    def problems(cls, config: Any, around: ModelContext) -> Iterator[str]:
        """Errors in how its settings go with the rest of the model."""
        if around.share_cells:
            yield "share_cells: found true, expected a recurrent encoder and a recurrent decoder"
