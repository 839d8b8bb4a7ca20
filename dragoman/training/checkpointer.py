"""What a run keeps: checkpoints for an exact resume, and the best weights for prediction.

A run whose checkpoints are gone continues from its best weights, so that they are never trained over from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from dragoman.base import RunError, make_folder, remove_file, remove_folder
from dragoman.scoring import higher_is_better
from dragoman.training.checkpoints import Checkpoints, TrainingState, part_name, read_tensors, write_tensors
from dragoman.training.config import AverageConfig, BestAverageConfig, LastAverageConfig, TrainConfig
from dragoman.training.loaders import BatchLoader
from dragoman.training.metrics_log import read_rows
from dragoman.training.optimizer import load_weights, mean_weights, optimizer_tensors, restore_optimizer
from dragoman.training.runtime import Runtime
from dragoman.training.sharding import own_parts
from dragoman.training.step import TrainingStep
from dragoman.training.trained_weights import adapters, merged_weights, saved_weights

Ranking = list[tuple[float, int]]  # (score, step) of validations, best first


def kept_validations(validations: Ranking, average: AverageConfig) -> Ranking:
    """Those whose weights a run keeps, best first: the best ones, or the best one and the last ones."""
    ranking = sorted(validations, key=lambda entry: (-entry[0], entry[1]))
    if isinstance(average, LastAverageConfig):
        last = averaged(ranking, average)
        return [entry for entry in ranking if entry == ranking[0] or entry in last]
    return ranking[: average.count if isinstance(average, BestAverageConfig) else 1]


def averaged(validations: Ranking, average: AverageConfig) -> Ranking:
    """Those whose weights are averaged."""
    if isinstance(average, LastAverageConfig):
        return sorted(validations, key=lambda entry: -entry[1])[: average.count]
    return validations


class BestWeights:
    """Keeps the weights of the best validations, or of the last ones, in the folder `best/` of a run.

    With adapters, `best/` holds them alone and `weights.safetensors` the plain model with the adapters merged.
    """

    def __init__(self, run: Path, average: AverageConfig, model: nn.Module) -> None:
        self.folder, self.path, self.average = run / "best", run / "weights.safetensors", average
        self.model = model

    def rank(self, state: TrainingState, score: float) -> bool:
        """Enter the score of a validation (higher is better) into the state; whether it is the best so far."""
        is_best = not state.best or score > state.best[0][0]
        state.validations_since_best = 0 if is_best else state.validations_since_best + 1
        state.validated_step = state.step
        state.best = kept_validations([*state.best, (score, state.step)], self.average)
        return is_best

    def keep(self, model: nn.Module, state: TrainingState) -> None:
        """Save the model's weights if the last validation is among those kept, and update `weights.safetensors`."""
        if not any(step == state.step for _, step in state.best):
            return
        weights = {name: parameter.detach() for name, parameter in saved_weights(model).items()}
        write_tensors(make_folder(self.folder) / f"{state.step:08d}.safetensors", weights)
        if getattr(self.average, "count", 1) == 1:
            write_tensors(self.path, merged_weights(self.model, weights))
        else:
            self._write_mean(state)

    def repair(self, state: TrainingState) -> None:
        """Write `weights.safetensors` again if it is missing or damaged, so that a finished run can be used."""
        try:
            read_tensors(self.path)
        except RunError:
            self._write_mean(state)

    def prune(self, state: TrainingState, checkpoints: Checkpoints) -> None:
        """Delete the weights that neither this state nor a checkpoint counts among the best."""
        if self.folder.is_symlink():
            return
        needed = {step for _, step in state.best}
        for saved in checkpoints.steps():
            try:
                needed |= {step for _, step in checkpoints.read_state(saved)[0].best}
            except RunError:  # damaged
                continue
        for path in self.folder.glob("*.safetensors"):
            if int(path.stem) not in needed:
                remove_file(path)

    def _write_mean(self, state: TrainingState) -> None:
        paths = [self.folder / f"{step:08d}.safetensors" for _, step in averaged(state.best, self.average)]
        if models := [merged_weights(self.model, read_tensors(path)) for path in paths if path.exists()]:
            write_tensors(self.path, mean_weights(list(models)))


