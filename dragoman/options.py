"""Command-line options that several commands share; nothing heavy is imported here."""

from __future__ import annotations

import functools
from typing import Any

import click

# Each gives one entry of `how`, which companions.py understands.
DECODING = {
    "sample": click.option(
        "--sample", is_flag=True,
        help="Draw the output by chance, as likely as the model says; with --n-best several, each told once.",
    ),
    "temperature": click.option(
        "--temperature", type=click.FloatRange(0.0, min_open=True),
        help="For --sample and --mbr: draw from p^(1/temperature). Above 1 is more varied. [default: 1]",
    ),
    "top_k": click.option(
        "--top-k", type=click.IntRange(1), help="For --sample and --mbr: draw among so many most probable tokens."
    ),
    "top_p": click.option(
        "--top-p", type=click.FloatRange(0.0, 1.0, min_open=True),
        help="For --sample and --mbr: draw among the fewest tokens that together have this probability.",
    ),
    "seed": click.option(
        "--seed", type=int,
        help="For --sample and --mbr: other seeds, other outputs; equal inputs draw equally. [default: 0]",
    ),
    "mbr": click.option(
        "--mbr", type=click.IntRange(2), metavar="SAMPLES",
        help="Minimum Bayes risk: draw so many outputs and take the one most like the others.",
    ),
    "mbr_metric": click.option(
        "--mbr-metric", help="What likeness is: chrf, bleu, wer, cer, per or exact_match. [default: chrf]"
    ),
    "others": click.option(
        "--with", "others", multiple=True, metavar="RUN",
        help="Average with this run, of any architecture but with the same vocabularies; may be repeated.",
    ),
    "average": click.option(
        "--average", type=click.Choice(["probability", "log"]),
        help="How runs are averaged: mean of probabilities or of their logarithms. [default: probability]",
    ),
    "rerank": click.option(
        "--rerank", metavar="RUN",
        help="Sort the --beam outputs anew by how well this run, trained from target to source, leads back.",
    ),
    "rerank_weight": click.option(
        "--rerank-weight", type=float, help="Score = own + weight × reverse, each a mean a token. [default: 1]"
    ),
    "rerank_tag": click.option(
        "--rerank-tag", metavar="TAG", help="What the --rerank run shall write, where it learned several languages."
    ),
    "draft": click.option(
        "--draft", metavar="RUN",
        help="Greedy search in fewer calls: this small run with the same vocabularies proposes, the large one checks.",
    ),
    "draft_tokens": click.option(
        "--draft-tokens", type=click.IntRange(1), help="Tokens the draft proposes at a time. [default: 4]"
    ),
    "exhaustive": click.option(
        "--exhaustive", type=click.IntRange(0), metavar="LENGTH",
        help="Look at every output of up to so many tokens: exact, for small vocabularies; --json adds probability.",
    ),
}  # fmt: skip


def engine_options(function: Any) -> Any:
    """Adds the choice of what searches."""
    engine = click.option(
        "--engine", type=click.Choice(["auto", "torch", "ctranslate2"]), default="auto", show_default=True,
        help="What searches. ctranslate2 (dragoman[fast]) is several times faster on a CPU; auto takes it where it "
        "gives the same text.",
    )  # fmt: skip
    precision = click.option(
        "--precision", type=click.Choice(["float32", "int8"]), default="float32", show_default=True,
        help="Numbers of the engine ctranslate2: int8 is faster, and its text may differ a little.",
    )  # fmt: skip
    return engine(precision(function))


def decoding_options(function: Any) -> Any:
    """Adds the options of decoding to a command, which gets them as one table, `how`."""

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        how = {name: given.pop(name) for name in DECODING}
        return function(how=how, **given)

    for option in reversed(DECODING.values()):
        gathered = option(gathered)
    return gathered
