"""Calibrate a run: temperature scaling of token confidences (Guo et al. 2017), Platt scaling of output confidences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.base import DataError, write_text
from dragoman.data import Pairs, batch_of, batches_by_length, source_rows
from dragoman.data.tokenizers import PAD, UNK
from dragoman.decoding import search
from dragoman.inference import (
    CALIBRATION,
    Predictor,
    TokenPair,
    encoded_pairs,
    forced_batches,
    load_predictor,
    log_probability,
    require_texts,
    token_confidences,
)
from dragoman.inference.align import FilePairs
from dragoman.inspect.options import CalibrateOptions
from dragoman.inspect.views.figures import INK, PAPER, check_plot_path, new_figure, save_plot
from dragoman.models.heads import full_precision
from dragoman.runs import check_same_data
from dragoman.scoring import (
    PlattScale,
    Reliability,
    RiskPoint,
    at_error_rate,
    cross_fitted,
    fit_platt_scale,
    reliability,
    risk_coverage,
)

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
MIN_PAIRS, MIN_TOKENS = 20, 100  # fewer say too little about a temperature
MAX_POINTS = 100  # of the risk–coverage curve in calibration.json
MAX_OUTPUTS = 1000  # outputs decoded to see how many equal the reference
PRECISION = 2e-5  # relative, of the temperature; takes six passes

Rows = Sequence[TokenPair]
TokenBatches = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # log-probabilities (n, V), and the true tokens (n,)


class TemperatureFit(NamedTuple):
    """How well probabilities at one temperature fit the targets."""

    loss: float  # mean negative log-probability per token
    reliability: Reliability  # of the most probable token at every position

    def as_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, **reliability_table(self.reliability)}


def reliability_table(diagram: Reliability) -> dict[str, Any]:
    return {"calibration_error": diagram.error, "bins": [part._asdict() for part in diagram.bins]}


class OutputCalibration(NamedTuple):
    """The confidence in whole outputs against the share that equals the reference exactly."""

    scale: PlattScale
    before: Reliability  # of the product of calibrated token confidences
    after: Reliability  # of that product after Platt scaling, cross-fitted
    risk: Sequence[RiskPoint]  # of the same

    def as_dict(self) -> dict[str, Any]:
        return {
            "count": self.before.count,
            "right": round(sum(part.size * part.accuracy for part in self.before.bins)),
            **self.scale._asdict(),
            "before": reliability_table(self.before),
            "after": reliability_table(self.after),
            "risk": [point._asdict() for point in self.risk[:: -(-len(self.risk) // MAX_POINTS)]],
        }


@dataclass(frozen=True)
class Calibration:
    """The fitted temperature and scale, and the calibration before and after."""

    temperature: float
    before: TemperatureFit
    after: TemperatureFit
    outputs: OutputCalibration

    def as_dict(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "tokens": self.before.reliability.count,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "outputs": self.outputs.as_dict(),
        }

    def lines(self) -> Iterator[str]:
        yield f"{'temperature':<20}{self.temperature:>10.4f}"
        yield f"{'tokens':<20}{self.before.reliability.count:>10,}"
        yield f"{'':<20}{'before':>10}{'after':>10}"
        yield f"{'loss':<20}{self.before.loss:>10.4f}{self.after.loss:>10.4f}"
        errors = [100 * fit.reliability.error for fit in (self.before, self.after)]
        yield f"{'calibration error':<20}{errors[0]:>8.2f} %{errors[1]:>8.2f} %   of tokens"
        errors = [100 * diagram.error for diagram in (self.outputs.before, self.outputs.after)]
        yield f"{'':<20}{errors[0]:>8.2f} %{errors[1]:>8.2f} %   of outputs, exact match with the reference"
        table = self.outputs.as_dict()
        yield f"{'outputs':<20}{table['count']:>10,}   {table['right']:,} right"


@torch.no_grad()
def fit_temperature(batches: TokenBatches) -> float:
    """The temperature with the lowest negative log-likelihood, between 1/20 and 20.

    In β = 1/T the loss Σ log Σ exp(βz) − βz* is convex with derivative Σ E[z] − z*. Every pass evaluates eight β and
    keeps the ninth of the range where the derivative changes sign.
    """
    low, high = -math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE)
    while high - low > PRECISION:
        tried = [low + (high - low) * number / 9 for number in range(10)]
        slopes = [0.0] * 8
        for scores, targets in batches():
            z = scores.double()
            for number, log_beta in enumerate(tried[1:-1]):
                probabilities = (math.exp(log_beta) * z).softmax(-1)
                # A token of log-probability −∞ has probability 0, but 0 · ∞ is NaN.
                mean = (probabilities * z.clamp(min=-1e30)).sum(-1)
                slopes[number] += float((mean - z.gather(-1, targets[:, None])[:, 0]).sum())
        rising = next((number for number, slope in enumerate(slopes) if slope > 0), len(slopes))
        low, high = tried[rising], tried[rising + 1]
    return math.exp(-(low + high) / 2)


@torch.no_grad()
def measure_temperatures(batches: TokenBatches, temperatures: Sequence[float], bins: int = 15) -> list[TemperatureFit]:
    """Loss and reliability at several temperatures, in one pass."""
    losses = [0.0] * len(temperatures)
    confidences: list[list[Any]] = [[] for _ in temperatures]
    correct_batches: list[Any] = []
    for scores, targets in batches():
        correct_batches.append((scores.argmax(-1) == targets).cpu().numpy())  # the same at every temperature
        for number, temperature in enumerate(temperatures):
            log_probabilities = (scores.double() / temperature).log_softmax(-1)
            losses[number] -= float(log_probabilities.gather(-1, targets[:, None]).sum())
            confidences[number].append(log_probabilities.max(-1).values.exp().cpu().numpy())
    correct = np.concatenate(correct_batches)
    return [
        TemperatureFit(loss / len(correct), reliability(np.concatenate(parts), correct, bins))
        for loss, parts in zip(losses, confidences, strict=True)
    ]


def teacher_forced(predictor: Predictor, rows: Rows, batch_size: int) -> TokenBatches:
    """The log-probabilities at every target position given the true tokens before it, batch by batch."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _, batch in forced_batches(rows, batch_of, predictor.device, batch_size):
            real = batch.target != PAD
            yield full_precision(predictor.model.logits(batch)[real]).log_softmax(-1), batch.target[real]

    return batches


