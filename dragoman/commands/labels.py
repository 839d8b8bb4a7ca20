"""`predict` and `evaluate` for runs that need no search: labels, numbers, tags and masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dragoman.commands.printing import baseline_text
from dragoman.commands.settings import Settings, SettingsCommand
from dragoman.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.data.examples import Example, Pairs
    from dragoman.inference.labeler import Labeler
    from dragoman.runs import Run

# Arguments, and places of settings, of runs that need no search.
PREDICT_ARGUMENTS = {
    "run", "words", "as_json", "device", "batch_size", "data.columns", "data.header", "data.media",
    "data.skip_unreadable",
}  # fmt: skip
EVALUATE_ARGUMENTS = {
    *PREDICT_ARGUMENTS, "source", "target", "output", "evaluation.metrics", "evaluation.skip_unknown",
    "evaluation.baseline",
}  # fmt: skip


def refuse_options(
    run: Run,
    allowed: set[str],
    reason: str = 'is for runs that search for an output text; {run} has task = "{task}"',
    settings: Settings | None = None,
) -> None:
    """Raise an error for every option or setting that was given and is not allowed: none is ever ignored."""
    context = click.get_current_context()
    flags = context.command.flags if isinstance(context.command, SettingsCommand) else {}
    given = dict(settings.spelled) if settings is not None else {}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in flags and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            given[name] = parameter.opts[0] if isinstance(parameter, click.Option) else name
    if refused := next((spelled for name, spelled in given.items() if name not in allowed), None):
        raise ConfigError(f"{refused} {reason.format(run=run.folder, task=run.task.name)}")


def require_search(command: str, run: str, tasks: str) -> None:
    """Raise an error for a run whose outputs need no search; `tasks` are those that the command works with."""
    from dragoman.runs import Run

    folder = Run(run)
    if folder.task.head_decoder is not None:
        raise RunError(
            f'{run}: found task = "{folder.task.name}", which needs no search; {command} needs task = {tasks}'
        )


def text_of_object(line: str, place: str) -> str:
    """The text in a line of JSON, which has no other field."""
    from dragoman.decoding.constraints.spec import object_from_json

    table = object_from_json(line, place)
    for name in table:
        if name != "source":
            raise DataError(f"{place}: found the field '{name}', expected \"source\" alone")
    return str(table["source"])


def texts_of(file: str | None) -> Iterator[str]:
    """The texts of a file or of standard input, one per line; the lines of a .jsonl file are objects."""
    from dragoman.data.readers.base import READERS
    from dragoman.data.readers.lines import read_lines

    lines = read_lines(file)
    if file is None or READERS.of(file).delimiter:
        return lines
    return (text_of_object(line, f"{file}:{number}") if line.strip() else line for number, line in enumerate(lines, 1))


def read_examples(
    data: DataConfig,
    files: str | Pairs,
    example_format: Any,
    kind: str,
    several_references: bool = False,
    purpose: str = "evaluate",
) -> list[Example]:
    """All examples of some files; a faulty line is an error, since scores of a part are no scores of the whole."""
    from dragoman.data.config import paths_of
    from dragoman.data.examples import Fault
    from dragoman.data.fault_messages import summarize_faults
    from dragoman.data.split import read_examples as read_all

    items = list(read_all(data, files, several_references=several_references, example_format=example_format))
    if faults := [item for item in items if isinstance(item, Fault)]:
        raise DataError(summarize_faults(faults, len(faults)))
    if not items:
        raise DataError(f"{', '.join(paths_of(files))}: nothing to {purpose}: no {kind} was read")
    return items  # type: ignore[return-value]


def print_label_scores(labeler: Labeler, scores: dict[str, Any]) -> None:
    """Scores for a person, and precision, recall, F₁ and count of every label."""
    from dragoman.scoring.registry import metrics_for

    for name, metric in metrics_for(labeler.head_decoder.outputs).items():
        if name in scores:
            baseline = baseline_text(scores, name)
            click.echo(f"{metric.label:<15}{metric.format(scores[name]):>10}   {baseline}{metric.about}")
    click.echo(f"{'loss':<15}{scores['loss']:>10.4g}")
    click.echo(f"{'examples':<15}{scores['segments']:>10,}")
    if "unknown" in scores:
        click.echo(f"{'left out':<15}{scores['unknown']:>10,}   labels that training did not have")
    labels: dict[str, dict[str, float]] = scores.get("labels", {})
    if not labels:
        return
    width = max(15, *(len(label) + 2 for label in labels))
    click.echo(f"\n{'label':<{width}}{'precision':>10}{'recall':>10}{'F1':>10}{'count':>10}")
    for label, row in labels.items():
        numbers = "".join(f"{100 * row[name]:>10.2f}" for name in ("precision", "recall", "f1"))
        click.echo(f"{label:<{width}}{numbers}{row['count']:>10,}")
