"""Errors that a user can cause and correct: each names the place, what was found and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class DragomanError(Exception):
    """A mistake outside our own code. The command line shows it as one line and exits with code 2."""

    abrupt = False  # True: exit without the usual clean-up, which would hang


class ConfigError(DragomanError):
    """A setting that does not exist, has the wrong type or lies out of range."""

    def __init__(self, message: object, mends: Iterable[Mend] = ()) -> None:
        super().__init__(message)
        self.mends = tuple(mends)


class Mend(NamedTuple):
    """A setting that would correct a mistake; whoever chose that setting without being told to may take it."""

    place: str  # in the whole configuration
    value: object
    why: str  # what a planner says when it takes it


class Problem(str):
    """What `problems` of a configuration says, and the setting that would correct it."""

    mend: Mend

    def __new__(cls, text: str, mend: Mend) -> Problem:
        problem = super().__new__(cls, text)
        problem.mend = mend
        return problem


class DataError(DragomanError):
    """A file that is missing or unreadable, or that has lines which cannot be used."""


class RunError(DragomanError):
    """A run folder that is missing or incomplete, or that does not fit the command."""


class UnseenTextWarning(UserWarning):
    """An input has characters or words that training did not have."""


class WarningLine(str):
    """A line among others that is a warning: a quiet command shows it too."""

    __slots__ = ()


class MissingExtraError(DragomanError):
    """A feature needs an optional package that is not installed."""

    def __init__(self, feature: str, package: str, extra: str = "") -> None:
        install = f"'dragoman[{extra}]'" if extra else package
        super().__init__(
            f"{feature} needs the package '{package}', which is not installed. Install it with: pip install {install}"
        )


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option most similar to a misspelt name, if one is close."""
    matches = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggestion(name: str, options: Iterable[str]) -> str:
    """The end of an error about a name that is unknown: the nearest option, or nothing."""
    match = nearest(name, options)
    return f". Did you mean '{match}'?" if match else ""


# Installed plug-ins that cannot be imported, each with the line that says so (plugins.py fills it): an unknown name may
# be theirs.
broken_plugins: dict[str, str] = {}


def broken_note() -> str:
    return "".join(f" ({line})" for line in broken_plugins.values())


def hint(name: str, options: Iterable[str]) -> str:
    """The last sentence of an error about an unknown name: the nearest option, or all options."""
    options = list(options)
    match = nearest(name, options)
    if match:
        return f"Did you mean '{match}'?{broken_note()}"
    return "Expected one of: " + ", ".join(sorted(options)) + f".{broken_note()}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory could not be allocated, by Python, numpy or torch."""
    text = str(error).lower()
    known = ("out of memory", "can't allocate memory", "not enough memory", "unable to allocate", "invalid size")
    return isinstance(error, MemoryError) or any(words in text for words in known)


def brief(error: Exception) -> str:
    """The first line of a message of torch, without the memory of every process on the GPU."""
    return str(error).split("\n", 1)[0].split(" Process ", 1)[0][:200] or type(error).__name__
