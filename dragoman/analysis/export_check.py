"""Compare an exported model with its run: decode validation lines in both, before anybody relies on the export."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dragoman.data.examples import Example
from dragoman.data.split import TrainValidSplit
from dragoman.errors import DragomanError
from dragoman.exchange.exporter import Exporter
from dragoman.inference.load import load_predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.runs import Run
from dragoman.scoring.metric import TextMetric
from dragoman.scoring.registry import metrics_for
from dragoman.scoring.significance import bootstrap

LINES = 200  # at most: an export should not take much longer for its check


class ExportCheck(NamedTuple):
    """The run and the exported model on the same validation lines, by greedy search."""

    lines: int
    equal: int  # texts that are the same
    metric: TextMetric
    scores: tuple[float, float]  # of the run, and of the exported model
    error: float  # standard error of the score of the run

    @property
    def loss(self) -> float:
        """By how much the exported model is worse; below 0: better."""
        before, after = self.scores
        return before - after if self.metric.higher_is_better else after - before

    def __str__(self) -> str:
        before, after = map(self.metric.format, self.scores)
        return (
            f"compared on {self.lines:,} validation lines by greedy search: {self.equal:,} texts are equal; "
            f"{self.metric.name} {before} of the run, {after} exported"
        )

    @property
    def warning(self) -> str:
        """What a user must know: the export costs more than the standard error of the score."""
        if self.loss <= self.error:
            return ""
        cost, error = map(self.metric.format, (self.loss, self.error))
        return f"the exported model loses {cost} {self.metric.name}, more than the standard error of {error}"


def check_export(run: Run, exporter: Exporter, path: Path) -> ExportCheck | str:
    """The comparison, or why there is none."""
    if not run.task.searches or run.config.reads_media:
        return f'task = "{run.task.name}" has no texts to compare'
    examples = validation_examples(run)
    if isinstance(examples, str):
        return examples
    predictor = load_predictor(run.folder, "cpu", engine="torch", beam=1, scores=False)
    texts = [example.model_input for example in examples]
    outputs = [prediction.text for prediction in predictor.stream(texts, on_unknown=told_elsewhere)]
    try:
        tokens = exporter.decode(run, path, [list(row) for row in predictor.codec.encode_sources(texts)])
    except (DragomanError, ImportError) as error:
        return str(error)
    if tokens is None:
        return f"Dragoman cannot run the format {exporter.name}"
    decode = predictor.codec.target_of(None).decode
    exported = [decode(row) for row in tokens]
    return compare_texts(run, examples, outputs, exported)


def validation_examples(run: Run) -> list[Example] | str:
    try:
        split = TrainValidSplit(run.config.data, lambda doing, count: None, run.task.example_format(run.config))
        examples = list(islice(split.valid("reading"), LINES))
    except (DragomanError, OSError) as error:
        return f"no validation lines can be read ({error})"
    return examples or "the run has no validation lines"


def compare_texts(run: Run, examples: Sequence[Example], outputs: list[str], exported: list[str]) -> ExportCheck:
    known = metrics_for(run.config.data.units)
    metric = known[run.config.train.metric if run.config.train.metric in known else "chrf"]
    references = [list(example.references) for example in examples]
    before, after = (metric.statistics(texts, references) for texts in (outputs, exported))
    equal = sum(own.strip() == other.strip() for own, other in zip(outputs, exported, strict=True))
    error = float(np.std(bootstrap(metric, before)))
    return ExportCheck(len(outputs), equal, metric, (metric.score(before), metric.score(after)), error)
