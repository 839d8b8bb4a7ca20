"""Fit the automatic choice for pairs to the machine: the usual training ends within about a night.

The speed is measured on a few steps, where the plan is so long that it may not fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress

from dragoman.auto.configure import configure
from dragoman.auto.estimates import NIGHT, batch_shapes, training_seconds
from dragoman.auto.trial import is_fitted
from dragoman.base import Progress, write_text
from dragoman.base import config as settings
from dragoman.base.config import override
from dragoman.data import Files
from dragoman.runs.tasks import DEFAULT_TASK, Config, task_of
from dragoman.training import resolve_device

LONG_PLAN = {"cpu": 5e7, "cuda": 5e9}  # tokens of a plan from which its speed is measured
SMALLER = ("transformer-small", "transformer-tiny")  # presets that a large corpus may fall back on, largest first
SHORTENED = 3.0  # a model is kept if a night has time for at least one in so many of its steps


def configure_for_machine(
    files: Files, overrides: Sequence[str], progress: Progress = lambda doing, count: None
) -> tuple[Config, list[str]]:
    """As `configure`; a plan of more than a night gets a smaller model, less time, or both, and a reason that says so.

    Whoever sets the model or the length of training gets what was asked for.
    """
    config, reasons = configure(files, overrides, progress)
    given = override({}, overrides)
    train = given.get("train", {})
    timed = isinstance(train, Mapping) and bool({"steps", "minutes", "epochs"} & set(train))
    if given.get("task", DEFAULT_TASK) != DEFAULT_TASK or timed or not is_long(config):
        return config, reasons
    needed = planned = seconds_of(config, progress)
    if planned <= NIGHT:
        return config, reasons
    smaller = ""
    for preset in () if {"preset", "model"} & set(given) else SMALLER:
        if needed > SHORTENED * NIGHT:
            other = configure(files, (*overrides, f"preset={preset}"), progress)[0]
            smaller, needed = preset, seconds_of(other, progress)
    asked = [f"preset={smaller}"] if smaller else []
    asked += [f"train.minutes={NIGHT / 60:.0f}"] if needed > NIGHT else []
    config, reasons = configure(files, (*overrides, *asked), progress)
    return config, [*reasons, machine_reason(planned, needed, asked)]


def is_long(config: Config) -> bool:
    """Whether a plan reads so many tokens that it may take more than a night."""
    train, device = config.train, resolve_device(config.train.device).type
    return not is_fitted(config) and train.steps * train.batch_tokens * train.accumulate > LONG_PLAN[device]


def seconds_of(config: Config, progress: Progress) -> float:
    """About how long a training takes.

    It is measured once and kept beside the prepared data: a command that is given again, to resume, must make the same
    choice.
    """
    task, device = task_of(config), resolve_device(config.train.device)
    corpus = task.prepare(config, progress)
    plan = [settings.dump(config), str(device), platform.node(), os.cpu_count()]
    key = hashlib.blake2b(json.dumps(plan).encode(), digest_size=8).hexdigest()
    kept = corpus.valid_texts.parent / f"speed-{key}.json"
    with suppress(OSError, ValueError):
        return float(json.loads(kept.read_text(encoding="utf-8"))["seconds"])
    progress("measuring the speed", 0)
    model = task.model(config, corpus.source_tokenizer, corpus.target_tokenizer)
    seconds = training_seconds(model, config, corpus.collator, batch_shapes(config, corpus), device)
    with suppress(OSError):
        write_text(kept, json.dumps({"seconds": seconds}))
    return seconds


def machine_reason(planned: float, needed: float, asked: Sequence[str]) -> str:
    share = f"{NIGHT / needed:.0%} of its steps" if needed > NIGHT else "all of its steps"
    return (
        f"machine: the usual plan would take about {planned / 3600:,.0f} hours here, measured on a few steps; with "
        f"{' and '.join(asked)} training takes about {min(needed, NIGHT) / 3600:,.0f} hours, {share}. A GPU trains the "
        "usual plan; train.minutes=… gives more time here"
    )
