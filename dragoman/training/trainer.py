"""The training loop: step, log, validate, save, stop; for a model without gradients: fit, validate, save.

A run is a pure function of its configuration and data. The batches of a step follow from (seed, epoch), its dropout
from (seed, step, batch), its learning rate from the step. So weights, optimiser state and a few counters are all that
an exact resume needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.base import DragomanError, Interrupted, remove_folder, write_text
from dragoman.classical import FittedModel
from dragoman.data import Corpus
from dragoman.scoring import higher_is_better
from dragoman.training.checkpointer import BestWeights, Checkpointer
from dragoman.training.checkpoints import TrainingState, unfinished, write_tensors
from dragoman.training.config import TrainConfig
from dragoman.training.display import duration
from dragoman.training.loaders import BatchLoader
from dragoman.training.metrics_log import DivergenceDetector, MetricsLog
from dragoman.training.objectives.base import Objective
from dragoman.training.optimizer import averaged_weights, learning_rate_at
from dragoman.training.runtime import Runtime, side_stream, use_bfloat16
from dragoman.training.sharding import are_finite, check_sharding
from dragoman.training.signals import Signals, recorded_signals
from dragoman.training.step import build_step
from dragoman.training.trackers import check_trackers
from dragoman.training.trained_weights import freeze
from dragoman.training.validation import GeneralText, ValidationResult, Validator

Pause = Callable[[TrainingState], bool]  # whether to stop after this step for now

WEIGHTS = "weights.safetensors"
PAUSES = 0.2  # share of train.minutes that validations and checkpoints may take, but for the last validation
FIRST_STEPS = 10  # of a process, which also compile kernels and capture graphs
PREVIEW_AFTER, PREVIEW_STEPS = 90.0, 5  # a preview comes after so many seconds and steps, if validation is as far off


def check_machine(config: TrainConfig, runtime: Runtime) -> None:
    """Refuse settings that this machine, its processes or its packages cannot train with."""
    use_bfloat16(config.precision, runtime.device)
    check_sharding(config, runtime.processes.world_size)
    check_trackers(config.trackers)


class Trainer:
    """Trains one model in one run folder, from the folder's newest checkpoint on."""

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        objective: Objective,
        loader: BatchLoader,
        validator: Validator,
        run: Path,
        runtime: Runtime,
        *,
        general: GeneralText | None = None,  # measured beside the validation data
        more_steps: bool = False,  # whether train.steps was raised when the run resumed
        pause: Pause = lambda state: False,
    ) -> None:
        self.config, self.loader, self.validator = config, loader, validator
        self.device, self.processes, self.display = runtime.device, runtime.processes, runtime.display
        self.model: Any = model
        self.general, self.more_steps, self.pause = general, more_steps, pause
        freeze(model, config.freeze)
        self.train_step = build_step(config, model, objective, runtime)
        self.metrics_log = MetricsLog(run)
        self.best_weights = BestWeights(run, config.average, self.train_step.whole_model)
        self.checkpointer = Checkpointer(self.train_step, loader, run, runtime)
        self.state = self.checkpointer.restore(config)
        self.state.accumulate, self.state.processes = config.accumulate, self.processes.world_size
        if self.processes.is_main:
            self.metrics_log.restore(self.state)
            self.best_weights.repair(self.state)
        self.divergence = DivergenceDetector(self.metrics_log.first_loss())
        self.train_step.loss += self.state.loss_total if self.processes.is_main else 0.0  # summed over processes
        self._saved_step = self.state.step
        self._previewed = False
        self._epoch: tuple[int, Any] | None = None  # number and batches of the current epoch
        self._last_log: tuple[float, int] | None = None  # time and token count
        self._told_minutes = False
        self._first_steps: list[float] = []  # their seconds
        self._started_before = self.state.starting
        self.rate = 0.0  # the learning rate of the last step

    def train(self) -> TrainingState:
        """Train until the last step, an early stop or a pause. A signal saves a checkpoint and raises Interrupted."""
        state, config = self.state, self.config
        if self.more_steps and self.stopped_early:
            self.display.info(
                f"the run had stopped early at step {state.step:,}; train.steps is higher now, so it continues, with "
                f"train.patience = {config.patience} anew"
            )
            state.validations_since_best = 0
            self._save()  # or a run killed before its next checkpoint would stop early again
        if self.general is not None:
            self.train_step.gather()
            if self.processes.is_main:
                self.display.info(self.general.start(self.train_step.whole_model, state.step))
        self.display.start(state.step, config.steps)
        with recorded_signals() as signals, side_stream(self.device):
            while True:
                if self._validation_due() and not self._saved_step:
                    self._save()  # before the best weights: from those alone a killed run could not resume exactly
                if (self._validation_due() and self._validate(signals)) or (
                    state.step % config.save_every == 0 and state.step > self._saved_step
                ):
                    self._save()
                if (self.finished or self.pause(state)) and not self._validation_due():
                    break
                code = self.processes.all_reduce_max(signals.code)
                if code:
                    self._save()
                    raise Interrupted(code, state.step)
                self._step()
                self._preview(signals)
        if state.step > self._saved_step:
            self._save()
        elif self.processes.is_main:  # a process that was killed after the last checkpoint may have left older files
            self.checkpointer.checkpoints.prune()
            self.best_weights.prune(state, self.checkpointer.checkpoints)
        return state

    @property
    def finished(self) -> bool:
        """Whether the last step is done or training stops early."""
        return self.state.step >= self.config.steps or self.stopped_early or self._time_share >= 1

    @property
    def _time_share(self) -> float:
        """How much of train.minutes is over, on the slowest process; 0 without such a limit.

        The last validation has its time too: it is taken to be as long as the one before. What the first steps take to
        compile moves no schedule: a warm-up would be over before it begins.
        """
        if not self.config.minutes:
            return 0.0
        total = max(1e-3, 60 * self.config.minutes - self.state.validation)
        starting = min(self.state.starting, total / 2)
        share = (self.state.elapsed - starting) / (total - starting)
        return self.processes.all_reduce_max(int(1e6 * share)) / 1e6

    @property
    def stopped_early(self) -> bool:
        """Whether train.patience validations in a row brought no better score."""
        return self.state.is_out_of_patience(self.config.patience)

    @property
    def _pauses_over_budget(self) -> bool:
        """Whether pauses have had their share of train.minutes, so that only the last validation is left."""
        pauses, elapsed = self.state.pauses, self.state.elapsed
        return bool(self.config.minutes) and bool(self.processes.all_reduce_max(int(pauses > PAUSES * elapsed)))

    def _step(self) -> None:
        """One optimiser step: this process computes every world_size-th batch of the step."""
        state, config, processes = self.state, self.config, self.processes
        started = time.perf_counter()
        if not self.model.training:  # train() visits every module
            self.model.train()
        step = state.step + 1
        # The step that schedules read: a later one where train.minutes ends training before the last.
        scheduled = max(step, min(config.steps, math.ceil(config.steps * self._time_share)))
        self.model.set_step(scheduled - 1)
        batches = [self._next_batch() for _ in range(config.accumulate * processes.world_size)]
        count = sum(self.loader.num_tokens(batch) for batch in batches)
        indices = range(processes.rank, len(batches), processes.world_size)
        self.rate = learning_rate_at(config.optimizer, scheduled, config.steps)
        loaded = ((index, self.loader.load(batches[index])) for index in indices)
        self.train_step(loaded, indices[-1], step, count, self.rate, scheduled)
        state.step = step
        state.tokens += count
        state.loss_count += count
        taken = time.perf_counter() - started
        state.seconds += taken
        if len(self._first_steps) < FIRST_STEPS:
            self._first_steps.append(taken)
            steps = len(self._first_steps)
            usual = min(self._first_steps) if steps > 1 else 0.0  # one step alone does not tell
            state.starting = self._started_before + sum(self._first_steps) - steps * usual
        self.display.advance(step)
        if step % config.log_every == 0 or step == 1 or step == config.steps:
            self._log()

    def _next_batch(self) -> Any:
        """What the loader needs to load the next batch of the epoch."""
        state = self.state
        if self._epoch is None or self._epoch[0] != state.epoch:
            self._epoch = None  # free the old one first: each is as long as the corpus
            self._epoch = (state.epoch, self.loader.epoch(state.epoch))
        batch = self._epoch[1][state.batch]
        state.batch += 1
        if state.batch == len(self._epoch[1]):
            state.epoch, state.batch = state.epoch + 1, 0
        return batch

    def _log(self) -> None:
        """Show and record the mean loss since the last log line, learning rate and speed."""
        state, config = self.state, self.config
        waiting = time.perf_counter()
        loss = self.processes.all_reduce_sum([float(self.train_step.loss)])[0] / max(1, state.loss_count)
        state.seconds += time.perf_counter() - waiting  # the GPU has work queued up to here
        self._check_finite(loss)
        self.divergence.add(state.step, loss)
        now = time.perf_counter()
        if self._last_log is None:
            speed = state.tokens / max(state.seconds, 1e-9)
        else:
            speed = (state.tokens - self._last_log[1]) / max(now - self._last_log[0], 1e-9)
        self._last_log = (now, state.tokens)
        remaining = (config.steps - state.step) * state.seconds / state.step
        steps = config.steps
        if config.minutes:
            left = max(0.0, 60 * config.minutes - state.elapsed)
            if left < remaining and state.step > 1 and not self._told_minutes:
                self._told_minutes = True
                self.display.info(
                    f"train.minutes = {config.minutes:g} ends training before its last step; the schedule of the "
                    "learning rate follows the time"
                )
            remaining = min(remaining, left)
            if self._told_minutes:
                steps = min(steps, round(60 * config.minutes * state.step / state.elapsed))
        by_time = self._told_minutes or (
            bool(config.minutes) and state.step == 1
        )  # the first step is slow: no estimate
        self.display.show_step(state.step, steps, loss, self.rate, speed, remaining, by_time)
        row = {
            "step": state.step,
            "epoch": state.epoch,
            "loss": loss,
            "learning_rate": self.rate,
            "gradient_norm": float(self.train_step.gradient_norm),
            "tokens": state.tokens,
            "tokens_per_second": round(speed, 1),
            "seconds": round(state.seconds, 2),
        }
        if self.processes.is_main:
            self.metrics_log.append(row)
        self.train_step.loss.zero_()
        state.loss_total, state.loss_count = 0.0, 0

    def _check_finite(self, loss: float = 0.0) -> None:
        """Stop before an infinite or NaN loss or weight is logged, validated or saved."""
        finite = are_finite(self.model)
        if self.train_step.sharded:  # each process has seen its parts
            finite = not self.processes.all_reduce_max(int(not finite))
        if math.isfinite(loss) and finite:
            return
        problem = f"the loss became {loss}" if not math.isfinite(loss) else "the weights became infinite or NaN"
        raise DragomanError(
            f"{problem} at step {self.state.step}; start a new run with a lower train.optimizer.learning_rate "
            f"(now {self.config.optimizer.learning_rate}) or a longer warmup. The last checkpoint is intact"
        )

    def _save(self) -> None:
        self.state.loss_total = self.processes.all_reduce_sum([float(self.train_step.loss)])[0]
        self._check_finite(self.state.loss_total)
        self._saved_step = self.state.step
        started = time.perf_counter()
        self.checkpointer.save(self.state)
        if self.processes.is_main:
            self.best_weights.prune(self.state, self.checkpointer.checkpoints)
        self.processes.barrier()
        self.state.pauses += time.perf_counter() - started

    def _validation_due(self) -> bool:
        step, config = self.state.step, self.config
        is_last = step >= config.steps or self._time_share >= 1 or self.pause(self.state)
        if not step or self.state.validated_step >= step:
            return False
        return is_last or (step % config.validate_every == 0 and not self._pauses_over_budget)

    def _validate(self, signals: Signals) -> bool:
        """Score the weights that prediction would use, and keep them if they are among the best.

        Only the main process scores; all learn the result. False if a signal interrupted the validation.
        """
        self._check_finite()
        started, is_main = time.perf_counter(), self.processes.is_main
        self.train_step.gather()
        model = self.train_step.whole_model
        with averaged_weights(model, self.train_step.average if is_main else None):
            result = self.validator.measure(model, signals.received) if is_main else None
            score = self._score(result) if result is not None else 0.0
            interrupted, score = self.processes.all_reduce_sum([float(is_main and result is None), score])
            if not interrupted:
                is_best = self.best_weights.rank(self.state, score)
                if result is not None:
                    self._report(result, is_best, signals)
                    self.best_weights.keep(model, self.state)
        self.state.validation = time.perf_counter() - started
        self.state.pauses += self.state.validation
        return not interrupted

    def _preview(self, signals: Signals) -> None:
        """On a slow machine, show the scores before the first validation is due; they select no weights."""
        state, config = self.state, self.config
        self._previewed = self._previewed or state.validated_step > 0 or self.processes.is_distributed
        if self._previewed or state.seconds < PREVIEW_AFTER or state.step < PREVIEW_STEPS:
            return
        self._previewed = True
        wait = (min(config.validate_every, config.steps) - state.step) * state.seconds / state.step
        if config.minutes:
            wait = min(wait, 60 * config.minutes - state.elapsed)
        if wait < PREVIEW_AFTER:
            return
        started = time.perf_counter()
        with averaged_weights(self.model, self.train_step.average):
            result = self.validator.measure(self.model, signals.received)
        state.pauses += time.perf_counter() - started
        if result is not None:
            scores = f"{result.line(config.metric)}  (first validation in {duration(wait)})"
            self.display.info(f"preview at step {state.step}  {scores}", result.sample_line())

    def _score(self, result: ValidationResult) -> float:
        """The score that selects the best weights: higher is better."""
        value = result.scores[self.config.metric]
        return value if higher_is_better(self.config.metric) else -value

    def _report(self, result: ValidationResult, is_best: bool, signals: Signals) -> None:
        state = self.state
        best = "  best so far" if is_best else ""
        self.display.info(f"valid {state.step}  {result.line(self.config.metric)}{best}", result.sample_line())
        row: dict[str, Any] = {"step": state.step, "valid": result.scores, "seconds": round(state.seconds, 2)}
        if self.general is not None and (
            general := self.general.validator.measure(self.train_step.whole_model, signals.received)
        ):
            self.display.info(self.general.line(general))
            row["general"] = general.scores
        self.metrics_log.append(row)
        if warning := self.divergence.warning(self.config.optimizer.learning_rate):
            self.display.warning(warning)


