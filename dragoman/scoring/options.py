"""What `score` and `compare` may be asked for. Nothing heavy is imported here: the help of commands reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dragoman.base import DataError
from dragoman.base.config import Limited, Range, setting

Draws = Annotated[int, Range(10, 100_000)]
Seed = Annotated[int, Range(0)]
Words = Literal["words", "phonemes"]


def metrics_text() -> str:
    """The names of all metrics of texts, and what some of them need."""
    from dragoman.scoring import registry

    names = {**registry.metrics_for("words"), **registry.metrics_for("phonemes")}
    more = "; ".join(f"{name} needs {needs}" for name, needs in registry.demanding_metrics().items())
    return f"{', '.join(names)} ({more})"


def metrics_setting() -> Any:
    note = "LISTING or all; may be repeated. [default: those for any text and language]"
    return setting((), help=note, flag="--metric", metavar="NAME", listing=metrics_text)


def units_setting() -> Any:
    note = "what the space-separated symbols are; phonemes print PER, and WER by whole lines"
    return setting("words", help=note, flag="--units")


def draws_setting() -> Any:
    return setting(1000, help="draws of the bootstrap and of p-values", flag="--draws")


def seed_setting() -> Any:
    return setting(1, help="seed of the draws", flag="--seed --draws-seed")


@dataclass(frozen=True)
class ScoreOptions(Limited):
    """What to say about texts beside their scores."""

    metrics: tuple[str, ...] = metrics_setting()
    units: Words = units_setting()
    intervals: bool = setting(
        False, help="add 95 % confidence intervals, by bootstrap over segments", flag="--intervals"
    )
    source: str | None = setting(
        None, help="source lines, for the breakdowns below and for --metric f0.5", flag="--source"
    )
    by_length: bool = setting(
        False, help="also by words of the source, or without --source of the reference", flag="--by-length"
    )
    by_frequency: str | None = setting(
        None, help="also by the frequency of the rarest source word in FILE", flag="--by-frequency", metavar="FILE"
    )
    by_tag: str | None = setting(
        None, help="also by the label on each line of FILE; that of '<2de> text' is de", flag="--by-tag", metavar="FILE"
    )
    words: str | None = setting(
        None, help="also the rate of words that the list in FILE lacks, with examples", flag="--words", metavar="FILE"
    )
    ngrams: bool = setting(
        False, help="take BLEU apart: precisions, brevity penalty, matching n-grams by line", flag="--ngrams"
    )
    alignment: bool = setting(
        False, help="show every line aligned with its reference, with S, I and D counts", flag="--alignment"
    )
    characters: bool = setting(False, help="align characters instead of words", flag="--characters")
    all_alignments: bool = setting(
        False,
        help="with --alignment, show all equally cheap alignments of a line, at most 100, not only one",
        flag="--all-alignments",
    )
    table: bool = setting(False, help="with --alignment, also print the table of edit costs", flag="--table")
    substitution: Annotated[int, Range(0)] = setting(1, help="cost of a replacement", flag="--substitution")
    plot: str | None = setting(
        None, help="draw the first metric by group, or the edit table of the first line", flag="--plot", metavar="FILE"
    )
    draws: Draws = draws_setting()
    seed: Seed = seed_setting()

    def check(self) -> None:
        """Raise DataError for options that would have no effect, before any file is read."""
        buckets = [name for name in ("by_length", "by_frequency", "by_tag") if getattr(self, name)]
        if self.by_frequency and not self.source:
            raise DataError("--by-frequency needs --source: it counts the words of the source")
        unused = [name for name in ("characters", "all_alignments", "table") if getattr(self, name)]
        unused += ["substitution"] if self.substitution != 1 else []
        if unused and not self.alignment:
            raise DataError(f"--{unused[0].replace('_', '-')} needs --alignment")
        if (self.draws != ScoreOptions.draws or self.seed != 1) and not (buckets or self.intervals):
            name = "draws" if self.draws != ScoreOptions.draws else "seed"
            raise DataError(f"--{name} needs --intervals, --by-length, --by-frequency or --by-tag")
        if self.plot is not None and len(buckets) + self.alignment != 1:
            asked = ", ".join(f"--{name.replace('_', '-')}" for name in [*buckets, *["alignment"] * self.alignment])
            raise DataError(
                f"--plot draws one thing: found {asked or 'nothing to draw'}, expected one of --by-length, "
                "--by-frequency, --by-tag or --alignment"
            )


@dataclass(frozen=True)
class ScoreAlignmentOptions:
    """How `score_alignment` reads its two files."""

    gold_from: Literal["0", "1"] | None = setting(
        None,
        help="the number of the first word in GOLD. [default: 0, or 1 where every line is one link]",
        flag="--gold-from",
    )
    hypothesis_from: Literal["0", "1"] | None = setting(None, help="the same for HYPOTHESIS", flag="--hypothesis-from")
    swap: bool = setting(False, help="HYPOTHESIS has target words first: swap the sides of its links", flag="--swap")
