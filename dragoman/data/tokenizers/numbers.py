"""Number scaler: space-separated numbers of a series or a regression target ↔ standardised floats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dragoman.config import settings
from dragoman.config.settings import setting
from dragoman.data.tokenizers.base import Tokenizer, content_hash, write_text
from dragoman.errors import DataError


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


def number_error(text: str) -> str:
    """Why a text is not a list of numbers; empty if it is one."""
    for word in text.split():
        try:
            parse_number(word)
        except ValueError:
            return f"found '{word}', expected a number"
    return "" if text.split() else "found nothing, expected numbers"


class NumberScaler(Tokenizer):
    """Encodes a number x as (x − shift) / scale; `decode` inverts it."""

    kind = NumbersConfig.kind
    is_text = False

    def __init__(self, config: NumbersConfig, shift: float = 0.0, scale: float = 1.0) -> None:
        self.config, self.shift, self.scale = config, shift, scale

    @classmethod
    def train(cls, config: NumbersConfig, texts: Iterable[str]) -> NumberScaler:
        """Measure shift and scale over the texts in constant memory."""
        count, mean, squares = 0, 0.0, 0.0
        low, high = math.inf, -math.inf
        for text in texts:
            for value in map(parse_number, text.split()):
                count += 1
                step = value - mean
                mean += step / count
                squares += step * (value - mean)  # Welford 1962
                low, high = min(low, value), max(high, value)
        if not count:
            raise DataError("no numbers to learn from")
        shift, scale = {
            "none": (0.0, 1.0),
            "standard": (mean, math.sqrt(squares / count) if squares < math.inf else math.inf),
            "range": (low, high - low),
        }[config.scale]
        if not math.isfinite(scale):
            raise DataError('the numbers are too large for a standard deviation; set scale = "range"')
        return cls(config, shift, scale or 1.0)

    def __len__(self) -> int:
        return 1

    def encode(self, text: str) -> list[float]:
        """The scaled numbers."""
        return [(parse_number(number) - self.shift) / self.scale for number in text.split()]

    def unscale(self, scaled: float) -> float:
        """A number in the units of the data."""
        return scaled * self.scale + self.shift

    def decode(self, ids: Sequence[float]) -> str:
        """The numbers in the units of the data, separated by spaces."""
        return " ".join(f"{self.unscale(scaled):.7g}" for scaled in ids)

    def pieces(self, ids: Sequence[float]) -> list[str]:
        """Each number as text."""
        return [self.decode([scaled]) for scaled in ids]

    def save(self, folder: Path, name: str) -> None:
        """Write settings, shift and scale."""
        table = {"kind": self.kind, **asdict(self.config), "shift": self.shift, "divisor": self.scale}
        text = json.dumps(table | {"fingerprint": self.fingerprint()}, indent=2) + "\n"
        write_text(self.files(folder, name)[0], text)

    def fingerprint(self) -> str:
        """A hash of shift and scale."""
        return content_hash({"kind": self.kind, "shift": self.shift, "divisor": self.scale})

    @classmethod
    def load(cls, table: dict[str, Any]) -> NumberScaler:
        """The scaler from the JSON object that `save` wrote."""
        return cls(settings.build(NumbersConfig, {"scale": table["scale"]}), table["shift"], table["divisor"])
