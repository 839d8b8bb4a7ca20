"""The portfolio: configurations that a model search tries, as data.

An entry is a preset with overrides and a predicate on the profile of the data. `benchmarks/portfolio_study.py` measures
every entry on many data sets; its results change only this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dragoman.auto.budget import EPOCHS as SENTENCE_EPOCHS
from dragoman.auto.budget import up_to
from dragoman.auto.profile import PairProfile, percent
from dragoman.config.settings import merge, override
from dragoman.tasks.config import preset_table

BATCH_TOKENS = ((50_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))  # corpus → batch
SMALL_BATCHES = 200_000  # tokens of a corpus of short pairs up to which a candidate's smallest batch is best
FEWEST_TOKENS = 2_048_000  # that training reads at least, however small the corpus
RECURRENT_LENGTH = 30  # tokens on average above which a Transformer learns faster and more
MOST_STEPS = 6000  # for up to 10,000 short pairs
SENTENCE_STEPS, CPU_SENTENCE_STEPS = 12_000, 6000  # fewest steps on sentences, unless they exceed MOST_EPOCHS
MOST_EPOCHS = 300
FEWEST = 50  # pairs: below, no study says anything
EPOCHS = ((2000, 150), (10_000, 60), (60_000, 40), (200_000, 25), (1_000_000, 12), (math.inf, 5))  # pairs → epochs
SMALL_TRANSFORMER = (
    "model.encoder.layers=2", "model.encoder.width=64", "model.encoder.feedforward=256", "model.encoder.dropout=0.1",
    "model.decoder.layers=2", "model.decoder.width=64", "model.decoder.feedforward=256", "model.decoder.dropout=0.1",
)  # fmt: skip
MODERN = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("positions.kind=rotary", "norm_kind=rms", "gated=true", "activation=silu")
)
MORE_DROPOUT = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("attention_dropout=0.1", "feedforward_dropout=0.3")
)
FAST_RATE = "train.optimizer.learning_rate=3e-3"


@dataclass(frozen=True)
class Candidate:
    """A configuration to try: a preset with `place=value` overrides, for data that satisfy `fits`."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()
    fits: Callable[[PairProfile], bool] = lambda profile: True
    reason: str = ""  # why it is the default model for some data
    smallest_batch: int = 1024  # tokens
    epochs: int = 0  # 0: by the number of pairs
    cpu_steps: int = MOST_STEPS  # without a GPU, for as many pairs: two CPU cores should take about ten minutes

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"preset={self.preset}", *self.overrides)

    def batch_tokens(self, profile: PairProfile) -> int:
        """Tokens of a batch: small data profit from small batches."""
        tokens = profile.pairs * profile.longer
        if tokens <= SMALL_BATCHES and is_short(profile):
            return self.smallest_batch
        return max(self.smallest_batch, int(up_to(BATCH_TOKENS, tokens)))

    def steps(self, profile: PairProfile, steps_per_epoch: float, gpu: bool) -> int:
        """Training steps: many epochs of small data, few of large ones."""
        epochs: int = self.epochs or up_to(EPOCHS, profile.pairs)
        epochs *= 2 if profile.formal and profile.pairs <= 10_000 else 1
        steps = max(FEWEST_TOKENS // self.batch_tokens(profile), math.ceil(epochs * steps_per_epoch))
        if has_subwords(profile):
            fewest = SENTENCE_STEPS if gpu else CPU_SENTENCE_STEPS
            return max(steps, min(fewest, math.ceil(MOST_EPOCHS * steps_per_epoch)))
        if profile.pairs > 10_000 or not is_short(profile):
            return steps
        return min(steps, MOST_STEPS if gpu else self.cpu_steps)


def dropout(value: float) -> tuple[str, ...]:
    return (f"model.encoder.dropout={value}", f"model.decoder.dropout={value}")


def width(value: int) -> tuple[str, ...]:
    return (f"model.encoder.width={value}", f"model.decoder.width={value}")


def has_subwords(profile: PairProfile) -> bool:
    """Whether a side is sentences, which are read as sub-words."""
    return "subwords" in (profile.source.unit, profile.target.unit)


def is_short(profile: PairProfile) -> bool:
    """Whether both sides are short sequences of characters or symbols."""
    return not has_subwords(profile) and profile.longer <= 60


def is_monotone(profile: PairProfile) -> bool:
    """Whether a model that aligns from left to right may suit; its cost grows with the product of both lengths."""
    return is_short(profile) and profile.longer <= 40 and (profile.monotone >= 0.5 or bool(profile.features))


def is_copied(profile: PairProfile) -> bool:
    return (profile.copied > 0.3 or profile.formal) and profile.source.unit == profile.target.unit


def is_edited(profile: PairProfile) -> bool:
    """Whether targets are edited sources: most is copied, in order."""
    return is_copied(profile) and profile.copied >= 0.6 and profile.monotone >= 0.5


def is_many_short(profile: PairProfile) -> bool:
    """Whether the pairs are a large dictionary of short sequences, which wants large batches."""
    return is_short(profile) and 60_000 < profile.pairs <= 300_000


def are_few_sentences(profile: PairProfile) -> bool:
    """Whether sentences are so few that phrases may beat a neural model, and short: long ones take seconds each."""
    sentences = {profile.source.unit, profile.target.unit} == {"subwords"}
    return sentences and profile.longer <= 40 and profile.pairs <= 20_000


def phrases_for(profile: PairProfile) -> Candidate | None:
    """Phrase-based translation, where the study says that it beats neural models; None elsewhere."""
    parallel = are_few_sentences(profile) and profile.monotone >= 0.5 and not is_copied(profile)
    if not (parallel and 500 <= profile.pairs <= 5000):
        return None
    reason = f"{profile.pairs:,} sentences are few for a neural model; preset=transformer-small trains one"
    return because("phrase-based", reason)


UNSMOOTHED = ("model.label_smoothing=0.0",)
PORTFOLIO = (
    Candidate("phrase-based", "phrase-based", fits=are_few_sentences),
    Candidate("makarov-2020", "makarov-2020-small", fits=is_monotone, smallest_batch=512, cpu_steps=3400),
    Candidate("wu-2019", "wu-2019-small", fits=is_monotone, smallest_batch=512),
    Candidate("luong-256-unsmoothed", "luong-2015-small", (*width(256), *UNSMOOTHED)),
    Candidate("luong-512-unsmoothed", "luong-2015-small", (*dropout(0.5), *UNSMOOTHED)),
    Candidate("luong-256-dropout", "luong-2015-small", (*width(256), *dropout(0.5), *UNSMOOTHED)),
    Candidate("copy-transducer", "copy-transducer-small", fits=is_edited),
    Candidate("convs2s", "convs2s-2017-small"),
    Candidate("transformer-modern", "transformer-small", MODERN, fits=lambda profile: not has_subwords(profile)),
    Candidate("transformer-modern-dropout", "transformer-small", (*MODERN, *MORE_DROPOUT, FAST_RATE),
              fits=has_subwords),
    Candidate("transformer-128-modern-dropout", "transformer-small",
              (*width(128), "model.encoder.feedforward=512", "model.decoder.feedforward=512", *MODERN, *MORE_DROPOUT,
               FAST_RATE), fits=has_subwords),
    Candidate("transformer-small", "transformer-small"),
    Candidate("pointer-generator", "pointer-generator-small",
              ("model.encoder.dropout=0.5", "model.decoder.inner.dropout=0.5"), fits=is_copied),
    Candidate("pointer-generator-256", "pointer-generator-small",
              ("model.encoder.width=256", "model.decoder.inner.width=256", "model.encoder.dropout=0.5",
               "model.decoder.inner.dropout=0.5"), fits=lambda profile: profile.formal, cpu_steps=1400),
    Candidate("pointer-transformer", "pointer-transformer-small", fits=is_copied),
    Candidate("luong-512", "luong-2015-small", dropout(0.5)),
    Candidate("transformer-tiny", "transformer-tiny", dropout(0.3)),
    Candidate("transformer-2x64", "transformer-tiny", (*SMALL_TRANSFORMER, "train.optimizer.learning_rate=4e-3"),
              fits=is_short),
    Candidate("luong-256", "luong-2015-small", width(256)),
    Candidate("transformer-small-unsmoothed", "transformer-small", UNSMOOTHED),
    Candidate("convs2s-unsmoothed", "convs2s-2017-small", UNSMOOTHED),
    Candidate("rnn-attention", "rnn-attention-small", dropout(0.3)),
    Candidate("nat-ctc", "nat-ctc-small", fits=is_short),
    Candidate("transformer-small-large-batch", "transformer-small", dropout(0.2), fits=is_many_short,
              smallest_batch=8192, epochs=60),
    Candidate("ngram-transducer", "ngram-transducer", fits=is_monotone),
)  # fmt: skip


def candidates_for(profile: PairProfile, gpu: bool = False) -> list[Candidate]:
    """The entries that fit the data, the default model first; formal targets want pointers."""
    default = default_candidate(profile, gpu)

    def order(candidate: Candidate) -> tuple[bool, bool]:
        points = profile.formal and candidate.preset.startswith("pointer")
        return default is None or candidate.name != default.name, not points

    return sorted((candidate for candidate in PORTFOLIO if candidate.fits(profile)), key=order)


def by_name(name: str) -> Candidate:
    return next(candidate for candidate in PORTFOLIO if candidate.name == name)


def default_candidate(profile: PairProfile, gpu: bool = False) -> Candidate | None:
    """What the study says for such data and a GPU or CPUs; None: a Transformer that fits the amount of data."""
    if profile.pairs < FEWEST:
        return None
    size = f"{profile.pairs:,} pairs"
    if profile.formal:
        recurrent = "pointer-generator" if gpu else "pointer-generator-256"  # a CPU takes 1.7 times as long for 512
        name = recurrent if profile.pairs <= 60_000 else "pointer-transformer"
        return because(name, "rare words of the targets are copied from the source")
    if profile.pairs <= (5000 if profile.features else 10_000) and is_monotone(profile):
        if profile.features:
            return because("makarov-2020", f"{size} with features are few")
        order = f"{size} are few and their order is kept (τ {profile.monotone:.2f})"
        if profile.copied <= 0.3 and profile.pairs <= 3000:
            return because("makarov-2020", f"{order}, and the sides have different letters")
        return because("wu-2019", f"{order}")
    if profile.pairs <= 60_000 and is_short(profile):
        if profile.longer > RECURRENT_LENGTH:
            return because("transformer-small", f"there are {size} of {profile.longer:.0f} tokens on average")
        if gpu:  # a CPU takes twice as long for 512
            return because("luong-512-unsmoothed", f"there are {size} of short sequences and a GPU")
        return because("luong-256-unsmoothed", f"there are {size} of short sequences")
    if is_many_short(profile):
        return because("transformer-small-large-batch", f"there are {size} of short sequences")
    if profile.pairs <= 60_000 and is_edited(profile) and profile.identical >= 0.1:  # copying all is hard to beat
        return because("copy-transducer", f"{percent(profile.identical)} of the pairs do not change at all")
    if profile.pairs <= 60_000 and is_copied(profile):
        return because("luong-512", f"{percent(profile.copied)} of the target is copied from the source")
    if profile.pairs <= 300_000 and has_subwords(profile):
        narrow = profile.pairs <= 20_000 and not gpu  # a CPU takes 2.4 times as long for a step of 256
        name = "transformer-128-modern-dropout" if narrow else "transformer-modern-dropout"
        parts = "rotary positions, RMS norm and gated feed-forward layers"
        tip = "; for so few, preset=phrase-based is often better, and takes minutes" if phrases_for(profile) else ""
        candidate = because(name, f"there are {size} of sentences{tip}", f"with {parts}, ")
        return replace(candidate, epochs=up_to(SENTENCE_EPOCHS, profile.pairs))
    if profile.pairs <= 5000:
        return because("transformer-small", f"there are only {size}")
    return None


def is_transformer(candidate: Candidate) -> bool:
    """Whether overrides of parts of a Transformer apply to it."""
    model = preset_table(candidate.preset)["model"]
    return all(model.get(side, {}).get("kind") == "transformer" for side in ("encoder", "decoder"))


def because(name: str, reason: str, parts: str = "") -> Candidate:
    """An entry as the default model, with the reason and what it is made of."""
    return replace(by_name(name), reason=f"{parts}because {reason}")


def candidate_table(candidate: Candidate, table: dict[str, Any]) -> dict[str, Any]:
    """A configuration table with the candidate's settings; encoder and decoder name their kind, so that an override
    of the kind drops their sizes."""
    model = preset_table(candidate.preset)["model"]
    kinds = {side: {"kind": model[side]["kind"]} for side in ("encoder", "decoder") if "kind" in model.get(side, {})}
    return dict(override(merge(table, {"model": kinds}), candidate.overrides))
