"""BLEU, chrF, chrF++ and TER (FIELD I3): counted by sacreBLEU, combined here for many sums at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from dragoman.scoring.metric import Numbers, References, Statistics, as_rows, ratio

ORDERS = 4  # n-grams of BLEU
RECALL_WEIGHT = 2.0  # β of chrF: recall counts twice as much as precision


def reference_streams(references: References) -> list[list[str]]:
    """References by rank, as sacreBLEU takes them: None where a segment has fewer than the others."""
    most = max(len(texts) for texts in references)
    streams = [[texts[rank] if rank < len(texts) else None for texts in references] for rank in range(most)]
    # sacreBLEU drops every None before it counts, though its annotations do not say so.
    return cast(list[list[str]], streams)


def _counted(metric: Any, hypotheses: Sequence[str], references: References) -> Statistics:
    # The counts have no public door in sacreBLEU; its own significance tests read them through this one.
    rows = metric._extract_corpus_statistics(list(hypotheses), reference_streams(references))
    return Statistics(as_rows(rows), str(metric.get_signature()))


# sacreBLEU is imported where it is used: it costs more to import than the rest of the package's scoring together.


def count_bleu(hypotheses: Sequence[str], references: References) -> Statistics:
    """Hypothesis and reference length, then clipped matches and totals of 1- to 4-grams."""
    from sacrebleu.metrics.bleu import BLEU

    # force only silences the warning about outputs that look tokenised
    return _counted(BLEU(force=True), hypotheses, references)


def combine_bleu(sums: Numbers) -> Numbers:
    """BLEU (Papineni et al. 2002) with exponential smoothing of empty matches (Chen and Cherry 2014, method 3)."""
    written, expected = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    halvings = 2.0 ** np.cumsum(matches == 0, axis=-1)
    precisions = np.where(matches > 0, matches, 1 / halvings) / np.maximum(totals, 1)
    exponent = np.minimum(0.0, 1 - expected / np.maximum(written, 1))  # brevity penalty
    score = 100 * np.exp(exponent + np.log(precisions).mean(axis=-1))
    return np.where((matches > 0).any(axis=-1) & (totals > 0).all(axis=-1), score, 0.0)


def count_chrf(hypotheses: Sequence[str], references: References) -> Statistics:
    """Of 1- to 6-grams of characters: how many were written, expected and matched, against the best reference."""
    from sacrebleu.metrics.chrf import CHRF

    return _counted(CHRF(), hypotheses, references)


def count_chrf_words(hypotheses: Sequence[str], references: References) -> Statistics:
    """As chrF counts, and of 1- and 2-grams of words too."""
    from sacrebleu.metrics.chrf import CHRF

    return _counted(CHRF(word_order=2), hypotheses, references)


def combine_chrf(sums: Numbers) -> Numbers:
    """chrF and chrF++ (Popović 2015, 2017): F₂ of precision and recall, each the mean over orders that occur."""
    written, expected, matches = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    occurring = (written > 0) & (expected > 0)
    orders = occurring.sum(axis=-1)
    precision = ratio((ratio(matches, written) * occurring).sum(axis=-1), orders)
    recall = ratio((ratio(matches, expected) * occurring).sum(axis=-1), orders)
    factor = RECALL_WEIGHT**2
    return 100 * ratio((1 + factor) * precision * recall, factor * precision + recall)


def count_ter(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and shifts of blocks to the closest reference, and the mean length of the references."""
    from sacrebleu.metrics.ter import TER

    return _counted(TER(), hypotheses, references)


def combine_ter(sums: Numbers) -> Numbers:
    """TER (Snover et al. 2006) as a percentage, which may exceed 100; lower is better."""
    edits, lengths = sums[..., 0], sums[..., 1]
    return 100 * np.where(lengths > 0, ratio(edits, lengths), np.where(edits > 0, 1.0, 0.0))
