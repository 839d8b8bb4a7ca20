"""The weights of the best validations; `weights.safetensors`, which prediction uses, is their mean."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dragoman.errors import RunError
from dragoman.files import make_folder
from dragoman.training.checkpoints import Checkpoints, TrainingState, read_tensors, write_tensors
from dragoman.training.lora import merged_weights, saved_weights
from dragoman.training.optimizer import mean_weights


class BestWeights:
    """Keeps the weights of the `count` best validations in the folder `best/` of a run.

    With adapters, `best/` holds them alone and `weights.safetensors` the plain model with the adapters merged.
    """

    def __init__(self, run: Path, count: int, model: nn.Module) -> None:
        self.folder, self.path, self.count = run / "best", run / "weights.safetensors", count
        self.model = model

    def rank(self, state: TrainingState, score: float) -> bool:
        """Enter the score of a validation (higher is better) into the state; whether it is the best so far."""
        is_best = not state.best or score > state.best[0][0]
        state.validations_since_best = 0 if is_best else state.validations_since_best + 1
        state.validated_step = state.step
        ranking = sorted([*state.best, (score, state.step)], key=lambda entry: (-entry[0], entry[1]))
        state.best = ranking[: self.count]
        return is_best

    def keep(self, model: nn.Module, state: TrainingState) -> None:
        """Save the model's weights if the last validation is among the best, and update `weights.safetensors`."""
        if not any(step == state.step for _, step in state.best):
            return
        weights = {name: parameter.detach() for name, parameter in saved_weights(model).items()}
        write_tensors(make_folder(self.folder) / f"{state.step:08d}.safetensors", weights)
        if self.count == 1:
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
        paths = [self.folder / f"{step:08d}.safetensors" for _, step in state.best]
        if models := [merged_weights(self.model, read_tensors(path)) for path in paths if path.exists()]:
            write_tensors(self.path, mean_weights(list(models)))
