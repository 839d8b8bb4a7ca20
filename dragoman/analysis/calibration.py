"""Fit the temperature and scale of a run's confidences and measure what it helps (FIELD I; Guo et al. 2017)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.analysis.align_files import read_parallel
from dragoman.data.batch import batch_of
from dragoman.data.collate import batches_by_length
from dragoman.data.corpus import prepare_corpus
from dragoman.data.examples import Pairs
from dragoman.data.tokenizers.base import PAD, UNK
from dragoman.decoding.search import search
from dragoman.errors import DataError
from dragoman.files import digest, write_text
from dragoman.inference.confidence import CALIBRATION, log_probability, token_confidences
from dragoman.inference.predictor import Predictor
from dragoman.models.heads.softmax import full_precision
from dragoman.runs import check_same_data
from dragoman.scoring.calibration import PlattScale, Reliability, cross_fitted, fit_platt_scale, reliability

COLDEST, HOTTEST = 0.05, 20.0
OUTPUTS = 1000  # outputs written to see how many are right
PRECISION = 2e-5  # relative, of the temperature: six passes

Rows = Sequence[tuple[Sequence[int], Sequence[int]]]  # token ids of source and target
TokenBatches = Callable[
    [], Iterator[tuple[Tensor, Tensor]]
]  # log-probabilities (n, V) of n tokens, and the true ones (n,)


class TemperatureFit(NamedTuple):
    """How well probabilities at one temperature fit the truth."""

    loss: float  # mean negative log-probability a token
    reliability: Reliability  # of the first choice at every place

    def as_dict(self) -> dict[str, Any]:
        """Names and values."""
        return {
            "loss": self.loss,
            **reliability_table(self.reliability),
        }


def reliability_table(found: Reliability) -> dict[str, Any]:
    """Names and values."""
    return {"calibration_error": found.error, "bins": [one._asdict() for one in found.bins]}


class OutputCalibration(NamedTuple):
    """How sure the run is of whole outputs, and how many of them are the reference, exactly."""

    scale: PlattScale
    before: Reliability  # the product of the calibrated confidences of their tokens
    after: Reliability  # that product scaled, with the scale that the other half of the outputs gives

    def as_dict(self) -> dict[str, Any]:
        """Names and values."""
        bins = self.before.bins
        return {
            "count": self.before.count,
            "right": round(sum(one.size * one.accuracy for one in bins)),
            **self.scale._asdict(),
            "before": reliability_table(self.before),
            "after": reliability_table(self.after),
        }


@dataclass(frozen=True)
class Calibration:
    """The temperature with the lowest loss, the scale of outputs, and how the run stood before and stands with them."""

    temperature: float
    before: TemperatureFit
    after: TemperatureFit
    outputs: OutputCalibration

    def as_dict(self) -> dict[str, Any]:
        """Names and values."""
        return {
            "temperature": self.temperature,
            "tokens": self.before.reliability.count,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "outputs": self.outputs.as_dict(),
        }

    def lines(self) -> Iterator[str]:
        """For a person to read."""
        yield f"{'temperature':<20}{self.temperature:>10.4f}"
        yield f"{'tokens':<20}{self.before.reliability.count:>10,}"
        yield f"{'':<20}{'before':>10}{'after':>10}"
        yield f"{'loss':<20}{self.before.loss:>10.4f}{self.after.loss:>10.4f}"
        errors = [100 * fit.reliability.error for fit in (self.before, self.after)]
        yield f"{'calibration error':<20}{errors[0]:>8.2f} %{errors[1]:>8.2f} %   of tokens"
        errors = [100 * one.error for one in (self.outputs.before, self.outputs.after)]
        yield f"{'':<20}{errors[0]:>8.2f} %{errors[1]:>8.2f} %   of outputs being the reference, exactly"
        table = self.outputs.as_dict()
        yield f"{'outputs':<20}{table['count']:>10,}   {table['right']:,} right"


@torch.no_grad()
def fit_temperature(places: TokenBatches) -> float:
    """The temperature of the lowest negative log-probability, between 1/20 and 20.

    In β = 1/T the loss Σ log Σ exp(βz) − βz* is convex and its slope is Σ E[z] − z*: every pass tries eight β and keeps
    the ninth of the range where the slope changes its sign.
    """
    low, high = -math.log(HOTTEST), -math.log(COLDEST)
    while high - low > PRECISION:
        tried = [low + (high - low) * number / 9 for number in range(10)]
        slopes = [0.0] * 8
        for scores, truth in places():
            z = scores.double()
            for number, logarithm in enumerate(tried[1:-1]):
                chances = (math.exp(logarithm) * z).softmax(-1)
                # What can never be has no weight, but 0 · ∞ is no number.
                mean = (chances * z.clamp(min=-1e30)).sum(-1)
                slopes[number] += float((mean - z.gather(-1, truth[:, None])[:, 0]).sum())
        rising = next((number for number, slope in enumerate(slopes) if slope > 0), len(slopes))
        low, high = tried[rising], tried[rising + 1]
    return math.exp(-(low + high) / 2)


@torch.no_grad()
def measure_temperatures(places: TokenBatches, temperatures: Sequence[float], bins: int = 15) -> list[TemperatureFit]:
    """Loss and reliability at several temperatures, in one pass."""
    losses = [0.0] * len(temperatures)
    sure: list[list[Any]] = [[] for _ in temperatures]
    right: list[Any] = []
    for scores, truth in places():
        right.append((scores.argmax(-1) == truth).cpu().numpy())  # the same at every temperature
        for number, temperature in enumerate(temperatures):
            chances = (scores.double() / temperature).log_softmax(-1)
            losses[number] -= float(chances.gather(-1, truth[:, None]).sum())
            sure[number].append(chances.max(-1).values.exp().cpu().numpy())
    correct = np.concatenate(right)
    return [
        TemperatureFit(loss / len(correct), reliability(np.concatenate(parts), correct, bins))
        for loss, parts in zip(losses, sure, strict=True)
    ]


def teacher_forced(predictor: Predictor, rows: Rows, batch_size: int) -> TokenBatches:
    """What the run thinks of every target token given the true ones before it, batch by batch."""
    order = sorted(range(len(rows)), key=lambda place: (len(rows[place][1]), len(rows[place][0])))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            batch = batch_of([rows[place][0] for place in places], [rows[place][1] for place in places])
            batch = batch.to(predictor.device)
            real = batch.target != PAD
            yield full_precision(predictor.model.logits(batch)[real]).log_softmax(-1), batch.target[real]

    return batches


def validation_rows(predictor: Predictor) -> Rows:
    """The pairs that training set aside, as tokens; the data must be where and what it was."""
    config = predictor.config
    corpus = prepare_corpus(config.data, config.tokenizer)
    check_same_data(predictor.run.folder, corpus)
    everything = range(len(corpus.valid))
    sources, targets = corpus.valid.source.rows(everything), corpus.valid.target.rows(everything)
    return [(source.tolist(), target.tolist()) for source, target in zip(sources, targets, strict=True)]


def read_rows(predictor: Predictor, files: str | Pairs, tag: str | None = None) -> Rows:
    """The sources and first targets of a file as tokens."""
    pairs = read_parallel(predictor, files)
    sources = predictor.source_tokenizer.encode_batch(list(predictor.read_as([source for source, _ in pairs], tag)))
    targets = predictor.target_tokenizer.encode_batch([target for _, target in pairs])
    return list(zip(sources, targets, strict=True))


def calibrate(predictor: Predictor, rows: Rows | None = None, *, bins: int = 15, batch_size: int = 32) -> Calibration:
    """Fit the temperature on token rows, by default those training set aside."""
    if not hasattr(predictor.model, "logits"):
        raise DataError("no confidences to calibrate: expected a model that writes one token after another")
    rows = validation_rows(predictor) if rows is None else rows
    if not rows:
        raise DataError("nothing to calibrate on: no pair was read")
    places = teacher_forced(predictor, rows, batch_size)
    temperature = fit_temperature(places)
    before, after = measure_temperatures(places, (1.0, temperature), bins)
    return Calibration(temperature, before, after, calibrate_outputs(predictor, rows, temperature, bins, batch_size))


def calibrate_outputs(
    predictor: Predictor, rows: Rows, temperature: float, bins: int, batch_size: int
) -> OutputCalibration:
    """Write outputs as `predict` does, of at most OUTPUTS rows spread evenly, and see how many are the reference."""
    rows = [rows[place * len(rows) // OUTPUTS] for place in range(OUTPUTS)] if len(rows) > OUTPUTS else rows
    model, decode = predictor.model, predictor.target_tokenizer.decode
    written: dict[int, tuple[int, ...]] = {}
    for indices, batch in batches_by_length([source for source, _ in rows], batch_size):
        searched = search(model, batch.to(predictor.device), predictor.config.search, predictor.length_ratio)
        written |= {index: best.tokens[:-1] for index, (best, *_) in zip(indices, searched, strict=True)}
    pairs = [(source, written[place]) for place, (source, _) in enumerate(rows)]
    sure = token_confidences(model, pairs, temperature, predictor.device, batch_size)
    chances = np.array([log_probability(tokens) for tokens in sure])
    # A reference with <unk> holds something that the run cannot write.
    right = np.array(
        [UNK not in target and decode(written[place]) == decode(target) for place, (_, target) in enumerate(rows)]
    )
    return OutputCalibration(
        fit_platt_scale(chances, right),
        reliability(np.exp(chances), right, bins),
        reliability(cross_fitted(chances, right), right, bins),
    )


def save_calibration(predictor: Predictor, calibration: Calibration) -> Path:
    """Write calibration.json into the run folder, bound to the weights it was measured with, and use it from now on."""
    path = predictor.run.folder / CALIBRATION
    table = calibration.as_dict() | {"weights": digest(predictor.run.weights_path())}
    write_text(path, json.dumps(table, indent=2) + "\n")
    predictor.read_calibration()
    return path
