"""The portfolio: configurations that a model search tries, as data.

An entry is a preset with overrides and a predicate on the profile of the data. `benchmarks/portfolio_study.py` measures
every entry on many data sets; its results change only this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.auto.profile import PairProfile
from dragoman.tasks.config import preset_names

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

    @property
    def settings(self) -> tuple[str, ...]:
        """All overrides, the preset first."""
        return (f"preset={self.preset}", *self.overrides)


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
)


def available() -> list[Candidate]:
    """The entries whose preset exists."""
    names = set(preset_names())
    return [candidate for candidate in PORTFOLIO if candidate.preset in names]
