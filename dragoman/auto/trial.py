"""One trial of a search, a comparison, a curve or a table of tasks: train a configuration, resume it, measure it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a worker of a search watches its parent before it imports torch
    from dragoman.runs.tasks import Config
    from dragoman.training import Display, Pause, TrainingState


class Outcome(NamedTuple):
    """Where a run stands after a trial."""

    score: float  # of the best weights, higher is better
    step: int
    seconds: float  # of training
    loading: float  # seconds of this trial before its first step
    overhead: float  # seconds after that besides training: validations, checkpoints
    speed: float  # steps per second, without those in which CUDA graphs were captured
    parameters: int
    exact: float = 0.0  # share of exact outputs in the best validation
    error: str = ""
    complete: bool = True  # False: train.minutes or a pause ended it before train.steps


def train_trial(
    config: Config,
    folder: Path,
    display: Display | None = None,
    metric: str | None = None,
    pause: Pause = lambda state: False,
    name: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train a run to its end, or until `pause` holds, and measure it by a metric; the same call resumes it.

    A complete run stays as it is. A run with other settings is refused, also where it is complete. A signal saves a
    checkpoint and raises Interrupted.
    """
    from dragoman.runs import Run, check_resumable, train
    from dragoman.training import TrainingState

    started, before = time.perf_counter(), state_of(folder) or TrainingState()
    metric = metric or config.train.metric
    if is_complete(config, folder, before):
        check_resumable(Run(folder), config, 1)
        say(f"{name}: trained already ({folder})")
        return outcome_of(folder, metric, before)
    length = f"{config.train.epochs:g} epochs" if config.train.epochs else f"{config.train.steps:,} steps"
    say(f"{name}: {'fitted' if is_fitted(config) else length} ({folder})")
    state = train(config, folder, display, pause=pause)
    loading = time.perf_counter() - started - (state.elapsed - before.elapsed)
    complete = state.step >= config.train.steps or state.is_out_of_patience(config.train.patience)
    return outcome_of(folder, metric, state)._replace(
        loading=loading, overhead=state.pauses - before.pauses, complete=complete or is_fitted(config)
    )


def is_complete(config: Config, folder: Path, state: TrainingState) -> bool:
    """Whether a run is fitted, or has trained its last step and validated it; a killed run may lack that validation."""
    from dragoman.runs import Run, is_run
    from dragoman.training import WEIGHTS

    if is_run(folder) and is_fitted(Run(folder).config):
        return (folder / WEIGHTS).exists()
    return not config.train.epochs and state.validated_step >= config.train.steps


def is_fitted(config: Config) -> bool:
    """Whether a model is fitted in one go, without steps."""
    return bool(getattr(config.model, "fitted", False))


def outcome_of(folder: Path, metric: str, state: TrainingState) -> Outcome:
    """Where a run stands, by its state and its log."""
    from dragoman.runs import Run
    from dragoman.training import read_tensors

    rows = Run(folder).metrics()
    rates = [row["tokens_per_second"] for row in rows if "loss" in row]
    speed = warm_rate(rates) * state.step / max(1, state.tokens)
    parameters = sum(tensor.numel() for tensor in read_tensors(Run(folder).weights_path()).values())
    validations = {row["step"]: row["valid"] for row in rows if "valid" in row}
    step = state.best[0][1] if state.best else max(validations, default=0)  # best by the metric of the run itself
    best = validations.get(step, {})
    fitting = max((row["seconds"] for row in rows), default=0.0)  # where a model was fitted by an earlier job
    score, exact = score_of(best, metric), best.get("exact_match", 0.0)
    return Outcome(score, max(step, state.step), max(state.seconds, fitting), 0.0, 0.0, speed, parameters, exact)


def warm_rate(rates: list[float]) -> float:
    """The upper quartile of tokens per second: steps that capture a CUDA graph for a new shape are much slower."""
    ordered = sorted(rates[1:] or rates)  # the first has the start in it
    return ordered[3 * (len(ordered) - 1) // 4] if ordered else 0.0


def score_of(validation: Mapping[str, float], metric: str) -> float:
    """A metric of a validation, with the sign that makes higher better."""
    from dragoman.scoring import higher_is_better

    value = validation.get(metric, math.nan)
    return -math.inf if math.isnan(value) else value if higher_is_better(metric) else -value


def state_of(folder: Path) -> TrainingState | None:
    """The newest state of a run; None: it has not begun."""
    from dragoman.runs import newest_state

    return newest_state(folder) if (folder / "config.toml").is_file() else None
