"""The command group: all commands in the order of work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from dragoman import plugins
from dragoman.commands.adapt import adapt
from dragoman.commands.align import align, terms
from dragoman.commands.back_translate import back_translate
from dragoman.commands.bench import bench
from dragoman.commands.checks import check_outputs
from dragoman.commands.clean import clean
from dragoman.commands.compare import compare
from dragoman.commands.complete import complete
from dragoman.commands.corrections import corrections
from dragoman.commands.curve import curve
from dragoman.commands.evaluate import evaluate
from dragoman.commands.exchange import export, import_model
from dragoman.commands.inspect import attention, calibrate, info, inspect, probe
from dragoman.commands.new import demo, new, presets
from dragoman.commands.predict import predict
from dragoman.commands.repl import repl
from dragoman.commands.score import score, score_alignment
from dragoman.commands.serve import serve
from dragoman.commands.shortlist import shortlist
from dragoman.commands.test import test
from dragoman.commands.train import check, distil, train
from dragoman.commands.translate import translate
from dragoman.errors import hint
from dragoman.version import __version__


class Commands(click.Group):
    """Suggests the nearest command for a mistyped one, and lists commands in the order of work."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in self.commands:
            context.fail(f"no such command '{arguments[0]}'. {hint(arguments[0], self.commands)}")
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        """As click does, but a closed pipe raises OutputClosed instead of a silent exit code 1."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise OutputClosed from None


class OutputClosed(Exception):  # noqa: N818  (not an error: `dragoman … | head` closes the pipe)
    """The reader of standard output closed it."""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, message="dragoman %(version)s")
@click.option("--trace", is_flag=True, help="Show the whole Python traceback of an error (works after a command too).")
@click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Import a module of plug-ins first; may be repeated."
)
def cli(trace: bool, modules: tuple[str, ...]) -> None:
    """Train, run and evaluate sequence-to-sequence models.

    \b
    A first tour:
      dragoman train pairs.tsv              train on a file with two columns
      echo "hello" | dragoman predict runs/pairs
      dragoman evaluate runs/pairs test.tsv
      dragoman info runs/pairs
    """
    plugins.use(modules)


# In the order of work, which is that of the help.
COMMANDS = (
    train, check, clean, curve, back_translate, distil, adapt, corrections, predict, translate, complete, serve, repl,
    evaluate, score, compare, test, align, score_alignment, terms, info, inspect, attention, probe, calibrate,
    shortlist, bench, import_model, export, new, presets, demo,
)  # fmt: skip


def checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses bad outputs before it does any work."""

    @functools.wraps(callback)
    def run(*arguments: Any, **given: Any) -> Any:
        check_outputs(click.get_current_context())
        return callback(*arguments, **given)

    return run


for command in COMMANDS:
    assert command.callback is not None
    command.callback = checked(command.callback)
    cli.add_command(command)
