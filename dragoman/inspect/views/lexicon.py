"""What a word aligner learned about the words of the source."""

from __future__ import annotations

from typing import Any

import numpy as np

from dragoman.classical import JUMPS, WordAlignerModel, rows_of
from dragoman.inference import Predictor
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View

TRANSLATIONS = 8  # shown of a word


NULL = "(empty word)"


def lexicon_view(subject: Subject) -> View | None:
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, WordAlignerModel) or not isinstance(loaded, Predictor) or subject.source is None:
        return None
    aligner, pieces = model.both.forward, subject.pieces
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
    return View(
        "lexicon",
        "Translations",
        "t(target | source) says how probable each target word is as the translation of a source word. Words without a "
        "partner come from the empty word.",
        {"words": words, "jumps": None if jumps is None else jumps.tolist(), "furthest": JUMPS},
    )
