"""The plan of a search: how many trials, and how long each stage trains them (successive halving).

A plan is made once, from measured speeds, and stored in steps. What happens afterwards does not depend on the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

REDUCTION = 3  # a stage keeps one trial of so many (Jamieson and Talwalkar 2016)
SEARCHING = 0.5  # share of the time for all stages; the winners are trained to the end in the rest
FINISHING = 0.4
SHORTEST = 12.0  # seconds of the first stage below which a score says nothing
VALIDATING = 0.2  # share of a trial's time that validations may take


@dataclass(frozen=True)
class Speed:
    """Measured on a few steps: steps in a second of training, and seconds of a validation."""

    steps: float
    validation: float

    def validate_every(self) -> int:
        """Steps between validations that take a fifth of the time."""
        return max(20, math.ceil(self.validation * self.steps * (1 - VALIDATING) / VALIDATING))

    def steps_in(self, seconds: float, every: int) -> int:
        """Whole validation intervals that fit, one at least, in steps."""
        interval = every / max(self.steps, 1e-9) + self.validation
        return every * max(1, int(seconds / interval))


def stage_sizes(trials: int) -> list[int]:
    """How many trials each stage trains: 9 gives [9, 3, 1]; the last stage leaves one."""
    sizes = [trials]
    while sizes[-1] > 1:
        sizes.append(max(1, sizes[-1] // REDUCTION))
    return sizes


def stage_cost(trials: int) -> float:
    """Training of all stages together, in lengths of the first one: a trial trains 1, 3, 9, … of them in all."""
    before, total = 0, 0
    for stage, size in enumerate(stage_sizes(trials)[:-1]):
        total += size * (REDUCTION**stage - before)
        before = REDUCTION**stage
    return float(total)


def affordable_trials(seconds: float, workers: int, most: int, folds: int = 1) -> int:
    """The largest number of trials whose first stage is long enough."""
    for trials in range(most, 1, -1):
        if SEARCHING * seconds * workers / (stage_cost(trials) * folds) >= SHORTEST:
            return trials
    return 1


def stage_seconds(seconds: float, workers: int, trials: int, folds: int = 1) -> list[float]:
    """Seconds that a trial has trained in all at the end of each stage but the last, which only names the winner."""
    first = SEARCHING * seconds * workers / max(1.0, stage_cost(trials) * folds)
    return [first * REDUCTION**stage for stage in range(len(stage_sizes(trials)) - 1)]


def stage_steps(final: int, trials: int, every: int) -> list[int]:
    """The same in steps for a search without a time budget: the last stage but one ends at a third of all steps."""
    stages = len(stage_sizes(trials)) - 1
    steps = [final // REDUCTION ** (stages - stage) for stage in range(stages)]
    return [max(1, every * round(count / every) or min(every, final)) for count in steps]
