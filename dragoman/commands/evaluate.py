"""`dragoman evaluate`: a run scored on pairs."""

from __future__ import annotations

from typing import Any

import click

from dragoman.commands.options import (
    SEARCH_OPTIONS,
    beam_option,
    decoding_options,
    device_option,
    json_option,
    length_penalty_option,
    options,
    search_settings,
    tag_option,
)
from dragoman.commands.printing import print_scores, tell_saved
from dragoman.errors import DataError


@click.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Reference lines, one for each source line.")
@beam_option
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Inputs at a time.")
@length_penalty_option
@options(SEARCH_OPTIONS)
@tag_option
@json_option
@click.option("--output", help="Also write the outputs to this file, one a line.")
@device_option
@decoding_options
def evaluate(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    beam: int | None,
    batch_size: int,
    length_penalty: float | None,
    tag: str | None,
    as_json: bool,
    output: str | None,
    device: str,
    how: dict[str, Any],
    **given: Any,
) -> None:
    """Score a run on pairs: BLEU, chrF, WER, CER, exact match, loss and perplexity.

    FILE has a source and one or more references a line, tab-separated (or .jsonl, .parquet). wer, cer and exact_match
    are fractions. Where the target is phonemes (data.units), per is the error rate over phonemes and wer the share of
    inputs that match no reference.
    """
    from dragoman.companions import asked_how
    from dragoman.data.corpus import fault_message, read_all
    from dragoman.data.readers import Example, Fault, Pairs
    from dragoman.files import check_writable, written_whole

    if (file is None) == (source is None) or (source is None) != (target is None):
        raise DataError("name either FILE or both --source and --target")
    files = Pairs(source, target) if source is not None and target is not None else file
    assert files is not None
    if output:
        check_writable(output)
    predictor, decoding = asked_how(run, device, how, beam)
    examples: list[Example] = []
    faults: list[Fault] = []
    for item in read_all(predictor.config.data, files, several_references=True):
        if isinstance(item, Fault):
            faults.append(item)
        else:
            examples.append(item)
    if faults:
        # Scores of a part would be compared with scores of the whole: never leave out a line silently.
        raise DataError(fault_message(faults[:3], len(faults)).partition(" Mend")[0])
    predictor.temperature = None  # scores ask for no confidences
    scores, predictions = predictor.evaluate(
        examples,
        tag=tag,
        beam=beam,
        length_penalty=length_penalty,
        batch_size=batch_size,
        search=search_settings(given),
        **decoding,
    )
    tell_saved(decoding)
    if output:
        with written_whole(output) as beside:
            texts = (prediction.text.replace("\n", " ").replace("\r", " ") for prediction in predictions)
            beside.write_bytes("".join(f"{text}\n" for text in texts).encode("utf-8", "replace"))
    print_scores(scores, as_json)
