"""What commands refuse before they work: outputs that would overwrite inputs or runs, and options without effect."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dragoman.base import ConfigError, DataError, check_output, check_writable
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding import Settings

if TYPE_CHECKING:
    from dragoman.runs import Run

# The arguments that name a file to write, in every command that has them.
OUTPUTS = ("out", "output", "plot", "risk_plot", "beam_trace", "page", "html", "report", "rejects", "junit")
PLAIN = ("output", "beam_trace", "rejects")  # others are pictures and pages, which create their folder
# A command may write its own part of a run.
OWN_PARTS = {"shortlist": "shortlist.safetensors"}
OWN_CHECKS = ("translate", "inspect", "compare", "export", "lecture")  # --output may be a folder, or is a page
# Arguments, and places of settings, of `predict` and `evaluate` for runs that need no search.
PREDICT_ARGUMENTS = {
    "run", "words", "as_json", "device", "batch_size", "data.columns", "data.header", "data.media",
    "data.skip_unreadable",
}  # fmt: skip
EVALUATE_ARGUMENTS = {
    *PREDICT_ARGUMENTS, "source", "target", "output", "evaluation.metrics", "evaluation.skip_unknown",
    "evaluation.baseline", "evaluation.plot",
}  # fmt: skip
# Those of `evaluate` for a language model.
TEXT_ARGUMENTS = PREDICT_ARGUMENTS - {"data.columns", "data.header"} | {
    f"evaluation.dynamic{name}" for name in ("", "_rate", "_decay", "_segment")
}


def check_outputs(context: click.Context) -> None:
    """Raise DataError if a file that the command would write is one of its inputs or a part of a run."""
    options = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    given = {name: (options.get(name, name), value) for name, value in context.params.items()}
    if isinstance(settings := context.params.get("settings"), Settings):
        given |= {place: (spelled, settings.value(place)) for place, spelled in settings.spelled.items()}
    inputs = [path for name, (_, value) in given.items() if name not in OUTPUTS for path in existing_paths(value)]
    for name, (option, path) in given.items():
        if name not in OUTPUTS or not isinstance(path, str) or path == "-":
            continue
        if OWN_PARTS.get(context.command.name or "") != Path(path).name:
            check_output(path, inputs, option)
        if name in PLAIN and context.command.name not in OWN_CHECKS:
            check_writable(path)
    check_standard_output(inputs)


def check_standard_output(inputs: list[str]) -> None:
    """Refuse `dragoman predict RUN FILE > FILE`: the shell has emptied FILE, and with >> output would be read again."""
    try:
        written = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return
    for path in inputs:
        if Path(path).is_file() and os.path.samestat(written, Path(path).stat()):
            raise DataError(f"{path}: standard output goes to this input; send it to another file")


def existing_paths(value: Any) -> Iterator[str]:
    """The paths that an argument names; for a run folder also its data files."""
    for path in value if isinstance(value, tuple | list) else (value,):
        try:
            if not isinstance(path, str) or not path or not Path(path).exists():
                continue
        except (OSError, ValueError):  # a text that can be no path
            continue
        yield path
        if (Path(path) / "config.toml").is_file():
            yield from data_files(Path(path) / "config.toml")


def data_files(config: Path) -> Iterator[str]:
    try:
        data = tomllib.loads(config.read_text(encoding="utf-8")).get("data", {})
    except (OSError, ValueError):  # the command says what is wrong with it
        return
    for part in ("train", "valid") if isinstance(data, dict) else ():
        entries = data.get(part)
        for entry in entries if isinstance(entries, list) else [entries]:
            paths = entry.values() if isinstance(entry, dict) else [entry]
            yield from (path for path in paths if isinstance(path, str))


# --- options that have no effect


def given_options(context: click.Context) -> dict[str, str]:
    """The options and settings that were given: their names, and how the user spelled them."""
    command, settings = context.command, context.params.get("settings")
    flags = command.flags if isinstance(command, SettingsCommand) else {}
    given = dict(settings.spelled) if isinstance(settings, Settings) else {}
    for parameter in command.params:
        name = parameter.name or ""
        if name not in flags and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            given[name] = parameter.opts[0] if isinstance(parameter, click.Option) else name
    return given


def refuse_options(
    run: Run | None,
    allowed: set[str],
    reason: str = 'is for runs that search for an output text; {run} has task = "{task}"',
) -> None:
    """Raise an error for every option or setting that was given and is not allowed: none is ever ignored."""
    given = given_options(click.get_current_context())
    if refused := next((spelled for name, spelled in given.items() if name not in allowed), None):
        about = {} if run is None else {"run": run.folder, "task": run.task.name}
        raise ConfigError(f"{refused} {reason.format(**about)}")
