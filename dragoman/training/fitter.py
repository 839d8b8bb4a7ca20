"""Fit a model that has no gradients: compute, validate, save. The trainer of fitted models."""

from __future__ import annotations

import time
from pathlib import Path

from dragoman.classical.model import FittedModel
from dragoman.data.corpus import Corpus
from dragoman.files import remove_folder, write_text
from dragoman.training.checkpoints import TrainingState, unfinished, write_tensors
from dragoman.training.metrics_log import MetricsLog
from dragoman.training.runtime import Runtime
from dragoman.training.validation.result import Validator

WEIGHTS = "weights.safetensors"


class Fitter:
    """Fits a model of a run; the interface of `Trainer`.

    There is nothing to resume: an interrupted run is fitted anew, with the same result, and a finished one is left
    as it is.
    """

    def __init__(
        self, model: FittedModel, corpus: Corpus, validator: Validator, folder: Path, runtime: Runtime
    ) -> None:
        self.model, self.corpus, self.validator = model, corpus, validator
        self.folder, self.display = folder, runtime.display
        self.state = TrainingState()

    def train(self) -> TrainingState:
        """Fit, save and validate; the steps of the state are the iterations."""
        if (self.folder / WEIGHTS).exists():
            remove_folder(unfinished(self.folder / WEIGHTS))  # of a process that was killed at its very end
            self.display.info("this run is fitted already; nothing is left to train")
            return self.state
        write_text(self.folder / "metrics.jsonl", "")  # an interrupted fit may have left some
        log, started = MetricsLog(self.folder), time.perf_counter()
        losses = self.model.fit(self.corpus, self.display.preparing)
        seconds = time.perf_counter() - started
        self.state.step, self.state.seconds = max(1, len(losses)), seconds
        self.state.tokens = int(self.corpus.report["train"]["target_tokens"])
        for step, loss in enumerate(losses, 1):
            share = seconds * step / len(losses)
            speed = self.state.tokens * step / max(share, 1e-9)
            log.append({"step": step, "loss": loss, "tokens_per_second": round(speed), "seconds": round(share, 2)})
        self.display.info(f"fitted in {seconds:.1f} s" + iterations(losses))
        result = self.validator.measure(self.model)
        assert result is not None
        self.display.info(f"validation: {result.line()}")
        if sample := result.sample_line():
            self.display.info(sample)
        log.append({"step": self.state.step, "valid": result.scores, "seconds": round(seconds, 2)})
        write_tensors(self.folder / WEIGHTS, self.model.tensors)  # last: with it the run is finished
        return self.state


def iterations(losses: list[float]) -> str:
    """How the loss changed over the iterations; empty without iterations."""
    if not losses:
        return ""
    return f", {len(losses)} iterations: loss {losses[0]:.4f} → {losses[-1]:.4f}"
