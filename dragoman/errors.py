"""Errors a user can cause and mend: each says the place, what was found and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DragomanError(Exception):
    """A mistake outside our own code; the command line shows it as one line and exits with code 2."""

    abrupt = False  # leave without the usual clean-up, which would hang


class ConfigError(DragomanError):
    """A setting that does not exist, has the wrong type or lies out of range."""


class DataError(DragomanError):
    """A file that is missing, unreadable or holds lines that cannot be used."""


class RunError(DragomanError):
    """A run folder that is missing, incomplete or does not fit what is asked of it."""


class MissingExtraError(DragomanError):
    """An optional package that the asked-for feature needs is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package '{package}', which is not installed. "
            f"Install it with: pip install 'dragoman[{extra}]'"
        )


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option most like a misspelt name, if any is close."""
    matches = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return matches[0] if matches else None


def hint(name: str, options: Iterable[str]) -> str:
    """The sentence that ends an error about an unknown name."""
    options = list(options)
    match = nearest(name, options)
    if match:
        return f"Did you mean '{match}'?"
    return "Expected one of: " + ", ".join(sorted(options)) + "."
