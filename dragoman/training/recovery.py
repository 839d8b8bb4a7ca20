"""Continue a run whose checkpoints are gone from its best weights, so that they are never trained over from scratch."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from dragoman.errors import RunError
from dragoman.scoring.registry import higher_is_better
from dragoman.training.best_weights import kept_validations
from dragoman.training.checkpoints import TrainingState, read_tensors
from dragoman.training.config import TrainConfig
from dragoman.training.lora import adapters, saved_weights
from dragoman.training.metrics_log import read_rows
from dragoman.training.optimizer import load_weights
from dragoman.training.step import TrainingStep


def has_trained_weights(run: Path) -> bool:
    """Whether a run folder holds weights that training would overwrite."""
    return (run / "weights.safetensors").exists() or any((run / "best").glob("*.safetensors"))


def resume_from_weights(run: Path, config: TrainConfig, training: TrainingStep) -> TrainingState:
    """Load the best weights of a run without checkpoints; returns the counters of their step.

    metrics.jsonl has the counters. Optimiser state and the place in the epoch are lost, so the moments start at zero
    and the next epoch begins.
    """
    rows = read_rows(run / "metrics.jsonl")
    scores = {row["step"]: row["valid"].get(config.metric) for row in rows if isinstance(row.get("valid"), dict)}
    saved = {int(path.stem) for path in (run / "best").glob("*.safetensors") if path.stem.isdigit()}
    sign = 1 if higher_is_better(config.metric) else -1
    kept = [(sign * float(score), step) for step, score in scores.items() if step in saved and score is not None]
    trained = [row for row in rows if "loss" in row]
    if not kept or not trained:
        raise RunError(
            f"{run}: found trained weights, but no checkpoint to resume from, and best/ and metrics.jsonl do not say "
            f"at which step they were; start a new run from them with --run NEW train.start_from={run}, or discard "
            "them with --restart"
        )
    ranking = sorted(kept, key=lambda entry: (-entry[0], entry[1]))
    best = kept_validations(kept, config.average)
    step, last = best[0][1], max(*scores, trained[-1]["step"])
    later = sum(other > step for other in scores)
    finished = last >= config.steps or bool(config.patience and later >= config.patience)
    state = TrainingState(step=last if finished else step, best=best)
    state.validated_step = max(scores) if finished else step
    state.validations_since_best = later if finished else 0
    row = next((row for row in reversed(trained) if row["step"] <= state.step), trained[0])
    state.epoch, state.tokens = int(row.get("epoch", 0)) + 1, int(row.get("tokens", 0))
    state.seconds = float(row.get("seconds", 0.0))
    load_weights(training.model, intact_weights(run, [other for _, other in ranking], bool(adapters(training.model))))
    if training.average is not None:  # it starts at the loaded weights
        for name, parameter in saved_weights(training.model).items():
            training.average.weights[name].copy_(parameter.detach())
    return state


def intact_weights(run: Path, steps: list[int], merged: bool) -> dict[str, Tensor]:
    """The weights for prediction, or where that file is damaged those of the best of these steps that can be read.

    Where adapters are `merged` into the weights for prediction, training cannot continue from those.
    """
    paths = [run / "best" / f"{step:08d}.safetensors" for step in steps]
    faults = []
    for path in paths if merged else [run / "weights.safetensors", *paths]:
        try:
            return read_tensors(path)
        except RunError as error:
            faults.append(str(error))
    raise RunError(f"{'; '.join(faults[:3])}; no weights of the run can be read. Train it anew with --restart")
