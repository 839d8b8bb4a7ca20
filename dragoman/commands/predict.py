"""`dragoman predict`: one output line for every input line."""

from __future__ import annotations

from dataclasses import dataclass

import click

from dragoman.base import DataError
from dragoman.base.config import setting
from dragoman.commands.checks import PREDICT_ARGUMENTS, refuse_options
from dragoman.commands.options import device_option
from dragoman.commands.printing import print_lines, print_message, print_warning
from dragoman.commands.settings import SettingsCommand
from dragoman.data import ReadingOptions
from dragoman.decoding import DecodingSettings, Schema, Settings
from dragoman.inference import ShardSettings


@dataclass(frozen=True)
class PredictSettings:
    """What `predict` has beside the settings of decoding."""

    data: ReadingOptions = setting(ReadingOptions(), help="how FILE is read; what is not given is as in training")
    shards: ShardSettings = setting(ShardSettings(), help="any amount of text")
    beam_trace: str | None = setting(None, help="a file for all that the search ranked: one JSON object per input")


SCHEMA = Schema(DecodingSettings, PredictSettings)


@click.command(cls=SettingsCommand, schema=SCHEMA)
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[FILE] [PLACE=VALUE]...")
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object per line: text, score, tokens, token_scores; also source where it is a file.",
)  # fmt: skip
@device_option
def predict(run: str, file: str | None, settings: Settings, as_json: bool, device: str) -> None:
    """Predict one output line for every input line.

    \b
    dragoman predict runs/my input.txt > output.txt
    echo "a line" | dragoman predict runs/my --beam 1                greedy search: the fastest way
    dragoman predict runs/my input.txt --json --n-best 3             with scores and alternatives
    dragoman predict runs/my input.txt search.length_penalty=0.6     any setting, as train takes them
    dragoman predict runs/my input.txt constraints.require=ship constraints.forbid=boat
    dragoman predict runs/my input.txt --sample method.temperature=0.7 --seed 2
    dragoman predict runs/my input.txt ensemble.runs=runs/other
    dragoman predict runs/my big.parquet --shards out/ shards.processes=4      any amount of text

    FILE may be .gz or .zst; without FILE, predict reads standard input. Each line is a source. Empty lines stay empty.
    The output does not depend on the batch size or on the order of the lines.

    Of a .tsv, .csv, .jsonl, .parquet or .tmx FILE, predict reads the source as evaluate does, and ignores references.
    An object in FILE.jsonl may have, for this line alone, "prefix", "forbid", "require", "allow", "pattern" or
    "constrain" (an object of names and texts), which replace the constraints of these names.

    With --shards each part of FILE becomes a file in the folder; the same command resumes after any interruption, and
    several may work on one folder at once. See 'shards' in the documentation.

    A run that classifies, regresses or tags needs no search: options of the search are errors, and --json adds
    probabilities. Separate two texts by a tab, and words or the numbers of a series by spaces.

    A run that transcribes or captions reads files: FILE is a recording or picture, a folder or archive of them (sorted
    by name), a manifest as for training, or a list of paths, one per line. The output has one line per file; --json
    names the file as "source".
    """
    from dragoman.inference import PredictedLines, predict_shards
    from dragoman.runs import Run

    opened, reading, shards = Run(run), settings.data, settings.shards
    if opened.task.head_decoder is not None:
        shard_places = {place for place in settings.spelled if place.startswith("shards.")}
        refuse_options(opened, {*PREDICT_ARGUMENTS, *shard_places})
    if settings.n_best > 1 and not as_json:
        raise DataError(f"--n-best {settings.n_best} needs --json: plain output has one line for every input line")
    options = settings.decoding(scores=as_json)
    if shards.folder is None:
        lines = PredictedLines(opened, file, options, reading, as_json=as_json, device=device, warn=print_warning)
        print_lines(lines, lines.lines(settings.beam_trace))
        for message in lines.messages():
            print_message(message)
        if lines.refused:
            raise click.exceptions.Exit(1)
    elif settings.beam_trace is not None:
        raise DataError("found --shards and beam_trace, expected one of them")
    else:
        state = predict_shards(
            opened, file, shards, options, reading, as_json=as_json, device=device, warn=print_warning
        )
        print_message(state.line(shards.folder, as_json))
