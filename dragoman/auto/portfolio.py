"""The portfolio: configurations that a model search tries, as data.

An entry is a preset with overrides and a predicate on the profile of the data. `benchmarks/portfolio_study.py` measures
every entry on many data sets; its results change only this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dragoman.auto.profile import PairProfile
from dragoman.config.settings import merge, override
from dragoman.tasks.config import preset_names, preset_table

BATCH_TOKENS = ((50_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))  # corpus → batch
EPOCHS = ((2000, 150), (10_000, 80), (50_000, 50), (200_000, 25), (1_000_000, 12), (math.inf, 5))  # pairs → epochs
SMALL_TRANSFORMER = (
    "model.encoder.layers=2", "model.encoder.width=64", "model.encoder.feedforward=256", "model.encoder.dropout=0.1",
    "model.decoder.layers=2", "model.decoder.width=64", "model.decoder.feedforward=256", "model.decoder.dropout=0.1",
)  # fmt: skip
MODERN = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("positions.kind=rotary", "norm_kind=rms", "gated=true", "activation=silu")
)


@dataclass(frozen=True)
class Candidate:
    """A configuration to try: a preset with `place=value` overrides, for data that satisfy `fits`."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()
    fits: Callable[[PairProfile], bool] = lambda profile: True
    reason: str = ""  # why it is the usual choice for some data

    @property
    def settings(self) -> tuple[str, ...]:
        """All overrides, the preset first."""
        return (f"preset={self.preset}", *self.overrides)

    def batch_tokens(self, profile: PairProfile) -> int:
        """Tokens of a batch: small data profit from small batches."""
        tokens = profile.pairs * max(profile.length("source"), profile.length("target"))
        return next(size for limit, size in BATCH_TOKENS if tokens <= limit)

    def steps(self, profile: PairProfile, steps_per_epoch: float) -> int:
        """Training steps: many epochs of small data, few of large ones."""
        epochs = next(count for limit, count in EPOCHS if profile.pairs <= limit)
        return max(2000, math.ceil(epochs * steps_per_epoch))


def dropout(value: float) -> tuple[str, ...]:
    """Overrides for the dropout of encoder and decoder."""
    return (f"model.encoder.dropout={value}", f"model.decoder.dropout={value}")


def width(value: int) -> tuple[str, ...]:
    """Overrides for the width of encoder and decoder."""
    return (f"model.encoder.width={value}", f"model.decoder.width={value}")


UNSMOOTHED = ("model.label_smoothing=0.0",)
PORTFOLIO = (
    Candidate("transformer-2x64", "transformer-tiny", (*SMALL_TRANSFORMER, "train.optimizer.learning_rate=4e-3")),
    Candidate("transformer-tiny", "transformer-tiny", dropout(0.3)),
    Candidate("transformer-small", "transformer-small"),
    Candidate("transformer-small-unsmoothed", "transformer-small", UNSMOOTHED),
    Candidate("transformer-modern", "transformer-small", MODERN),
    Candidate("convs2s", "convs2s-2017-small"),
    Candidate("convs2s-unsmoothed", "convs2s-2017-small", UNSMOOTHED),
    Candidate("luong-256", "luong-2015-small", width(256)),
    Candidate("luong-256-unsmoothed", "luong-2015-small", (*width(256), *UNSMOOTHED)),
    Candidate("luong-512", "luong-2015-small", dropout(0.5)),
    Candidate("rnn-attention", "rnn-attention-small", dropout(0.3)),
    Candidate("nat-ctc", "nat-ctc-small"),
    Candidate("edit-transducer", "makarov-2020-small", fits=lambda profile: short_and_monotone(profile)),
    Candidate("hard-attention", "wu-2019-small", fits=lambda profile: short_and_monotone(profile)),
)


def short_and_monotone(profile: PairProfile) -> bool:
    """Whether a model that aligns from left to right may suit: its cost grows with the product of both lengths."""
    longest = max(profile.length("source"), profile.length("target"))
    return longest <= 40 and profile.monotone >= 0.5 and "subwords" not in (profile.source.unit, profile.target.unit)


def available() -> list[Candidate]:
    """The entries whose preset exists."""
    names = set(preset_names())
    return [candidate for candidate in PORTFOLIO if candidate.preset in names]


def by_name(name: str) -> Candidate:
    """An entry."""
    return next(candidate for candidate in PORTFOLIO if candidate.name == name)


def usual_candidate(profile: PairProfile) -> Candidate | None:
    """What experience says for such data; None: a Transformer that fits the amount of data."""
    longest = max(profile.length("source"), profile.length("target"))
    if 500 <= profile.pairs <= 15_000 and longest <= 60:
        reason = f"which was best on {profile.pairs:,} short pairs"
        return replace(by_name("convs2s"), reason=reason)
    return None


def candidate_table(candidate: Candidate, table: dict[str, Any]) -> dict[str, Any]:
    """A configuration table with the candidate's settings; encoder and decoder name their kind, so that an override
    of the kind drops their sizes."""
    model = preset_table(candidate.preset)["model"]
    kinds = {side: {"kind": model[side]["kind"]} for side in ("encoder", "decoder") if "kind" in model.get(side, {})}
    return dict(override(merge(table, {"model": kinds}), candidate.overrides))
