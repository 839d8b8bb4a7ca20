"""Command-line options that several commands share; settings.py has those of decoding.

Nothing heavy is imported before a command runs, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from dragoman.decoding.config import MAX_BEAM

Function = TypeVar("Function", bound=Callable[..., Any])


def options(several: Iterable[Any]) -> Callable[[Function], Function]:
    """Several options of a command, in this order in its help."""

    def add(function: Function) -> Function:
        for option in reversed(tuple(several)):
            function = option(function)
        return function

    return add


class MetricOption(click.Option):
    """An option that takes a metric; its help lists the registered ones when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names come from the registry, which `dragoman --help` need not import."""
        from dragoman.scoring import registry

        record = super().get_help_record(ctx)
        assert record is not None
        names = {**registry.metrics_for("words"), **registry.metrics_for("phonemes")}
        more = "; ".join(f"{name} needs {needs}" for name, needs in registry.demanding_metrics().items())
        return record[0], record[1].replace("METRICS", f"{', '.join(names)} ({more})")


tag_option = click.option(
    "--tag", help="Target tag, such as de, for a run trained with several; dragoman info lists them."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
beam_option = click.option(
    "--beam", type=click.IntRange(1, MAX_BEAM), help="Beam width; 1 is greedy search. [default: the run's]"
)
metric_option = click.option(
    "--metric", "metrics", cls=MetricOption, multiple=True, metavar="NAME",
    help="METRICS or all; may be repeated. [default: those for any text and language]",
)  # fmt: skip
units_option = click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words", show_default=True,
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
draws_option = click.option(
    "--draws",
    type=click.IntRange(10, 100_000),
    default=1000,
    show_default=True,
    help="Draws of the bootstrap and of p-values.",
)
seed_option = click.option(
    "--seed", "--draws-seed", "seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the draws."
)
