"""Train a run: plan, write the run folder, run the trainer."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path

import torch

from dragoman.runs.lock import locked
from dragoman.runs.plan import choose_action, plan_training
from dragoman.tasks.config import Config
from dragoman.training.checkpoints import Checkpoints, TrainingState
from dragoman.training.display import Display
from dragoman.training.distributed import ProcessGroup
from dragoman.training.runtime import Runtime, resolve_device
from dragoman.training.signals import exit_cleanly_on_signals
from dragoman.training.trainer import Pause


def train(
    config: Config,
    folder: str | Path,
    display: Display | None = None,
    restart: bool = False,
    pause: Pause = lambda state: False,
) -> TrainingState:
    """Train a run in a folder: create the folder, or resume from its newest checkpoint.

    With `restart`, an existing run is discarded and trained again from the first step. After the first step for which
    `pause` holds, training validates, saves and returns; the next call goes on. Every mistake that can be found before
    training is reported before anything is written.
    """
    folder, processes = Path(folder), ProcessGroup()
    device = resolve_device(config.train.device, processes.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if display is None or not processes.is_main:  # only the main process prints, warnings too
        display = Display(None if processes.is_main else io.StringIO(), quiet=True)
    runtime = Runtime(device, processes, display)
    with (
        exit_cleanly_on_signals(lambda: max(Checkpoints(folder).steps(), default=0)),
        processes.initialized(device),
        ExitStack() as locks,
    ):
        action = choose_action(folder, restart)
        if action != "create" and processes.is_main:
            locks.enter_context(locked(folder))  # the plan reads the folder, so no other training may change it
        plan = plan_training(config, folder, action, runtime)
        plan.write_folder(runtime, locks)
        plan.report(runtime)
        trainer = plan.trainer(runtime, pause)
        if trainer.state.step:
            display.info(f"resuming from step {trainer.state.step}")
        with display:
            return trainer.train()
