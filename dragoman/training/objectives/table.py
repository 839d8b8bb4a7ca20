"""All objectives. To add one, write its file and add one line here: settings, help and errors follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.data.corpus import Corpus
from dragoman.models.entries import union_of
from dragoman.training.objectives.base import Objective
from dragoman.training.objectives.likelihood import Likelihood, LikelihoodConfig
from dragoman.training.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig

OBJECTIVES: dict[type, type[Objective]] = {
    LikelihoodConfig: Likelihood,
    MinimumRiskConfig: MinimumRisk,
}

# For the type checker the base class; for the settings loader the union of all settings in the table.
if TYPE_CHECKING:
    from dragoman.training.objectives.base import ObjectiveConfig as ObjectiveConfig
else:
    ObjectiveConfig = union_of(OBJECTIVES)


def build_objective(config: ObjectiveConfig, corpus: Corpus) -> Objective:
    return OBJECTIVES[type(config)](config, corpus)
