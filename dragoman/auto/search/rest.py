"""Plans beside the stages: for the rest of the time, and for a default model that needs all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from dragoman.auto.search import plan
from dragoman.auto.search.state import PAUSING, SearchState, Trial, cost, is_member
from dragoman.auto.search.trial_config import copies_at_first
from dragoman.auto.trial import Outcome
from dragoman.runs.tasks import Config
from dragoman.training import duration

HOPELESS = 3.0  # times the time that is left: what a usual training takes where a model that copies is tried beside it
FILLED = 0.9  # share of the rest that jobs are planned for
MOST_SEEDS = 8  # of the best configuration: the best of more is chosen by chance
WORTHWHILE = 0.2  # more steps than this share of those done
Run = tuple[str, Trial, int]  # its name, its trial and its last step


def plan_remaining_time(
    state: SearchState, trained: Mapping[str, Outcome], seconds: float, tried: Collection[tuple[str, int]]
) -> list[Run]:
    """Up to one run for each worker that these seconds may improve, but for those that were tried.

    First come the best run and the default model, where they trained to their last step and so may gain from more; then
    candidates for which the plan had no time; then further seeds of the best.
    """
    usable = FILLED * seconds
    best, usual = max(trained, key=lambda name: trained[name].score), state.trials[0].name
    trials = {name: next(trial for trial in state.trials if is_member(name, trial)) for name in trained}
    found: list[Run] = []
    for name in dict.fromkeys(name for name in (best, usual) if name in trained):
        steps = longer(trials[name], trained[name], usable)
        found += [(name, trials[name], steps)] if steps else []
    for trial in (trial for trial in state.trials if trial.later and trial.cost and trial.name not in trained):
        if 2 * (steps := cost(trial).last_step(usable)) >= cost(trial).usual:
            found.append((trial.name, trial, steps))
    winner, done = trials[best], trained[best]
    # A trial has one length: its seeds wait until no run of it trains longer.
    is_longer = any(trial is winner and (name, steps) not in tried for name, trial, steps in found)
    if winner.cost and not winner.fitted and not is_longer and done.seconds + cost(winner).start <= usable:
        seeds = [int(name.rpartition("-seed")[2]) for name in trained if name != winner.name and trials[name] is winner]
        first = max(seeds, default=0) + 1
        names = [f"{winner.name}-seed{seed}" for seed in range(first, min(first + state.workers, MOST_SEEDS + 1))]
        found += [(name, winner, winner.steps[-1]) for name in names]
    return [run for run in found if (run[0], run[2]) not in tried][: state.workers]


def longer(trial: Trial, done: Outcome, seconds: float) -> int:
    """The last step of a training that goes on for these seconds; 0: it stopped early, or there is no time."""
    if not trial.cost or trial.fitted or done.step < trial.steps[-1]:
        return 0
    now = replace(cost(trial), speed=done.step / max(done.seconds, 1e-9))
    last = min(done.step + now.steps_in(seconds), int(plan.TIMES[0] * now.usual))
    return last if last - done.step >= WORTHWHILE * done.step else 0


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
