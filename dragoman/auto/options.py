"""What a user may ask of the automatic verbs; the options of their commands are made from these records."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Literal

from dragoman.base.config import Limited, Range, Size, SizeOrNone, setting
from dragoman.scoring import metrics_text

Method = Literal["auto", "adapters", "whole"]
PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the data of a learning curve


@dataclass(frozen=True)
class CheckOptions(Limited):
    """What a user may ask of a check."""

    show: SizeOrNone = setting(1000, help="maximum of faulty lines to name", flag="--show")


@dataclass(frozen=True)
class SearchOptions(Limited):
    """What a user may ask of a search."""

    seconds: float | None = setting(None, help="time for everything; none: the usual length of training for each trial")
    trials: Size | None = setting(
        None,
        help="Search: try at most N configurations. [default: as many as --time allows; without --time all that fit "
        "the data]",
        flag="--trials",
        metavar="N",
    )
    ensemble: Size = setting(
        1,
        help="Search: train K models, the best of each kind first, and keep them as one run that predicts as an "
        "ensemble. Limit the search with --time or --trials.",
        flag="--ensemble",
        metavar="K",
    )
    workers: Size | None = setting(None, help="processes; none: one for each core, or a few on a GPU")
    started: float = field(default_factory=time.time)  # time.time() when the time began

    @property
    def asked(self) -> bool:
        """Whether there is to be a search at all."""
        return self.seconds is not None or self.trials is not None or self.ensemble > 1


@dataclass(frozen=True)
class DistilOptions(Limited):
    """What a user may ask of a distillation."""

    token_level: bool = setting(
        False, help="Learn the teacher's probabilities of all tokens, not its outputs alone.", flag="--token-level"
    )
    unlabelled: str | None = setting(
        None, help="Inputs without targets: confident outputs for them are added.", flag="--unlabelled", metavar="FILE"
    )
    min_confidence: Annotated[float, Range(0.0, 1.0)] = setting(
        0.8,
        help="With --unlabelled: the least mean probability of the tokens of an output.",
        flag="--min-confidence",
        metavar="P",
    )


@dataclass(frozen=True)
class CurveOptions(Limited):
    """What a user may ask of a learning curve."""

    more: tuple[Annotated[int, Range(1, 10**12)], ...] = setting(
        (),
        help="Predict for so many more pairs; may be repeated. [default: as many as there are]",
        flag="--more",
        metavar="N",
    )
    test: str | None = setting(
        None, help="Pairs that judge. [default: a tenth of the data, 2,000 at most]", flag="--test", metavar="FILE"
    )
    metric: str | None = setting(
        None,
        help="LISTING. [default: the one that selects checkpoints]",
        flag="--metric",
        metavar="NAME",
        listing=metrics_text,
    )
    seconds: float | None = setting(None, help="time for all trainings together")
    overrides: tuple[str, ...] = ()
    parts: tuple[float, ...] = PARTS
    device: str = "auto"
    plot: str | None = setting(
        None, help="Also draw the curve to this .png, .svg or .pdf file.", flag="--plot", metavar="FILE"
    )


@dataclass(frozen=True)
class AdaptOptions(Limited):
    """What a user may ask of an adaptation."""

    general: str | None = setting(
        None,
        help="General pairs to mix in and to judge by. [default: the run's own data]",
        flag="--general",
        metavar="FILE",
    )
    method: Method = setting(
        "auto",
        help="What is trained: adapters (LoRA) or the whole model; auto: adapters from 30 million parameters on.",
        flag="--method",
    )
    mix: Annotated[float, Range(0.0, 100.0)] = setting(
        1.0, help="General pairs in an epoch for each correction.", flag="--mix"
    )
    columns: str | None = setting(
        None, help="Columns of source and correction, or languages of a .tmx.", flag="--columns", metavar="A,B"
    )
    header: bool = setting(False, help="The first line of CORRECTIONS names its columns.", flag="--header")
    tag: str | None = None  # of the corrections, for a run with tags
    overrides: tuple[str, ...] = ()
    device: str = "auto"
    from_server: bool = False  # whether the data are the folder of `dragoman serve --corrections`
