"""Printing that several commands share: data to standard output, messages to standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from dragoman.base import unguarded

if TYPE_CHECKING:
    from dragoman.inference import CompletedLines, PredictedLines


def as_utf8() -> None:
    """Make standard output UTF-8 with bare line feeds in every locale, as programs expect that read it."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def as_data() -> None:
    """Make standard output what programs read: a file or pipe gets each character as it is, a terminal visible ones."""
    as_utf8()
    if not sys.stdout.isatty():
        sys.stdout = unguarded(sys.stdout)


def print_json(value: Any) -> None:
    """Print JSON in which every control character is an escape of JSON."""
    as_utf8()
    text = json.dumps(value, ensure_ascii=False)  # which leaves these as they are
    click.echo(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))


def print_message(message: str) -> None:
    click.echo(message, err=True)


def print_warning(message: str) -> None:
    """Print a warning, if there is one."""
    if message:
        print_message(f"warning: {message}")


def print_lines(outputs: PredictedLines | CompletedLines, lines: Iterable[str], answer: str = "output") -> None:
    """Write each output; a person who types gets it at once, with a warning of what training did not have."""
    as_data()
    if outputs.interactive:
        print_message(f"type a line and press Enter for its {answer}; Ctrl+D ends")
    for line in lines:
        sys.stdout.write(line)
        if outputs.interactive:
            sys.stdout.flush()
            print_warning(outputs.unseen.message())
    sys.stdout.flush()