class Checkpointer:
    """Moves weights, optimiser state, average and loader state between a training step and its checkpoints."""

    def __init__(self, step: TrainingStep, loader: BatchLoader, run: Path, runtime: Runtime) -> None:
        self.step, self.loader = step, loader
        self.processes, self.display = runtime.processes, runtime.display
        self.run, self.checkpoints = run, Checkpoints(run)

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint. Every process calls this; the main one writes, and with train.shard each its own part."""
        loader_state, is_main = self.loader.state_dict(), self.processes.is_main
        files: dict[str, Mapping[str, Tensor] | None] = {
            "weights.safetensors": saved_weights(self.step.model),
            "optimizer.safetensors": optimizer_tensors(self.step.optimizer, self.step.model),
            "average.safetensors": self.step.average.weights if self.step.average is not None else None,
            "bptt_state.safetensors": loader_state or None,
        }
        given = {name: tensors for name, tensors in files.items() if tensors is not None}
        if self.step.sharded:
            self._save_parts(state, given)
        elif is_main:
            self.checkpoints.save(state, given)

    def _save_parts(self, state: TrainingState, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Let every process write its parts of all tensors; nobody gathers any."""
        processes, is_main = self.processes, self.processes.is_main
        if is_main:
            self.checkpoints.begin(state.step)
        processes.barrier()
        own = {
            part_name(name, processes.rank, processes.world_size): own_parts(tensors, is_main)
            for name, tensors in files.items()
        }
        written = processes.gather_texts(json.dumps(self.checkpoints.write(state.step, own)))
        if is_main:
            self.checkpoints.commit(
                state, {name: value for text in written for name, value in json.loads(text).items()}
            )

    def restore(self, config: TrainConfig) -> TrainingState:
        """Load the newest intact checkpoint and delete damaged newer ones.

        Without one, continue from the best weights of the run; a run without weights starts at step 0.
        """
        if self.processes.is_main:
            self.checkpoints.clear_unfinished()
        self.processes.barrier()
        state, damaged = TrainingState(), list[Path]()
        for step in reversed(self.checkpoints.steps()):
            try:
                state, files = self.checkpoints.load(step)
            except RunError as error:
                self.display.warning(f"{error}; falling back to the checkpoint before")
                damaged.append(self.checkpoints.path(step))
                continue
            self._load(files)
            break
        else:
            outcome = "starting from the first step" if damaged else ""
            if has_trained_weights(self.run):
                state = resume_from_weights(self.run, config, self.step)
                if state.step < config.steps:
                    outcome = (
                        f"continuing from the best weights, of step {state.best[0][1]}. The optimiser starts anew, so "
                        "the result differs from that of an uninterrupted run"
                    )
                elif damaged:
                    outcome = f"the run is finished and keeps its best weights, of step {state.best[0][1]}"
            if outcome:
                problem = "no checkpoint can be read" if damaged else "found no checkpoint"
                self.display.warning(f"{problem}; {outcome}")
        self.processes.barrier()
        if self.processes.is_main:
            for folder in damaged:
                remove_folder(folder)
        return state

    def _load(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        load_weights(self.step.model, files["weights.safetensors"])
        restore_optimizer(self.step.optimizer, self.step.model, files["optimizer.safetensors"])
        if self.step.average is not None:
            for name, weight in self.step.average.weights.items():
                weight.copy_(files["average.safetensors"][name])
        self.loader.load_state_dict(dict(files.get("bptt_state.safetensors", {})))


def has_trained_weights(run: Path) -> bool:
    """Whether a run folder holds weights that training would overwrite."""
    return (run / "weights.safetensors").exists() or any((run / "best").glob("*.safetensors"))


def resume_from_weights(run: Path, config: TrainConfig, training: TrainingStep) -> TrainingState:
    """Load the best weights of a run without checkpoints; returns the counters of their step.

    metrics.jsonl has the counters. Optimiser state and the place in the epoch are lost, so the moments start at zero
    and the next epoch begins.
    """
    rows = read_rows(run / "metrics.jsonl")
    scores = {row["step"]: row["valid"].get(config.metric) for row in rows if "valid" in row}
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
    state.epoch, state.tokens, state.seconds = row.get("epoch", 0) + 1, row.get("tokens", 0), float(row["seconds"])
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
