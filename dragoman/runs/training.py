"""Train a run: check, prepare the data, build the model, create or resume the run folder, run the trainer."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.classical.model import FittedModel
from dragoman.config import settings
from dragoman.data.corpus import Corpus, with_other_validation
from dragoman.data.readers.header import header_warnings
from dragoman.errors import RunError
from dragoman.files import write_text
from dragoman.runs.data_report import print_data_report
from dragoman.runs.folder import IMPORTED, Run, create_run, is_run, replace_run
from dragoman.runs.lock import locked
from dragoman.runs.pretrained import (
    check_optional_packages,
    check_start_run,
    keep_licence,
    load_start_run,
    load_torchvision_weights,
    settings_mismatch,
)
from dragoman.runs.reach import MANY, measure_reach
from dragoman.runs.resume import check_resumable, check_same_data, check_steps, resume_warnings
from dragoman.tasks.base import Task
from dragoman.tasks.config import Config, with_absolute_paths
from dragoman.tasks.table import task_of
from dragoman.training.capacity import check_capacity
from dragoman.training.checkpoints import Checkpoints, TrainingState, read_tensors, write_tensors
from dragoman.training.display import Display
from dragoman.training.distributed import ProcessGroup
from dragoman.training.fitter import Fitter
from dragoman.training.loaders import BatchLoader
from dragoman.training.lora import BASE, add_adapters, check_random_weights
from dragoman.training.metrics_log import tensorboard_writer
from dragoman.training.objectives.table import build_objective
from dragoman.training.optimizer import load_weights
from dragoman.training.recovery import has_trained_weights
from dragoman.training.runtime import Runtime, resolve_device, use_bfloat16
from dragoman.training.signals import exit_cleanly_on_signals
from dragoman.training.trainer import Pause, Trainer
from dragoman.training.transfer import freeze, rate_factors
from dragoman.training.validation.general import GeneralText


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
    use_bfloat16(config.train.precision, device)
    check_optional_packages(config.model)
    if config.train.tensorboard:
        tensorboard_writer()
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
        trainer = prepare_trainer(config, folder, runtime, locks, restart, pause)
        print_model_size(trainer.model, runtime)
        if trainer.state.step:
            display.info(f"resuming from step {trainer.state.step}")
        with display:
            return trainer.train()


def is_untrained_import(folder: Path) -> bool:
    """Whether a run was imported and has not been trained here."""
    return (folder / IMPORTED).exists() and Run(folder).data["fingerprint"] == "imported"


def prepare_trainer(
    config: Config, folder: Path, runtime: Runtime, locks: ExitStack, restart: bool, pause: Pause
) -> Trainer | Fitter:
    """Prepare data and model, and create or update the run folder, whose lock `locks` then holds."""
    processes, display = runtime.processes, runtime.display
    exists = processes.is_main and is_run(folder)
    resuming = exists and not restart
    if exists:
        locks.enter_context(locked(folder))
        Run(folder).check_single("training goes on with one")
    if resuming and is_untrained_import(folder):
        raise RunError(
            f"{folder}: an imported model has no training data to resume with; fine-tune it in a new run: "
            f"dragoman train PAIRS.tsv --run NEW train.start_from={folder}"
        )
    if resuming:
        check_resumable(Run(folder), config, processes.world_size)
        for warning in resume_warnings(Run(folder).config, config):
            runtime.display.warning(warning)
    elif config.train.pretrained is not None:
        check_start_run(config.train.pretrained.run)
    task = task_of(config)
    corpus = prepare_data(config, task, runtime)
    build = partial(task.model, config, corpus.source_tokenizer, corpus.target_tokenizer)
    check_capacity(build, settings.as_table(config.model), runtime.device)
    torch.manual_seed(config.train.seed)
    model = build().to(runtime.device)
    if not isinstance(model, FittedModel):
        freeze(model, config.train.freeze)
        rate_factors(model, config.train.rates)
        config = with_epochs(config, partial(task.loader, config, corpus, model, processes), processes)
        if resuming:
            check_steps(folder, config.train.steps)
    more_steps = resuming and config.train.steps > Run(folder).config.train.steps
    validator = task.validator(config, corpus, runtime.device)
    fresh = restart or not (Checkpoints(folder).steps() or has_trained_weights(folder))
    report, warning = initialize(config, model, corpus) if fresh else ([], "")
    base = add_lora(config, model, folder, fresh)
    if resuming:
        check_same_data(folder, corpus)
        write_text(folder / "config.toml", settings.dump(with_absolute_paths(config)))
    elif exists:
        replace_run(folder, config, corpus)
    elif processes.is_main:
        if is_run(folder):
            raise RunError(f"{folder}: another process has just created this run; run the same command to resume it")
        create_run(folder, config, corpus)
        keep_licence(config, folder)
        locks.enter_context(locked(folder))
    if base and fresh and processes.is_main:
        write_tensors(folder / BASE, base)
    processes.barrier()
    print_data_report(display, corpus, task, config.train.decode)
    for line in header_warnings(config.data):
        display.warning(line)
    for line in report:
        display.info(line)
    if warning:
        display.warning(warning)
    if isinstance(model, FittedModel):
        if processes.is_distributed:
            raise RunError(f'model.kind = "{config.model.kind}" is fitted by one process; start it without torchrun')
        return Fitter(model, corpus, validator, folder, runtime)
    warn_of_reach(config, model, corpus, display)
    if late := late_warmup(config):
        display.warning(late)
    general = None
    if config.data.general is not None:
        texts = with_other_validation(corpus, config.data, config.data.general, task.example_format(config))
        general = GeneralText(task.validator(config, texts, runtime.device), folder)
    return Trainer(
        config.train,
        model,
        build_objective(config.train.objective, corpus),
        task.loader(config, corpus, model, processes),
        validator,
        folder,
        runtime,
        general=general,
        more_steps=bool(processes.all_reduce_max(int(more_steps))),  # only the main process knows
        pause=pause,
    )


def with_epochs(config: Config, loader: Callable[[], BatchLoader], processes: ProcessGroup) -> Config:
    """The configuration with train.steps for train.epochs, where that is set."""
    if not config.train.epochs:
        return config
    steps = len(loader().epoch(0)) / (config.train.accumulate * processes.world_size)
    return replace(config, train=config.train.with_epoch_of(steps))


def late_warmup(config: Config) -> str:
    """A warning if training ends before the learning rate reaches its peak; empty otherwise."""
    warmup, steps = config.train.optimizer.warmup, config.train.steps
    if warmup <= steps:
        return ""
    return (
        f"train.optimizer.warmup = {warmup:,} exceeds train.steps = {steps:,}, so the learning rate never "
        f"reaches its peak; set train.optimizer.warmup={max(1, steps // 10)} or more steps"
    )


def warn_of_reach(config: Config, model: nn.Module, corpus: Corpus, display: Display) -> None:
    """Warn of targets that the model cannot output, and so never learns from; an error if it can output none."""
    reach = measure_reach(config, model.eval(), corpus)
    if reach is None:
        return
    if reach.too_long == reach.examined:
        raise RunError(f"no target can be written: {reach.advice}")
    if reach.share > MANY:
        display.warning(f"{reach}, so the model never learns from them; {reach.advice}")


def prepare_data(config: Config, task: Task, runtime: Runtime) -> Corpus:
    """Read and tokenise the data; the main process does it first, and the others read the result from the cache."""
    if runtime.processes.is_main:
        with runtime.display:
            task.prepare(config, runtime.display.preparing)
    runtime.processes.barrier()
    return task.prepare(config)


def initialize(config: Config, model: nn.Module, corpus: Corpus) -> tuple[list[str], str]:
    """Load pretrained weights into a new model; returns the lines of a report and a warning, which may be empty."""
    lines = load_torchvision_weights(model)
    start = config.train.pretrained
    if start is None:
        return lines, ""
    report = load_start_run(config, model, corpus)
    if config.train.lora is not None:
        check_random_weights([name for name, _ in report.left], config.train.lora)
    return lines + report.lines(start.run), settings_mismatch(config, report)


def add_lora(config: Config, model: nn.Module, folder: Path, fresh: bool) -> dict[str, Tensor]:
    """Put the adapters of train.lora into a model; returns the weights that they leave as they are, if there are any.

    A run keeps these weights, so that it can be resumed without the run that it started from.
    """
    if config.train.lora is None:
        return {}
    if not fresh:
        load_weights(model, read_tensors(folder / BASE))
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    add_adapters(model, config.train.lora, config.train.seed)
    return base


def print_model_size(model: nn.Module, runtime: Runtime) -> None:
    """Show the number of parameters, the device and the number of processes or threads."""
    if isinstance(model, FittedModel):
        return
    parameters = list(model.parameters())
    frozen = sum(parameter.numel() for parameter in parameters if not parameter.requires_grad)
    threads = torch.get_num_threads()
    where = f"one process, {threads} thread{'s' if threads > 1 else ''}"
    if runtime.processes.is_distributed:
        where = f"{runtime.processes.world_size} processes"
    runtime.display.info(
        f"model: {sum(parameter.numel() for parameter in parameters):,} parameters on {runtime.device} ({where})"
        + (f", {frozen:,} of them frozen" if frozen else "")
    )
