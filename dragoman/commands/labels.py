"""`predict` and `evaluate` for runs that need no search."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import click
from click.core import ParameterSource

from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import count_lines, progress_bar
from dragoman.errors import ConfigError, DataError, RunError


def refuse_others(
    run: str,
    task: str,
    allowed: set[str],
    reason: str = 'goes with a search; {run} has task = "{task}", which is answered without one',
) -> None:
    """Refuse every option that was typed and is not among the allowed: none is ever ignored."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else name
            raise ConfigError(f"{shown} {reason.format(run=run, task=task)}")


def searched_only(command: str, run: str, tasks: str) -> None:
    """Refuse a run that is answered without a search where a command looks at one; `tasks` are those it can look at."""
    from dragoman.runs import Run

    opened = Run(run)
    if opened.task.head_decoder is not None:
        raise RunError(
            f'{run}: found task = "{opened.task.name}", which is answered without a search; '
            f"{command} needs task = {tasks}"
        )


def text_of_object(line: str, place: str) -> str:
    """The text in a line of JSON; nothing more can be asked where nothing is searched."""
    from dragoman.decoding.constraints.spec import object_from_json

    table = object_from_json(line, place)
    for name in table:
        if name != "source":
            raise DataError(f"{place}: found the field '{name}', expected \"source\" alone")
    return str(table["source"])


def texts_of(file: str | None) -> Iterator[str]:
    """The texts of a file or of standard input, one a line; the lines of a .jsonl file are objects."""
    from dragoman.data.readers.lines import is_jsonl, read_lines

    lines = read_lines(file)
    if not is_jsonl(file):
        return lines
    return (text_of_object(line, f"{file}:{number}") if line.strip() else line for number, line in enumerate(lines, 1))


def predict_directly(run: Any, file: str | None, batch_size: int, as_json: bool, device: str) -> None:
    """One answer for every line."""
    from dragoman.inference.labeler import labeler_of
    from dragoman.inference.predictor import WINDOW

    refuse_others(str(run.folder), run.task.name, {"run", "file", "batch_size", "as_json", "device"})
    typed = file in (None, "-")
    lines = texts_of(file)
    labeler = labeler_of(run, device)
    as_utf8()
    conversation = typed and sys.stdin.isatty()
    with ExitStack() as stack:
        progress = None
        if sys.stderr.isatty() and not sys.stdout.isatty() and not conversation:
            progress = stack.enter_context(progress_bar("lines", None if typed else count_lines(file)))
        window = 1 if conversation else WINDOW
        for answer in labeler.stream(lines, batch_size=batch_size, window=window, progress=progress):
            sys.stdout.write((answer.as_json() if as_json else answer.text) + "\n")
            if conversation:
                sys.stdout.flush()
        sys.stdout.flush()


def all_examples(
    config: Any, files: Any, example_format: Any, what: str, several_references: bool = False, doing: str = "evaluate"
) -> list[Any]:
    """The examples to score, every one: scores of a part would be compared with scores of the whole."""
    from dragoman.data.config import paths_of
    from dragoman.data.examples import Fault
    from dragoman.data.fault_messages import summarize_faults
    from dragoman.data.split import read_examples

    items = list(read_examples(config, files, several_references=several_references, example_format=example_format))
    if faults := [item for item in items if isinstance(item, Fault)]:
        raise DataError(summarize_faults(faults, len(faults)))
    if not items:
        raise DataError(f"{', '.join(paths_of(files))}: nothing to {doing}: no {what} was read")
    return items


def evaluate_directly(
    run: Any,
    reading: Any,
    files: Any,
    batch_size: int,
    metrics: tuple[str, ...],
    skip_unknown: bool,
    as_json: bool,
    output: str | None,
    device: str,
) -> None:
    """Scores, and a report of every label."""
    from dragoman.files import atomic_write, check_writable
    from dragoman.inference.labeler import labeler_of
    from dragoman.scoring.registry import metrics_for

    allowed = {
        "run",
        "file",
        "source",
        "target",
        "columns",
        "header",
        "batch_size",
        "metrics",
        "skip_unknown",
        "as_json",
        "output",
        "device",
    }
    reason = 'goes with a search and the texts it finds; {run} has task = "{task}", which is answered without one'
    refuse_others(str(run.folder), run.task.name, allowed, reason)
    if output is not None:
        check_writable(output)
    labeler = labeler_of(run, device)
    if output is not None and not labeler.writes:
        raise ConfigError(f'--output: task = "{run.task.name}" has scores, but no answers to write')
    examples = all_examples(reading, files, labeler.example_format, "example")
    with progress_bar("examples", len(examples)) if sys.stderr.isatty() else nullcontext() as progress:
        scores, answers = labeler.evaluate(
            examples, batch_size=batch_size, metrics=metrics, skip_unknown=skip_unknown, progress=progress
        )
    if output is not None:
        with atomic_write(output) as beside:
            beside.write_text("".join(f"{answer.text}\n" for answer in answers), encoding="utf-8", newline="\n")
    as_utf8()
    if as_json:
        click.echo(json.dumps(scores, ensure_ascii=False))
        return
    for name, metric in metrics_for(labeler.head_decoder.outputs).items():
        if name in scores:
            click.echo(f"{metric.label:<15}{metric.format(scores[name]):>10}   {metric.about}")
    click.echo(f"{'loss':<15}{scores['loss']:>10.4g}")
    click.echo(f"{'examples':<15}{scores['segments']:>10,}")
    if "unknown" in scores:
        click.echo(f"{'left out':<15}{scores['unknown']:>10,}   labels that training did not have")
    print_report(scores.get("labels", {}))


def print_report(labels: dict[str, dict[str, float]]) -> None:
    """Precision, recall, F₁ and count of every label."""
    if not labels:
        return
    width = max(15, *(len(label) + 2 for label in labels))
    click.echo(f"\n{'label':<{width}}{'precision':>10}{'recall':>10}{'F1':>10}{'count':>10}")
    for label, row in labels.items():
        numbers = "".join(f"{100 * row[name]:>10.2f}" for name in ("precision", "recall", "f1"))
        click.echo(f"{label:<{width}}{numbers}{row['count']:>10,}")
