"""All objectives. To add one, write its file and a late entry here: settings, help and errors follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from dragoman.config.table import Table
from dragoman.training.objectives import base
from dragoman.training.objectives.base import LikelihoodConfig, Objective, ObjectiveEntry

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus


def _minimum_risk() -> ObjectiveEntry:
    from dragoman.training.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig

    return ObjectiveEntry(MinimumRiskConfig, MinimumRisk)


def _r_drop() -> ObjectiveEntry:
    from dragoman.training.objectives.consistency import RDrop, RDropConfig

    return ObjectiveEntry(RDropConfig, RDrop)


def _simcut() -> ObjectiveEntry:
    from dragoman.training.objectives.consistency import SimCut, SimCutConfig

    return ObjectiveEntry(SimCutConfig, SimCut)


def _token_distillation() -> ObjectiveEntry:
    from dragoman.training.objectives.distillation import TokenDistillation, TokenDistillationConfig

    return ObjectiveEntry(TokenDistillationConfig, TokenDistillation)


OBJECTIVES: Table[str, ObjectiveEntry] = Table(
    "objective",
    lambda entry: [entry.config.kind],
    late={
        "likelihood": lambda: ObjectiveEntry(LikelihoodConfig, Objective),
        "minimum-risk": _minimum_risk,
        "r-drop": _r_drop,
        "simcut": _simcut,
        "token-distillation": _token_distillation,
    },
)
ObjectiveConfig = Annotated[base.ObjectiveConfig, OBJECTIVES]


def build_objective(config: ObjectiveConfig, corpus: Corpus) -> Objective:
    return OBJECTIVES.of(config).objective(config, corpus)
