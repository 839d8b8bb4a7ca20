"""Export a run, and compare the exported model with it on validation lines, before anybody relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.base import DragomanError
from dragoman.data import Example, TrainValidSplit
from dragoman.exchange.card import CardExporter
from dragoman.exchange.options import ExportOptions
from dragoman.exchange.registry import EXPORTERS, export_run
from dragoman.inference import ignore_unknown, labeler_of, load_predictor
from dragoman.inference.engine import Exporter
from dragoman.runs import Run, import_record
from dragoman.scoring import Metric, TextMetric, bootstrap, metrics_for

DRAWS = 200  # bootstrap samples of a label metric
LINES = 200  # at most: an export should not take much longer for its check


class ExportCheck(NamedTuple):
    """The run and the exported model on the same validation lines, by greedy search if they search."""

    lines: int
    equal: int  # texts that are the same
    metric: Metric
    scores: tuple[float, float]  # of the run, and of the exported model
    error: float  # standard error of the score of the run

    @property
    def loss(self) -> float:
        """By how much the exported model is worse; below 0: better."""
        before, after = self.scores
        return before - after if self.metric.higher_is_better else after - before

    def __str__(self) -> str:
        before, after = map(self.metric.format, self.scores)
        how = " by greedy search" if isinstance(self.metric, TextMetric) else ""
        return (
            f"compared on {self.lines:,} validation lines{how}: {self.equal:,} texts are equal; "
            f"{self.metric.name} {before} of the run, {after} exported"
        )

    @property
    def warning(self) -> str:
        """What a user must know: the export costs more than the standard error of the score."""
        if self.loss <= self.error:
            return ""
        cost, error = map(self.metric.format, (self.loss, self.error))
        return f"the exported model loses {cost} {self.metric.name}, more than the standard error of {error}"


class Exported(NamedTuple):
    """What was written, and how it compares with the run."""

    path: Path
    check: ExportCheck | str | None  # text: why they were not compared; None: nobody asked
    licence: str  # of the model that the run was imported from; empty: none is known


def export(run: str | Path, options: ExportOptions) -> Exported:
    """Write a trained run in the format of another program, and compare both on validation lines."""
    path = export_run(run, options.output, options.to, options.of_format)
    unchecked = options.no_check or options.to == CardExporter.name
    check = None if unchecked else check_export(Run(run), EXPORTERS[options.to], path)
    return Exported(path, check, import_record(run).get("licence", ""))


def check_export(run: Run, exporter: Exporter, path: Path) -> ExportCheck | str:
    labels = run.task.head_decoder is not None and run.task.head_decoder.outputs in ("labels", "tags")
    if not (run.task.searches or labels) or not run.tokenizers()[0].is_text:
        return f'task = "{run.task.name}" has no texts to compare'
    unknown = f"Dragoman cannot run the format {exporter.name}"
    if not labels and getattr(type(exporter), "decode", Exporter.decode) is Exporter.decode:
        return unknown  # before the run decodes in vain
    examples = validation_examples(run)
    if isinstance(examples, str):
        return examples
    try:
        found = (label_check if labels else text_check)(run, exporter, path, examples)
    except (DragomanError, ImportError) as error:
        return str(error)
    return found or unknown


def text_check(run: Run, exporter: Exporter, path: Path, examples: list[Example]) -> ExportCheck | None:
    predictor = load_predictor(run.folder, "cpu", engine="torch", beam=1, scores=False, split_long=False)
    texts = [example.model_input for example in examples]
    outputs = [prediction.text for prediction in predictor.stream(texts, on_unknown=ignore_unknown)]
    tokens = exporter.decode(run, path, [list(row) for row in predictor.codec.encode_sources(texts)])
    if tokens is None:
        return None
    decode = predictor.codec.target_of(None).decode
    return compare_texts(run, examples, outputs, [decode(row) for row in tokens])


def label_check(run: Run, exporter: Exporter, path: Path, examples: list[Example]) -> ExportCheck | None:
    labeler = labeler_of(run, "cpu")
    known = labeler.known(examples)[0]
    texts = [example.model_input for example in known]
    own = list(labeler.stream(texts, on_unknown=ignore_unknown))
    model: Any = labeler.model
    if (outputs := exporter.label_outputs(run, path, model)) is None:
        return None
    model.outputs = outputs
    exported = list(labeler.stream(texts, on_unknown=ignore_unknown))
    head = labeler.head_decoder
    values = [[prediction.value for prediction in predictions] for predictions in (own, exported)]
    truth = [head.parse_reference(example.references[0].strip()) for example in known]
    metrics = metrics_for(head.outputs)
    metric = metrics[run.config.train.metric if run.config.train.metric in metrics else "accuracy"]

    def score(chosen: Sequence[int], predicted: list[Any]) -> float:
        pairs = [predicted[number] for number in chosen], [truth[number] for number in chosen]
        return float(metric.score(*pairs, labeler.labels) if metric.uses_label_set else metric.score(*pairs))

    every, draw = range(len(known)), np.random.default_rng(1)
    samples = [draw.integers(0, len(known), len(known)).tolist() for _ in range(DRAWS)]
    error = float(np.std([score(sample, values[0]) for sample in samples]))
    equal = sum(before == after for before, after in zip(*values, strict=True))
    return ExportCheck(len(known), equal, metric, (score(every, values[0]), score(every, values[1])), error)


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
