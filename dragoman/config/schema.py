"""The vocabulary of settings: number ranges and documented dataclass fields."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """Limits of a number, written `Annotated[int, Range(1)]`; None means no limit on that side."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: bool = False
    exclusive_minimum: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        low, high = self.minimum, self.maximum
        above = low is None or value > low or (value == low and not self.exclusive_minimum)
        below = high is None or value < high or (value == high and not self.exclusive_maximum)
        return above and below

    @property
    def words(self) -> str:
        """The limits as error messages state them; empty without limits."""
        low = "above" if self.exclusive_minimum else "at least"
        high = "below" if self.exclusive_maximum else "at most"
        sides = ((low, self.minimum), (high, self.maximum))
        return " and ".join(f"{word} {limit:g}" for word, limit in sides if limit is not None)


# Types that many settings have.
Size = Annotated[int, Range(1)]
Depth = Annotated[int, Range(1, 10_000)]  # layers: each takes time to build, however narrow it is
SizeOrNone = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)]


@typing.overload
def setting(default: T, *, help: str) -> T: ...
@typing.overload
def setting(*, default_factory: Callable[[], T], help: str) -> T: ...
@typing.overload
def setting(*, help: str) -> Any: ...
def setting(default: Any = MISSING, *, default_factory: Any = MISSING, help: str) -> Any:
    """A dataclass field with a help text; it is required if it has neither a default nor a factory."""
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata={"help": help})
    return dataclasses.field(default=default, metadata={"help": help})
