"""Save everything that an exact resume needs, and restore it from the newest checkpoint that is intact."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from dragoman.errors import RunError
from dragoman.files import remove_folder
from dragoman.training.checkpoints import Checkpoints, TrainingState
from dragoman.training.config import TrainConfig
from dragoman.training.loaders import BatchLoader
from dragoman.training.lora import saved_weights
from dragoman.training.optimizer import load_weights, optimizer_tensors, restore_optimizer
from dragoman.training.recovery import has_trained_weights, resume_from_weights
from dragoman.training.runtime import Runtime
from dragoman.training.step import TrainingStep


class Checkpointer:
    """Moves weights, optimiser state, average and loader state between a training step and its checkpoints."""

    def __init__(self, step: TrainingStep, loader: BatchLoader, run: Path, runtime: Runtime) -> None:
        self.step, self.loader = step, loader
        self.processes, self.display = runtime.processes, runtime.display
        self.run, self.checkpoints = run, Checkpoints(run)

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint. Every process calls this; the main one writes."""
        loader_state = self.loader.state_dict()
        if not self.processes.is_main:
            return
        model = self.step.model
        files: dict[str, dict[str, Tensor]] = {
            "weights.safetensors": dict(saved_weights(model)),
            "optimizer.safetensors": optimizer_tensors(self.step.optimizer, model),
        }
        if self.step.average is not None:
            files["average.safetensors"] = self.step.average.weights
        if loader_state:
            files["bptt_state.safetensors"] = loader_state
        self.checkpoints.save(state, files)

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
            found = "no checkpoint can be read" if damaged else "found no checkpoint"
            if has_trained_weights(self.run):
                state = resume_from_weights(self.run, config, self.step)
                if state.step < config.steps:
                    self.display.warning(
                        f"{found}; continuing from the best weights, of step {state.best[0][1]}. The optimiser starts "
                        "anew, so the result differs from that of an uninterrupted run"
                    )
                elif damaged:
                    self.display.warning(
                        f"{found}; the run is finished and keeps its best weights, of step {state.best[0][1]}"
                    )
            elif damaged:
                self.display.warning(f"{found}; starting from the first step")
        self.processes.barrier()
        if self.processes.is_main:
            for folder in damaged:
                remove_folder(folder)
        return state

    def _load(self, files: dict[str, dict[str, Tensor]]) -> None:
        load_weights(self.step.model, files["weights.safetensors"])
        restore_optimizer(self.step.optimizer, self.step.model, files["optimizer.safetensors"])
        if self.step.average is not None:
            for name, weight in self.step.average.weights.items():
                weight.copy_(files["average.safetensors"][name])
        self.loader.load_state_dict(files.get("bptt_state.safetensors", {}))
