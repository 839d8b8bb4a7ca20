"""All objectives. To add one, write its file and add one entry here: settings, help and errors follow."""

from __future__ import annotations

from typing import Annotated

from dragoman.config.table import Table
from dragoman.data.corpus import Corpus
from dragoman.training.objectives import base
from dragoman.training.objectives.base import LikelihoodConfig, Objective, ObjectiveEntry
from dragoman.training.objectives.consistency import RDrop, RDropConfig, SimCut, SimCutConfig
from dragoman.training.objectives.distillation import TokenDistillation, TokenDistillationConfig
from dragoman.training.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig

OBJECTIVES = Table(
    "objective",
    lambda entry: [entry.config.kind],
    (
        ObjectiveEntry(LikelihoodConfig, Objective),
        ObjectiveEntry(MinimumRiskConfig, MinimumRisk),
        ObjectiveEntry(RDropConfig, RDrop),
        ObjectiveEntry(SimCutConfig, SimCut),
        ObjectiveEntry(TokenDistillationConfig, TokenDistillation),
    ),
)
ObjectiveConfig = Annotated[base.ObjectiveConfig, OBJECTIVES]


def build_objective(config: ObjectiveConfig, corpus: Corpus) -> Objective:
    return OBJECTIVES.of(config).objective(config, corpus)
