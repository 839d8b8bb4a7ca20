"""The base of training objectives, which is maximum likelihood, and the table of all of them.

To add one, write its file and a late entry in the table: settings, help and errors follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from dragoman.base.config import Table, imported

if TYPE_CHECKING:
    import torch

    from dragoman.data import Corpus
    from dragoman.models import Loss


@dataclass(frozen=True)
class ObjectiveConfig:
    """The settings of an objective. A subclass has a `kind` and overrides what differs from maximum likelihood."""

    kind: ClassVar[str]
    graph_blocker: ClassVar[str] = ""  # why a CUDA graph cannot capture a training step with it; empty: one can
    shard_blocker: ClassVar[str] = ""  # why it does not go with train.shard; empty: it does
    includes: ClassVar[str] = ""  # what the training loss measures in place of the likelihood, for plots

    @property
    def memory_factor(self) -> int:
        """How many times the activations of plain likelihood a step keeps, such as 2 for two forward passes."""
        return 1

    @property
    def runs(self) -> tuple[str, ...]:
        """The folders of trained runs that the objective reads; `Objective.set_teachers` gets their models."""
        return ()

    def conflicts(self, config: Any) -> Iterator[str]:
        """Errors in how the objective goes with the other settings of a run, a `tasks.base.Config`."""
        yield from ()


@dataclass(frozen=True)
class LikelihoodConfig(ObjectiveConfig):
    """Maximum likelihood: the negative log-probability of the reference, token by token."""

    kind: ClassVar[str] = "likelihood"


class Objective:
    """Computes the loss of a batch: here the model's own, label smoothing and scheduled sampling included.

    The trainer adds up the totals of the batches of a step, over all processes, and divides them by the number of
    target tokens. So a total is a sum over target tokens; a mean would weigh small batches more.
    """

    def __init__(self, config: Any = None, corpus: Corpus | None = None) -> None:
        """`config` are the settings of the objective; the corpus has tokenizers and statistics."""
        self.config = config

    def set_teachers(self, models: Sequence[Any]) -> None:
        """Called once with the models of `ObjectiveConfig.runs` on the device of the training."""

    def set_step(self, step: int, device: torch.device) -> None:
        """Called before the batches of a step. What changes with it must be a tensor that CUDA graphs can read."""

    def prepare(self, model: Any, batch: Any) -> Any:
        """What `loss` reads in place of the batch, such as sampled outputs; no gradients pass through here.

        Random numbers come from torch's generator, which the trainer has seeded for this batch.
        """
        return batch

    def loss(self, model: Any, batch: Any) -> Loss:
        """The loss of a prepared batch; may call the model several times.

        Data-parallel training wraps this call: gradients are exchanged only of what is computed here.
        """
        loss: Loss = model(batch)
        return loss


@dataclass(frozen=True)
class ObjectiveEntry:
    """An objective as `dragoman.register` takes it."""

    config: type[ObjectiveConfig]
    objective: type[Objective]


def late(address: str) -> Callable[[], ObjectiveEntry]:
    return imported(ObjectiveEntry, f"dragoman.training.objectives.{address}")


OBJECTIVES: Table[str, ObjectiveEntry] = Table(
    "objective",
    lambda entry: [entry.config.kind],
    late={
        "likelihood": lambda: ObjectiveEntry(LikelihoodConfig, Objective),
        "minimum-risk": late("minimum_risk:MinimumRiskConfig,MinimumRisk"),
        "r-drop": late("consistency:RDropConfig,RDrop"),
        "simcut": late("consistency:SimCutConfig,SimCut"),
        "token-distillation": late("distillation:TokenDistillationConfig,TokenDistillation"),
    },
)
# For the settings loader: the settings of any objective of the table.
AnyObjectiveConfig = Annotated[ObjectiveConfig, OBJECTIVES]


def build_objective(config: ObjectiveConfig, corpus: Corpus) -> Objective:
    return OBJECTIVES.of(config).objective(config, corpus)
