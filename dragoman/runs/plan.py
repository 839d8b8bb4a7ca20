"""Train a run: plan (checks, data, model), write the run folder, run the trainer."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.base import RunError, write_text
from dragoman.base import config as settings
from dragoman.classical import FittedModel
from dragoman.data import Corpus, with_other_validation
from dragoman.data.readers import header_warnings
from dragoman.runs import pretrained
from dragoman.runs.data_report import print_data_report, target_length_warning
from dragoman.runs.folder import IMPORTED, Run, create_run, is_run, locked, replace_run, search_of
from dragoman.runs.resume import check_copies, check_resumable, check_same_data, check_steps, resume_warnings
from dragoman.runs.tasks.base import Task
from dragoman.runs.tasks.config import Config, with_absolute_paths
from dragoman.runs.tasks.table import task_of
from dragoman.runs.versions import check_original
from dragoman.training import (
    BASE,
    BatchLoader,
    Checkpoints,
    Display,
    Fitter,
    GeneralText,
    OnMetrics,
    Pause,
    ProcessGroup,
    Runtime,
    TrackedRun,
    Trainer,
    TrainingState,
    Validator,
    add_adapters,
    check_capacity,
    check_machine,
    check_random_weights,
    exit_cleanly_on_signals,
    followed,
    freeze_weights,
    has_trained_weights,
    load_vectors,
    load_weights,
    read_tensors,
    resolve_device,
    write_tensors,
)
from dragoman.training.objectives import build_objective

Action = Literal["create", "resume", "replace"]  # what training does with the run folder


@dataclass(frozen=True)
class TrainingPlan:
    """A run that is ready to train. Planning reads the run folder; only `write_folder` changes it."""

    config: Config  # with train.steps where train.epochs was set
    folder: Path
    action: Action
    task: Task
    corpus: Corpus
    model: nn.Module  # with the weights of train.start_from and adapters
    loader: BatchLoader | None  # None: of a fitted model, which reads the corpus itself
    base: dict[str, Tensor]  # the weights that adapters leave as they are, where the folder does not have them yet
    teachers: tuple[Run, ...]  # whose models the objective reads
    validator: Validator
    general: Validator | None  # of data.general
    more_steps: bool  # whether train.steps is higher than when the run was started
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def write_folder(self, runtime: Runtime, locks: ExitStack) -> None:
        """Create, update or replace the run folder; `locks` then holds its lock. Only the main process writes."""
        config, folder = self.config, self.folder
        runtime.processes.barrier()  # all have read the folder
        if runtime.processes.is_main:
            if self.action == "resume":
                write_text(folder / "config.toml", settings.dump(with_absolute_paths(config)))
            elif self.action == "replace":
                replace_run(folder, config, self.corpus)
            else:
                if is_run(folder):
                    raise RunError(
                        f"{folder}: another process has just created this run; run the same command to resume it"
                    )
                create_run(folder, config, self.corpus)
                pretrained.keep_licence(config, folder)
                locks.enter_context(locked(folder))
            if self.base:
                write_tensors(folder / BASE, self.base)
        runtime.processes.barrier()

    def trainer(self, runtime: Runtime, pause: Pause) -> Trainer | Fitter:
        """The trainer, with what it needs of the newest checkpoint."""
        if isinstance(self.model, FittedModel):
            return Fitter(self.model, self.corpus, self.validator, self.folder, runtime)
        assert self.loader is not None
        objective = build_objective(self.config.train.objective, self.corpus)
        objective.set_teachers([run.own_model(runtime.device) for run in self.teachers])
        return Trainer(
            self.config.train,
            self.model,
            objective,
            self.loader,
            self.validator,
            self.folder,
            runtime,
            general=GeneralText(self.general, self.folder) if self.general is not None else None,
            more_steps=self.more_steps,
            pause=pause,
        )

    def report(self, runtime: Runtime) -> None:
        """Show data, initial weights, the size of the model and all warnings."""
        display = runtime.display
        print_data_report(display, self.corpus, self.task, self.config.train.decode)
        for line in self.notes:
            display.info(line)
        for line in self.warnings:
            display.warning(line)
        if not isinstance(self.model, FittedModel):
            display.info(model_size(self.model, runtime))


def choose_action(folder: Path, restart: bool) -> Action:
    """What training does with a folder; RunError if the folder holds something else than a run."""
    if not is_run(folder):
        return "create"
    return "replace" if restart else "resume"


def plan_training(config: Config, folder: Path, action: Action, runtime: Runtime) -> TrainingPlan:
    """Check the settings, prepare the data and build the model. Every process does this, with the same result."""
    warnings = check_settings(config, folder, action, runtime)
    return plan_with(prepare_data(config, task_of(config), runtime), config, folder, action, runtime, warnings)


def plan_with(
    corpus: Corpus, config: Config, folder: Path, action: Action, runtime: Runtime, warnings: list[str]
) -> TrainingPlan:
    """The plan for data that are prepared."""
    task, device = task_of(config), runtime.device
    before = Run(folder).config if action == "resume" else config
    if action == "resume":
        check_same_data(folder, corpus)
    fresh = action == "replace" or not (Checkpoints(folder).steps() or has_trained_weights(folder))
    model, loader = build_model(config, task, corpus, device), None
    if isinstance(model, FittedModel):
        if runtime.processes.is_distributed:
            raise RunError(f'model.kind = "{config.model.kind}" is fitted by one process; start it without torchrun')
    else:
        loader = task.loader(config, corpus, model, runtime.processes)  # refuses settings that the data do not fit
        config = with_epochs(config, loader, runtime)
        if action == "resume":
            check_steps(folder, config.train.steps)
        warnings += [*late_warmup(config), *target_length_warning(config, model, corpus)]
    validator, general = task.validator(config, corpus, device), None
    if config.data.general is not None:
        texts = with_other_validation(corpus, config.data, config.data.general, task.example_format(config))
        general = task.validator(config, texts, device)
    notes, mismatches = initialize(config, model, corpus) if fresh else ([], [])
    base = add_lora(config, model, folder, fresh)
    return TrainingPlan(
        config=config,
        folder=folder,
        action=action,
        task=task,
        corpus=corpus,
        model=model,
        loader=loader,
        base=base if fresh else {},
        teachers=tuple(pretrained.teachers(config, corpus)),
        validator=validator,
        general=general,
        more_steps=config.train.steps > before.train.steps,
        notes=tuple(notes),
        warnings=(*header_warnings(config.data), *mismatches, *warnings),
    )


def check_settings(config: Config, folder: Path, action: Action, runtime: Runtime) -> list[str]:
    """Refuse what this machine or the run folder cannot do, before the data are read; returns warnings."""
    config.data.check_shuffle()
    check_machine(config.train, runtime)
    pretrained.check_optional_packages(config.model)
    if action != "create":
        Run(folder).check_single("training goes on with one")
    if action == "resume":
        run = Run(folder)
        if (folder / IMPORTED).exists() and run.data["fingerprint"] == "imported":
            raise RunError(
                f"{folder}: an imported model has no training data to resume with; fine-tune it in a new run: "
                f"dragoman train PAIRS.tsv --run NEW train.start_from={folder}"
            )
        run.config.data.check_shuffle()
        check_original(run)
        check_copies(run, config)
        check_resumable(run, config, runtime.processes.world_size)
        return resume_warnings(run.config, config)
    if config.train.pretrained is not None:
        pretrained.check_start_run(config.train.pretrained.run)
    for teacher in config.train.objective.runs:
        pretrained.check_teacher(teacher)
    return []


def prepare_data(config: Config, task: Task, runtime: Runtime) -> Corpus:
    """Read and tokenise the data; the main process does it first, and the others read the result from the cache."""
    if runtime.processes.is_main:
        with runtime.display:
            corpus = task.prepare(config, runtime.display.preparing)
    runtime.processes.barrier()
    return corpus if runtime.processes.is_main else task.prepare(config)


def build_model(config: Config, task: Task, corpus: Corpus, device: torch.device) -> Any:
    """The model with random weights; an error if it does not fit into memory, or weights named do not exist."""
    build = partial(task.model, config, corpus.source_tokenizer, corpus.target_tokenizer)
    check_capacity(build, settings.as_table(config.model), device)
    torch.manual_seed(config.train.seed)
    model = build().to(device)
    if not isinstance(model, FittedModel):
        freeze_weights(model, config.train)
    return model


def with_epochs(config: Config, loader: BatchLoader, runtime: Runtime) -> Config:
    """The settings, of which train.epochs decides train.steps."""
    train = config.train
    if not train.epochs:
        return config
    epoch = len(loader.epoch(0)) / (train.accumulate * runtime.processes.world_size)  # steps
    return replace(config, train=replace(train, steps=max(1, math.ceil(train.epochs * epoch - 1e-9))))


def late_warmup(config: Config) -> Iterator[str]:
    """A warning if training ends before the learning rate reaches its peak."""
    warmup, steps = config.train.optimizer.warmup, config.train.steps
    if warmup > steps:
        yield (
            f"train.optimizer.warmup = {warmup:,} exceeds train.steps = {steps:,}, so the learning rate never "
            f"reaches its peak; set train.optimizer.warmup={max(1, steps // 10)} or more steps"
        )


def initialize(config: Config, model: nn.Module, corpus: Corpus) -> tuple[list[str], list[str]]:
    """Load pretrained weights into a new model; returns what was loaded, and warnings."""
    lines = pretrained.load_torchvision_weights(model)
    lines += load_vectors(model, (corpus.source_tokenizer, corpus.target_tokenizer), config.train.vectors)
    start = config.train.pretrained
    if start is None:
        return lines, []
    report = pretrained.load_start_run(config, model, corpus)
    if config.train.lora is not None:
        check_random_weights([name for name, _ in report.left], config.train.lora)
    mismatch = pretrained.settings_mismatch(config, report)
    return lines + report.lines(start.run), [mismatch] if mismatch else []


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


def model_size(model: nn.Module, runtime: Runtime) -> str:
    parameters = list(model.parameters())
    frozen = sum(parameter.numel() for parameter in parameters if not parameter.requires_grad)
    threads = torch.get_num_threads()
    where = f"one process, {threads} thread{'s' if threads > 1 else ''}"
    if runtime.processes.is_distributed:
        where = f"{runtime.processes.world_size} processes"
    return f"model: {sum(parameter.numel() for parameter in parameters):,} parameters on {runtime.device} ({where})" + (
        f", {frozen:,} of them frozen" if frozen else ""
    )


def train(
    config: Config,
    folder: str | Path,
    display: Display | None = None,
    restart: bool = False,
    pause: Pause = lambda state: False,
    on_metrics: OnMetrics | None = None,
) -> TrainingState:
    """Train a run in a folder: create the folder, or resume from its newest checkpoint.

    With `restart`, an existing run is discarded and trained again from the first step. After the first step for which
    `pause` holds, training validates, saves and returns; the next call goes on. `on_metrics` gets every row of
    metrics.jsonl; what it raises ends training. Every mistake that can be found before
    training is reported before anything is written.
    """
    folder, processes = Path(folder), ProcessGroup()
    device = resolve_device(config.train.device, processes.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if display is None or not processes.is_main:  # only the main process prints, warnings too
        display = Display(None if processes.is_main else io.StringIO(), quiet=True, is_main=processes.is_main)
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
        done = trainer.finished and not plan.more_steps  # a finished run stays as it is
        tracked = TrackedRun(folder, settings.by_place(config), trainer.state.step, search_of(folder))
        names = config.train.trackers if processes.is_main and not done else ()
        log = display.kept_in(folder / "train.log") if processes.is_main and not done else nullcontext()
        with log, display, followed(names, tracked, on_metrics, display.warning) as trainer.metrics_log.on_metrics:
            return trainer.train()
