"""Kalman filter, smoother and EM for linear-Gaussian state-space models (Kalman 1960; Shumway and Stoffer 1982).

    x₁ ~ N(m, P),   x_t = A x_{t−1} + N(0, Q),   y_t = C x_t + N(0, R)

Series are rows of a batch; NaN is a missing value, which the filter skips and the smoother fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from dragoman.base.config import Range, setting
from dragoman.classical.model import Arrays, FittedLabeler, LabelOutput, Note, TensorSpec
from dragoman.classical.rows import Bools, Floats
from dragoman.data import Rows

if TYPE_CHECKING:
    from dragoman.data import Batch, Corpus
    from dragoman.models import TokenScores

NAMES = ("transition", "observation", "state_noise", "observation_noise", "first_mean", "first_covariance")
MAX_SERIES = 2000  # series that EM reads at most


class Filtered(NamedTuple):
    """The passes of a filter over a batch: means (B, T, d) and covariances (B, T, d, d)."""

    predicted_means: Floats  # given the values before t
    predicted_covariances: Floats
    means: Floats  # given the values up to t
    covariances: Floats
    log_likelihood: Floats  # (B,)


class Smoothed(NamedTuple):
    """States given all values."""

    means: Floats  # (B, T, d)
    covariances: Floats  # (B, T, d, d)
    pairs: Floats  # (B, T−1, d, d): covariance of x_{t+1} and x_t


@dataclass(frozen=True)
class KalmanModel:
    """The parameters of a state-space model with d states and p values."""

    transition: Floats  # (d, d)
    observation: Floats  # (p, d)
    state_noise: Floats  # (d, d)
    observation_noise: Floats  # (p, p)
    first_mean: Floats  # (d,)
    first_covariance: Floats  # (d, d)

    def filter(self, values: Floats) -> Filtered:
        """Filter series (B, T, p). A step is missing if one of its values is NaN."""
        rows, steps, _ = values.shape
        size = len(self.first_mean)
        known = known_steps(values)
        values = np.where(known[:, :, None], values, 0.0)
        mean = np.broadcast_to(self.first_mean, (rows, size))
        covariance = np.broadcast_to(self.first_covariance, (rows, size, size))
        out: list[list[Floats]] = [[], [], [], []]
        logs = np.zeros(rows)
        eye = np.eye(size)
        for step in range(steps):
            if step:
                mean = mean @ self.transition.T
                covariance = self.transition @ covariance @ self.transition.T + self.state_noise
            out[0].append(mean)
            out[1].append(covariance)
            error = values[:, step] - mean @ self.observation.T  # (B, p)
            spread = self.observation @ covariance @ self.observation.T + self.observation_noise  # (B, p, p)
            gain = np.linalg.solve(spread, self.observation @ covariance).transpose(0, 2, 1)  # (B, d, p)
            solved = np.linalg.solve(spread, error[:, :, None])[:, :, 0]
            density = -0.5 * (
                (error * solved).sum(1) + np.linalg.slogdet(spread)[1] + error.shape[1] * np.log(2 * np.pi)
            )
            own = known[:, step]
            logs += np.where(own, density, 0.0)
            mean = np.where(own[:, None], mean + (gain @ error[:, :, None])[:, :, 0], mean)
            covariance = np.where(own[:, None, None], (eye - gain @ self.observation) @ covariance, covariance)
            out[2].append(mean)
            out[3].append(covariance)
        predicted, spreads, means, covariances = (np.stack(part, 1) for part in out)
        return Filtered(predicted, spreads, means, covariances, logs)

    def smooth(self, filtered: Filtered) -> Smoothed:
        """The backward pass of Rauch, Tung and Striebel (1965)."""
        means, covariances = filtered.means.copy(), filtered.covariances.copy()
        steps = means.shape[1]
        pairs = np.zeros((len(means), max(0, steps - 1), *covariances.shape[2:]))
        for step in range(steps - 2, -1, -1):
            ahead = filtered.predicted_covariances[:, step + 1]
            gain = np.linalg.solve(ahead, self.transition @ filtered.covariances[:, step]).transpose(0, 2, 1)
            change = means[:, step + 1] - filtered.predicted_means[:, step + 1]
            means[:, step] += (gain @ change[:, :, None])[:, :, 0]
            covariances[:, step] += gain @ (covariances[:, step + 1] - ahead) @ gain.transpose(0, 2, 1)
            pairs[:, step] = covariances[:, step + 1] @ gain.transpose(0, 2, 1)
        return Smoothed(means, covariances, pairs)

    def em(self, values: Floats) -> tuple[KalmanModel, float]:
        """One iteration of EM on series (B, T, p) of equal length: the new model, and the log-likelihood before it."""
        filtered = self.filter(values)
        means, covariances, pairs = self.smooth(filtered)
        known = known_steps(values)
        filled = np.where(known[:, :, None], values, 0.0)
        moments = covariances + means[:, :, :, None] * means[:, :, None, :]  # E[x xᵀ]
        observed = moments[known].sum(0)
        cross = np.einsum("np,nd->pd", filled[known], means[known])
        observation = np.linalg.solve(observed, cross.T).T
        residual = np.einsum("np,nq->pq", filled[known], filled[known]) - observation @ cross.T
        observation_noise = symmetric(residual / max(1, known.sum()))
        later = (pairs + means[:, 1:, :, None] * means[:, :-1, None, :]).sum((0, 1))
        before, after = moments[:, :-1].sum((0, 1)), moments[:, 1:].sum((0, 1))
        transition, state_noise = self.transition, self.state_noise
        if means.shape[1] > 1:
            transition = np.linalg.solve(before.T, later.T).T
            state_noise = symmetric((after - transition @ later.T) / (len(means) * (means.shape[1] - 1)))
        first = means[:, 0].mean(0)
        spread = means[:, 0] - first
        covariance = symmetric(covariances[:, 0].mean(0) + spread.T @ spread / len(spread))
        model = KalmanModel(transition, observation, state_noise, observation_noise, first, covariance)
        return model, float(filtered.log_likelihood.sum())

    def forecast(self, values: Floats, steps: int = 1) -> tuple[Floats, Floats]:
        """The means (B, n, p) and covariances (B, n, p, p) of the next n values after series (B, T, p)."""
        missing = np.full((len(values), steps, values.shape[2]), np.nan)
        filtered = self.filter(np.concatenate([values, missing], 1))
        spreads = self.observation @ filtered.covariances[:, -steps:] @ self.observation.T + self.observation_noise
        return filtered.means[:, -steps:] @ self.observation.T, spreads


def known_steps(values: Floats) -> Bools:
    """(B, T), True where no value is missing."""
    return np.asarray(~np.isnan(values).any(axis=2))


def symmetric(matrix: Floats) -> Floats:
    """The symmetric part, a little above singular."""
    return np.asarray((matrix + matrix.T) / 2 + 1e-9 * np.eye(len(matrix)))


@dataclass(frozen=True)
class KalmanConfig:
    """A linear-Gaussian state-space model, learned by EM: forecasts the next value of a series."""

    kind: ClassVar[str] = "kalman"
    fitted: ClassVar[bool] = True
    states: Annotated[int, Range(1, 32)] = setting(4, help="numbers in the hidden state")
    iterations: Annotated[int, Range(1)] = setting(30, help="EM iterations")


class KalmanRegressor(FittedLabeler):
    """The next value of a series of numbers."""

    def __init__(self, config: KalmanConfig, channels: int = 1, steps: int = 1) -> None:
        """For series with this many values in a step, and forecasts of so many steps."""
        super().__init__()
        self.config, self.channels, self.steps = config, channels, steps
        self.model: KalmanModel | None = None

    def tensor_specs(self) -> dict[str, TensorSpec]:
        states, channels = self.config.states, self.channels
        square = (states, states)
        shapes = (square, (channels, states), square, (channels, channels), (states,), square)
        return {name: TensorSpec(np.float64, shape) for name, shape in zip(NAMES, shapes, strict=True)}

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        count = len(corpus.train)
        rows = np.unique(np.linspace(0, count - 1, min(count, MAX_SERIES)).astype(np.int64))
        pairs = zip(corpus.train.source.rows(rows), corpus.train.target.rows(rows), strict=True)
        series = [np.concatenate([left, right]).astype(np.float64).reshape(-1, self.channels) for left, right in pairs]
        return self.fit_series(series, note)

    def fit_series(self, series: list[Floats], note: Note = lambda doing, count: None) -> list[float]:
        """Fit to series (T, p) in memory; shorter ones get missing values in front."""
        width = self.channels
        values = np.full((len(series), max(map(len, series)), width), np.nan)
        for row, steps in zip(values, series, strict=True):
            row[len(row) - len(steps) :] = np.reshape(steps, (-1, width))
        values[~np.isfinite(values)] = np.nan
        size = self.config.states
        generator = np.random.default_rng(1)
        model = KalmanModel(
            0.9 * np.eye(size) + 0.1 * np.eye(size, k=1),
            np.ones((width, size)) / size + 0.1 * generator.random((width, size)),
            0.1 * np.eye(size), 0.1 * np.eye(width), np.zeros(size), np.eye(size),
        )  # fmt: skip
        losses = []
        known = int((~np.isnan(values)).sum())
        for iteration in range(self.config.iterations):
            note("fitting the state-space model", iteration + 1)
            model, likelihood = model.em(values)
            losses.append(-likelihood / known)
        self.store({name: getattr(model, name) for name in NAMES})
        return losses

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        self.model = KalmanModel(*(tensors[name] for name in NAMES))

    def rows(self, batch: Batch) -> tuple[Rows, Rows]:
        sources = batch.source.data.flatten(1).cpu().numpy()  # (B, S · p)
        lengths = batch.source.mask.sum(1).tolist()
        rows = [row[: length * self.channels] for row, length in zip(sources, lengths, strict=True)]
        return rows, list(batch.target.cpu().numpy())

    def forecasts(self, sources: Rows) -> Floats:
        """The next values (B, n·p) of series; a missing value is NaN."""
        assert self.model is not None
        series = [np.asarray(row, np.float32).astype(np.float64).reshape(-1, self.channels) for row in sources]
        lengths = np.array([len(steps) for steps in series])
        out = np.zeros((len(series), self.steps * self.channels))
        for length in np.unique(lengths):  # a series starts with its own first value: rows are filtered by length
            rows = np.flatnonzero(lengths == length)
            values = np.stack([series[row] for row in rows])
            values = self.model.forecast(np.where(np.isfinite(values), values, np.nan), self.steps)[0]
            out[rows] = values.reshape(len(rows), -1)
        return out

    def errors(self, sources: Rows, targets: Rows) -> Floats:
        """Forecasts minus targets (B, n·p)."""
        return self.forecasts(sources) - np.stack([np.asarray(row, np.float32) for row in targets])

    def predict_rows(self, sources: Rows, targets: Rows | None) -> LabelOutput:
        values = self.forecasts(sources)
        return LabelOutput(values, None, np.ones(values.shape, np.bool_))

    def total_loss(self, sources: Rows, targets: Rows) -> tuple[float, int]:
        errors = self.errors(sources, targets)
        return float(np.square(errors).sum()), errors.size

    def score(self, batch: Batch) -> TokenScores:
        import torch

        from dragoman.models import TokenScores

        squares = torch.from_numpy(-np.square(self.errors(*self.rows(batch)))).to(batch.source.device)
        return TokenScores(squares, torch.zeros_like(squares).bool(), torch.ones_like(squares).bool())
