"""Command-line options that several commands share; settings.py has those of decoding.

Nothing heavy is imported before a command runs, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from dragoman.decoding.config import MAX_BEAM
from dragoman.progress import silent


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


def metrics_text() -> str:
    """The names of all metrics of texts, and what some of them need."""
    from dragoman.scoring import registry

    names = {**registry.metrics_for("words"), **registry.metrics_for("phonemes")}
    more = "; ".join(f"{name} needs {needs}" for name, needs in registry.demanding_metrics().items())
    return f"{', '.join(names)} ({more})"


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
beam_option = click.option(
    "--beam", type=click.IntRange(1, MAX_BEAM), help="Beam width; 1 is greedy search. [default: the run's]"
)
metric_option = click.option(
    "--metric", "metrics", cls=ListingOption, listing=metrics_text, multiple=True, metavar="NAME",
    help="LISTING or all; may be repeated. [default: those for any text and language]",
)  # fmt: skip
units_option = click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words",
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
draws_option = click.option(
    "--draws", type=click.IntRange(10, 100_000), default=1000, help="Draws of the bootstrap and of p-values."
)
seed_option = click.option(
    "--seed", "--draws-seed", "seed", type=click.IntRange(0), default=1, help="Seed of the draws."
)