def validation_rows(predictor: Predictor) -> Rows:
    """The validation pairs of the run as token ids; raises RunError if its data have changed."""
    corpus = predictor.run.task.prepare(predictor.config)
    check_same_data(predictor.run.folder, corpus)
    everything = range(len(corpus.valid))
    targets = [target.tolist() for target in corpus.valid.target.rows(everything)]
    return list(zip(source_rows(corpus.valid, everything), targets, strict=True))


def read_rows(predictor: Predictor, files: str | Pairs, tag: str | None = None) -> Rows:
    """The sources and first targets of a file as token ids."""
    return encoded_pairs(predictor, FilePairs(predictor.config.data, files), tag)


def fit_calibration(
    predictor: Predictor, rows: Rows | None = None, *, bins: int = 15, batch_size: int = 32
) -> Calibration:
    """Fit temperature and Platt scale on rows of token ids, by default the validation pairs of the run."""
    if not hasattr(predictor.model, "logits"):
        raise DataError("no confidences to calibrate: expected an autoregressive model")
    rows = validation_rows(predictor) if rows is None else rows
    tokens = sum(len(target) + 1 for _, target in rows)
    if len(rows) < MIN_PAIRS or tokens < MIN_TOKENS:
        raise DataError(
            f"too little to calibrate on: found {len(rows):,} pairs with {tokens:,} target tokens, expected at least "
            f"{MIN_PAIRS} pairs and {MIN_TOKENS} tokens; name a larger file"
        )
    batches = teacher_forced(predictor, rows, batch_size)
    temperature = fit_temperature(batches)
    if temperature > MAX_TEMPERATURE / 1.01:
        raise DataError(
            f"no temperature up to {MAX_TEMPERATURE:g} fits: the run gives these targets next to no probability; "
            "calibrate on pairs like those that it was trained on"
        )
    before, after = measure_temperatures(batches, (1.0, temperature), bins)
    return Calibration(temperature, before, after, calibrate_outputs(predictor, rows, temperature, bins, batch_size))


