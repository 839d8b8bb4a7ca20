"""`dragoman evaluate`: score a run on pairs."""

from __future__ import annotations

from dataclasses import dataclass

import click

from dragoman.base.config import setting
from dragoman.commands.checks import EVALUATE_ARGUMENTS, TEXT_ARGUMENTS, refuse_options
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import device_option, json_option
from dragoman.commands.printing import as_utf8, print_json, print_message, print_warning
from dragoman.commands.settings import SettingsCommand
from dragoman.data import Pairs, ReadingOptions
from dragoman.decoding import DecodingSettings, Schema, Settings
from dragoman.inspect import ScoringSettings


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
    from dragoman.inspect.measure import evaluate_files
    from dragoman.runs import Run

    opened, scoring = Run(run), settings.evaluation
    if opened.task.is_language_model:
        refuse_options(opened, TEXT_ARGUMENTS, "has no meaning for a text: {run} is a language model")
    elif opened.task.head_decoder is not None and not scoring.dynamic:
        refuse_options(opened, EVALUATE_ARGUMENTS, 'is for runs that output texts; {run} has task = "{task}"')
    decoding = settings.decoding(scores=False)
    found = evaluate_files(
        run, files, scoring, decoding, settings.data, output=output, device=device, warn=print_warning
    )
    as_utf8()
    if as_json:
        print_json(found.scores)
    for line in found.lines if not as_json else ():
        click.echo(line)
    for message in found.messages:
        print_message(message)
