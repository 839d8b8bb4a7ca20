"""Weights by name: which ones a module name or pattern matches, frozen weights, learning-rate factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from torch import nn

from dragoman.config.settings import Range, setting
from dragoman.errors import ConfigError, hint

MAX_NAMES_SHOWN = 6


@dataclass(frozen=True)
class RateConfig:
    """A learning-rate factor for some weights."""

    names: str = setting(help='module or weight name, or a pattern such as "*.attention.*"')
    factor: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.1, help="multiplies the learning rate of the schedule"
    )


def abbreviated(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def top_modules(names: Iterable[str]) -> list[str]:
    """The distinct first components of dotted names."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def is_matched(name: str, pattern: str) -> bool:
    """Whether a weight is named by a module name, its own name or a pattern."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def matching(model: nn.Module, pattern: str, place: str) -> list[nn.Parameter]:
    """The weights that a name or pattern matches; ConfigError if there are none."""
    if not pattern.strip():
        raise ConfigError(
            f'{place}: found {pattern!r}, expected the beginning of names, or a pattern ("*": all weights)'
        )
    names = dict(model.named_parameters(remove_duplicate=False))
    matched = [part for name, part in names.items() if is_matched(name, pattern)]
    if not matched:
        near = {*top_modules(names), *(name.rpartition(".")[0] for name in names)}
        raise ConfigError(f"{place}: no weight is called {pattern!r}. {hint(pattern, near)}")
    return matched


def freeze(model: nn.Module, patterns: Sequence[str], place: str = "train.freeze") -> list[str]:
    """Exclude weights from training; returns the names of all frozen weights, a shared one under its first name."""
    for pattern in patterns:
        for part in matching(model, pattern, place):
            part.requires_grad_(False)
    frozen = [name for name, part in model.named_parameters() if not part.requires_grad]
    if len(frozen) == len(list(model.parameters())):
        raise ConfigError(f"{place}: found {list(patterns)}, which freezes all weights")
    return frozen


def rate_factors(model: nn.Module, rates: Sequence[RateConfig], place: str = "train.rates") -> dict[str, float]:
    """The learning-rate factor of every weight, by its first name; the last matching entry counts."""
    factors: dict[int, float] = {}
    for number, rate in enumerate(rates):
        matched = matching(model, rate.names, f"{place}[{number}].names")
        if not any(part.requires_grad for part in matched):
            raise ConfigError(
                f"{place}[{number}].names: found {rate.names!r}, whose weights are all frozen by train.freeze"
            )
        factors |= {id(part): rate.factor for part in matched}
    return {name: factors.get(id(part), 1.0) for name, part in model.named_parameters()}
