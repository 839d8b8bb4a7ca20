"""The probabilities of labels and tags, with the emissions and transitions of a CRF or an HMM."""

from __future__ import annotations

from typing import Any

import torch

from dragoman.classical import HMMTagger
from dragoman.inference import Completer, Predictor
from dragoman.inspect.views.figures import INK, heat
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import Classifier, Tagger


@torch.no_grad()
def labels_view(subject: Subject) -> View | None:
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, Tagger | Classifier | HMMTagger) or isinstance(loaded, Predictor | Completer):
        return None
    predicted = model.predict(subject.batch)
    assert predicted.probabilities is not None
    words = ("label",) if isinstance(model, Classifier) else subject.target.tokens
    chain = model.chain if isinstance(model, Tagger) else None
    emissions = model.outputs(subject.batch)[0][0] if isinstance(model, Tagger) else None
    if isinstance(model, HMMTagger):
        emissions = torch.from_numpy(model.lattice(*model.rows(subject.batch))[0][0])
    data: dict[str, Any] = {
        "labels": list(loaded.labels),
        "rows": list(words),
        "probabilities": predicted.probabilities[0].float(),
        "values": predicted.values[0].tolist(),
        "emissions": emissions,
        "transitions": None if chain is None else chain.transitions,
    }
    return View(
        "labels",
        "Labels",
        "The bars are the probabilities of the labels. For tags, emissions score each word alone and transitions score "
        "which tag follows which; the chosen sequence has the best sum.",
        data,
    )


def draw_labels(view: View, layer: str | None) -> Any:
    drawing, axes = heat(view.data["probabilities"], view.data["rows"], view.data["labels"], "probability")
    axes.set_xlabel("label", color=INK)
    return drawing
