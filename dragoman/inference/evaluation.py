"""What an evaluation needs beside predictions: its options, examples and metric names."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dragoman.base import DataError
from dragoman.data import DataConfig, Example, Fault, LineCounts, Pairs, file_list, summarize_faults
from dragoman.data import read_examples as read_all
from dragoman.data.formats import with_context
from dragoman.data.readers import examples_of, files_of, rows_of
from dragoman.decoding import check_at_least
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.opened_inputs import AS_TRAINED, warn_user
from dragoman.runs import Run
from dragoman.runs.tasks import Task
from dragoman.scoring import DEFAULT_DRAWS, Units, metrics_by_name, scores_html, select_metrics

Output = TypeVar("Output")


class Evaluation(NamedTuple, Generic[Output]):
    """The scores of an evaluation and the predictions behind them; `result["bleu"]` is short for its score."""

    scores: dict[str, Any]
    predictions: list[Output]

    def __getitem__(self, key: Any) -> Any:
        """A score by its name, or as a tuple has it."""
        return self.scores[key] if isinstance(key, str) else tuple.__getitem__(self, key)

    def __repr__(self) -> str:
        metrics = metrics_by_name()
        shown = [f"{name} {metrics[name].format(value)}" for name, value in self.scores.items() if name in metrics]
        return f"<Evaluation of {self.scores.get('segments', len(self.predictions)):,} examples: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        return scores_html(self.scores)


class ReferenceLoss(NamedTuple):
    """The loss of references over their tokens, <eos> included."""

    loss: float  # mean negative log-probability; ∞ if the model can output none of them
    accuracy: float
    too_long: int  # references that the model cannot output at all; they are left out


def read_examples(
    run: Run,
    files: str | Path | Pairs,
    several_references: bool = False,
    data: DataConfig | None = None,
    on_skipped: Callable[[str], None] | None = None,
) -> list[Example]:
    """The examples of files, read as `data` says or as the run read its own data.

    A faulty line is an error, unless data.faults skips it and `on_skipped` says so.
    """
    example_format = run.task.example_format(run.config)
    named = str(files) if isinstance(files, Path) else files
    data, counts, examples = data or run.config.data, LineCounts(), list[Example]()
    for item in read_all(data, named, several_references=several_references, example_format=example_format):
        counts.add(item)
        if isinstance(item, Example):
            examples.append(item)
    if counts.faults and (on_skipped is None or not counts.tolerated(data.faults)):
        raise DataError(summarize_faults(counts.first, counts.faults.total()))
    if on_skipped is not None and counts.faults:
        on_skipped(counts.warning())
    return examples


@dataclass(frozen=True)
class EvaluationOptions:
    """What an evaluation computes."""

    metrics: str | Sequence[str] = ()  # names of `scoring.METRICS`, or "all"; empty: those of the task
    intervals: bool = False  # add 95 % confidence intervals, by bootstrap over segments
    draws: int = DEFAULT_DRAWS  # of the bootstrap
    draws_seed: int = 1
    skip_unreadable: bool = False  # leave out recordings and pictures that cannot be read; else they are errors

    def __post_init__(self) -> None:
        check_at_least(10, draws=self.draws)
        check_at_least(0, draws_seed=self.draws_seed)


def as_examples(pairs: Iterable[object]) -> list[Example]:
    return [as_example(pair, number) for number, pair in enumerate(pairs, 1)]


def given_examples(run: Run, data: Path | str | Iterable[object], several_references: bool = False) -> list[Example]:
    """The examples of files or of data in memory, read as the run read its own data."""
    config = run.config.data
    texts = isinstance(data, list | tuple) and any(isinstance(item, str) and not Path(item).exists() for item in data)
    if not texts and (files := files_of(data)) is not None:
        return [
            example
            for entry in file_list(files)
            for example in read_examples(run, entry, several_references, AS_TRAINED.applied(config, entry, warn_user))
        ]
    rows = data if isinstance(data, list | tuple) else list(rows_of(data))
    if not any(isinstance(row, Mapping) for row in rows):
        examples, size = as_examples(rows), config.context
        if size and not any(isinstance(row, Example) for row in rows):
            return [example for example in with_context(examples, size) if isinstance(example, Example)]
        return examples
    return examples_of(data if hasattr(data, "iloc") else rows, config, run.task.example_format(run.config))


def as_example(pair: object, number: int) -> Example:
    if isinstance(pair, Example):
        return pair
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
        raise TypeError(f"pair {number}: found {pair!r}, expected (source, reference) or (source, [reference, …])")
    source, target = pair
    references = (target,) if isinstance(target, str) else tuple(target)
    if not references or not all(isinstance(text, str) for text in references):
        raise TypeError(f"pair {number}: found the references {target!r}, expected one or more texts")
    return Example(source, references, "pairs", number)


def metric_names(metrics: str | Sequence[str], task: Task, units: Units) -> tuple[str, ...]:
    """The metrics of an evaluation: those named, or those of the task; an unknown name is an error."""
    names = ((metrics,) if isinstance(metrics, str) else tuple(metrics)) or task.default_metrics
    if "per" not in names and units == "phonemes" and task.counts_edit_types:
        names = ("per", *names)
    select_metrics(names, units)
    return names


def readable_examples(
    run: LoadedRun, examples: list[Example], skip: bool, on_unreadable: Callable[[Fault], None] | None
) -> tuple[list[Example], list[Fault]]:
    """The examples whose files can be read, which are read once; other files are errors, or with `skip` reported."""
    if not run.reads_files:
        return examples, []
    # The features lie in a temporary folder that lives as long as the run.
    beside = tempfile.mkdtemp(prefix="dragoman-features-")
    weakref.finalize(run, shutil.rmtree, beside, ignore_errors=True)
    folder = Path(beside) / "features"
    paths = list(dict.fromkeys(example.model_input for example in examples))
    wrong = {fault.location: fault for fault in run.extractor.read_files(folder, paths)}
    named = [(example, wrong.get(example.model_input)) for example in examples]
    faults = [Fault(example.location, fault.kind, str(fault)) for example, fault in named if fault is not None]
    if faults and not skip:
        raise first_of(faults, "data.skip_unreadable=true (from Python skip_unreadable=True)")
    if on_unreadable is not None:
        for fault in faults:
            on_unreadable(fault)
    readable = [example for example, fault in named if fault is None]
    if not readable:
        raise DataError(f"nothing to evaluate: none of {len(faults)} files could be read")
    return readable, faults


def with_left_out(
    every: Sequence[Example], evaluated: Sequence[Example], outputs: Sequence[Output], empty: Output
) -> list[Output]:
    """An output for every example, so that the lines of the outputs are those of the data; empty if it was left out."""
    by_example = {id(example): output for example, output in zip(evaluated, outputs, strict=True)}
    return [by_example.get(id(example), empty) for example in every]


def first_of(errors: Sequence[object], option: str) -> DataError:
    """The error for examples that cannot be evaluated: the first, how many more, and what leaves them out."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return DataError(f"{errors[0]}{more}; leave such examples out with {option}")
