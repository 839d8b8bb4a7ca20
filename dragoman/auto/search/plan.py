"""The plan of a search: which trials, and how many steps each stage trains them (successive halving).

A plan is made once, from measured speeds, and stored in steps. Until it is done, nothing depends on the clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

REDUCTION = 4  # a stage keeps one trial of so many (Jamieson and Talwalkar 2016), and the default model
SCALES = (4.0, 2.0, 1.4, 1.0)  # by which stages grow if there is time
TIMES = (4.0, 2.0)  # how much longer than usual the last trials train if there is time
FINALISTS = 4  # trials that are trained to the end, if there are as many workers
LONGEST_TRAINING = 0.7  # share of the time that one trial may train in all, its waiting not counted
PLANNED = 0.85  # share of the time that the plan fills; speeds are measured on a few steps
MEMBER = 0.25  # of its usual steps, which a member of an ensemble trains at least
ALONE = 1.25  # the same for a trial that trains alone: it may be faster than measured, and the deadline ends it
PROBING, SHORTEST_PROBE = 0.3, 5.0  # share of the time for measuring speeds, and seconds that one takes at least
VALIDATING = 0.2  # share of a trial's time that validations may take


@dataclass(frozen=True)
class Cost:
    """What training a trial takes, measured on a few steps."""

    speed: float  # steps in a second of training
    validation: float  # seconds
    start: float = 0.0  # seconds that a job needs to load and to get as fast as that: CUDA graphs are captured at first
    usual: int = 1  # steps of a usual training
    usual_every: int = 1  # steps between its validations

    @property
    def every(self) -> int:
        """Steps between validations, which may take a fifth of the time. With fewer, train.patience stops too early."""
        return max(self.usual_every, math.ceil(self.validation * self.speed * (1 - VALIDATING) / VALIDATING))

    def seconds(self, steps: float) -> float:
        """Of a job that trains so many steps."""
        return self.start + steps / max(self.speed, 1e-9) + self.validation * max(1.0, steps / self.every)

    def steps_in(self, seconds: float) -> int:
        """Steps that fit: whole validation intervals, or a part of the first one."""
        seconds -= self.start
        interval = self.every / max(self.speed, 1e-9) + self.validation
        return self.every * int(seconds / interval) or max(1, int((seconds - self.validation) * self.speed))

    def last_step(self, seconds: float, times: float = 1.0) -> int:
        """The last step of a training that is `times` as long as usual, or as long as the seconds allow."""
        return max(1, min(int(times * self.usual), self.steps_in(seconds)))


def stage_sizes(trials: int) -> list[int]:
    """How many trials each stage trains: 16 gives [16, 4, 1]; the last stage leaves one."""
    sizes = [trials]
    while sizes[-1] > 1:
        sizes.append(max(1, sizes[-1] // REDUCTION))
    return sizes


def stage_shares(trials: int, scale: float = 1.0) -> list[float]:
    """Which share of its steps a trial has trained at the end of each stage; every stage doubles it."""
    stages = len(stage_sizes(trials)) - 1
    return [min(1.0, scale / 2 ** (stages - stage)) for stage in range(stages)]


def stage_steps(last: int, shares: Sequence[float], every: int) -> list[int]:
    """The same in steps, as whole validation intervals."""
    return [min(last, max(1, every * round(share * last / every) or min(every, last))) for share in shares]


def affordable_trials(seconds: float, workers: int, most: int) -> int:
    """How many trials can be measured, one at least."""
    return max(1, min(most, int(PROBING * seconds * workers / SHORTEST_PROBE)))


@dataclass(frozen=True)
class Plan:
    """How many trials, which shares of their steps, and how much longer than usual the last ones train."""

    trials: int
    shares: list[float]
    times: float


@dataclass(frozen=True)
class Resources:
    """What a plan may use, and what it is for."""

    seconds: float
    workers: int = 1
    folds: int = 1  # of the cross-validation in every stage
    ensemble: int = 1

    def finalists(self, trials: int) -> int:
        """How many runs are trained to the end: those of the ensemble, or the best ones and the default model."""
        if self.ensemble > 1 or self.folds > 1:
            return self.ensemble
        return min(trials, max(2, min(self.workers, FINALISTS)))

    def longest(self, trials: int) -> float:
        """Seconds that one trial may train in all."""
        if trials == 1 and self.ensemble == 1:
            return ALONE * self.seconds
        rounds = math.ceil(self.finalists(trials) / self.workers)
        return (LONGEST_TRAINING if trials > 1 else PLANNED) * self.seconds / rounds


def without_undertrained(usual: Cost, resources: Resources) -> Resources:
    """The same for as many members of an ensemble as can train a fair share of their usual steps."""
    while resources.ensemble > 1 and usual.last_step(resources.longest(2)) < MEMBER * usual.usual:
        resources = replace(resources, ensemble=resources.ensemble - 1)
    return resources


def is_too_long(usual: Cost, resources: Resources) -> bool:
    """Whether there is no time for a usual training beside others."""
    return usual.seconds(usual.usual) > resources.longest(2)


def make_plan(costs: Sequence[Cost], resources: Resources) -> Plan:
    """As many trials as fit into the time, then as much training of each. The first one is the default model.

    Where there is no time for a usual training beside others, it is trained alone: a model that leads after so short a
    time need not lead later, and the search must not return less than the usual training would have in that time.
    """
    most = 1 if is_too_long(costs[0], resources) else len(costs)
    for trials in range(most, 1, -1):
        for scale, times in [(SCALES[0], TIMES[0]), (SCALES[0], TIMES[1]), *((scale, 1.0) for scale in SCALES)]:
            made = Plan(trials, stage_shares(trials, scale), times)
            if plan_seconds(costs, made, resources) <= PLANNED * resources.seconds:
                return made
    return Plan(1, [], TIMES[0])


def plan_seconds(costs: Sequence[Cost], made: Plan, resources: Resources) -> float:
    """How long all stages and the last trainings take; the trials of the stages are taken as average."""
    costs, workers, folds = costs[: made.trials], resources.workers, resources.folds
    ends = [cost.last_step(resources.longest(made.trials)) for cost in costs]
    total, before = 0.0, 0.0
    for size, share in zip(stage_sizes(made.trials), made.shares, strict=False):
        if share > before:
            jobs = [cost.seconds((share - before) * end) for cost, end in zip(costs, ends, strict=True)]
            if size < len(jobs):
                jobs = [jobs[0], *[sum(jobs) / len(jobs)] * size]
            total += scheduled(jobs * folds, workers)
        before = share
    if folds > 1 or resources.ensemble > 1:
        before = 0.0  # runs of their own
    lasts = [cost.last_step(resources.longest(made.trials), made.times) for cost in costs]
    left = [last - before * end for last, end in zip(lasts, ends, strict=True)]
    if max(left) > 0:
        jobs = [cost.seconds(max(0.0, steps)) for cost, steps in zip(costs, left, strict=True)]
        others = [sum(jobs) / len(jobs)] * (resources.ensemble - 1)
        if resources.ensemble == 1:  # the slowest may be the best
            others = sorted(jobs[1:], reverse=True)[: resources.finalists(made.trials) - 1]
        total += scheduled([jobs[0], *others], workers)
    return total


def scheduled(jobs: Sequence[float], workers: int) -> float:
    """How long jobs take if each begins when a worker is free."""
    ends = [0.0] * workers
    for job in jobs:
        heapq.heappushpop(ends, ends[0] + job)
    return max(ends)
