"""`dragoman repl`: type a line, read the output, ask why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dragoman.base import ConfigError, DragomanError, cache_home
from dragoman.commands.options import device_option, tag_option
from dragoman.commands.printing import print_warning

if TYPE_CHECKING:
    from dragoman.inference import Prediction

HELP = """\
:beam N     width of the beam; 1 is greedy search
:n N        outputs for each line
:tag TAG    target language of a run trained with tags
:sample     draw outputs at random; :search goes back to beam search
:why        where each word of the last output comes from, and how sure it is
:again      predict the last line again
:help       this list
:quit       leave (also Ctrl+D)"""
SEARCH_COMMANDS = ("beam", "n", "tag", "sample", "search", "why")


@click.command()
@click.argument("run")
@click.option("--beam", type=click.IntRange(1), help="Beam width. [default: the run's]")
@tag_option
@device_option
def repl(run: str, beam: int | None, tag: str | None, device: str) -> None:
    """Predict each line that you type, with a history.

    Lines such as :beam 8 and :why are commands.

    \b
    dragoman repl runs/my
    """
    from dragoman.inference import load_run

    session = Session(load_run(run, device), beam, tag)
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(f"{run}: {session.run.run.task.name}. Type a text, or :help", err=True)
    for line in typed_lines(interactive):
        if not session.read(line):
            break


def typed_lines(interactive: bool) -> Iterator[str]:
    """The lines that a person types, with arrow keys for earlier ones; or those of a pipe."""
    if not interactive:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with history():
        while True:
            try:
                yield input("> ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo("^C (Ctrl+D leaves)")


@contextmanager
def history() -> Iterator[None]:
    """Arrow keys find the lines of earlier sessions inside the block."""
    try:
        import readline
    except ImportError:  # Windows
        yield
        return
    path = cache_home() / "repl_history"
    if path.is_file():
        readline.read_history_file(path)
    try:
        yield
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        readline.set_history_length(1000)
        readline.write_history_file(path)


class Session:
    """A run and what was asked last."""

    def __init__(self, run: Any, beam: int | None, tag: str | None) -> None:
        self.run, self.text = run, ""
        self.options: dict[str, Any] = {
            name: value for name, value in (("beam", beam), ("tag", tag)) if value is not None
        }
        self.last: Prediction | None = None
        self.samples, self.drawn = False, 0  # whether outputs are drawn, and how often

    def read(self, line: str) -> bool:
        """Answer one line; False: leave."""
        try:
            if line.startswith(":"):
                return self.command(*line[1:].split(maxsplit=1))
            if line.strip():
                self.text = line
                self.answer()
        except DragomanError as error:
            click.echo(f"! {error}", err=True)
        return True

    def command(self, name: str = "", value: str = "") -> bool:
        if name in ("quit", "q", "exit"):
            return False
        if name in SEARCH_COMMANDS and not self.run.searches:
            raise ConfigError(
                f':{name} is for runs that search for a text; this one has task = "{self.run.run.task.name}"'
            )
        if name in ("beam", "n"):
            if not value.isdigit() or not int(value):
                raise ConfigError(f":{name}: found '{value}', expected a number from 1 on, as in :{name} 4")
            self.options["beam" if name == "beam" else "n_best"] = int(value)
            click.echo(f"{'outputs for each line' if name == 'n' else 'beam'}: {int(value)}", err=True)
        elif name == "tag" and value:
            self.options["tag"] = value
        elif name == "sample":
            self.samples = True
            click.echo("outputs are drawn at random; :search goes back to beam search", err=True)
        elif name == "search":
            self.samples = False
        elif name == "why":
            self.why()
        elif name == "again" and self.text:
            self.answer()
        else:
            if name != "help":
                click.echo(f"! found ':{name}{' ' + value if value else ''}', expected one of these:", err=True)
            click.echo(HELP)
        return True

    def answer(self) -> None:
        """Print the output of the last text, and its alternatives."""
        if self.run.continues:
            ((completed,),) = self.run.complete([self.text], allow_unknown=True, one_line=True)
            click.echo(completed.text)
            return
        if not self.run.searches:
            click.echo(self.outputs()[0].text)
            return
        if self.samples:
            from dragoman.decoding import Sampling

            self.drawn += 1
            self.options["method"] = Sampling(seed=self.drawn)
        else:
            self.options.pop("method", None)
        self.last = self.outputs(**self.options)[0]
        click.echo(self.last.text)
        for number, other in enumerate(self.last.alternatives, 2):
            click.echo(f"  {number}. {other.text}   ({other.score:.3f})")

    def outputs(self, **options: Any) -> list[Any]:
        return list(self.run.stream([self.text], on_warning=print_warning, **options))

    def why(self) -> None:
        """Print for each word of the last output its source words and its probability."""
        from dragoman.inference.align import align_pairs

        if self.last is None:
            click.echo("nothing to explain yet: type a text first")
            return
        (aligned,) = align_pairs(self.run, [(self.text, self.last.text)], tag=self.options.get("tag"))
        width = max([len(word) for word in aligned.target] or [0])
        for index, word in enumerate(aligned.target):
            best = aligned.weights[index].topk(min(3, len(aligned.source)))
            shown = ", ".join(
                f"{aligned.source[source]} {weight:.0%}"
                for weight, source in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            )
            click.echo(f"  {word:<{width}}  ← {shown}")
        sure = "" if self.last.confidence is None else f", {self.last.confidence:.0%} sure"
        click.echo(f"  score {self.last.score:.3f} per token{sure}")
