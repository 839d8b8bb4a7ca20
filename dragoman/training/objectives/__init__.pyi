from dragoman.training.objectives.base import OBJECTIVES as OBJECTIVES
from dragoman.training.objectives.base import LikelihoodConfig as LikelihoodConfig
from dragoman.training.objectives.base import Objective as Objective
from dragoman.training.objectives.base import build_objective as build_objective
from dragoman.training.objectives.distillation import TokenDistillationConfig as TokenDistillationConfig
