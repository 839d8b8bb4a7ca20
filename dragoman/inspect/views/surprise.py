"""How many bits a language model needs for every token of a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dragoman.inference import Completer
from dragoman.inspect.views.figures import bars
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View


def surprise_view(subject: Subject) -> View | None:
    if not isinstance(subject.loaded, Completer):
        return None
    with torch.no_grad():
        bits = -subject.log_probabilities().float().cpu() / np.log(2)
    return View(
        "surprise",
        "Surprise",
        "The surprise of a token is −log₂ of its probability: how many bits the model needs for it. Tokens that the "
        "model expects cost almost nothing, names and turns of the text cost most.",
        {"bits": bits, "target": subject.target.as_dict()},
    )


def draw_surprise(view: View, layer: str | None) -> Any:
    tokens = view.data["target"]["tokens"]
    return bars(tokens[:80], view.data["bits"][:80].tolist(), view.title, "bits")
