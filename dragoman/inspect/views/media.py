"""The view of a recording, a picture or a video: what the model reads, and where its outputs lie."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch

from dragoman.data import Pictures
from dragoman.data.media import VideoConfig
from dragoman.inference import Completer, Predictor
from dragoman.inspect.views.ctc import ctc_log_probabilities
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import Tagger
from dragoman.models.encoders import PatchesEncoder

FRAMES = 48  # of a video in a page; of longer ones some, evenly


@torch.no_grad()
def media_view(subject: Subject) -> View | None:
    loaded, source = subject.loaded, subject.batch.source
    if isinstance(loaded, Completer) or not loaded.reads_files:
        return None
    config, features = loaded.extractor.config, source.data[0].float()
    data: dict[str, Any] = {
        "features": features,
        "picture": isinstance(source, Pictures),
        "patches": isinstance(subject.encoder, PatchesEncoder),
        "video": None,
        "seconds": getattr(config, "hop", None),  # of one frame
        "target": subject.target.as_dict(),
        "emissions": None,
        "bands": _bands(subject),
    }
    if isinstance(config, VideoConfig):
        kept = torch.linspace(0, len(features) - 1, min(FRAMES, len(features))).round().long()
        data |= {"features": features[kept], "video": {"frames": kept.tolist(), "count": len(features)}}
    if isinstance(loaded, Predictor) and (logs := ctc_log_probabilities(subject)) is not None:
        probabilities, tokens = logs.exp().topk(3, 1)
        pieces = [
            ["blank" if token == 0 else loaded.target_tokenizer.pieces([token])[0] for token in row]
            for row in tokens.tolist()
        ]
        data["emissions"] = {"probabilities": probabilities, "pieces": pieces}
    reads = "the energy of a recording by frequency and time"
    if data["picture"] or data["video"]:
        reads = "pixels" if data["picture"] else "the frames of a video"
    where = "Below it, the output stands where the model found it."
    if data["picture"]:
        where = "The brighter a region, the more the model looks there for one token of the output."
    return View("media", "Input", f"The picture shows what the model reads: {reads}. {where}", data)


def _bands(subject: Subject) -> list[dict[str, Any]] | None:
    """The tags of frames as bands: neighbours with one tag together."""
    model = subject.model
    if not isinstance(model, Tagger):
        return None
    predicted = model.predict(subject.batch)
    assert predicted.probabilities is not None
    tags, sure = subject.batch.target[0, 0].tolist(), predicted.probabilities[0].float()  # (T, labels)
    bands, start = [], 0
    for tag, frames in groupby(tags):
        end = start + len(list(frames))
        name = subject.loaded.target_tokenizer.pieces([tag])[0]
        bands.append({"label": name, "start": start, "end": end, "probability": float(sure[start:end, tag].mean())})
        start = end
    return bands
