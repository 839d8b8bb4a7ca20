"""The group of all commands: help in the order of work, and the nearest name to a mistyped one."""

from __future__ import annotations

from typing import Any

import click

from dragoman.commands.align import align, score_alignment
from dragoman.commands.bench import bench
from dragoman.commands.complete import complete
from dragoman.commands.evaluate import evaluate
from dragoman.commands.export import export
from dragoman.commands.inspect import attention, calibrate, info, probe
from dragoman.commands.new import demo, new, presets
from dragoman.commands.predict import predict
from dragoman.commands.score import compare, score
from dragoman.commands.shortlist import shortlist
from dragoman.commands.train import check, train
from dragoman.errors import hint
from dragoman.version import __version__


class Commands(click.Group):
    """Names the nearest command when one is mistyped, and lists commands in the order of work."""

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order they were written."""
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name in the error."""
        if arguments and not arguments[0].startswith("-") and arguments[0] not in self.commands:
            context.fail(f"no such command '{arguments[0]}'. {hint(arguments[0], self.commands)}")
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        """As click does, but without its silent exit code 1 when the reader of the output has left."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise ReaderLeft from None


class ReaderLeft(Exception):  # noqa: N818  (not an error: `dragoman … | head` has seen enough)
    """Nobody reads our output any more."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="dragoman %(version)s")
@click.option("--trace", is_flag=True, help="Show the whole Python traceback of an error (works after a command too).")
def cli(trace: bool) -> None:
    """Learn to map sequences to sequences from pairs: train, check, predict, evaluate.

    \b
    A first tour:
      dragoman train pairs.tsv              learn from a file of two columns, nothing else needed
      echo "hello" | dragoman predict runs/pairs
      dragoman evaluate runs/pairs test.tsv
      dragoman info runs/pairs
    """


# In the order of work, which is that of the help.
for command in (
    train,
    check,
    predict,
    complete,
    evaluate,
    score,
    compare,
    align,
    score_alignment,
    info,
    attention,
    probe,
    calibrate,
    shortlist,
    bench,
    export,
    new,
    presets,
    demo,
):
    cli.add_command(command)
