"""Evaluate a run on files: scores, and what a person reads of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dragoman.base import ConfigError, DataError, atomic_write, progress
from dragoman.data import DataConfig, Example, Fault, Pairs, ReadingOptions, Warn, paths_of
from dragoman.data.readers import READERS
from dragoman.decoding import DecodingOptions
from dragoman.inference import (
    NO_PREDICTION,
    DynamicEvaluation,
    Labeler,
    Predictor,
    baselines_of,
    check_reading,
    labeler_of,
    load_completer,
    load_predictor,
    method_report,
    metric_names,
    read_examples,
    unreadable_lines,
)
from dragoman.inspect.measure.score_plots import alignment_lines, draw_predictions, ngram_lines
from dragoman.inspect.measure.score_report import label_score_lines, language_model_lines, score_lines
from dragoman.inspect.measure.scored_files import check_apart, taken_apart
from dragoman.inspect.options import ScoringSettings
from dragoman.inspect.views.figures import check_plot_path
from dragoman.runs import Run
from dragoman.scoring import edit_alignments, metrics_for, select_metrics

FEW_WORDS = 2  # BLEU of single words is 0, since they have no word pairs
DYNAMIC = ("rate", "decay", "segment")


class EvaluatedFiles(NamedTuple):
    """The scores of a run on files as JSON has them, lines for a person, and messages about the data."""

    scores: dict[str, Any]
    lines: list[str]
    messages: list[str]


def evaluate_files(
    run: str | Path,
    files: str | Pairs,
    scoring: ScoringSettings,
    decoding: DecodingOptions,
    reading: ReadingOptions,
    *,
    output: str | None = None,
    device: str = "auto",
    warn: Warn = lambda line: None,
) -> EvaluatedFiles:
    """Evaluate a run on files; `output` names a file for its outputs, one per line."""
    opened = Run(run)
    check_reading(opened, reading)
    if opened.task.is_language_model:
        scores = text_scores(opened, files, scoring, decoding.batch_size, device, warn)
        return EvaluatedFiles(scores, list(language_model_lines(scores)), [])
    data = reading.applied(opened.config.data, files, warn)
    if scoring.dynamic:
        raise ConfigError(f'evaluation.dynamic is for language models; {run} has task = "{opened.task.name}"')
    unreadable: list[Fault] = []
    arguments: dict[str, Any] = {"metrics": scoring.metrics, "on_warning": warn}
    if reading.skip_unreadable:
        arguments |= {"skip_unreadable": True, "on_unreadable": unreadable.append}
    if opened.task.head_decoder is None:
        evaluated = evaluate_search(opened, files, scoring, decoding, data, arguments, output, device, warn)
    else:
        arguments |= {"batch_size": decoding.batch_size, "skip_unknown": scoring.skip_unknown}
        labeler = labeler_of(opened, device)
        if output is not None and not labeler.writes:
            raise ConfigError(f'--output: task = "{opened.task.name}" has scores, but no answers to write')
        if scoring.plot is not None:
            check_plot_path(scoring.plot)
            if labeler.head_decoder.outputs != "numbers":
                raise ConfigError(f'--plot is for numbers: {run} has task = "{opened.task.name}"')
        examples = examples_of(opened, files, "example", warn, data)
        scores, outputs = outputs_of(labeler, examples, scoring, arguments, output, "examples")
        if scoring.plot is not None:
            scores["values"] = values_of(labeler, examples, outputs)
            predicted, true = (np.array(scores["values"][name]) for name in ("predicted", "true"))
            draw_predictions(predicted, true, scoring.plot)
        evaluated = EvaluatedFiles(
            scores, list(label_score_lines(metrics_for(labeler.head_decoder.outputs), scores)), []
        )
        if scoring.plot is not None:
            evaluated.messages.append(f"picture: {scoring.plot}")
    evaluated.messages.extend(unreadable_lines(unreadable, "no score counts them"))
    evaluated.messages.extend(training_data_warning(opened, files))
    return evaluated


def values_of(labeler: Labeler, examples: list[Example], outputs: list[Any]) -> dict[str, list[list[float]]]:
    """Predicted and true values (examples, numbers) of a run that answers with numbers."""
    readable = [(one, example) for one, example in zip(outputs, examples, strict=True) if one.value is not None]
    parse = labeler.head_decoder.parse_reference
    pairs = [(one.value, parse(example.references[0].strip())) for one, example in readable]
    predicted, true = ([list(np.atleast_1d(side)) for side in sides] for sides in zip(*pairs, strict=True))
    return {"predicted": [[*map(float, row)] for row in predicted], "true": [[*map(float, row)] for row in true]}


def examples_of(
    run: Run,
    files: str | Pairs,
    kind: str,
    warn: Warn,
    data: DataConfig | None = None,
    several_references: bool = False,
) -> list[Example]:
    """All examples of some files; none at all is an error, and so are more faulty lines than data.faults skips."""
    examples = read_examples(run, files, several_references, data, warn)
    if not examples:
        raise DataError(f"{', '.join(paths_of(files))}: nothing to evaluate: no {kind} was read")
    return examples


def outputs_of(
    loaded: Predictor | Labeler,
    examples: list[Example],
    scoring: ScoringSettings,
    arguments: dict[str, Any],
    output: str | None,
    unit: str,
) -> tuple[dict[str, Any], list[Any]]:
    """The scores, with those of baselines, and the outputs, which are written to a file where one is named."""
    if scoring.baseline and loaded.reads_files:
        raise DataError(f"--baseline needs sources of text; {loaded.run.folder} reads files")
    with progress(unit, len(examples)) as done:
        scores, predictions = loaded.evaluate(examples, progress=done, **arguments)
    if output is not None:
        with atomic_write(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    if not loaded.reads_files and (baselines := baselines_of(loaded, examples, scoring.metrics, scoring.baseline)):
        scores["baselines"] = baselines
    return scores, list(predictions)


def evaluate_search(
    run: Run,
    files: str | Pairs,
    scoring: ScoringSettings,
    decoding: DecodingOptions,
    data: DataConfig,
    arguments: dict[str, Any],
    output: str | None,
    device: str,
    warn: Warn,
) -> EvaluatedFiles:
    """The scores of a run that outputs texts, with alignments and n-grams where they are asked for."""
    if scoring.skip_unknown:
        raise DataError(f'evaluation.skip_unknown is for labels and tags; {run.folder} has task = "{run.task.name}"')
    if scoring.plot is not None:
        raise ConfigError(f'--plot is for numbers: {run.folder} has task = "{run.task.name}"')
    units = run.config.data.units
    metrics = select_metrics(metric_names(scoring.metrics, run.task, units), units)
    if scoring.ngrams:
        check_apart(metrics)
    predictor = load_predictor(run.folder, device, decoding)
    examples = examples_of(run, files, "pair", warn, data, several_references=True)
    draws = {name: value for name in ("draws", "draws_seed") if (value := getattr(scoring, name)) is not None}
    arguments = arguments | {"intervals": scoring.intervals} | draws
    scores, predictions = outputs_of(predictor, examples, scoring, arguments, output, "pairs")
    lines: list[str] = []
    readable = [pair for pair in zip(predictions, examples, strict=True) if pair[0] is not NO_PREDICTION]
    texts = [prediction.text for prediction, _ in readable], [pair.references for _, pair in readable]
    if scoring.alignment:
        unit: Literal["characters", "words"] = "characters" if scoring.characters else "words"
        alignments = edit_alignments(*texts, units=unit)
        kinds = ("substitutions", "insertions", "deletions", "matches")
        scores["alignment"] = [{kind: getattr(alignment, kind) for kind in kinds} for alignment in alignments]
        lines.append("each reference above its output; S substituted, I inserted, D deleted\n")
        lines += alignment_lines(alignments, unit, table=False)
    if scoring.ngrams:
        scores["ngrams"] = taken_apart(*texts, metrics)
        for name, terms in scores["ngrams"].items():
            lines += [*ngram_lines(metrics[name].label, terms), ""]
    few = sum(len(example.references[0].split()) for example in examples) / len(examples) < FEW_WORDS
    hidden = {"bleu"} if few and not scoring.metrics and run.config.train.metric != "bleu" else set()
    report = [report] if (report := method_report(predictor)) else []
    messages = [*report, *columns_warning(files, data, examples)]
    return EvaluatedFiles(scores, [*lines, *score_lines(scores, hidden)], messages)


def columns_warning(files: str | Pairs, data: DataConfig, pairs: list[Example]) -> Iterator[str]:
    """Further columns of a file are read as references, unless the user named the columns."""
    several = max(len(pair.references) for pair in pairs)
    if several > 1 and isinstance(files, str) and not data.columns and READERS.of(files).delimiter:
        yield (
            f"warning: {files}: found {several + 1} columns: every column after the first is a reference, and the "
            "nearest one counts; if a column is something else, such as an earlier output, name source and reference: "
            "data.columns=1,2"
        )


def training_data_warning(run: Run, files: str | Pairs) -> Iterator[str]:
    trained = {Path(path).resolve() for path in paths_of(run.config.data.train)}
    if all(Path(path).resolve() in trained for path in paths_of(files)):
        yield (
            f"warning: {files} is training data of this run, so the scores say little about new inputs; `dragoman info "
            f"{run.folder}` has those of the validation data"
        )


def text_scores(
    run: Run, files: str | Pairs, scoring: ScoringSettings, batch_size: int, device: str, warn: Warn
) -> dict[str, Any]:
    """The perplexities of a text by a language model, which goes on learning from it where `dynamic` asks for that."""
    completer = load_completer(run.folder, device)
    text = [example.references[0] for example in examples_of(run, files, "line", warn)]
    every = {name: getattr(scoring, f"dynamic_{name}") for name in DYNAMIC}
    given = {name: value for name, value in every.items() if value is not None}
    learning = DynamicEvaluation(**given) if scoring.dynamic else None
    with progress("tokens") as done:
        return completer.evaluate(text, batch_size=batch_size, progress=done, dynamic=learning)
