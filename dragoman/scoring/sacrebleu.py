"""BLEU, chrF, chrF++ and TER: sacreBLEU counts the statistics; they are combined here for many sums at once."""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from dragoman.base import DataError, MissingExtraError
from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric, as_rows, ratio

MAX_ORDER = 4  # longest n-gram of BLEU
CHRF_ORDER = 6  # longest n-gram of characters
CHRF_BETA = 2.0  # recall counts twice as much as precision


def _counted(metric: Any, hypotheses: Sequence[str], references: References) -> Statistics:
    # The first reference of every segment, the second, …; sacreBLEU drops every None, where a segment has fewer.
    streams = list(zip_longest(*references))
    # sacreBLEU has no public function for its statistics; its own significance tests call this one.
    rows = metric._extract_corpus_statistics(list(hypotheses), streams)
    return Statistics(as_rows(rows), str(metric.get_signature()))


# Functions import sacreBLEU when called: importing it takes longer than importing the rest of scoring/.


def count_bleu(hypotheses: Sequence[str], references: References, tokenizer: str | None = None) -> Statistics:
    """Hypothesis and reference length, then clipped matches and totals of 1- to 4-grams.

    Without a tokenizer it is sacreBLEU's 13a, or `char` for references in a script without spaces, whose sentences
    would be single words. The signature names it.
    """
    # `force` only silences the warning about outputs that look tokenised.
    return _counted(_bleu(tokenizer, references, force=True), hypotheses, references)


def _bleu(tokenizer: str | None, references: References, **options: Any) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    tokenizer = tokenizer or ("char" if without_spaces(references) else None)
    try:
        return BLEU(tokenize=tokenizer, **options)
    except RuntimeError as error:  # sacreBLEU's several lines about a package
        if tokenizer in PACKAGES:
            raise MissingExtraError(f"bleu-{tokenizer}", *PACKAGES[tokenizer]) from error
        raise
    except OSError as error:
        raise DataError(
            f"bleu-{tokenizer}: sacreBLEU downloads the model of this tokenizer when it is first used, which failed "
            f"({getattr(error, 'reason', error)}); try again with a network, or take another metric, such as bleu-intl"
        ) from error


# Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, Han; compiled when it is first needed, which takes 10 ms
SPACELESS = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"


def without_spaces(references: References) -> bool:
    """Whether most letters of the references are of scripts that put no spaces between words."""
    text = "".join(texts[0] for texts in references[:1000] if texts)
    return 2 * len(re.findall(SPACELESS, text)) > sum(character.isalnum() for character in text) > 0


def smoothed_precisions(matches: FloatArray, totals: FloatArray) -> FloatArray:
    """The precision of each order, with exponential smoothing of empty matches (Chen and Cherry 2014, method 3)."""
    halvings = 2.0 ** np.cumsum(matches == 0, axis=-1)
    return np.asarray(np.where(matches > 0, matches, 1 / halvings) / np.maximum(totals, 1))


def combine_bleu(sums: FloatArray) -> FloatArray:
    """BLEU (Papineni et al. 2002)."""
    hypothesis_length, reference_length = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + MAX_ORDER], sums[..., 2 + MAX_ORDER :]
    precisions = smoothed_precisions(matches, totals)
    brevity = np.minimum(0.0, 1 - reference_length / np.maximum(hypothesis_length, 1))  # log of the brevity penalty
    score = 100 * np.exp(brevity + np.log(precisions).mean(axis=-1))
    return np.where((matches > 0).any(axis=-1) & (totals > 0).all(axis=-1), score, 0.0)


def bleu_terms(sums: FloatArray) -> dict[str, Any]:
    """What BLEU is made of, from summed statistics: the precision of each order is smoothed where nothing matches."""
    output, reference = int(sums[0]), int(sums[1])
    matches, totals = sums[2 : 2 + MAX_ORDER], sums[2 + MAX_ORDER :]
    precisions = smoothed_precisions(matches, totals)
    return {
        "precisions": np.where((totals > 0) & (matches > 0).any(), precisions, 0.0).tolist(),
        "matches": matches.astype(int).tolist(),
        "totals": totals.astype(int).tolist(),
        "brevity_penalty": math.exp(min(0.0, 1 - reference / output)) if output else float(not reference),
        "output_length": output,
        "reference_length": reference,
    }


def bleu_costs(hypotheses: Sequence[str], references: References, tokenizer: str | None = None) -> list[float]:
    """1 − sentence BLEU; effective order, because a segment shorter than four words has no 4-grams to match."""
    metric = _bleu(tokenizer, references, effective_order=True)
    pairs = zip(hypotheses, references, strict=True)
    return [1.0 - metric.sentence_score(hypothesis, list(texts)).score / 100 for hypothesis, texts in pairs]


def bleu_apart(hypotheses: Sequence[str], references: References, tokenizer: str | None = None) -> dict[str, Any]:
    """The terms of BLEU, and for every segment which of its n-grams match.

    `matched[n - 1][i]` says whether the n-gram that begins at token i counts as a match. An n-gram counts as often as
    in the reference that has most of it (clipping): of too many occurrences the first ones count.
    """
    metric = _bleu(tokenizer, references, force=True)
    segments = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        tokens, *others = (metric._preprocess_segment(text).split() for text in (hypothesis, *texts))
        matched = []
        for order in range(1, MAX_ORDER + 1):
            allowed: Counter[tuple[str, ...]] = Counter()
            for other in others:
                allowed |= Counter(zip(*(other[start:] for start in range(order)), strict=False))
            found = []
            for ngram in zip(*(tokens[start:] for start in range(order)), strict=False):
                found.append(allowed[ngram] > 0)
                allowed[ngram] -= 1
            matched.append(found)
        segments.append({"tokens": tokens, "matched": matched})
    sums = _counted(metric, hypotheses, references).rows.sum(axis=0)
    return {"score": float(combine_bleu(sums)), **bleu_terms(sums), "segments": segments}


