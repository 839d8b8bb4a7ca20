"""The plan where a usual training of the default model does not fit in beside others: it has all of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from dragoman.auto.search import plan
from dragoman.auto.search.state import PAUSING, SearchState
from dragoman.auto.search.trial_config import copies_at_first
from dragoman.tasks.config import Config
from dragoman.training.display import duration

HOPELESS = 3.0  # times the time that is left: what a usual training takes where a model that copies is tried beside it


def plan_alone(state: SearchState, configs: Mapping[str, Config], alone: plan.Cost, left: float, elapsed: float) -> str:
    """Plan for the seconds left, after `elapsed` seconds of the default model's training; returns what to say.

    The schedules follow the time. Fitted models compete; so does a model that copies the source from its first step
    on, where the default model would only begin to learn.
    """
    default, *others = state.trials
    needed = alone.seconds(alone.usual)
    left = max(0.6, left - alone.start - PAUSING)
    beside = []
    for trial in others:
        if trial.error:
            continue
        joins = needed > HOPELESS * left and copies_at_first(configs[trial.name])
        trial.later, trial.steps = not (trial.fitted or joins), [1]
        if joins:
            trial.steps, trial.settings = [configs[trial.name].train.steps], timed(left)
            beside.append(trial.name)
    default.cost, default.steps, default.settings = asdict(alone), [alone.usual], timed(left + elapsed)
    state.folds, state.sizes = 1, plan.stage_sizes(1)
    line = f"a usual training of {default.name} takes about {duration(needed)}, so there is no time to compare it with "
    if not beside:
        return f"{line}other trained models"
    return f"{line}others than {', '.join(beside)}, which copies the source from its first step on"


def timed(seconds: float) -> list[str]:
    return [f"train.minutes={seconds / 60:.3f}"]
