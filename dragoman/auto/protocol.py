"""Train several configurations under one protocol: same data, tokenizer, batches and budget, several seeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.auto.trial import is_fitted, train_trial
from dragoman.base import ConfigError
from dragoman.runs import Run, is_run
from dragoman.runs.tasks import Config
from dragoman.training import Display

PILOT_STEPS, MAX_PILOT = 40, 1000  # steps that measure the time of a step


class Budget(NamedTuple):
    """How long every configuration trains: exactly one of these is above 0."""

    steps: int = 0
    tokens: int = 0  # target tokens, padding left out
    minutes: float = 0.0


def under_protocol(config: Config, base: Config, steps: int, seed: int, own_tokenizer: bool = False) -> Config:
    """A configuration with its own model and optimizer, and the data, tokenizer, batches and budget of `base`.

    With `own_tokenizer` it keeps its tokenizer and the length that goes with it: characters need a larger one.
    """
    if type(config) is not type(base):
        raise ConfigError(f'task: found "{config.task}" beside "{base.task}", expected one task to compare')
    every = max(1, min(base.train.validate_every, steps // 10))
    return replace(
        config,
        data=replace(base.data, max_length=config.data.max_length) if own_tokenizer else base.data,
        tokenizer=config.tokenizer if own_tokenizer else base.tokenizer,
        search=base.search,
        train=replace(
            config.train,
            steps=steps,
            epochs=0.0,
            seed=seed,
            batch_tokens=base.train.batch_tokens,
            accumulate=base.train.accumulate,
            metric=base.train.metric,
            decode=base.train.decode,
            device=base.train.device,
            precision=base.train.precision,
            validate_every=every,
            save_every=max(every, steps // 2),
            log_every=max(1, min(50, steps // 20)),
            patience=0,
            optimizer=replace(
                config.train.optimizer, schedule=base.train.optimizer.schedule, warmup=max(1, steps // 10)
            ),
        ),
    )


def train_all(
    configs: Mapping[str, Config],
    folder: Path,
    budget: Budget,
    seeds: int,
    say: Callable[[str], None],
    own_tokenizers: bool = False,
) -> Iterator[tuple[str, list[Path]]]:
    """Train every configuration with the seeds 1 … `seeds` in folder/NAME-SEED; what is trained already is kept.

    The first configuration gives the data, the batches and, without `own_tokenizers`, the tokenizer of all. Yields each
    name with its run folders.
    """
    base = next(iter(configs.values()))
    for name, config in configs.items():
        folders = []
        for seed in range(1, seeds + 1):
            own = folder / f"{file_name(name)}-{seed}"
            fitted = is_fitted(config)  # no steps, and every seed gives the same model
            pilot = under_protocol(config, base, PILOT_STEPS, seed, own_tokenizers)
            steps = 1 if fitted else _steps(pilot, own, budget, say)
            trial = under_protocol(config, base, steps, seed, own_tokenizers)
            train_trial(trial, own, Display(quiet=False), name=f"{name}, seed {seed}", say=say)
            folders.append(own)
            if fitted:
                break
        yield name, folders


def file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-") or "system"


def _steps(pilot: Config, folder: Path, budget: Budget, say: Callable[[str], None]) -> int:
    """The steps of a budget; minutes and tokens are measured by a short pilot run, once for a folder."""
    if budget.steps:
        return budget.steps
    if folder.exists() and is_run(folder):  # resume with the steps that were chosen then
        return int(Run(folder).config.train.steps)
    beside = folder.with_name(f".{folder.name}.pilot")
    steps, fitting = PILOT_STEPS, 0.0
    try:
        while steps <= MAX_PILOT:  # a GPU is slow at first: measure longer as long as that is cheap
            train_trial(replace(pilot, train=replace(pilot.train, steps=steps)), beside)
            fitting = _fitting_steps(Run(beside).metrics(), budget)
            if fitting < 8 * steps:
                break
            steps *= 5
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    chosen = max(10, int(fitting))
    say(f"{folder.name}: the budget is about {chosen:,} steps")
    return chosen


def _fitting_steps(rows: list[dict[str, Any]], budget: Budget) -> float:
    """How many steps fit into a budget, by the last quarter of a pilot's logged steps."""
    rows = [row for row in rows if "tokens" in row]
    first, last = rows[len(rows) * 3 // 4 - 1], rows[-1]
    steps = max(1, last["step"] - first["step"])
    if budget.tokens:
        return float(budget.tokens * steps / max(1, last["tokens"] - first["tokens"]))
    return float(budget.minutes * 60 * steps / max(1e-9, last["seconds"] - first["seconds"]))