def counter(name: str, **options: Any) -> Callable[[Sequence[str], References], Statistics]:

    def count(hypotheses: Sequence[str], references: References) -> Statistics:
        module = importlib.import_module(f"sacrebleu.metrics.{name.lower()}")
        return _counted(getattr(module, name)(**options), hypotheses, references)

    return count


def chrf(in_hypothesis: FloatArray, in_reference: FloatArray, matches: FloatArray) -> FloatArray:
    """F₂ of mean precision and mean recall over the orders that occur, from n-grams of each order (..., orders)."""
    occurring = (in_hypothesis > 0) & (in_reference > 0)
    orders = occurring.sum(axis=-1)
    precision = ratio((ratio(matches, in_hypothesis) * occurring).sum(axis=-1), orders)
    recall = ratio((ratio(matches, in_reference) * occurring).sum(axis=-1), orders)
    factor = CHRF_BETA**2
    return ratio((1 + factor) * precision * recall, factor * precision + recall)


def combine_chrf(sums: FloatArray) -> FloatArray:
    """chrF and chrF++ (Popović 2015, 2017) of n-grams of the hypothesis, of the best reference, and matches."""
    return 100 * chrf(sums[..., 0::3], sums[..., 1::3], sums[..., 2::3])


def pairwise_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> FloatArray:
    """1 − chrF of each pair: (H, R). sacreBLEU's sentence_score would count the n-grams of a text for every pair."""
    texts = ["".join(text.split()) for text in (*hypotheses, *references)]
    shape = (len(hypotheses), len(references), CHRF_ORDER)
    in_hypothesis, in_reference, matches = np.zeros((3, *shape))
    for order in range(CHRF_ORDER):
        rows = [Counter(text[start : start + order + 1] for start in range(len(text) - order)) for text in texts]
        index = {ngram: number for number, ngram in enumerate(set().union(*rows))}
        counts = np.zeros((len(rows), len(index)))
        for row, own in zip(counts, rows, strict=True):
            row[[index[ngram] for ngram in own]] = list(own.values())
        left, right = counts[: len(hypotheses)], counts[len(hypotheses) :]  # (H, n-grams), (R, n-grams)
        in_hypothesis[..., order], in_reference[..., order] = left.sum(1)[:, None], right.sum(1)[None]
        for number, row in enumerate(left):  # all pairs at once would take (H, R, n-grams) numbers
            matches[number, :, order] = np.minimum(row, right).sum(1)
    return np.asarray(1.0 - chrf(in_hypothesis, in_reference, matches))


def combine_ter(sums: FloatArray) -> FloatArray:
    """TER (Snover et al. 2006) as a percentage, which may exceed 100; sums are edits and mean reference lengths."""
    edits, lengths = sums[..., 0], sums[..., 1]
    return 100 * np.where(lengths > 0, ratio(edits, lengths), np.where(edits > 0, 1.0, 0.0))


# sacreBLEU's tokenizers, what they count, and what they need beside sacreBLEU.
BLEU_TOKENIZERS = {
    "char": ("characters", ""),
    "zh": ("Chinese characters and words", ""),
    "intl": ("words by Unicode punctuation", ""),
    "none": ("words between spaces", ""),
    "ja-mecab": ("Japanese words by MeCab", "a package"),
    "ko-mecab": ("Korean words by MeCab", "a package"),
    "flores101": ("sub-words of FLORES-101 (spBLEU)", "a download"),
    "flores200": ("sub-words of FLORES-200 (spBLEU)", "a download"),
}
PACKAGES = {"ja-mecab": ("sacrebleu[ja]",), "ko-mecab": ("sacrebleu[ko]",)}
points = partial(TextMetric, percent=False)  # from 0 to 100 already
bleu = partial(points, combine=combine_bleu, terms=bleu_terms)
chrf_metric = partial(points, combine=combine_chrf)
METRICS = (
    bleu(
        "bleu",
        "BLEU",
        "word 1- to 4-gram precision with a brevity penalty",
        count=count_bleu,
        sentence_costs=bleu_costs,
        apart=bleu_apart,
    ),
    *(
        bleu(
            f"bleu-{tokenizer}",
            f"BLEU ({tokenizer})",
            f"BLEU over {about}",
            count=partial(count_bleu, tokenizer=tokenizer),
            sentence_costs=partial(bleu_costs, tokenizer=tokenizer),
            apart=partial(bleu_apart, tokenizer=tokenizer),
            needs=needs,
        )
        for tokenizer, (about, needs) in BLEU_TOKENIZERS.items()
    ),
    chrf_metric("chrf", "chrF", "F₂ of character 1- to 6-grams", count=counter("CHRF"), pairwise=pairwise_chrf),
    chrf_metric("chrf++", "chrF++", "chrF with word 1- and 2-grams", count=counter("CHRF", word_order=2)),
    points(
        "ter",
        "TER",
        "edits and block shifts per reference word",
        higher_is_better=False,
        count=counter("TER"),
        combine=combine_ter,
    ),
)
