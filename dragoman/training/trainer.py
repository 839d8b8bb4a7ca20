"""The one training loop.

A run is a pure function of its configuration and data: the batches of a step follow from (seed, epoch), its dropout
from (seed, step, batch), its learning rate from the step. So weights, optimiser state and a few counters are all
that exact resume needs.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data.corpus import Corpus
from dragoman.decoding.config import SearchConfig
from dragoman.errors import DragomanError, MissingExtraError, RunError
from dragoman.files import append_text, make_folder, remove_folder, write_text
from dragoman.scoring.registry import higher_is_better
from dragoman.training.checkpoints import Checkpoints, TrainingState, read_tensors, write_tensors
from dragoman.training.config import TrainConfig
from dragoman.training.display import Display
from dragoman.training.distributed import ProcessGroup
from dragoman.training.divergence import Divergence, first_loss
from dragoman.training.loaders import BatchLoader, ExampleLoader
from dragoman.training.objectives import OBJECTIVES
from dragoman.training.optimizer import (
    BestAverageConfig,
    MovingAverage,
    MovingAverageConfig,
    build_optimizer,
    learning_rate_at,
    load_weights,
    mean_weights,
    optimizer_tensors,
    restore_optimizer,
    swap_weights,
)
from dragoman.training.signals import Signals, Stopped
from dragoman.training.step import build_step
from dragoman.training.transfer import freeze, rate_factors
from dragoman.training.validation.result import ValidationResult
from dragoman.training.validation.seq2seq import Seq2SeqValidator


class Trainer:
    """Trains one model in one run folder, from wherever the folder stands."""

    def __init__(
        self,
        config: TrainConfig,
        search: SearchConfig,
        model: nn.Module,
        corpus: Corpus,
        run: Path,
        device: torch.device,
        processes: ProcessGroup,
        display: Display,
        units: str = "words",
        validator: Any = None,  # what measures the model; None: a Seq2SeqValidator of pairs
        loader: BatchLoader | None = None,  # where batches come from; None: rows of the corpus
    ) -> None:
        self.config, self.run, self.device, self.processes, self.display = config, run, device, processes, display
        self.model: Any = model
        self.corpus = corpus
        freeze(model, config.freeze)
        self.optimizer = build_optimizer(config.optimizer, model, rate_factors(model, config.rates))
        self.average = MovingAverage(config.average, model) if isinstance(config.average, MovingAverageConfig) else None
        self.kept = config.average.count if isinstance(config.average, BestAverageConfig) else 1
        self.validator = validator or Seq2SeqValidator(corpus, search, config.decode, device, units, config.metric)
        self.loader = loader or ExampleLoader(corpus, config)
        self.plan = self.loader.plan
        self.checkpoints = Checkpoints(run)
        self.progress = TrainingState()
        self._restore()
        self.divergence = Divergence(first_loss(run / "metrics.jsonl"))
        self._saved = self.progress.step
        self._epoch: tuple[int, Any] | None = None
        self._logged_at: tuple[float, int] | None = None
        wrapped = processes.data_parallel(model, device, bool(model.has_unused_parameters))
        self.learn = build_step(
            config,
            model,
            wrapped,
            OBJECTIVES[type(config.objective)](config.objective, corpus),
            self.optimizer,
            self.average,
            processes,
            device,
            use_bfloat16(config.precision, device),
            display.info,
        )
        self.learn.loss += self.progress.loss_total if processes.is_main else 0.0  # a sum over all processes
        self.board = self._tensorboard()

    # ------------------------------------------------------------------ the loop

    def train(self) -> TrainingState:
        """Train until the last step, early stop or a signal; a signal raises Stopped after saving."""
        progress, config = self.progress, self.config
        self.display.start(progress.step, config.steps)
        with Signals() as signals, side_stream(self.device):
            while True:
                if (self._validation_due() and self._validate(signals)) or (
                    progress.step % config.save_every == 0 and progress.step > self._saved
                ):
                    self._save()
                if self.finished and not self._validation_due():
                    break
                code = self.processes.all_reduce_max(signals.code)
                if code:
                    self._save()
                    raise Stopped(code, progress.step)
                self._step()
        if progress.step > self._saved:
            self._save()
        return progress

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        waited_enough = bool(self.config.patience) and self.progress.waited >= self.config.patience
        return self.progress.step >= self.config.steps or waited_enough

    def _step(self) -> None:
        progress, config, processes = self.progress, self.config, self.processes
        started = time.perf_counter()
        if not self.model.training:  # it walks through all modules
            self.model.train()
        step = progress.step + 1
        self.model.set_step(progress.step)
        together = [self._next() for _ in range(config.accumulate * processes.world_size)]
        count = sum(self.loader.num_tokens(chosen) for chosen in together)
        mine = [
            (place, chosen) for place, chosen in enumerate(together) if place % processes.world_size == processes.rank
        ]
        batches = ((place, self.loader.load(chosen)) for place, chosen in mine)
        self.learn(batches, mine[-1][0], step, count)
        progress.step = step
        progress.tokens += count
        progress.loss_count += count
        progress.seconds += time.perf_counter() - started
        self.display.advance(step)
        if step % config.log_every == 0 or step == 1 or step == config.steps:
            self._log()

    def _next(self) -> Any:
        progress = self.progress
        if self._epoch is None or self._epoch[0] != progress.epoch:
            self._epoch = None  # not two at once: each is as long as the corpus
            self._epoch = (progress.epoch, self.loader.epoch(progress.epoch))
        chosen = self._epoch[1][progress.batch]
        progress.batch += 1
        if progress.batch == len(self._epoch[1]):
            progress.epoch, progress.batch = progress.epoch + 1, 0
        return chosen

    # ------------------------------------------------------------------ what is written

    def _log(self) -> None:
        progress, config = self.progress, self.config
        rate = learning_rate_at(config.optimizer, progress.step, config.steps)
        waiting = time.perf_counter()
        loss = self.processes.all_reduce_sum([float(self.learn.loss)])[0] / max(1, progress.loss_count)
        progress.seconds += time.perf_counter() - waiting  # for a GPU, which is given work ahead of time
        self._refuse_nonsense(loss)
        self.divergence.logged(progress.step, loss)
        now = time.perf_counter()
        if self._logged_at is None:
            speed = progress.tokens / max(progress.seconds, 1e-9)
        else:
            speed = (progress.tokens - self._logged_at[1]) / max(now - self._logged_at[0], 1e-9)
        self._logged_at = (now, progress.tokens)
        left = (config.steps - progress.step) * progress.seconds / progress.step
        self.display.show_step(progress.step, config.steps, loss, rate, speed, left)
        row = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": float(self.learn.norm),
            "tokens": progress.tokens,
            "tokens_per_second": round(speed, 1),
            "seconds": round(progress.seconds, 2),
        }
        self._record(row)
        self.learn.loss.zero_()
        progress.loss_total, progress.loss_count = 0.0, 0

    def _refuse_nonsense(self, loss: float = 0.0) -> None:
        """Stop before anything that cannot be computed with is logged, validated or saved."""
        if math.isfinite(loss) and bool(torch.stack([part.isfinite().all() for part in self.model.parameters()]).all()):
            return
        found = f"the loss became {loss}" if not math.isfinite(loss) else "the weights became infinite or NaN"
        raise DragomanError(
            f"{found} at step {self.progress.step}; start a new run with a lower train.optimizer.learning_rate "
            f"(now {self.config.optimizer.learning_rate}) or a longer warmup. The last checkpoint is intact"
        )

    def _record(self, row: dict[str, Any]) -> None:
        if not self.processes.is_main:
            return
        append_text(self.run / "metrics.jsonl", json.dumps(row) + "\n")
        if self.board is not None:
            prefix = "valid" if "valid" in row else "train"
            for name, value in row.get("valid", row).items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self.board.add_scalar(f"{prefix}/{name}", value, row["step"])

    def _save(self) -> None:
        self.progress.loss_total = self.processes.all_reduce_sum([float(self.learn.loss)])[0]
        self._refuse_nonsense(self.progress.loss_total)
        self._saved = self.progress.step
        carried = self.loader.state_dict()
        if self.processes.is_main:
            files: dict[str, dict[str, Tensor]] = {
                "weights.safetensors": dict(self.model.named_parameters()),
                "optimizer.safetensors": optimizer_tensors(self.optimizer, self.model),
            }
            if self.average is not None:
                files["average.safetensors"] = self.average.parts
            if carried:
                files["bptt_state.safetensors"] = carried
            self.checkpoints.save(self.progress, files)
            self._forget_unused_best()
        self.processes.barrier()

    def _restore(self) -> None:
        """Stand where the newest good checkpoint stands."""
        if self.processes.is_main:
            self.checkpoints.clear_unfinished()
        self.processes.barrier()
        damaged: list[Path] = []
        for step in reversed(self.checkpoints.steps()):
            try:
                self.progress, files = self.checkpoints.load(step)
            except RunError as error:
                self.display.warning(f"{error}; falling back to the checkpoint before")
                damaged.append(self.checkpoints.path(step))
                continue
            load_weights(self.model, files["weights.safetensors"])
            restore_optimizer(self.optimizer, self.model, files["optimizer.safetensors"])
            if self.average is not None:
                for name, part in self.average.parts.items():
                    part.copy_(files["average.safetensors"][name])
            self.loader.load_state_dict(files.get("bptt_state.safetensors", {}))
            break
        else:
            if damaged:
                self.display.warning("no checkpoint can be read; starting from the first step")
        self.processes.barrier()
        if self.processes.is_main:
            for folder in damaged:
                remove_folder(folder)
            self._cut_metrics()
            self._mend_best()

    def _cut_metrics(self) -> None:
        """Forget lines of steps that will be done again."""
        path = self.run / "metrics.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            reached = self.progress.validated if "valid" in row else self.progress.step
            if row["step"] <= reached:
                kept.append(line + "\n")
        write_text(path, "".join(kept))

    # ------------------------------------------------------------------ validation

    def _validation_due(self) -> bool:
        step, config = self.progress.step, self.config
        due = step % config.validate_every == 0 or step >= config.steps
        return due and step > 0 and self.progress.validated < step

    def _validate(self, signals: Signals) -> bool:
        """Measure the weights as they would be used; False if a signal cut it short."""
        progress = self.progress
        self._refuse_nonsense()
        found: ValidationResult | None = None
        if self.processes.is_main:
            restore = swap_weights(self.model, self.average.parts) if self.average is not None else None
            found = self.validator.measure(self.model, lambda: bool(signals.code))
        score = math.nan
        if found is not None:
            value = found.scores[self.config.metric]
            score = value if higher_is_better(self.config.metric) else -value
        cut, score = self.processes.all_reduce_sum(
            [float(found is None and self.processes.is_main), score if found else 0.0]
        )
        if not cut:
            better = not progress.best or score > progress.best[0][0]
            progress.waited = 0 if better else progress.waited + 1
            progress.validated = progress.step
            progress.best = sorted([*progress.best, (score, progress.step)], key=lambda pair: (-pair[0], pair[1]))[
                : self.kept
            ]
            if found is not None:
                self._tell(found, better)
                if any(step == progress.step for _, step in progress.best):
                    self._keep_best()
        if self.processes.is_main and restore is not None:
            restore()
        return not cut

    def _tell(self, found: ValidationResult, better: bool) -> None:
        progress = self.progress
        mark = "  best so far" if better else ""
        self.display.info(f"valid {progress.step}  {found.line()}{mark}")
        if found.sample:
            self.display.info("  e.g. " + "  →  ".join(found.sample))
        self._record({"step": progress.step, "valid": found.scores, "seconds": round(progress.seconds, 2)})
        if warning := self.divergence.warning(self.config.optimizer.learning_rate):
            self.display.warning(warning)

    def _keep_best(self) -> None:
        """Keep these weights among the best, and let `weights.safetensors` be what prediction should use."""
        folder = make_folder(self.run / "best")
        current = {name: part.detach() for name, part in self.model.named_parameters()}
        write_tensors(folder / f"{self.progress.step:08d}.safetensors", current)
        if self.kept == 1:
            write_tensors(self.run / "weights.safetensors", current)
        else:
            self._write_best()

    def _write_best(self) -> None:
        """Make `weights.safetensors` from the best that are kept."""
        paths = [self.run / "best" / f"{step:08d}.safetensors" for _, step in self.progress.best]
        if parts := [read_tensors(path) for path in paths if path.exists()]:
            write_tensors(self.run / "weights.safetensors", mean_weights(list(parts)))

    def _mend_best(self) -> None:
        """Make `weights.safetensors` anew where it was lost or damaged: "done" must mean that it can be used."""
        try:
            read_tensors(self.run / "weights.safetensors")
        except RunError:
            self._write_best()

    def _forget_unused_best(self) -> None:
        """Only weights that some kept checkpoint counts among the best may be needed again."""
        if (self.run / "best").is_symlink():
            return
        needed = {step for _, step in self.progress.best}
        for saved in self.checkpoints.steps():
            try:
                content = json.loads((self.checkpoints.path(saved) / "progress.json").read_text(encoding="utf-8"))
                needed |= {step for _, step in content["best"]}
            except (OSError, ValueError, KeyError):
                continue
        for path in (self.run / "best").glob("*.safetensors"):
            if int(path.stem) not in needed:
                path.unlink()

    # ------------------------------------------------------------------ set-up

    def _tensorboard(self) -> Any:
        if not (self.config.tensorboard and self.processes.is_main):
            return None
        return tensorboard_writer()(str(make_folder(self.run / "tensorboard")), purge_step=self.progress.step + 1)


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """All work of a GPU in one stream beside the default one, in which nothing can be captured."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def tensorboard_writer() -> Any:
    """TensorBoard's writer, if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("train.tensorboard", "tensorboard", "tensorboard") from None
    return SummaryWriter


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether to autocast to bfloat16; many CPUs have no hardware for it and would crawl."""
    if device.type != "cuda":
        if precision == "bfloat16":
            raise DragomanError(
                f"train.precision: found bfloat16 on device '{device}', expected float32 or auto: "
                "half precision needs a GPU"
            )
        return False
    return precision == "bfloat16" or (precision == "auto" and torch.cuda.is_bf16_supported(including_emulation=False))
