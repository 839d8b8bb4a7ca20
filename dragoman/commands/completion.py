"""`dragoman completion`: the script of a shell, and the answers to its questions.

A shell starts `dragoman` with the line up to the cursor in DRAGOMAN_COMPLETE and reads one suggestion a line, with a
tab before its help; without any, it suggests files itself. An answer must come at once, so nothing here imports torch:
`suggestions.json` has what the tables of the package would say (`python tools/suggestions.py` writes it).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

VARIABLE = "DRAGOMAN_COMPLETE"
FILE = "suggestions.json"
MANY = 40  # more settings than these are suggested by their next part alone
NOTE = 70  # characters of a note, so that it stays on its line
RUNS = "runs"
RUN_PARAMETERS = {"run", "run_folder", "student", "teacher", "reverse"}  # also those of the name of another run
DEVICES = ("auto", "cpu", "cuda", "mps")
Suggestions = dict[str, tuple[str, list[str]]]  # settings by place, each with a note and the values that can be listed


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands in a shell.

    It completes commands, options, presets, settings (place=value) and runs.

    \b
    eval "$(dragoman completion bash)"                                    in ~/.bashrc
    eval "$(dragoman completion zsh)"                                     in ~/.zshrc, after compinit
    dragoman completion fish > ~/.config/fish/completions/dragoman.fish
    """
    script = resources.files("dragoman.commands") / "shells" / f"completion.{shell}"
    click.echo(script.read_text(encoding="utf-8"), nl=False)


class LineComplete(ShellComplete):
    """The completion of a line up to the cursor, for every shell alike."""

    name = "line"

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ[self.complete_var]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or len(words) < 2 else words.pop()
        return words[1:], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        name = next((word for word in args if word in getattr(self.cli, "commands", ())), None)
        if name is not None:
            for parameter in self.cli.commands[name].params:  # type: ignore[attr-defined]
                if parameter.type is click.STRING:
                    parameter.type = Suggested()
        return super().get_completions(args, incomplete)

    def format_completion(self, item: CompletionItem) -> str:
        note = (item.help or "").partition(". ")[0]
        return f"{item.value}\t{note[:NOTE]}"


def answer(cli: click.Command) -> int:
    """Print the suggestions for the line in the environment; none for a line that is wrong."""
    try:
        if lines := LineComplete(cli, {}, "dragoman", VARIABLE).complete():
            click.echo(lines.encode("utf-8", "replace"))
    except click.ClickException:  # such as an unknown command
        return 1
    return 0


class Suggested(click.types.StringParamType):
    """Text with suggestions for a shell."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value, help=note) for value, note in suggestions(ctx, param, incomplete)]


def suggestions(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[tuple[str, str]]:
    """The values of a parameter that begin so, each with a note; none where the shell should suggest files."""
    command, name = ctx.command, param.name or ""
    table = known()
    listed: Mapping[str, Iterable[str]] = {
        "device": DEVICES,
        "metrics": table["metrics"],
        "metric": table["metrics"],
        "preset": preset_names(),
        ("task" if command.name == "new" else ""): table["tasks"],
        ("to" if command.name == "export" else ""): table["exporters"],
        ("name" if command.name == "presets" else ""): preset_names(),
    }
    if name in listed:
        yield from ((value, "") for value in listed[name] if value.startswith(incomplete))
        return
    runs_first = name in RUN_PARAMETERS or (name == "words" and command.name == "serve") or name == "systems"
    if runs_first or incomplete.startswith(f"{RUNS}/"):
        yield from ((run, "") for run in run_folders(incomplete))
    if isinstance(param, click.Argument) and name in ("what", "overrides", "words", "file"):
        first = name == "what" or not any(other.name == "overrides" for other in command.params)
        if incomplete or not first:  # an empty word after a run may also be a file, which the shell knows
            yield from setting_words(places_of(command), incomplete)


def setting_words(places: Mapping[str, Any], incomplete: str) -> Iterator[tuple[str, str]]:
    """The settings `place=` that begin so, or behind the = the values of one."""
    place, equals, value = incomplete.partition("=")
    if equals:
        values = preset_names() if place == "preset" else places.get(place, ["", ()])[1]
        yield from ((f"{place}={choice}", "") for choice in values if choice.startswith(value))
        return
    matching = [name for name in places if name.startswith(incomplete)]
    if len(matching) <= MANY:
        yield from ((f"{name}=", places[name][0]) for name in matching)
        return
    start = incomplete.rfind(".") + 1
    parts: dict[str, str] = {}
    for name in matching:
        part, dot, _ = name[start:].partition(".")
        parts.setdefault(name[:start] + part + (dot or "="), "" if dot else places[name][0])
    yield from parts.items()


def places_of(command: click.Command) -> Mapping[str, Any]:
    """The settings of a command: place, then note and values. Commands that train have those of a configuration."""
    from dragoman.commands.settings import SettingsCommand

    table = known()
    if not isinstance(command, SettingsCommand):
        return table["settings"] if any(parameter.name == "overrides" for parameter in command.params) else {}
    schema = command.schema
    own = {row.place: (row.note, values_of(schema.accepted(row.place))) for row in schema.static}
    return own | (method_places(schema.kinds) if schema.has_method else {})


def method_places(kinds: Iterable[str] | None) -> Suggestions:
    """The setting `method` with these decoding methods, or all, and the settings that they have."""
    methods = known()["methods"]
    kinds = sorted(methods if kinds is None else kinds)
    places: Suggestions = {"method": ("how to decode", kinds)}
    for kind in kinds:
        for place, (note, values) in methods[kind].items():
            add(places, place, note, values)
    return places


def values_of(expected: Any) -> list[str]:
    """The values that can be listed: choices, and true and false."""
    if expected is None:
        return []
    return [*expected.choices, *(("true", "false") if bool in expected.scalars else ())]


def run_folders(incomplete: str) -> list[str]:
    """The run folders that begin so: those beside it, and those in runs/."""
    places = {os.path.dirname(incomplete)}  # noqa: PTH120  (the text before the last slash, as it was typed)
    if RUNS.startswith(incomplete):
        places.add(RUNS)
    found = []
    for place in places:
        try:
            with os.scandir(place or ".") as entries:
                names = [entry.name for entry in entries if (Path(entry.path) / "config.toml").is_file()]
        except OSError:
            continue
        found += [os.path.join(place, name) for name in names]  # noqa: PTH118
    return sorted(name for name in found if name.startswith(incomplete) and not set(name) & set(" \t\n'\"\\$"))


@cache
def known() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((resources.files("dragoman.commands") / FILE).read_text(encoding="utf-8"))
    return table


def preset_names() -> list[str]:
    folder = resources.files("dragoman.base.config") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def add(found: Suggestions, place: str, note: str, values: Iterable[str]) -> None:
    known_values = found.setdefault(place, (note, []))[1]
    known_values += [value for value in values if value not in known_values]
