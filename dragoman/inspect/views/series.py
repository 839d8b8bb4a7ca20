"""What a Kalman filter knows at every step of a series, in the units of the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from dragoman.classical import KalmanRegressor
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View


def series_view(subject: Subject) -> View | None:
    model = subject.model
    if not isinstance(model, KalmanRegressor):
        return None
    assert model.model is not None
    values = subject.batch.source.data.double().cpu().numpy()
    values = np.where(np.isfinite(values), values, np.nan).reshape(1, -1, model.channels)
    kalman, steps = model.model, values.shape[1]
    ahead = np.concatenate([values, np.full((1, model.steps, model.channels), np.nan)], 1)
    filtered = kalman.filter(ahead)
    smoothed = kalman.smooth(filtered)
    seen = {
        "predicted": (filtered.predicted_means, filtered.predicted_covariances),
        "filtered": (filtered.means, filtered.covariances),
        "smoothed": (smoothed.means, smoothed.covariances),
    }
    reader: Any = subject.loaded.source_tokenizer
    mean, deviation = np.array(reader.shift), np.array(reader.scale)
    curves = {}
    for name, (means, spreads) in seen.items():
        own = kalman.observation @ spreads[0] @ kalman.observation.T  # (T, p, p), of the value without noise
        if name == "predicted":
            own = own + kalman.observation_noise
        centre = means[0] @ kalman.observation.T * deviation + mean
        wide = 1.96 * np.sqrt(np.maximum(np.einsum("tpp->tp", own), 0)) * deviation
        curves[name] = np.stack([centre, centre - wide, centre + wide], 2).transpose(1, 0, 2).tolist()  # (p, T, 3)
    return View(
        "series",
        "Estimates",
        "The filter predicts each value from those before it, then corrects its estimate by the value itself; the "
        "smoother also uses all later values. Bands hold 95 % of the probability; those of predictions include the "
        "noise of the measurement, and behind the last value they are the forecast.",
        {"values": (values[0] * deviation + mean).T.tolist(), "known": steps, "curves": curves},
    )
