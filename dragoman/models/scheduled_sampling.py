"""What a decoder is fed while training: the truth (FIELD G1), or now and then its own words (G2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dragoman.config.settings import Range, setting

Probability = Annotated[float, Range(0.0, 1.0)]
Steps = Annotated[float, Range(0.0, None, exclusive_minimum=True)]


@dataclass(frozen=True)
class TeacherForcingConfig:
    """Always the truth."""

    kind: ClassVar[str] = "teacher"

    def truth(self, step: int) -> float:
        """The probability of being fed the truth at a training step."""
        return 1.0


@dataclass(frozen=True)
class _Sampling:
    passes: Annotated[int, Range(0, None)] = setting(
        0,
        help="0: feed word after word, exact (Bengio et al. 2015); n: write all words n times in parallel, each time "
        "from the mixed words of the time before, fast (Duckworth et al. 2019)",
    )


@dataclass(frozen=True)
class LinearDecayConfig(_Sampling):
    """The truth with probability max(floor, 1 − step / steps)."""

    kind: ClassVar[str] = "linear"
    steps: Steps = setting(10_000.0, help="step at which a decay without floor would reach zero")
    floor: Probability = setting(0.25, help="smallest probability of the truth")

    def truth(self, step: int) -> float:
        """The probability of being fed the truth at a training step."""
        return max(self.floor, 1.0 - step / self.steps)


@dataclass(frozen=True)
class ExponentialDecayConfig(_Sampling):
    """The truth with probability rate^step."""

    kind: ClassVar[str] = "exponential"
    rate: Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)] = setting(0.9999, help="base of the power")

    def truth(self, step: int) -> float:
        """The probability of being fed the truth at a training step."""
        return float(self.rate**step)


@dataclass(frozen=True)
class InverseSigmoidDecayConfig(_Sampling):
    """The truth with probability k / (k + exp(step / k))."""

    kind: ClassVar[str] = "inverse-sigmoid"
    k: Annotated[float, Range(1.0, None)] = setting(1000.0, help="the larger, the later and the slower the decay")

    def truth(self, step: int) -> float:
        """The probability of being fed the truth at a training step."""
        return self.k / (self.k + math.exp(min(700.0, step / self.k)))


ForcingConfig = TeacherForcingConfig | LinearDecayConfig | ExponentialDecayConfig | InverseSigmoidDecayConfig
