"""`dragoman back-translate`: synthetic pairs from text of the target language."""

from __future__ import annotations

import click

from dragoman.base import DataError
from dragoman.commands.from_record import options_of
from dragoman.commands.printing import print_message, print_warning
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding import DecodingSettings, Schema, Settings
from dragoman.inference import BackTranslateOptions
from dragoman.inference import back_translate as make_pairs

SCHEMA = Schema(
    DecodingSettings,
    places=(
        "search.beam", "search.length_penalty", "search.max_length", "batch_size", "tag", "ensemble.runs",
        "ensemble.average", "ensemble.weights", "engine", "precision",
    ),
)  # fmt: skip


@click.command("back-translate", cls=SettingsCommand, schema=SCHEMA)
@click.argument("run", metavar="REVERSE_RUN")
@click.argument("words", nargs=-1, required=True, metavar="FILE [PLACE=VALUE]...")
@options_of(BackTranslateOptions)
def back_translate(run: str, file: str | None, options: BackTranslateOptions, settings: Settings) -> None:
    """Make training pairs from text of the target language.

    REVERSE_RUN translates from target to source. Each line of FILE becomes the target of a pair; its translation by
    REVERSE_RUN becomes the source, after a mark that tells the model that this source is synthetic.

    \b
    dragoman train --source a.de --target a.en --run runs/de-en           the reverse direction
    dragoman back-translate runs/de-en mono.de -o synthetic.tsv
    dragoman train config.toml                                            with both files:
        [data]
        train = [{ file = "pairs.tsv", weight = 2.0 }, "synthetic.tsv"]
        valid = "valid.tsv"

    Beam search helps most where there are few real pairs, sampling and noise where there are many (Edunov et al. 2018).
    Lines without a usable translation are left out and counted. See 'scarce' in the documentation.
    """
    if file is None:
        raise DataError("found no FILE of target lines, only settings")
    counts = make_pairs(run, file, options, settings.decoding(), print_warning)
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name != "pairs")
    print_message(f"{options.output}: {counts['pairs']:,} pairs" + (f"; left out: {shown}" if shown else ""))
