"""Number scaler: the numbers of a series or of a regression target ↔ standardised floats.

Spaces separate the steps of a series. If a step has values of several series, semicolons separate them: "0.1;20 0.2;21"
are two steps of two series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.base import config as settings
from dragoman.base.config import setting
from dragoman.data.tokenizers.base import Tokenizer, content_hash, settings_json

CHANNEL_SEPARATOR = ";"
MISSING = "nan"


@dataclass(frozen=True)
class NumbersConfig:
    """Space-separated numbers, scaled by statistics of the training data."""

    kind: ClassVar[str] = "numbers"
    scale: Literal["standard", "range", "none"] = setting(
        "standard", help="standard: mean 0 and standard deviation 1; range: minimum 0 and maximum 1; none: unchanged"
    )


def parse_number(text: str) -> float:
    """A finite number in decimal or scientific notation; raises ValueError for anything else."""
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(f"found '{text}'")
    return value


def parse_steps(text: str) -> list[list[float]]:
    """The values of each step; a missing value ("nan") is NaN. Raises ValueError for anything but numbers."""
    return [
        [math.nan if value.lower() == MISSING else parse_number(value) for value in step.split(CHANNEL_SEPARATOR)]
        for step in text.split()
    ]


def number_error(text: str, missing: bool = False) -> str:
    """Why a text is not a series of numbers, each step with as many values; empty if it is one.

    With `missing`, "nan" stands for a missing value.
    """
    channels = 0
    for step in text.split():
        values = step.split(CHANNEL_SEPARATOR)
        if len(values) != (channels := channels or len(values)):
            return f"found {len(values)} numbers in '{step}', expected {channels} as in the first step"
        for value in values:
            try:
                if not (missing and value.lower() == MISSING):
                    parse_number(value)
            except ValueError:
                return f"found '{value}', expected a number"
    return "" if text.split() else "found nothing, expected numbers"


def series_shape(text: str) -> tuple[int, int]:
    """Steps, and values in each step, of a valid series."""
    steps = text.split()
    return len(steps), steps[0].count(CHANNEL_SEPARATOR) + 1


class Statistics:
    """Count, mean, squared deviations, minimum and maximum of each series, in constant memory (Chan et al. 1979)."""

    def __init__(self, channels: int) -> None:
        self.count = np.zeros(channels)
        self.mean, self.squares = np.zeros(channels), np.zeros(channels)
        self.low, self.high = np.full(channels, np.inf), np.full(channels, -np.inf)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count the steps (S, C) of one series; NaN is missing."""
        known = ~np.isnan(values)
        count, filled = known.sum(0), np.where(known, values, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = filled.sum(0) / np.maximum(count, 1)
            squares = (np.where(known, filled - mean, 0.0) ** 2).sum(0)
            step, total = np.where(count > 0, mean - self.mean, 0.0), np.maximum(self.count + count, 1)
            self.squares = self.squares + squares + step**2 * self.count * count / total
            self.mean = self.mean + step * count / total
        self.count = self.count + count
        self.low = np.minimum(self.low, np.where(known, values, np.inf).min(0))
        self.high = np.maximum(self.high, np.where(known, values, -np.inf).max(0))

    def scale(self, kind: str) -> tuple[list[float], list[float]]:
        """What to subtract from the numbers of each series, and what to divide them by."""
        if kind == "none":
            return [0.0] * len(self.mean), [1.0] * len(self.mean)
        known = self.count > 0
        if kind == "range":
            shift, scale = np.where(known, self.low, 0.0), np.where(known, self.high - self.low, 1.0)
        else:
            shift, scale = self.mean, np.sqrt(self.squares / np.maximum(self.count, 1))
        if not np.isfinite(scale).all():
            raise DataError('the numbers are too large for a standard deviation; set scale = "range"')
        return shift.tolist(), np.where(scale == 0, 1.0, scale).tolist()


class NumberScaler(Tokenizer):
    """Encodes a number x of series c as (x − shift[c]) / scale[c]; `decode` inverts it.

    A row holds the values step by step. `steps` is the number of steps of every target; 0: any number of them.
    """

    kind = NumbersConfig.kind
    is_text = False
    unit = size = "numbers"

    def __init__(
        self, config: NumbersConfig, shift: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,), steps: int = 0
    ) -> None:
        self.config, self.shift, self.scale, self.steps = config, tuple(shift), tuple(scale), steps

    @classmethod
    def train(cls, config: NumbersConfig, texts: Iterable[str]) -> NumberScaler:
        statistics: Statistics | None = None
        for text in texts:
            values = np.array(parse_steps(text))
            statistics = statistics or Statistics(values.shape[1])
            statistics.add(values)
        if statistics is None or not statistics.count.any():
            raise DataError("no numbers to learn from")
        return cls(config, *statistics.scale(config.scale))

    @property
    def channels(self) -> int:  # type: ignore[override]
        return len(self.shift)

    def __len__(self) -> int:
        return self.channels * max(1, self.steps)

    def describe(self, side: str) -> str:
        return f'{side}: numbers (scale = "{self.config.scale}")'

    def shape_error(self, text: str) -> str:
        """Why a valid series does not have the shape of the training data; empty if it has."""
        steps, channels = series_shape(text)
        if channels != self.channels:
            return f"found {channels} numbers in a step, expected {self.channels} as in the training data"
        if self.steps and steps != self.steps:
            return f"found {steps} steps, expected {self.steps} as in the training data"
        return ""

    def encode(self, text: str) -> list[float]:
        """The scaled numbers, step by step; NaN is a missing value."""
        return [
            (number - shift) / scale
            for step in parse_steps(text)
            for number, shift, scale in zip(step, self.shift, self.scale, strict=True)
        ]

    def unscale(self, row: Sequence[float]) -> list[float]:
        """The numbers of a row in the units of the data."""
        channels = self.channels
        return [value * self.scale[at % channels] + self.shift[at % channels] for at, value in enumerate(row)]

    def text(self, numbers: Sequence[float]) -> str:
        """Numbers in the units of the data as a series."""
        shown = [f"{number:.7g}" if math.isfinite(number) else MISSING for number in numbers]
        steps = range(0, len(shown), self.channels)
        return " ".join(CHANNEL_SEPARATOR.join(shown[first : first + self.channels]) for first in steps)

    def decode(self, ids: Sequence[float]) -> str:
        return self.text(self.unscale(ids))

    def pieces(self, ids: Sequence[float]) -> list[str]:
        return self.decode(ids).split(" ") if len(ids) else []

    def _table(self) -> dict[str, Any]:
        """Shift, divisor and steps; of one series as plain numbers."""
        table: dict[str, Any] = {"shift": list(self.shift), "divisor": list(self.scale)}
        if self.channels == 1:
            table = {name: values[0] for name, values in table.items()}
        return table | ({"steps": self.steps} if self.steps > 1 else {})

    def contents(self) -> list[str | bytes]:
        return [settings_json(self.kind, self.config, **self._table(), fingerprint=self.fingerprint())]

    def fingerprint(self) -> str:
        return content_hash({"kind": self.kind, **self._table()})

    @classmethod
    def load(cls, table: dict[str, Any]) -> NumberScaler:
        shift, scale = (
            [value] if isinstance(value, int | float) else value for value in (table["shift"], table["divisor"])
        )
        if not shift or len(shift) != len(scale):
            raise ValueError(f"found {len(shift)} shifts and {len(scale)} divisors, expected one of each for a series")
        return cls(settings.build(NumbersConfig, {"scale": table["scale"]}), shift, scale, table.get("steps", 0))
