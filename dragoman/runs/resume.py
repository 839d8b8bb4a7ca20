"""Checks before a run resumes: same settings, same data, and the same number of batches in a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base import ConfigError, RunError
from dragoman.base import config as settings
from dragoman.data import paths_of, with_local_files
from dragoman.runs.folder import Run
from dragoman.runs.plugins import check_plugins
from dragoman.runs.tasks.config import Config, from_table, steps_or_epochs, with_absolute_paths
from dragoman.training import Checkpoints, TrainingState

if TYPE_CHECKING:
    from dragoman.data import Corpus

# Settings that may change when a run resumes: they affect neither the data, nor the model, nor the weight updates.
CHANGEABLE = (
    "train.steps",
    "train.minutes",
    "train.epochs",
    "train.validate_every",
    "train.save_every",
    "train.log_every",
    "train.track",
    "train.patience",
    "train.decode",
    "train.device",
    "train.tensorboard",
    "train.shard",
    "train.checkpoint_activations",
    "train.accumulate",  # accumulate × processes must stay the same: check_batches_per_step
    "search.",
    "data.cache",
    "data.train",  # the files may have moved; their content is checked by its hash
    "data.valid",
    "data.general",
    "tokenizer.source.run",  # the same holds for the tokenizer of another run
    "tokenizer.target.run",
    "data.media",
)


WITHOUT_SEARCH = ("loss", "perplexity", "token_accuracy")  # metrics of validation that no search affects


def resume_config(folder: str | Path, overrides: Sequence[str] = ()) -> Config:
    run = Run(folder)
    run.check_single("training goes on with one")
    check_plugins(run.folder, run.plugins)  # also the reader of its data
    if any(assignment.partition("=")[0].strip() == "preset" for assignment in overrides):
        raise ConfigError(f"preset: found with {folder}, which has its settings already; change single ones by place")
    table = settings.override(settings.read_toml(Path(folder) / "config.toml"), steps_or_epochs(overrides))
    with settings.errors_in(Path(folder) / "config.toml", overrides):
        return from_table(with_local_files(table))  # those of the overrides: `Run` refuses a folder that names any


def check_resumable(run: Run, config: Config, processes: int) -> None:
    """Refuse to resume a run in a way that would not continue it exactly."""
    changed = [
        f"{place} was {before!r}, is {now!r}"
        for place, before, now in settings.differences(run.config, with_absolute_paths(config))
        if not place.startswith(CHANGEABLE)
    ]
    if changed:
        before, now = (paths_of(with_absolute_paths(either).data.train) for either in (run.config, config))
        data = "" if before == now else f"other data ({', '.join(before)}, not {', '.join(now)}) and "
        raise RunError(
            f"{run.folder}: started with {data}other settings ({'; '.join(changed)}). "
            f"Resume with the old ones (dragoman train {run.folder}), or name a new folder with --run"
        )
    if config.train.metric != "loss" and config.train.decode != run.config.train.decode:
        raise RunError(
            f"{run.folder}: train.decode was {run.config.train.decode}, is {config.train.decode}; the best weights are "
            f"selected by {config.train.metric}, which on other inputs cannot be compared with earlier validations. "
            "Resume with the old value, or name a new folder with --run"
        )
    if not getattr(config.model, "fitted", False):  # its iterations are no training steps
        check_steps(run.folder, config.train.steps)
    check_batches_per_step(run.folder, config.train.accumulate, processes)


def resume_warnings(before: Config, now: Config) -> list[str]:
    """Changes that a run may resume with, but that make its parts unlike."""
    warnings = []
    if before.train.steps != now.train.steps and now.train.optimizer.schedule == "cosine":
        warnings.append(
            f"train.steps was {before.train.steps:,}, is {now.train.steps:,}: the cosine schedule ends there now, so "
            "the learning rate jumps"
        )
    changed = [
        place
        for place, _, _ in settings.differences(before, now)
        if place.startswith("search.") or place == "train.decode"
    ]
    if changed and now.train.metric not in WITHOUT_SEARCH:
        warnings.append(
            f"{', '.join(changed)} changed: {now.train.metric} of earlier validations is not comparable with that of "
            "later ones, but both choose the best weights"
        )
    return warnings


def check_steps(folder: Path, steps: int) -> None:
    """Refuse fewer steps than the run has: its configuration would contradict its weights."""
    saved = Checkpoints(folder).steps() or [row["step"] for row in Run(folder).metrics()]
    reached = max(saved, default=0)
    if reached > steps:
        raise RunError(
            f"{folder}: the run already has {reached:,} steps, more than train.steps = {steps:,} asks for, so nothing "
            f"was trained; resume with train.steps above {reached}, or name a new folder with --run"
        )


def newest_state(folder: Path) -> TrainingState | None:
    """The counters of the newest checkpoint that can be read; None if there is none."""
    checkpoints = Checkpoints(folder)
    for step in reversed(checkpoints.steps()):
        try:
            return checkpoints.read_state(step)[0]
        except RunError:  # damaged: training falls back to the one before
            continue
    return None


def check_batches_per_step(folder: Path, accumulate: int, processes: int) -> None:
    """Refuse another product of train.accumulate and processes: every step would train on other batches."""
    state = newest_state(folder)
    if state is None:
        return
    before, now = state.accumulate * state.processes, accumulate * processes
    if before == now:
        return
    advice = []
    if before % processes == 0:
        advice.append(f"set train.accumulate={before // processes}")
    if before % accumulate == 0 and before // accumulate != processes:
        advice.append(f"start {plural(before // accumulate, 'process')}")
    if not advice:
        advice.append(f"start {plural(state.processes, 'process')} with train.accumulate={state.accumulate}")
    raise RunError(
        f"{folder}: a step was {plural(before, 'batch')} (train.accumulate {state.accumulate} × "
        f"{plural(state.processes, 'process')}), but would be {now} (train.accumulate {accumulate} × "
        f"{plural(processes, 'process')}); {' or '.join(advice)}"
    )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'es' if count > 1 else ''}"


def check_copies(run: Run, config: Config) -> None:
    """Say where downloaded files that are gone came from."""
    used = {path for files in (config.data.train, config.data.valid) if files is not None for path in paths_of(files)}
    for path, origin in run.data.get("remote", {}).items():
        if path in used and not Path(path).exists():
            raise RunError(
                f"{run.folder}: {path}, which was downloaded, is gone; name its address "
                f"({origin['url']}) in data.train or data.valid to download it again"
            )


def check_same_data(folder: Path, corpus: Corpus) -> None:
    """Refuse other text or another vocabulary than the run was started with."""
    run = Run(folder)
    before = {origin["url"]: origin["digest"] for origin in run.data.get("remote", {}).values()}
    for origin in corpus.report.get("remote", {}).values():
        if before.get(origin["url"], origin["digest"]) != origin["digest"]:
            raise RunError(
                f"{folder}: {origin['url']} has changed since this run was started with it; start a new run with "
                f"--run, and train.start_from={folder} to start it from the weights of this one"
            )
    pairs = zip(run.tokenizers(), (corpus.source_tokenizer, corpus.target_tokenizer), strict=True)
    tagged = any(tokenizer.tags for tokenizer in (*run.tokenizers(), corpus.source_tokenizer))
    same = all(old.fingerprint() == new.fingerprint() for old, new in pairs)
    if run.data["fingerprint"] != corpus.report["fingerprint"] or not same:
        raise RunError(
            f"{folder}: the data files{' or their tags' if tagged else ''} are not those this run was started with; "
            "put the old ones back, or start a new run with --run; add train.start_from="
            f"{folder} to start it from the weights of this one"
        )
