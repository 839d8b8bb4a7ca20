"""Views of models without gradients: phrase-based search, the tables of word aligners, Kalman estimates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dragoman.analysis.phrase_search import phrase_search
from dragoman.analysis.subject import Subject
from dragoman.classical.aligner import WordAlignerModel
from dragoman.classical.hmm_alignment import JUMPS
from dragoman.classical.kalman import KalmanRegressor
from dragoman.classical.model import rows_of
from dragoman.classical.phrase_based import PhraseBased
from dragoman.inference.predictor import Predictor
from dragoman.reports.view import View

TRANSLATIONS = 8  # shown of a word
NULL = "(empty word)"


def phrase_view(subject: Subject, beam: int | None) -> Iterator[View]:
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, PhraseBased) or not isinstance(loaded, Predictor) or subject.source is None:
        return
    source = rows_of(subject.batch.source.data)[0]
    tokenizer = loaded.codec.target_of(subject.source.text)
    yield View(
        "phrases",
        "Phrases",
        "The source is cut into phrases, each is translated, and the translations are ordered. A score is a weighted "
        "sum of logarithms: as in the noisy channel, p(s|t) says how well the source fits and the language model how "
        "well the target reads.",
        {"source": list(subject.source.tokens), **phrase_search(model, source, tokenizer.pieces)},
    )


def lexicon_view(subject: Subject, beam: int | None) -> Iterator[View]:
    """What a word aligner learned about the words of the source."""
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, WordAlignerModel) or not isinstance(loaded, Predictor) or subject.source is None:
        return
    aligner, pieces = model.both.forward, loaded.codec.target_of(subject.source.text).pieces
    source = rows_of(subject.batch.source.data)[0]
    targets = aligner.keys % (aligner.sizes[1] + 1)
    words = []
    for name, token in [(NULL, 0), *dict(zip(subject.source.tokens, source, strict=False)).items()]:
        number = int(model.folded[0][token]) if token else 0
        own = np.flatnonzero(aligner.owners == number)
        own = own[np.argsort(-aligner.table[own], kind="stable")[:TRANSLATIONS]]
        word: dict[str, Any] = {
            "word": name, "targets": pieces(targets[own].tolist()), "probabilities": aligner.table[own].tolist(),
            "fertility": None,
        }  # fmt: skip
        if model.config.method == "ibm3" and token:
            word["fertility"] = aligner.fertility.fertility[number].tolist()
        words.append(word)
    jumps = aligner.jumps / aligner.jumps.sum() if model.config.method == "hmm" else None
    yield View(
        "lexicon",
        "Translations",
        "t(target | source) says how probable each target word is as the translation of a source word. Words without a "
        "partner come from the empty word.",
        {"words": words, "jumps": None if jumps is None else jumps.tolist(), "furthest": JUMPS},
    )


def series_view(subject: Subject, beam: int | None) -> Iterator[View]:
    """What a Kalman filter knows at every step, in the units of the data."""
    model = subject.model
    if not isinstance(model, KalmanRegressor):
        return
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
    yield View(
        "series",
        "Estimates",
        "The filter predicts each value from those before it, then corrects its estimate by the value itself; the "
        "smoother also uses all later values. Bands hold 95 % of the probability; those of predictions include the "
        "noise of the measurement, and behind the last value they are the forecast.",
        {"values": (values[0] * deviation + mean).T.tolist(), "known": steps, "curves": curves},
    )
