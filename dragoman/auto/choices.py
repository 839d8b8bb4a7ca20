"""Settings that were derived from others: they follow an override of those, unless they are set themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.config.settings import merge, override
from dragoman.tasks.config import Config, build

# Derived from train.steps: the smallest and the largest value that scaling gives.
EPOCHS = re.compile(r"about ([\d,]+) epochs")  # in the reason of a budget
FOLLOW_STEPS = {"validate_every": (20, 1000), "save_every": (20, 1000), "warmup": (5, 4000)}


def finish(table: dict[str, Any], overrides: Sequence[str], reasons: list[str]) -> tuple[Config, list[str]]:
    """The configuration of automatic choices with overrides on top, and the reasons as they hold for it."""
    config = build(follow_steps(table, overrides, reasons), overrides)
    for in_force in (tokenizer_in_force, objective_in_force, budget_in_force):
        reasons = [in_force(reason, table, config) for reason in reasons]
    return config, reasons


def follow_steps(table: dict[str, Any], overrides: Sequence[str], reasons: Sequence[str] = ()) -> dict[str, Any]:
    """The table with the settings that were derived from train.steps scaled to an override of it, or of train.epochs.

    With the old warm-up, a much shorter run would end before the learning rate reaches its peak.
    """
    asked = override({}, list(overrides)).get("train", {})
    steps, chosen = asked.get("steps") if isinstance(asked, Mapping) else None, table.get("train", {})
    epochs = asked.get("epochs") if isinstance(asked, Mapping) else None
    budget = next((match for reason in reasons if (match := EPOCHS.search(reason))), None)
    if isinstance(epochs, int | float) and epochs > 0 and budget is not None and chosen.get("steps"):
        steps = max(1, round(chosen["steps"] * epochs / max(1, int(budget[1].replace(",", "")))))
        table = merge(table, {"train": {"steps": steps}})
    if not isinstance(steps, int) or isinstance(steps, bool) or not chosen.get("steps"):
        return table
    wanted: int = steps
    factor: float = wanted / chosen["steps"]  # of the automatic choice

    def scaled(name: str, value: int) -> int:
        low, high = FOLLOW_STEPS[name]
        return max(1, min(max(low, round(value * factor)), high, max(value, high) if factor > 1 else value, wanted))

    changed: dict[str, Any] = {
        name: scaled(name, chosen[name]) for name in ("validate_every", "save_every") if name in chosen
    }
    if "warmup" in chosen.get("optimizer", {}):
        changed["optimizer"] = {"warmup": min(scaled("warmup", chosen["optimizer"]["warmup"]), max(1, steps // 5))}
    if warmup := chosen.get("objective", {}).get("warmup"):
        changed["objective"] = {"warmup": max(1, round(warmup * factor))}
    return merge(table, {"train": changed})


def tokenizer_in_force(reason: str, table: Mapping[str, Any], config: Config) -> str:
    """The reason of a tokenizer, or what an override of its kind made of it."""
    side = reason.partition(":")[0]
    if side not in ("source", "target"):
        return reason
    tokenizer = getattr(config.tokenizer, side)
    if tokenizer is None:
        return f"{side}: the tokenizer of the source, as tokenizer.{side} says"
    chosen = table.get("tokenizer", {}).get(side)
    if not isinstance(chosen, Mapping) or chosen.get("kind") == tokenizer.kind:
        return reason
    return f"{side}: {tokenizer.kind}, as tokenizer.{side} says"


def objective_in_force(reason: str, table: Mapping[str, Any], config: Config) -> str:
    """The reason of the objective, or that an override chose another."""
    chosen, objective = table.get("train", {}).get("objective", {}), config.train.objective
    if not reason.startswith("objective:") or all(
        getattr(objective, name, None) == chosen[name] for name in ("kind", "weight")
    ):
        return reason
    return f"objective: {objective.kind}, as train.objective says"


def budget_in_force(reason: str, table: Mapping[str, Any], config: Config) -> str:
    """The reason of the training budget with the values of the configuration, where overrides changed them."""
    train, chosen = config.train, table.get("train", {})
    names = ("steps", "batch_tokens", "validate_every", "patience", "metric")
    if not reason.startswith("budget:") or all(
        getattr(train, name) == chosen.get(name, getattr(train, name)) for name in names
    ):
        return reason
    factor = train.steps * train.batch_tokens / max(1, chosen["steps"] * chosen["batch_tokens"])
    epochs = EPOCHS.search(reason)
    about = f", about {float(epochs[1].replace(',', '')) * factor:.1f} epochs" if epochs else ""
    stop = f"training stops after {train.patience} validations without a better" if train.patience else "the best"
    return (
        f"budget: {train.steps:,} steps of {train.batch_tokens:,} tokens{about}, validated every "
        f"{train.validate_every:,} steps; {stop} {train.metric}{'' if train.patience else ' is kept'}"
    )
