"""The options of the verbs that look at a run. Nothing heavy is imported, so that --help is quick."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from dragoman.base.config import Limited, Range, Size, SizeOrNone, setting
from dragoman.decoding import MAX_BEAM

Beam = Annotated[int, Range(1, MAX_BEAM)]
Rate = Annotated[float, Range(0.0, 1.0)]
TRAINING_PAIRS = 1_000  # that the view `training` looks through
BEAM = "beam width; 1 is greedy search. [default: the run's]"
TAG = "target tag, such as de, for a run trained with several; dragoman info lists them"
DEVICE = "where to compute: auto, cpu, cuda, cuda:N or mps"


@dataclass(frozen=True)
class InfoOptions(Limited):
    """What `info` shows of a run."""

    depth: Size = setting(3, flag="--depth", help="levels of layers to list")
    plot: str | None = setting(None, flag="--plot", help="also draw the training curve to this .png, .svg or .pdf file")


@dataclass(frozen=True)
class InspectOptions(Limited):
    """What `inspect` shows of a text, and beside which other run."""

    target: str | None = setting(None, flag="--target", help="explain this output instead of the run's own prediction")
    beside: str | None = setting(
        None, flag="--beside", metavar="RUN",
        help="put another run beside it: a folder; untrained: the same run before training; "
        "no-positions: without them",
    )  # fmt: skip
    training_pairs: Size | None = setting(
        None, flag="--training-pairs", metavar="N",
        help="add the view training, of so many training pairs. [default: 1000 with --view training or --state]",
    )  # fmt: skip
    beam: Beam | None = setting(None, flag="--beam", help=BEAM)
    tag: str | None = setting(None, flag="--tag", help=TAG)
    device: str = setting("auto", flag="--device", help=DEVICE)
    views: tuple[str, ...] = setting((), help="compute these views alone, with those that their pages draw from")


@dataclass(frozen=True)
class AttentionOptions:
    """How `attention` reads its texts."""

    tag: str | None = setting(None, flag="--tag", help=TAG)


@dataclass(frozen=True)
class ProbeOptions(Limited):
    """Which texts `probe` tries."""

    probes: tuple[str, ...] = setting(
        (), flag="--probe", metavar="NAME",
        help="which probe: repetition, copying, length, gender or stereotype; may be repeated. "
        "[default: all that suit the run]",
    )  # fmt: skip
    sentences: str | None = setting(
        None, flag="--sentences", metavar="FILE", help="source sentences for repetition and length"
    )
    templates: str | None = setting(
        None, flag="--templates", metavar="FILE",
        help="your own probes instead: templates, word lists and forms (.toml)",
    )  # fmt: skip
    examples: SizeOrNone = setting(2, flag="--examples", help="examples to show of each kind")
    beam: Beam | None = setting(None, flag="--beam", help=BEAM)
    tag: str | None = setting(None, flag="--tag", help=TAG)
    device: str = setting("auto", flag="--device", help=DEVICE)


@dataclass(frozen=True)
class SuiteOptions:
    """Where `test` runs."""

    device: str = setting("auto", flag="--device", help=DEVICE)


@dataclass(frozen=True)
class CalibrateOptions(Limited):
    """How `calibrate` measures confidences, and what it draws of them."""

    plot: str | None = setting(
        None, flag="--plot", help="also draw the reliability diagram to this .png, .svg or .pdf file"
    )
    risk_plot: str | None = setting(
        None, flag="--risk-plot",
        help="also draw the risk-coverage curve: wrong outputs against the share that is kept",
    )  # fmt: skip
    error_rate: Rate | None = setting(
        None, flag="--error-rate", metavar="R",
        help="say which --min-confidence of predict, translate and serve leaves this share of wrong outputs",
    )  # fmt: skip
    bins: Size = setting(15, flag="--bins", help="bins of the reliability diagram")
    batch_size: Size = setting(32, flag="--batch-size", help="pairs in a batch")
    tag: str | None = setting(None, flag="--tag", help=TAG)
    device: str = setting("auto", flag="--device", help=DEVICE)


@dataclass(frozen=True)
class BenchOptions(Limited):
    """What `bench` measures: a run, or with `lengths` single layers."""

    pairs: Size | None = setting(None, flag="--pairs", help="pairs to measure a RUN with. [default: 256]")
    rounds: Size | None = setting(None, flag="--rounds", help="timings of a RUN; bench prints the median. [default: 5]")
    lengths: bool = setting(False, flag="--lengths", help="without a RUN: time and memory of layers against the length")
    max_length: Annotated[int, Range(64)] | None = setting(
        None, flag="--max-length", help="with --lengths: maximum number of tokens. [default: 4096]"
    )
    plot: str | None = setting(None, flag="--plot", help="with --lengths: also draw it to this .png, .svg or .pdf file")
    device: str = setting("auto", flag="--device", help=DEVICE)


@dataclass(frozen=True)
class ShortlistOptions(Limited):
    """Which target tokens a shortlist has."""

    likely: Annotated[int, Range(1, 10_000)] = setting(50, flag="--likely", help="translations per source token")
    frequent: SizeOrNone = setting(500, flag="--frequent", help="frequent tokens in every list")
    pairs: Size = setting(100_000, flag="--pairs", help="maximum number of training pairs")
    output: str | None = setting(
        None, flag="--output", metavar="FILE",
        help="file to write. [default: shortlist.safetensors in the run folder]",
    )  # fmt: skip


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
    plot: str | None = setting(
        None, flag="--plot", metavar="FILE",
        help="numbers: also draw predicted against true values to this .png, .svg or .pdf file",
    )  # fmt: skip
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
