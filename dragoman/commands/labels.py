"""`predict` and `evaluate` for runs that need no search: labels, numbers, tags and masked tokens."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dragoman.commands.layout import ReadingOptions
from dragoman.commands.media import input_locations, print_unreadable, printable, reads_files
from dragoman.commands.printing import Refused, as_utf8, baseline_text, print_prompt, print_unseen, print_warning
from dragoman.commands.progress import count_lines, progress_bar
from dragoman.commands.settings import Settings, SettingsCommand
from dragoman.commands.sources import read_sources
from dragoman.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.data.examples import Example, Fault, Pairs
    from dragoman.data.readers.base import SourceRow
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

    opened = Run(run)
    if opened.task.head_decoder is not None:
        raise RunError(
            f'{run}: found task = "{opened.task.name}", which needs no search; {command} needs task = {tasks}'
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


def texts_to_label(run: Run, file: str | None, reading: ReadingOptions) -> Iterator[str]:
    """The texts of a file, or the paths of recordings or pictures.

    A constraint on the output, which a label has not, is an error.
    """
    from dragoman.data.readers.lines import read_lines

    if reads_files(run):
        found = input_locations(run, file, reading.media)
        return iter(found) if found is not None else read_lines(file)
    sources = read_sources(run, file, reading)

    def text_of(number: int, source: SourceRow) -> str:
        for name in source.record:
            raise DataError(f'{file}:{number}: found the field "{name}", which constrains a search; a label needs none')
        return source.text

    return (text_of(number, source) for number, source in enumerate(sources, 1))


def predict_labels(
    run: Run,
    file: str | None,
    reading: ReadingOptions,
    batch_size: int,
    as_json: bool,
    device: str,
) -> None:
    """Print one answer for every line or file."""
    from dragoman.inference.inputs import WINDOW
    from dragoman.inference.labeler import labeler_of
    from dragoman.inference.unseen import UnseenInputs

    typed = file in (None, "-")
    lines = texts_to_label(run, file, reading)
    names: deque[str] = deque()  # of files that were read and have no answer yet
    if as_json and reads_files(run):
        lines = remembered(lines, names)
    unreadable: list[Fault] = []
    unknown, refused = UnseenInputs(), Refused()
    labeler = labeler_of(run, device)
    as_utf8()
    interactive = typed and sys.stdin.isatty()
    with ExitStack() as stack:
        progress = None
        if sys.stderr.isatty() and not sys.stdout.isatty() and not interactive:
            progress = stack.enter_context(progress_bar("lines", None if typed else count_lines(file)))
        window = 1 if interactive else WINDOW
        print_prompt(interactive, "prediction")
        stream = labeler.stream(
            lines, batch_size=batch_size, window=window, progress=progress, on_warning=print_warning,
            on_unreadable=unreadable.append if reading.skip_unreadable else None, on_unknown=unknown.add,
            on_refused=refused.add,
        )  # fmt: skip
        for answer in stream:
            source = {"source": printable(names.popleft())} if names else {}
            sys.stdout.write((answer.as_json(**source) if as_json else answer.text) + "\n")
            if interactive:
                sys.stdout.flush()
                print_unseen(unknown)
        sys.stdout.flush()
    print_unseen(unknown)
    print_unreadable(unreadable, "each has an empty line")
    refused.exit()


def remembered(lines: Iterator[str], names: deque[str]) -> Iterator[str]:
    """The lines, each of which is also appended to `names`."""
    for line in lines:
        names.append(line)
        yield line


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


def evaluate_labels(
    run: Run,
    data: DataConfig,
    files: str | Pairs,
    settings: Settings,
    as_json: bool,
    output: str | None,
    device: str,
) -> None:
    """Print the scores of a run that needs no search, and those of every label."""
    from dragoman.files import atomic_write
    from dragoman.inference.baselines import label_baselines
    from dragoman.inference.labeler import labeler_of

    reason = 'is for runs that output texts; {run} has task = "{task}"'
    refuse_options(run, EVALUATE_ARGUMENTS, reason, settings)
    scoring = settings.evaluation
    labeler = labeler_of(run, device)
    if output is not None and not labeler.writes:
        raise ConfigError(f'--output: task = "{run.task.name}" has scores, but no answers to write')
    examples = read_examples(data, files, labeler.example_format, "example")
    unreadable: list[Fault] = []
    arguments = {
        "batch_size": settings.batch_size,
        "metrics": scoring.metrics,
        "skip_unknown": scoring.skip_unknown,
        "on_unreadable": unreadable.append if settings.data.skip_unreadable else None,
    }
    with progress_bar("examples", len(examples)) if sys.stderr.isatty() else nullcontext() as progress:
        scores, answers = labeler.evaluate(examples, progress=progress, on_warning=print_warning, **arguments)
    if not reads_files(run):
        if found := label_baselines(labeler, examples, scoring.metrics, all_=scoring.baseline):
            scores["baselines"] = found
    elif scoring.baseline:
        raise DataError(f"--baseline needs sources of text; {run.folder} reads files")
    if output is not None:
        with atomic_write(output) as beside:
            beside.write_text("".join(f"{answer.text}\n" for answer in answers), encoding="utf-8", newline="\n")
    as_utf8()
    if as_json:
        click.echo(json.dumps(scores, ensure_ascii=False))
    else:
        print_label_scores(labeler, scores)
    print_unreadable(unreadable, "no score counts them")


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
