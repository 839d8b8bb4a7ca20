"""All objectives. To add one, write its file and a late entry here: settings, help and errors follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from dragoman.base.config import Table, imported
from dragoman.training.objectives import base
from dragoman.training.objectives.base import LikelihoodConfig, Objective, ObjectiveEntry

if TYPE_CHECKING:
    from dragoman.data import Corpus


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
ObjectiveConfig = Annotated[base.ObjectiveConfig, OBJECTIVES]


def build_objective(config: ObjectiveConfig, corpus: Corpus) -> Objective:
    return OBJECTIVES.of(config).objective(config, corpus)
