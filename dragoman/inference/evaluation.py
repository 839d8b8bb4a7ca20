"""What an evaluation needs beside predictions: its options, examples, metric names and the loss of references."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dragoman.data.batch import Rows
from dragoman.data.collate import Collator
from dragoman.data.examples import Example, Fault
from dragoman.data.fault_messages import summarize_faults
from dragoman.data.feature_store import FeatureColumn, write_features
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.split import read_examples as read_all
from dragoman.errors import ConfigError, DataError
from dragoman.runs import Run
from dragoman.scoring.metric import Units
from dragoman.scoring.registry import metrics_by_name, select_metrics
from dragoman.scoring.significance import DEFAULT_DRAWS
from dragoman.tasks.base import Task


class Evaluation(NamedTuple):
    """The scores of an evaluation and the predictions behind them; `result["bleu"]` is short for its score."""

    scores: dict[str, Any]
    predictions: list[Any]

    def __getitem__(self, key: Any) -> Any:
        """A score by its name, or as a tuple has it."""
        return self.scores[key] if isinstance(key, str) else tuple.__getitem__(self, key)

    def __repr__(self) -> str:
        metrics = metrics_by_name()
        shown = [f"{name} {metrics[name].format(value)}" for name, value in self.scores.items() if name in metrics]
        return f"<Evaluation of {self.scores.get('segments', len(self.predictions)):,} examples: {', '.join(shown)}>"


def read_examples(run: Run, path: str | Path, several_references: bool = False) -> list[Example]:
    """The examples of a file, read as the run read its own data; a faulty line is an error."""
    example_format = run.task.example_format(run.config)
    items = list(
        read_all(run.config.data, str(path), several_references=several_references, example_format=example_format)
    )
    if faults := [item for item in items if isinstance(item, Fault)]:
        raise DataError(summarize_faults(faults, len(faults)))
    return [item for item in items if isinstance(item, Example)]


Pair = Example | tuple[str, str | Sequence[str]]


@dataclass(frozen=True)
class EvaluationOptions:
    """What an evaluation computes."""

    metrics: str | Sequence[str] = ()  # names of `scoring.METRICS`, or "all"; empty: those of the task
    intervals: bool = False  # add 95 % confidence intervals, by bootstrap over segments
    draws: int = DEFAULT_DRAWS  # of the bootstrap
    draws_seed: int = 1
    skip_unreadable: bool = False  # leave out recordings and pictures that cannot be read; else they are errors

    def __post_init__(self) -> None:
        for name, minimum in (("draws", 10), ("draws_seed", 0)):
            if (value := getattr(self, name)) < minimum:
                raise ConfigError(f"{name}: found {value}, expected at least {minimum}")


def as_examples(pairs: Sequence[Pair]) -> list[Example]:
    return [as_example(pair, number) for number, pair in enumerate(pairs, 1)]


def as_example(pair: Pair, number: int) -> Example:
    """One pair as an example; `number` counts from 1."""
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


def read_files(
    codec: FeatureExtractor, examples: Sequence[Example], owner: object
) -> tuple[list[Example], list[Fault]]:
    """Read recordings or pictures into a temporary folder that lives as long as `owner`, and list unreadable ones."""
    paths = list(dict.fromkeys(example.model_input for example in examples))
    beside = tempfile.mkdtemp(prefix="dragoman-features-")
    weakref.finalize(owner, shutil.rmtree, beside, ignore_errors=True)
    folder = Path(beside) / "features"
    wrong = {fault.location: fault for fault in write_features(folder, paths, codec.config)}
    codec.use_store(FeatureColumn(folder))
    named = [(one, wrong.get(one.model_input)) for one in examples]
    faults = [Fault(one.location, fault.kind, str(fault)) for one, fault in named if fault is not None]
    return [one for one, fault in named if fault is None], faults


class ReferenceLoss(NamedTuple):
    """The loss of references over their tokens, <eos> included."""

    loss: float  # mean negative log-probability; ∞ if the model can output none of them
    accuracy: float
    too_long: int  # references that the model cannot output at all; they are left out


@torch.no_grad()
def reference_loss(
    model: Any, sources: Rows, targets: Rows, collator: Collator, device: torch.device, batch_size: int
) -> ReferenceLoss:
    """The loss of targets; those that the model cannot output at all are left out and counted."""
    order = sorted(range(len(targets)), key=lambda row: len(targets[row]))
    total, correct, count, too_long = 0.0, 0, 0, 0
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch = collator.collate([sources[row] for row in rows], [targets[row] for row in rows]).to(device)
        scores = model.score(batch)
        total -= float(scores.log_probabilities.sum(dtype=torch.float64))
        correct += int(scores.correct.sum())
        count += int(scores.mask.sum())
        too_long += int((~scores.mask.any(1)).sum())  # every other reference has its <eos> at least
    mean = (total / count, correct / count) if count else (math.inf, 0.0)
    return ReferenceLoss(*mean, too_long)
