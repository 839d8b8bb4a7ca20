"""Choices of the planner as records: the configuration and its sentences come from them, and they yield to the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.auto.trial import is_fitted
from dragoman.base import ConfigError
from dragoman.base.config import merge, nested, override
from dragoman.runs.tasks import Config, build, preset_table

STEPS = "train.steps"
# Chosen by train.steps: the smallest and the largest value that scaling gives.
SCALED = {"train.validate_every": (20, 1000), "train.save_every": (20, 1000), "train.optimizer.warmup": (5, 4000)}
FOLLOW_STEPS = {*SCALED, "train.objective.warmup"}
CHANGED = "budget:"  # the reason of a budget that follows a setting of the user
BUDGET = ("steps", "batch_tokens", "validate_every", "patience", "metric")


class Choice(NamedTuple):
    """A setting that the planner chose."""

    place: str  # "": nothing is set, there is only something to say
    value: Any = None
    why: str = ""
    follows: tuple[str, ...] = ()  # settings with which the value grows
    epochs: float = 0.0  # of train.steps: how often they read the data

    def concerns(self, *places: str) -> bool:
        """Whether the choice is of one of these settings, or of a part of one."""
        return any(f"{self.place}.".startswith(f"{place}.") for place in places)


def chosen(table: Mapping[str, Any], why: Mapping[str, str] | None = None, epochs: float = 0.0) -> list[Choice]:
    """A choice for every value of a table, `kind` first; `why` by place."""
    why = why or {}

    def leaves(part: Mapping[str, Any], above: str) -> Iterator[Choice]:
        for name, value in sorted(part.items(), key=lambda item: item[0] != "kind"):
            place = f"{above}{name}"
            if isinstance(value, Mapping) and value:
                yield from leaves(value, f"{place}.")
            else:
                follows = (STEPS,) if place in FOLLOW_STEPS else ()
                yield Choice(place, value, why.get(place, ""), follows, epochs if place == STEPS else 0.0)

    return list(leaves(table, ""))


def table_of(choices: Iterable[Choice]) -> dict[str, Any]:
    """The table of settings; of two choices of one setting the later one counts."""
    table: dict[str, Any] = {}
    for choice in choices:
        if choice.place:
            table = merge(table, nested(choice.place.split("."), choice.value))
    return table


def value_of(choices: Sequence[Choice], place: str, default: Any = None) -> Any:
    return next((choice.value for choice in reversed(choices) if choice.place == place), default)


def without(choices: Iterable[Choice], *places: str) -> list[Choice]:
    """The choices but those of these settings and their parts."""
    return [choice for choice in choices if not choice.concerns(*places)]


def finish(choices: Sequence[Choice], overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """The configuration of choices with overrides on top, and what is to be said of the choices in force."""
    given = override({}, overrides)
    config, kept = yielding([*scaled(choices, given)], overrides, given)
    lines = [in_force(choice, kept, config, given) for choice in kept]
    if value_of(choices, "preset") != value_of(kept, "preset"):
        lines.append(f"model: {config.model.kind}, as you set it")
    return config, [line for line in lines if line]


def yielding(choices: list[Choice], overrides: Sequence[str], given: Mapping[str, Any]) -> tuple[Config, list[Choice]]:
    """The configuration, and the choices without those that contradict what the user set, and with what mends that."""
    kept, first, mended = choices, None, set[str]()
    asked = merge(preset_table(str(given["preset"])), given) if given.get("preset") is not None else given
    while True:
        try:
            return build(table_of(kept), overrides), kept
        except ConfigError as error:
            first = first or error
            if mends := [
                mend for mend in error.mends if mend.place not in mended and lookup(asked, mend.place) is None
            ]:
                mended |= {mend.place for mend in mends}
                kept = without(kept, *(mend.place.removesuffix(".kind") for mend in mends))
                kept += [Choice(*mend) for mend in mends]
                continue
            places = [re.split(r":|\[", line)[0] for line in str(error).split("\n")]
            faulty = [choice for choice in kept if choice.place and choice.concerns(*places)]
            preset = value_of(kept, "preset")
            if not faulty and preset is not None and any(lookup(preset_table(preset), place) for place in places):
                faulty = [choice for choice in kept if choice.concerns("preset", "model")]
            if not faulty or ("preset" in given and faulty[0].place == "preset"):
                raise first from None
            kept = [choice for choice in kept if choice not in faulty]


def lookup(table: Any, place: str) -> Any:
    """The value at a place of a table; None if it has none."""
    for name in place.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table


def scaled(choices: Sequence[Choice], given: Mapping[str, Any]) -> Iterator[Choice]:
    """The choices; those that follow train.steps are scaled where the user sets it, or train.epochs.

    With the chosen warm-up, a much shorter run would end before the learning rate reaches its peak.
    """
    usual = next((choice for choice in choices if choice.place == STEPS), None)
    steps, epochs = lookup(given, STEPS), lookup(given, "train.epochs")
    if usual and usual.epochs and isinstance(epochs, int | float) and epochs > 0:
        steps = max(1, round(usual.value * epochs / usual.epochs))
    if usual is None or not isinstance(steps, int) or isinstance(steps, bool) or steps == usual.value:
        yield from choices
        return
    factor = steps / usual.value
    for choice in choices:
        place, value = choice.place, choice.value
        if choice is usual:
            yield choice._replace(value=steps, why=CHANGED, epochs=choice.epochs * factor)
            continue
        if STEPS in choice.follows and place in SCALED:
            low, high = SCALED[place]
            most = max(value, high) if factor > 1 else value
            value = max(1, min(max(low, round(value * factor)), high, most, steps))
            value = min(value, max(1, steps // 5)) if place.endswith("warmup") else value
        elif STEPS in choice.follows:
            value = max(1, round(value * factor))
        yield choice._replace(value=value)


def in_force(choice: Choice, choices: Sequence[Choice], config: Config, given: Mapping[str, Any]) -> str:
    """The reason of a choice, or what the settings of the user made of it; empty if it does not hold any more."""
    place, why = choice.place, choice.why
    if not why or not place:
        return why
    if place.startswith("train.") and is_fitted(config):
        return ""
    if place == STEPS:
        return budget_reason_after_overrides(choice, choices, config)
    if place.startswith("tokenizer."):
        _, side, *_ = place.split(".")
        tokenizer = getattr(config.tokenizer, side)
        if tokenizer is None:
            return f"{side}: the tokenizer of the source, as tokenizer.{side} says"
        usual = value_of(choices, f"tokenizer.{side}.kind")
        other = f"{why.partition(':')[0]}: {tokenizer.kind}, as tokenizer.{side} says"
        return why if tokenizer.kind == usual else other
    if place.startswith("train.objective"):
        objective, usual = config.train.objective, lookup(table_of(choices), "train.objective")
        same = all(getattr(objective, name, None) == usual[name] for name in ("kind", "weight"))
        return why if same else f"objective: {objective.kind}, as train.objective says"
    return why if lookup(given, place) in (None, choice.value) else ""


def budget_reason_after_overrides(choice: Choice, choices: Sequence[Choice], config: Config) -> str:
    """The reason of the training budget with the values of the configuration, where the user changed them."""
    train = config.train
    usual = {name: value_of(choices, f"train.{name}", getattr(train, name)) for name in BUDGET}
    if choice.why != CHANGED and all(getattr(train, name) == value for name, value in usual.items()):
        return choice.why
    factor = train.steps * train.batch_tokens / max(1, usual["steps"] * usual["batch_tokens"])
    about = f", about {choice.epochs * factor:.1f} epochs" if choice.epochs else ""
    stop = f"training stops after {train.patience} validations without a better" if train.patience else "the best"
    return (
        f"{CHANGED} {train.steps:,} steps of {train.batch_tokens:,} tokens{about}, validated every "
        f"{train.validate_every:,} steps; {stop} {train.metric}{'' if train.patience else ' is kept'}"
    )