def calibrate_outputs(
    predictor: Predictor, rows: Rows, temperature: float, bins: int, batch_size: int
) -> OutputCalibration:
    """Decode at most MAX_OUTPUTS rows, evenly spread, as `predict` does, and fit the scale of their confidences."""
    if len(rows) > MAX_OUTPUTS:
        rows = [rows[number * len(rows) // MAX_OUTPUTS] for number in range(MAX_OUTPUTS)]
    model, decode = predictor.model, predictor.codec.target_of(None).decode
    outputs: dict[int, tuple[int, ...]] = {}
    for indices, batch in batches_by_length([source for source, _ in rows], batch_size):
        searched = search(model, batch.to(predictor.device), predictor.search, predictor.length_ratio)
        outputs |= {index: best.tokens[:-1] for index, (best, *_) in zip(indices, searched, strict=True)}
    pairs = [(source, outputs[row]) for row, (source, _) in enumerate(rows)]
    confidences = token_confidences(model, pairs, temperature, predictor.device, batch_size)
    log_probabilities = np.array([log_probability(tokens) for tokens in confidences])
    # No output can equal a reference with <unk>.
    correct = np.array(
        [UNK not in target and decode(outputs[row]) == decode(target) for row, (_, target) in enumerate(rows)]
    )
    fitted = cross_fitted(log_probabilities, correct)
    return OutputCalibration(
        fit_platt_scale(log_probabilities, correct),
        reliability(np.exp(log_probabilities), correct, bins),
        reliability(fitted, correct, bins),
        risk_coverage(fitted, correct),
    )


def tokens_of_calibration(path: Path, weights: str) -> int:
    """The tokens that a saved calibration of the same weights was fitted on; 0 if there is none."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return int(table["tokens"]) if table["weights"] == weights else 0
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def save_calibration(predictor: Predictor, calibration: Calibration) -> Path:
    """Write calibration.json, bound to the weights by their hash, into the run folder, and set it on the predictor."""
    path = predictor.run.folder / CALIBRATION
    table = calibration.as_dict() | {"weights": predictor.run.weights_digest()}
    if (tokens := tokens_of_calibration(path, table["weights"])) > 2 * table["tokens"]:
        raise DataError(
            f"{path}: kept, since it was fitted on {tokens:,} tokens and these pairs have {table['tokens']:,}; "
            "remove it first to replace it"
        )
    write_text(path, json.dumps(table, indent=2) + "\n")
    predictor.read_calibration()
    return path


# --- the verb


class Calibrated(NamedTuple):
    """A fitted calibration, its file, and with an error rate the point that leaves this share of wrong outputs."""

    calibration: Calibration
    path: Path
    error_rate: float | None
    point: RiskPoint | None  # None: no confidence leaves so few, or no error rate was asked for

    def as_dict(self) -> dict[str, Any]:
        point = self.point and self.point._asdict()
        return self.calibration.as_dict() | ({} if self.error_rate is None else {"min_confidence": point})

    def lines(self) -> Iterator[str]:
        yield from self.calibration.lines()
        yield f"written: {self.path}"
        if self.point is not None:
            yield str(self.point)
        elif self.error_rate is not None:
            lowest = min(self.calibration.outputs.risk, key=lambda point: point.error)
            yield f"no min_confidence leaves at most {self.error_rate:.1%} wrong outputs; the best: {lowest}"


def calibrate(run: str | Path, files: str | Pairs | None = None, options: CalibrateOptions | None = None) -> Calibrated:
    """Fit confidences on pairs of a file or those that training set aside, and write them into the run folder."""
    options = options or CalibrateOptions()
    for picture in (options.plot, options.risk_plot):
        if picture is not None:
            check_plot_path(picture)
    require_texts("calibrate", run)
    predictor = load_predictor(run, options.device)
    rows = None if files is None else read_rows(predictor, files, options.tag)
    found = fit_calibration(predictor, rows, bins=options.bins, batch_size=options.batch_size)
    path, curve = save_calibration(predictor, found), found.outputs.risk
    if options.plot is not None:
        panels = {
            "tokens, as trained": found.before.reliability,
            "tokens, calibrated": found.after.reliability,
            "outputs, as trained": found.outputs.before,
            "outputs, calibrated": found.outputs.after,
        }
        draw_reliability(panels, options.plot, title=Path(run).name)
    if options.risk_plot is not None:
        draw_risk_coverage(curve, options.risk_plot, title=Path(run).name)
    point = None if options.error_rate is None else at_error_rate(curve, options.error_rate)
    return Calibrated(found, path, options.error_rate, point)


def draw_risk_coverage(curve: Sequence[RiskPoint], path: str | Path, title: str = "") -> Path:
    """Wrong outputs against the share that is kept, and the confidence from which outputs are kept."""
    drawing = new_figure(6.4, 4.4)
    axes = drawing.subplots()
    shares = [point.coverage for point in curve]
    for name, values, style in (
        ("wrong among those kept", [point.error for point in curve], {"color": "#0b69a3"}),
        ("min_confidence", [point.confidence for point in curve], {"color": INK, "linestyle": "--", "linewidth": 1}),
    ):
        axes.plot(shares, values, label=name, **style)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="share of the outputs that is kept", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return save_plot(drawing, path)


def draw_reliability(panels: Mapping[str, Reliability], path: str | Path, title: str = "") -> Path:
    """Reliability diagrams, one panel each: accuracy against confidence above, the share of each bin below."""
    drawing = new_figure(4.2 * len(panels), 5.2)
    if title:
        drawing.suptitle(title, color=INK)
    grid = drawing.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
    for index, (name, diagram) in enumerate(panels.items()):
        above, below = grid[0][index], grid[1][index]
        width = 1 / len(diagram.bins)
        starts = [number * width for number, part in enumerate(diagram.bins) if part.size]
        bins = [part for part in diagram.bins if part.size]
        heights, means = [part.accuracy for part in bins], {"markersize": 4, "label": "mean of each bin"}
        above.bar(starts, heights, width, align="edge", color="#9fb3c8", edgecolor=PAPER)
        above.plot((0, 1), (0, 1), color=INK, linewidth=1, linestyle="--", label="perfect calibration")
        above.plot([part.confidence for part in bins], heights, "o", color="#0b69a3", clip_on=False, **means)
        above.set_title(f"{name}: error {100 * diagram.error:.2f} %", fontsize=10, color=INK)
        below.bar(starts, [part.size / diagram.count for part in bins], width, align="edge", color="#0b69a3")
        below.set_xlabel("confidence")
        below.set_xlim(0, 1)
        above.set_ylim(0, 1)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.set_axisbelow(True)
    grid[0][0].set_ylabel("accuracy")
    grid[1][0].set_ylabel("share")
    grid[0][0].legend(frameon=False, fontsize=8)
    return save_plot(drawing, path)
