"""The weights of the best or the last validations; `weights.safetensors`, which prediction uses, is their mean."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dragoman.errors import RunError
from dragoman.files import make_folder
from dragoman.training.checkpoints import Checkpoints, TrainingState, read_tensors, write_tensors
from dragoman.training.lora import merged_weights, saved_weights
from dragoman.training.optimizer import AverageConfig, BestAverageConfig, LastAverageConfig, mean_weights

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
                needed |= {step for _, step in checkpoints.state(saved).best}
            except RunError:  # damaged
                continue
        for path in self.folder.glob("*.safetensors"):
            if int(path.stem) not in needed:
                path.unlink()

    def _write_mean(self, state: TrainingState) -> None:
        paths = [self.folder / f"{step:08d}.safetensors" for _, step in averaged(state.best, self.average)]
        if models := [merged_weights(self.model, read_tensors(path)) for path in paths if path.exists()]:
            write_tensors(self.path, mean_weights(list(models)))
