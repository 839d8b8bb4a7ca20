"""`dragoman back-translate`: synthetic pairs from text of the target language."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dragoman.commands.checks import require_search
from dragoman.commands.options import device_option
from dragoman.commands.printing import pair_line, print_message, print_warning
from dragoman.commands.progress import count_lines
from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.config.settings import build
from dragoman.data.readers.lines import read_lines
from dragoman.decoding.options import DecodingSettings
from dragoman.errors import ConfigError, DataError
from dragoman.files import atomic_write
from dragoman.progress import is_watched, progress

SCHEMA = Schema(
    DecodingSettings,
    places=(
        "search.beam", "search.length_penalty", "search.max_length", "batch_size", "tag", "ensemble.runs",
        "ensemble.average", "engine", "precision",
    ),
)  # fmt: skip


@click.command("back-translate", cls=SettingsCommand, schema=SCHEMA)
@click.argument("run", metavar="REVERSE_RUN")
@click.argument("words", nargs=-1, required=True, metavar="FILE [PLACE=VALUE]...")
@click.option("-o", "--output", required=True, help="The synthetic pairs: .tsv or .jsonl.")
@click.option(
    "--method", type=click.Choice(["beam", "sample", "noise"]), default="beam",
    help="Beam search; sampling from the model; or beam search with words dropped, blanked and moved.",
)  # fmt: skip
@click.option("--mark", default="<BT>", help='Word in front of synthetic sources; "" for none.')
@click.option("--temperature", type=click.FloatRange(0.0, min_open=True), help="Of --method sample. [default: 1]")
@click.option("--top-k", type=click.IntRange(1), help="With --method sample: among the K most probable tokens.")
@click.option("--seed", type=int, default=0, help="Of --method sample and noise.")
@device_option
def back_translate(
    run: str, file: str | None, output: str, method: str, mark: str, device: str, settings: Settings, **given: Any
) -> None:
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
    from dragoman.decoding.sampling import Sampling
    from dragoman.inference.back_translate import BackTranslation, Noise
    from dragoman.inference.load import load_predictor

    require_search("back-translate", run)
    for name in ("temperature", "top_k"):
        if given[name] is not None and method != "sample":
            raise ConfigError(f"--{name.replace('_', '-')} needs --method sample")
    if file is None:
        raise DataError("found no FILE of target lines, only settings")
    if method == "sample" and "search.beam" in settings.spelled:
        raise ConfigError("found --beam and --method sample, expected one of them")
    if Path(output).suffix not in (".tsv", ".jsonl"):
        raise ConfigError(f"--output {output}: expected .tsv or .jsonl")
    options = settings.decoding(scores=False)
    if method == "sample":
        sampling = build(Sampling, {name: value for name, value in given.items() if value is not None})
        options = replace(options, method=sampling)
    lines = read_lines(file)
    predictor = load_predictor(run, device, options)
    noise = Noise(seed=given["seed"]) if method == "noise" else None
    with (
        progress("lines", count_lines(file) if is_watched() else None) as done,
        atomic_write(output) as beside,
        beside.open("w", encoding="utf-8", newline="\n") as out,
    ):
        work = BackTranslation(predictor, mark, noise, progress=done, on_warning=print_warning)
        for source, target in work.pairs(lines):
            out.write(pair_line(source, target, as_object=Path(output).suffix == ".jsonl"))
        if not work.counts["pairs"]:
            raise DataError(f"{file}: no line gave a pair ({dict(work.counts) or 'it is empty'})")
    shown = ", ".join(f"{count:,} {name}" for name, count in work.counts.items() if name != "pairs")
    print_message(f"{output}: {work.counts['pairs']:,} pairs" + (f"; left out: {shown}" if shown else ""))
