"""F0.5 of corrections: the metric of grammatical error correction, normalisation and post-editing.

The edits from a source to an output are compared with the edits from the source to a reference. Copying the source has
a high BLEU and no edit, so its F0.5 is 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from dragoman.scoring.edit import align_edits
from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric, as_rows, signature

Edit = tuple[
    int, int, tuple[str, ...]
]  # the first token of the source that is replaced, the one after the last, by what

BETA = 0.5  # a wrong correction weighs twice as much as a missing one (Ng et al. 2014)
TOKENS = re.compile(r"\w+(?:[-'’ʼ]\w+)*|[^\w\s]")  # words, and every punctuation mark by itself


def edits(source: str, target: str) -> set[Edit]:
    """The edits of a cheapest alignment; neighbours are one edit, as with ERRANT's `-lev -merge all-merge`."""
    found: list[Edit] = []
    place, open_edit = 0, False
    for kind, _, right in align_edits(TOKENS.findall(source), TOKENS.findall(target)).operations:
        if kind == "equal":
            open_edit = False
        else:
            start, _, words = found.pop() if open_edit else (place, place, ())
            found.append((start, place + (kind != "insert"), words if kind == "delete" else (*words, str(right))))
            open_edit = True
        place += kind != "insert"
    return set(found)


def f_score(sums: FloatArray, beta: float = BETA) -> FloatArray:
    """F of (right, wrong, missing) edits; 1 where there was nothing to correct and nothing was changed."""
    right, wrong, missing = (sums[..., column] for column in range(3))
    weighted = (1 + beta**2) * right
    whole = weighted + wrong + beta**2 * missing
    return np.asarray(np.where(whole > 0, weighted / np.where(whole > 0, whole, 1.0), 1.0))


def count_corrections(hypotheses: Sequence[str], references: References, sources: Sequence[str]) -> Statistics:
    """Right, wrong and missing edits against the reference of a segment that gives the highest F0.5."""
    rows = []
    for source, hypothesis, texts in zip(sources, hypotheses, references, strict=True):
        own = edits(source, hypothesis)
        truths = [edits(source, text) for text in texts]
        counts = as_rows([(len(own & truth), len(own - truth), len(truth - own)) for truth in truths])
        # Of equally good references the one with more right edits, then with fewer wrong and missing ones.
        order = np.lexsort((-counts[:, 2], -counts[:, 1], counts[:, 0], f_score(counts)))
        rows.append(counts[order[-1]])
    properties = {"case": "mixed", "tok": "words-and-marks", "edits": "levenshtein-merged", "beta": f"{BETA:g}"}
    return Statistics(as_rows(rows), signature(references, **properties))


METRICS = (
    TextMetric(
        "f0.5",
        "edit F0.5",
        "corrections of the source: F0.5 of edits, against those of the reference",
        count=count_corrections,
        combine=partial(f_score, beta=BETA),
        uses_sources=True,
        needs="the sources",
        selects_checkpoints=False,
        has_segment_costs=False,
    ),
)