class Fitter:
    """Fits a model of a run; the interface of `Trainer`.

    There is nothing to resume: an interrupted run is fitted anew, with the same result, and a finished one is left
    as it is.
    """

    def __init__(
        self,
        model: FittedModel,
        corpus: Corpus,
        validator: Validator,
        folder: Path,
        runtime: Runtime,
    ) -> None:
        self.model, self.corpus, self.validator = model, corpus, validator
        self.folder, self.display = folder, runtime.display
        self.state, self.metrics_log = TrainingState(), MetricsLog(folder)

    @property
    def finished(self) -> bool:
        return (self.folder / WEIGHTS).exists()

    def train(self) -> TrainingState:
        """Fit, save and validate; the steps of the state are the iterations."""
        if self.finished:
            remove_folder(unfinished(self.folder / WEIGHTS))  # of a process that was killed at its very end
            self.display.info("this run is fitted already; nothing is left to train")
            return self.state
        write_text(self.folder / "metrics.jsonl", "")  # an interrupted fit may have left some
        log, started = self.metrics_log, time.perf_counter()
        losses = self.model.fit(self.corpus, self.display.preparing)
        seconds = time.perf_counter() - started
        self.state.step, self.state.seconds = max(1, len(losses)), seconds
        self.state.tokens = int(self.corpus.report["train"]["target_tokens"])
        for step, loss in enumerate(losses, 1):
            share = seconds * step / len(losses)
            speed = self.state.tokens * step / max(share, 1e-9)
            log.append({"step": step, "loss": loss, "tokens_per_second": round(speed), "seconds": round(share, 2)})
        change = f", {len(losses)} iterations: loss {losses[0]:.4f} → {losses[-1]:.4f}" if losses else ""
        self.display.info(f"fitted in {seconds:.1f} s{change}")
        result = self.validator.measure(self.model)
        assert result is not None
        self.display.info(f"validation: {result.line()}", result.sample_line())
        log.append({"step": self.state.step, "valid": result.scores, "seconds": round(seconds, 2)})
        tensors = {name: torch.from_numpy(array) for name, array in self.model.tensors.items()}
        write_tensors(self.folder / WEIGHTS, tensors)  # last: with it the run is finished
        return self.state
