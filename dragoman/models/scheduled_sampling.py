"""Teacher forcing and scheduled sampling (Bengio et al. 2015): what the decoder reads during training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dragoman.config.settings import Range, setting

Probability = Annotated[float, Range(0.0, 1.0)]
Steps = Annotated[float, Range(0.0, None, exclusive_minimum=True)]


@dataclass(frozen=True)
class TeacherForcingConfig:
    """Always read the true tokens."""

    kind: ClassVar[str] = "teacher"
    passes: ClassVar[int] = 1  # one call of the decoder reads the whole target

    def teacher_probability(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class _ScheduledSamplingConfig:
    passes: Annotated[int, Range(0, None)] = setting(
        0,
        help="0: sample word by word, exact (Bengio et al. 2015); n: sample all words in parallel, n times, each time "
        "from the mixed words of the last pass, fast (Duckworth et al. 2019)",
    )


@dataclass(frozen=True)
class LinearDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability max(floor, 1 − step / steps)."""

    kind: ClassVar[str] = "linear"
    steps: Steps = setting(10_000.0, help="step at which the probability would reach zero without a floor")
    floor: Probability = setting(0.25, help="smallest probability of the true token")

    def teacher_probability(self, step: int) -> float:
        return max(self.floor, 1.0 - step / self.steps)


@dataclass(frozen=True)
class ExponentialDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability rate^step."""

    kind: ClassVar[str] = "exponential"
    rate: Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)] = setting(0.9999, help="base of the power")

    def teacher_probability(self, step: int) -> float:
        return float(self.rate**step)


@dataclass(frozen=True)
class InverseSigmoidDecayConfig(_ScheduledSamplingConfig):
    """Read the true token with probability k / (k + exp(step / k))."""

    kind: ClassVar[str] = "inverse-sigmoid"
    k: Annotated[float, Range(1.0, None)] = setting(1000.0, help="a larger k makes the decay later and slower")

    def teacher_probability(self, step: int) -> float:
        return self.k / (self.k + math.exp(min(700.0, step / self.k)))


ForcingConfig = TeacherForcingConfig | LinearDecayConfig | ExponentialDecayConfig | InverseSigmoidDecayConfig
