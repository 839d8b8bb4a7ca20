"""Command-line options that several commands share; settings.py has those of decoding.

Nothing heavy is imported before a command runs, so that --help is quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from dragoman.base import silent


class ListingOption(click.Option):
    """An option with LISTING in its help, which names the entries of a table.

    They are looked up when the help is shown, so that other commands need not import the table.
    """

    def __init__(self, *arguments: Any, listing: Callable[[], str], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.listing = listing

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], record[1].replace("LISTING", self.listing()))


UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as 90s, 20m or 1h30m; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: Any, context: Any) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if not re.fullmatch(r"(\d+(\.\d+)?[dhms])+|\d+(\.\d+)?", text):
            self.fail(f"found {value!r}, expected a time such as 90s, 20m or 1h30m")
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail(f"found {value!r}, expected a time above zero, such as 20m")
        return seconds


def quiet_option(shown: str) -> Callable[[Any], Any]:
    """--quiet of a command; `shown` says what it shows still. No part of the command shows progress then."""

    def silence(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        context.with_resource(silent(value))
        return value

    return click.option("--quiet", "-q", is_flag=True, callback=silence, help=f"Show {shown} only.")


tag_option = click.option(
    "--tag", help="Target tag, such as de, for a run trained with several; dragoman info lists them."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
device_option = click.option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps.")
