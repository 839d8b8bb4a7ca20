"""Errors that a user can cause and correct: each names the place, what was found and what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_command_line = False  # whether a command runs in this process
LONGEST = 500  # characters of a line of an error
# A command as messages quote it; or an option of commands that messages name, unless Python's argument is named behind
# it, and a value that follows it: a placeholder, or one that the few messages with an example have.
_OPTION = re.compile(
    r"`[^`\n]*`|\(dragoman [^)]*\)|dragoman [a-z-]+ .*$|(?<![\w`-])--([a-z][a-z-]*+)(?! \(from Python)"
    r"(?: ([A-Z]{2,}|hmm|sample|en,de|1,2|de|en|20m|web|onnx|int8)(?![\w.]))?"
)
ARGUMENTS = {"time": "seconds", "run-folder": "run"}  # of Python, where they have another name than the option


@contextmanager
def on_command_line() -> Iterator[None]:
    """Messages name options of commands inside the block."""
    global _command_line
    before, _command_line = _command_line, True
    try:
        yield
    finally:
        _command_line = before


def in_python(line: str) -> str:
    """A line with the arguments of Python for options of commands; commands in it stay as they are."""

    def argument(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        return f"{ARGUMENTS.get(found[1], found[1].replace('-', '_'))}={found[2] or '…'}"

    return _OPTION.sub(argument, line) if "--" in line else line


def shortened(line: str) -> str:
    """A line of an error whose middle is left out where it is very long: what to do is at the end."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 200]} … {line[-197:]}"


class DragomanError(Exception):
    """A mistake outside our own code. The command line shows it as one line and exits with code 2.

    Outside the command line a message names the arguments of Python.
    """

    abrupt = False  # True: exit without the usual clean-up, which would hang

    def __str__(self) -> str:
        message = super().__str__()
        return message if _command_line else "\n".join(shortened(in_python(line)) for line in message.split("\n"))


class Interrupted(KeyboardInterrupt):
    """A signal ended the training after the checkpoint of `step`, 0 for none; `code` is the exit code of a command.

    It is no Exception: `except Exception` goes on with nothing that the user has stopped.
    """

    def __init__(self, code: int, step: int) -> None:
        super().__init__(code, step)
        self.code, self.step = code, step

    @property
    def caller(self) -> str:
        return "command" if _command_line else "call"

    def __str__(self) -> str:
        if not self.step:  # a model is being fitted, or the data are being prepared
            return f"stopped before anything was saved; the same {self.caller} begins anew"
        return f"stopped and saved at step {self.step}; the same {self.caller} resumes from there"


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
