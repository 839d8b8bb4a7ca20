"""The search of a phrase-based model for one source: its phrases, their scores, the stacks and the lattice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dragoman.classical import FEATURES, MAX_TOKENS, Derivation, PhraseBased, PhraseDecoder, Tokens, rows_of
from dragoman.inference import Predictor
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View

SHOWN = 8  # hypotheses of a stack, and translations of a span
Pieces = Callable[[Sequence[int]], list[str]]


def phrase_search(model: PhraseBased, source: Tokens, pieces: Pieces) -> dict[str, Any]:
    """The best derivation of a source with the terms of its score, and the search that found it.

    A hypothesis of the lattice has its number, that of its parent, the source tokens that it covers, and its phrase.
    """
    source = source[:MAX_TOKENS]
    weights = model.tensors["weights"]
    decoder, options = model.decoder(weights, 0), model.options(source)
    best = decoder.translate(len(source), options)[0]
    features = np.concatenate([stack.features for stack in decoder.stacks])[list(best.hypotheses)]
    # The language model scores <eos> after the last phrase.
    own = np.diff(np.concatenate([features, best.features[None]]), axis=0)

    def text(option: int) -> list[str]:
        return pieces([token for token in options.targets[option].tolist() if token >= 0])

    phrases = [
        {"start": int(options.starts[option]), "end": int(options.ends[option]), "target": text(option)}
        for option in best.phrases
    ]
    return {
        "features": list(FEATURES),
        "weights": weights.tolist(),
        "phrases": [*phrases, {"start": len(source), "end": len(source), "target": ["<eos>"]}],
        "values": own.tolist(),  # of every phrase and of <eos>: (phrases + 1, features)
        "score": best.score,
        "options": _options(decoder, text, best),
        "stacks": _stacks(decoder, text, best),
    }


def _options(decoder: PhraseDecoder, text: Callable[[int], list[str]], best: Derivation) -> list[dict[str, Any]]:
    """The best translations of every span, as they are ranked before the search."""
    options, spans = decoder.options, dict[tuple[int, int], list[int]]()
    for option in np.argsort(-decoder.estimates, kind="stable").tolist():
        spans.setdefault((int(options.starts[option]), int(options.ends[option])), []).append(option)
    return [
        {"start": start, "end": end, "target": text(option), "estimate": float(decoder.estimates[option]),
         "used": option in best.phrases}
        for (start, end), own in sorted(spans.items())
        for option in own[:SHOWN]
    ]  # fmt: skip


def _stacks(decoder: PhraseDecoder, text: Callable[[int], list[str]], best: Derivation) -> list[dict[str, Any]]:
    stacks, first = [], 0
    for stack, generated in zip(decoder.stacks, decoder.generated, strict=True):
        path = {number - first for number in best.hypotheses}
        shown = [row for row in range(len(stack.scores)) if row < SHOWN or row in path]
        stacks.append(
            {
                "covered": int(np.bitwise_count(stack.covered[0])),
                "generated": generated,
                "kept": len(stack.scores),
                "hypotheses": [
                    {
                        "number": first + row,
                        "parent": int(stack.parents[row]),
                        "covers": [place for place in range(decoder.length) if int(stack.covered[row]) >> place & 1],
                        "phrase": text(int(stack.options[row])) if stack.options[row] >= 0 else [],
                        "score": float(stack.scores[row]),
                        "future": float(stack.future[row]),
                        "best": row in path,
                    }
                    for row in shown
                ],
            }
        )
        first += len(stack.scores)
    return stacks


def phrases_view(subject: Subject) -> View | None:
    model, loaded = subject.model, subject.loaded
    if not isinstance(model, PhraseBased) or not isinstance(loaded, Predictor) or subject.source is None:
        return None
    source = rows_of(subject.batch.source.data)[0]
    return View(
        "phrases",
        "Phrases",
        "The source is cut into phrases, each is translated, and the translations are ordered. A score is a weighted "
        "sum of logarithms: as in the noisy channel, p(s|t) says how well the source fits and the language model how "
        "well the target reads.",
        {"source": list(subject.source.tokens), **phrase_search(model, source, subject.pieces)},
    )
