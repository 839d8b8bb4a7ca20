"""The profile of a data set in a few lines, and what in it deserves a warning."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.auto.profile import PairProfile, SideProfile

MONOTONE = 0.7  # Kendall's τ from which the order counts as kept
FEW_TARGETS, REPEATED = 30, 20  # at most so many different targets, each so often on average: labels


def describe(profile: PairProfile) -> list[str]:
    lines = [
        f"data: {profile.pairs:,} pairs; {repetition(profile)}",
        f"source: {side_text(profile.source)}",
        f"target: {side_text(profile.target)}",
        f"relation: {relation_text(profile)}",
    ]
    return lines + [f"warning: {line}" for line in warnings(profile)]


def percent(share: float) -> str:
    """A share as a whole percentage; small ones keep a digit."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 1 or not value else f"{value:.1f} %"


def side_text(side: SideProfile) -> str:
    if side.unit == "words":
        return (
            f"{side.tokens:.1f} {side.units} on average, {side.types:,} different ones; "
            f"{percent(side.new)} of those in a held-out tenth are new"
        )
    text = f"{side.characters:.0f} characters on average, {side.alphabet:,} different ones"
    if side.spaced < 0.1:
        return f"{text}; no spaces"
    return f"{text}; {side.tokens:.1f} words, of which {percent(side.new)} are new in a held-out tenth"


def repetition(profile: PairProfile) -> str:
    parts = [f"{percent(profile.duplicates)} repeat an earlier pair" if profile.duplicates else "no duplicates"]
    if profile.ambiguous:
        share = percent(profile.ambiguous)
        parts.append(f"{share} of the sources have several targets, which validation takes as references")
    if profile.leaked is not None:
        parts.append(f"{percent(profile.leaked)} of the validation sources are also training sources")
    return "; ".join(parts)


def relation_text(profile: PairProfile) -> str:
    copied = f"{percent(profile.copied)} of the target is copied from the source"
    if profile.formal:
        copied += ", among it most of its rare words"
    if profile.identical:
        copied += f" ({percent(profile.identical)} of the pairs are equal)"
    order = (
        "the order is kept" if profile.monotone >= MONOTONE
        else "the order is partly kept" if profile.monotone >= 0.4
        else "the order changes" if profile.monotone > -0.4
        else "the order is reversed"
    )  # fmt: skip
    ratio = profile.target.mean_length / max(0.1, profile.source.mean_length)
    shared = "; one spelling for both sides" if profile.joint else ""
    return f"{copied}; {order} (τ {profile.monotone:.2f}); {ratio:.2g} target tokens per source token{shared}"


def warnings(profile: PairProfile) -> Iterator[str]:
    """What a practitioner would look at before training."""
    if profile.targets == 1:
        yield "all targets are the same text; a model can only learn to write it"
    if profile.identical == 1:
        yield "every source equals its target; a model can only learn to copy"
    if profile.swapped:
        yield (
            "the columns of data.valid seem to be in the other order: its sources look like the training targets; "
            "check them, or choose with data.columns"
        )
    if profile.leaked is not None and profile.leaked > 0.5 and profile.duplicates < 0.1:
        yield (
            f"{percent(profile.leaked)} of the validation sources are also training sources, so validation measures "
            "memory rather than new inputs"
        )


def label_advice(profile: PairProfile) -> str:
    """Advice if the targets are labels rather than texts; empty otherwise."""
    few = 1 < profile.targets <= FEW_TARGETS and profile.pairs >= REPEATED * profile.targets
    if not few or profile.target.tokens > 2:
        return ""
    return (
        f"only {profile.targets} different targets occur in {profile.pairs:,} pairs: if they are labels, a classifier "
        "is smaller and better; add task=classify"
    )
