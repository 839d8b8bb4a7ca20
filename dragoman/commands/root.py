"""The command group: all commands by what a user wants. A command's module is imported when it is first used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any

import click

from dragoman.base import DOCUMENTATION, Interrupted, __version__, hint, plugins

# Groups of the help in order of work: command, module, and the first sentence of its help, which fits 80 columns. They
# are told here, so that the help and the completion of a shell need not import the commands.
GROUPS = {
    "Start": (
        ("demo", "new", "Learn to pronounce English words; show a network at work."),
        ("new", "new", "Print a commented starter configuration for a task."),
        ("lecture", "lecture", "Make a course's companion: figures, commands, questions."),
        ("schema", "new", "Print the JSON Schema of configuration files, for editors."),
        ("presets", "new", "List the presets with sizes and papers, or print one."),
        ("worked", "worked", "Work out a textbook's numbers, step by step, or your own."),
        ("completion", "completion", "Print a script that completes commands in a shell."),
    ),
    "Train": (
        ("train", "train", "Train a model, or resume a run."),
        ("check", "train", "Check data and settings before a run, or the installation."),
        ("curve", "curve", "Predict what more training data would bring."),
        ("distil", "train", "Train one model on the outputs of a run or an ensemble."),
        ("adapt", "adapt", "Make a better version of a run from corrected outputs."),
        ("corrections", "corrections", "Review corrections that clients of a server have sent."),
    ),
    "Use": (
        ("predict", "predict", "Predict one output line for every input line."),
        ("translate", "translate", "Translate whole documents: only their text changes."),
        ("complete", "complete", "Continue a prompt with a language model."),
        ("serve", "serve", "Serve trained runs over HTTP, with a web page at /."),
        ("repl", "repl", "Predict each line that you type, with a history."),
        ("shortlist", "shortlist", "Learn which target tokens to try, for faster decoding."),
    ),
    "Measure": (
        ("evaluate", "evaluate", "Score a run on pairs: text metrics, loss, perplexity."),
        ("qa", "qa", "Check translations: numbers, placeholders, tags and more."),
        ("score", "score", "Score texts against references, without a model."),
        ("compare", "compare", "Compare texts, runs or configurations by one protocol."),
        ("test", "test", "Test a run: one line for each check of a suite."),
        ("calibrate", "inspect", "Calibrate a run's confidences."),
        ("bench", "bench", "Measure speed on this machine: training, decoding, layers."),
        ("score-alignment", "score", "Score word alignments against gold links."),
    ),
    "Look inside": (
        ("info", "inspect", "Show a run: its model, data and training curve."),
        ("inspect", "inspect", "See inside a run: what it does with a text, as a page."),
        ("attention", "inspect", "Draw the attention of each output token over the input."),
        ("probe", "inspect", "Probe a run with texts that test its robustness."),
    ),
    "Exchange": (
        ("import", "exchange", "Make a run from a model folder of Hugging Face."),
        ("export", "exchange", "Write a trained run in the format of another program."),
    ),
    "Data": (
        ("clean", "clean", "Take pairs out of a corpus that would harm training."),
        ("align", "align", "Align the words of pairs, or of recordings with times."),
        ("vectors", "vectors", "Learn word vectors by negative sampling; find neighbours."),
        ("terms", "align", "Extract terms and their translations from pairs."),
        ("back-translate", "back_translate", "Make training pairs from text of the target language."),
    ),
}  # fmt: skip
MODULES = {name: module for rows in GROUPS.values() for name, module, _ in rows}


class CommandTable(MutableMapping[str, click.Command]):
    """All commands by name; one that is asked for is imported."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = import_module(f"dragoman.commands.{MODULES[name]}")
            attribute = {"import": "import_model"}.get(name, name.replace("-", "_"))
            self[name] = getattr(module, attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        assert command.callback is not None
        command.callback = checked(command.callback)
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class Commands(click.Group):
    """Suggests the nearest command for a mistyped one, and lists commands by what a user wants."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, MODULES))  # the same in all groups
        for title, rows in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, _, summary in rows])

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in self.commands:
            context.fail(f"no such command '{arguments[0]}'. {hint(arguments[0], self.commands)}")
        return super().resolve_command(context, arguments)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """The commands that begin so, without an import of any; options as click has them."""
        rows = [row for group in GROUPS.values() for row in group if row[0].startswith(incomplete)]
        items = [click.shell_completion.CompletionItem(name, help=summary) for name, _, summary in rows]
        return items + click.Command.shell_complete(self, context, incomplete)

    def invoke(self, context: click.Context) -> Any:
        """As click does, but a closed pipe raises OutputClosed instead of a silent exit code 1."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise OutputClosed from None
        except Interrupted as error:  # click takes any KeyboardInterrupt for Ctrl-C at a prompt
            raise CommandStopped(error.code, str(error)) from None


class CommandStopped(Exception):  # noqa: N818  (not an error: a signal asked the command to stop)
    """A signal stopped the command, which has saved its work."""


class OutputClosed(Exception):  # noqa: N818  (not an error: `dragoman … | head` closes the pipe)
    """The reader of standard output closed it."""


def checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses bad outputs before it does any work."""

    @functools.wraps(callback)
    def run(*arguments: Any, **given: Any) -> Any:
        from dragoman.commands.checks import check_outputs

        check_outputs(click.get_current_context())
        return callback(*arguments, **given)

    return run


@click.group(
    cls=Commands,
    commands=CommandTable(),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
        "color": True,  # else click would drop escape sequences before `GuardedStream` can show them
    },
    epilog=f"Documentation: {DOCUMENTATION}",
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
