"""`dragoman evaluate`: a run scored on pairs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import click

from dragoman.commands.complete import evaluate_text
from dragoman.commands.labels import all_examples, evaluate_directly
from dragoman.commands.layout import columns_option, header_option, reading_of
from dragoman.commands.media import files_only, tell_left_out
from dragoman.commands.options import (
    CONTROL_OPTIONS,
    INTERVAL_OPTIONS,
    SEARCH_OPTIONS,
    beam_option,
    control_settings,
    decoding_options,
    device_option,
    engine_options,
    evaluation_metric_option,
    interval_settings,
    json_option,
    length_penalty_option,
    media_option,
    options,
    search_settings,
    skip_unreadable_option,
    tag_option,
)
from dragoman.commands.printing import print_scores, tell_saved
from dragoman.commands.progress import progress_bar
from dragoman.errors import DataError


@click.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Reference lines, one for each source line.")
@columns_option
@header_option
@beam_option
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Inputs at a time.")
@length_penalty_option
@options(SEARCH_OPTIONS.values())
@options(CONTROL_OPTIONS)
@evaluation_metric_option
@options(INTERVAL_OPTIONS)
@tag_option
@json_option
@click.option("--output", help="Also write the outputs to this file, one a line.")
@click.option("--alignment", is_flag=True, help="Show every output aligned with its reference, S, I and D counted.")
@click.option("--characters", is_flag=True, help="With --alignment: characters instead of words.")
@click.option("--skip-unknown", is_flag=True, help="Leave out and count examples whose labels training did not have.")
@skip_unreadable_option
@media_option
@device_option
@engine_options
@decoding_options
def evaluate(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    columns: str | None,
    header: bool | None,
    beam: int | None,
    batch_size: int,
    length_penalty: float | None,
    metrics: tuple[str, ...],
    tag: str | None,
    as_json: bool,
    output: str | None,
    alignment: bool,
    characters: bool,
    skip_unknown: bool,
    skip_unreadable: bool,
    media: str | None,
    device: str,
    engine: str,
    precision: str,
    how: dict[str, Any],
    **given: Any,
) -> None:
    """Score a run on pairs: BLEU, chrF, WER, CER, exact match, loss and perplexity.

    \b
    dragoman evaluate runs/my test.tsv
    dragoman evaluate runs/my --source test.en --target test.de --output out.de
    dragoman evaluate runs/my test.tsv --metric bleu --metric ter --intervals
    dragoman evaluate runs/my other.jsonl --columns text,label
    dragoman evaluate runs/my test.tsv --beam 1 --terminology terms.tsv
    dragoman evaluate runs/my test.tsv --mbr 32 --seed 2 --intervals --draws 2000 --draws-seed 3

    FILE has a source and one or more references a line, tab-separated (or .jsonl, .parquet). wer, cer and exact_match
    are fractions. Where the target is phonemes (data.units), per is the error rate over phonemes and wer the share of
    inputs that match no reference. Loss, perplexity and token accuracy are those of the first references, however
    outputs are made and whatever is asked of them. dragoman compare says whether two --output files differ.

    A run that classifies has accuracy, macro_f1, f1 and matthews, one that regresses mse, pearson and spearman, one
    that tags accuracy, macro_f1, span_f1 and exact_match; labels and tags are also reported one by one. A
    masked language model has accuracy and pseudo_perplexity of hidden tokens. For a language model FILE is a text, and
    the scores are its perplexities by word, token and character.

    A run that transcribes or captions reads a manifest: the name of a recording or picture, then its text or texts.
    References too long to be written at all by a model that writes everything at once (CTC) have no loss; they are left
    out of loss, perplexity and token accuracy, and counted ("too_long").
    """
    from dragoman.data.examples import Pairs
    from dragoman.files import atomic_write, check_writable
    from dragoman.inference.companions import asked_how
    from dragoman.inference.prediction import NOTHING
    from dragoman.runs import Run
    from dragoman.scoring.registry import select_metrics

    if (file is None) == (source is None) or (source is None) != (target is None):
        raise DataError("name either FILE or both --source and --target")
    files = Pairs(source, target) if source is not None and target is not None else file
    assert files is not None
    opened = Run(run)
    files_only(opened, skip_unreadable, media)
    if opened.task.is_language_model:
        evaluate_text(opened, files, batch_size, as_json, device)
        return
    reading = reading_of(opened.config.data, files, columns, header, media)
    if opened.task.head_decoder is not None:
        evaluate_directly(opened, reading, files, batch_size, metrics, skip_unknown, as_json, output, device)
        return
    if characters and not alignment:
        raise DataError("--characters needs --alignment")
    if skip_unknown:
        raise DataError(f'--skip-unknown is for labels and tags; {run} has task = "{opened.task.name}"')
    asked, drawn = control_settings(given), interval_settings(given)
    select_metrics(metrics, opened.config.data.units)
    if output is not None:
        check_writable(output)
    predictor, decoding = asked_how(run, device, how, beam, engine, precision)
    example_format = opened.task.example_format(opened.config)
    examples = all_examples(reading, files, example_format, "pair", several_references=True)
    predictor.temperature = None  # scores ask for no confidences
    predictor.tells_scores = False
    left_out: list[Any] = []
    if skip_unreadable:
        predictor.unreadable = left_out.append
    with progress_bar("pairs", len(examples)) if sys.stderr.isatty() else nullcontext() as progress:
        scores, predictions = predictor.evaluate(
            examples,
            tag=tag,
            beam=beam,
            length_penalty=length_penalty,
            batch_size=batch_size,
            search=search_settings(given),
            metrics=metrics,
            skip_unreadable=skip_unreadable,
            progress=progress,
            **decoding,
            **asked,
            **drawn,
        )
    tell_saved(decoding)
    if output is not None:
        with atomic_write(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    if alignment:
        from dragoman.reports.text_tables import alignment_lines
        from dragoman.scoring.error_rates import edit_alignments

        unit: Any = "characters" if characters else "words"
        kept = [pair for pair in zip(predictions, examples, strict=True) if pair[0] is not NOTHING]
        found = edit_alignments([one.text for one, _ in kept], [one.references for _, one in kept], units=unit)
        kinds = ("substitutions", "insertions", "deletions", "matches")
        scores["alignment"] = [{kind: getattr(one, kind) for kind in kinds} for one in found]
        for line in alignment_lines(found, unit, table=False) if not as_json else ():
            click.echo(line)
    print_scores(scores, as_json)
    tell_left_out(left_out, "no score counts them")
