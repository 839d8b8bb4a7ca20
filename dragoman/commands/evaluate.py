"""`dragoman evaluate`: score a run on pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dragoman.base import ConfigError, DataError, atomic_write, progress
from dragoman.base.config import Range, setting
from dragoman.commands.checks import EVALUATE_ARGUMENTS, refuse_options
from dragoman.commands.complete import evaluate_text
from dragoman.commands.inputs import pair_files, print_unreadable, read_examples
from dragoman.commands.options import device_option, json_option
from dragoman.commands.printing import as_utf8, print_label_scores, print_method_report, print_scores, print_warning
from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.data import Example, Fault, Pairs, ReadingOptions
from dragoman.data.readers import READERS
from dragoman.decoding import DecodingSettings

FEW_WORDS = 2  # BLEU of single words is 0, since they have no word pairs

if TYPE_CHECKING:
    from dragoman.data import DataConfig
    from dragoman.inference import Prediction
    from dragoman.runs import Run
    from dragoman.scoring import TextMetric


@dataclass(frozen=True)
class ScoringSettings:
    """What `evaluate` computes."""

    metrics: tuple[str, ...] = setting(
        (), help="metrics, such as bleu, or all; `score --help` lists them", flag="--metric"
    )
    intervals: bool = setting(
        False, help="add 95 % confidence intervals, by bootstrap over segments", flag="--intervals"
    )
    draws: Annotated[int, Range(10, 100_000)] | None = setting(None, help="draws of the intervals; none: 1000")
    draws_seed: Annotated[int, Range(0)] | None = setting(None, help="seed of the draws; none: 1")
    baseline: bool = setting(
        False,
        help="beside every score the best of copying, memorising and the nearest training pair",
        flag="--baseline",
    )
    alignment: bool = setting(False, help="show every output aligned with its reference, with S, I and D counts")
    ngrams: bool = setting(False, help="take BLEU apart: precisions, brevity penalty, matching n-grams of every output")
    characters: bool = setting(False, help="align characters instead of words")
    dynamic: bool = setting(
        False, help="language models: go on learning from the text as it is read, on one stream (dynamic evaluation)"
    )
    dynamic_rate: Annotated[float, Range(0.0, None)] | None = setting(None, help="its learning rate; none: 1.2e-4")
    dynamic_decay: Annotated[float, Range(0.0, 1.0)] | None = setting(
        None, help="how fast weights return to the trained ones; none: 0.008"
    )
    dynamic_segment: Annotated[int, Range(1, 10_000)] | None = setting(
        None, help="tokens between two updates; none: 20"
    )
    skip_unknown: bool = setting(False, help="leave out and count examples whose labels training did not have")

    def problems(self) -> Iterator[str]:
        for name in ("draws", "draws_seed"):
            if getattr(self, name) is not None and not self.intervals:
                yield f"{name}: needs --intervals"
        for name in ("dynamic_rate", "dynamic_decay", "dynamic_segment"):
            if getattr(self, name) is not None and not self.dynamic:
                yield f"{name}: needs evaluation.dynamic=true"
        if self.characters and not self.alignment:
            yield "characters: needs evaluation.alignment=true"


@dataclass(frozen=True)
class EvaluateSettings:
    """What `evaluate` has beside the settings of decoding."""

    data: ReadingOptions = setting(ReadingOptions(), help="how FILE is read; what is not given is as in training")
    evaluation: ScoringSettings = setting(ScoringSettings(), help="what is computed")


SCHEMA = Schema(DecodingSettings, EvaluateSettings, without=("n_best",))


@click.command(cls=SettingsCommand, schema=SCHEMA)
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[FILE] [PLACE=VALUE]...")
@pair_files("Reference", among_words=True, required=True)
@json_option
@click.option("--output", help="Also write the outputs to this file, one per line.")
@device_option
def evaluate(run: str, files: str | Pairs, settings: Settings, as_json: bool, output: str | None, device: str) -> None:
    """Score a run on pairs: text metrics, loss, perplexity.

    The metrics are BLEU, chrF, WER, CER and exact match, unless --metric names others.

    \b
    dragoman evaluate runs/my test.tsv
    dragoman evaluate runs/my --source test.en --target test.de --output out.de
    dragoman evaluate runs/my test.tsv --metric bleu --metric ter --intervals
    dragoman evaluate runs/my other.jsonl data.columns=text,label
    dragoman evaluate runs/my test.tsv --baseline                 is the run better than a dictionary?
    dragoman evaluate runs/my test.tsv --beam 1 constraints.terminology=terms.tsv
    dragoman evaluate runs/my test.tsv method=mbr --seed 2 --intervals evaluation.draws=2000

    Each line of FILE has a source and one or more references, tab-separated (or .jsonl, .parquet). wer, cer and
    exact_match are fractions. If the target is phonemes (data.units), per is the error rate over phonemes and wer the
    share of inputs that match no reference. Loss, perplexity and token accuracy are those of the first references;
    settings of decoding do not change them. dragoman compare tests whether two --output files differ.

    Where sources and references have words in common, copying the source is scored too; for labels and tags the most
    frequent one. --baseline also reads the training data again, and scores the most frequent target of the same source
    and the target of the nearest one. A run that is not better has learned nothing useful.

    Labels, numbers and tags have metrics of their own: see 'scoring' in the documentation. For a language model FILE
    is a text, and the scores are its perplexities by word, token and character; with evaluation.dynamic=true the
    model goes on learning from what it has read (Krause et al. 2018). A run that transcribes or captions reads a
    manifest: the path of a recording or picture, then its text or texts.
    """
    from dragoman.inference import baselines_of, check_reading, labeler_of, load_predictor, metric_names
    from dragoman.inspect.measure import check_apart
    from dragoman.runs import Run
    from dragoman.scoring import select_metrics

    opened, reading = Run(run), settings.data
    check_reading(opened, reading)
    if opened.task.is_language_model:
        every = {name: getattr(settings.evaluation, f"dynamic_{name}") for name in ("rate", "decay", "segment")}
        given = {name: value for name, value in every.items() if value is not None}
        dynamic = given if settings.evaluation.dynamic else None
        evaluate_text(opened, files, settings.batch_size, dynamic, as_json, device)
        return
    data = reading.applied(opened.config.data, files, print_warning)
    scoring: ScoringSettings = settings.evaluation
    if scoring.dynamic:
        raise ConfigError(f'evaluation.dynamic is for language models; {run} has task = "{opened.task.name}"')
    searches = opened.task.head_decoder is None
    arguments: dict[str, Any] = {"metrics": scoring.metrics, "skip_unreadable": reading.skip_unreadable}
    if searches:
        if scoring.skip_unknown:
            raise DataError(f'evaluation.skip_unknown is for labels and tags; {run} has task = "{opened.task.name}"')
        units = opened.config.data.units
        chosen = select_metrics(metric_names(scoring.metrics, opened.task, units), units)
        if scoring.ngrams:
            check_apart(chosen)
        loaded: Any = load_predictor(run, device, settings.decoding(scores=False))
        draws = {name: value for name in ("draws", "draws_seed") if (value := getattr(scoring, name)) is not None}
        arguments |= {"intervals": scoring.intervals, **draws}
    else:
        refuse_options(opened, EVALUATE_ARGUMENTS, 'is for runs that output texts; {run} has task = "{task}"')
        loaded = labeler_of(opened, device)
        if output is not None and not loaded.writes:
            raise ConfigError(f'--output: task = "{opened.task.name}" has scores, but no answers to write')
        arguments |= {"batch_size": settings.batch_size, "skip_unknown": scoring.skip_unknown}
    kind = "pair" if searches else "example"
    examples = read_examples(opened, files, kind, data, several_references=searches)
    if scoring.baseline and loaded.reads_files:
        raise DataError(f"--baseline needs sources of text; {run} reads files")
    unreadable: list[Fault] = []
    if reading.skip_unreadable:
        arguments["on_unreadable"] = unreadable.append
    with progress(f"{kind}s", len(examples)) as done:
        scores, predictions = loaded.evaluate(examples, progress=done, on_warning=print_warning, **arguments)
    if output is not None:
        with atomic_write(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    if not loaded.reads_files and (baselines := baselines_of(loaded, examples, scoring.metrics, scoring.baseline)):
        scores["baselines"] = baselines
    as_utf8()
    if searches:
        print_method_report(loaded)
        if scoring.alignment:
            scores["alignment"] = align_outputs(predictions, examples, scoring.characters, show=not as_json)
        if scoring.ngrams:
            scores["ngrams"] = take_apart(predictions, examples, chosen, show=not as_json)
        warn_of_columns(files, data, examples)
        few = sum(len(example.references[0].split()) for example in examples) / len(examples) < FEW_WORDS
        hidden = {"bleu"} if few and not scoring.metrics and opened.config.train.metric != "bleu" else set()
        print_scores(scores, as_json, hidden)
    else:
        print_label_scores(loaded, scores, as_json)
    print_unreadable(unreadable, "no score counts them")
    warn_of_training_data(opened, files)


def warn_of_training_data(run: Run, files: str | Pairs) -> None:
    from dragoman.data import paths_of

    trained = {Path(path).resolve() for path in paths_of(run.config.data.train)}
    if all(Path(path).resolve() in trained for path in paths_of(files)):
        print_warning(
            f"{files} is training data of this run, so the scores say little about new inputs; `dragoman info "
            f"{run.folder}` has those of the validation data"
        )


def warn_of_columns(files: str | Pairs, data: DataConfig, pairs: list[Example]) -> None:
    """Say that further columns of a file are read as references, unless the user named the columns."""
    several = max(len(pair.references) for pair in pairs)
    if several > 1 and isinstance(files, str) and not data.columns and READERS.of(files).delimiter:
        print_warning(
            f"{files}: found {several + 1} columns: every column after the first is a reference, and the nearest one "
            "counts; if a column is something else, such as an earlier output, name source and reference: "
            "data.columns=1,2"
        )


def take_apart(
    predictions: list[Prediction], pairs: list[Example], metrics: dict[str, TextMetric], show: bool
) -> dict[str, dict[str, Any]]:
    """The terms of BLEU; with `show` also print them."""
    from dragoman.inspect.measure import ngram_lines, taken_apart

    apart = taken_apart(*readable_texts(predictions, pairs), metrics)
    for name, terms in apart.items() if show else ():
        click.echo("\n".join((*ngram_lines(metrics[name].label, terms), "")))
    return apart


def readable_texts(predictions: list[Prediction], pairs: list[Example]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The outputs and references of all inputs that could be read."""
    from dragoman.inference import NO_PREDICTION

    readable = [pair for pair in zip(predictions, pairs, strict=True) if pair[0] is not NO_PREDICTION]
    return [output.text for output, _ in readable], [pair.references for _, pair in readable]


def align_outputs(
    predictions: list[Prediction], pairs: list[Example], characters: bool, show: bool
) -> list[dict[str, int]]:
    """The edit counts of every output against its reference; with `show` also print the alignments."""
    from dragoman.inspect.measure import alignment_lines
    from dragoman.scoring import edit_alignments

    unit: Any = "characters" if characters else "words"
    alignments = edit_alignments(*readable_texts(predictions, pairs), units=unit)
    if show:
        click.echo("each reference above its output; S substituted, I inserted, D deleted\n")
        for line in alignment_lines(alignments, unit, table=False):
            click.echo(line)
    kinds = ("substitutions", "insertions", "deletions", "matches")
    return [{kind: getattr(alignment, kind) for kind in kinds} for alignment in alignments]
