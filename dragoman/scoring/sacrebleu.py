"""BLEU, chrF, chrF++ and TER: sacreBLEU counts the statistics; they are combined here for many sums at once."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from dragoman.errors import DataError, MissingExtraError
from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric, as_rows, ratio

MAX_ORDER = 4  # longest n-gram of BLEU
CHRF_ORDER = 6  # longest n-gram of characters
CHRF_BETA = 2.0  # recall counts twice as much as precision


def reference_streams(references: References) -> list[list[str]]:
    """References as sacreBLEU takes them: the first of every segment, the second, …; None where there are fewer."""
    streams = list(zip_longest(*references))
    # sacreBLEU drops every None before it counts, though its annotations do not say so.
    return cast(list[list[str]], streams)


def _counted(metric: Any, hypotheses: Sequence[str], references: References) -> Statistics:
    # sacreBLEU has no public function for its statistics; its own significance tests call this one.
    rows = metric._extract_corpus_statistics(list(hypotheses), reference_streams(references))
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


# Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, Han
SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


def without_spaces(references: References) -> bool:
    """Whether most letters of the references are of scripts that put no spaces between words."""
    text = "".join(texts[0] for texts in references[:1000] if texts)
    return 2 * len(SPACELESS.findall(text)) > sum(character.isalnum() for character in text) > 0


def combine_bleu(sums: FloatArray) -> FloatArray:
    """BLEU (Papineni et al. 2002) with exponential smoothing of empty matches (Chen and Cherry 2014, method 3)."""
    hypothesis_length, reference_length = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + MAX_ORDER], sums[..., 2 + MAX_ORDER :]
    halvings = 2.0 ** np.cumsum(matches == 0, axis=-1)
    precisions = np.where(matches > 0, matches, 1 / halvings) / np.maximum(totals, 1)
    brevity = np.minimum(0.0, 1 - reference_length / np.maximum(hypothesis_length, 1))  # log of the brevity penalty
    score = 100 * np.exp(brevity + np.log(precisions).mean(axis=-1))
    return np.where((matches > 0).any(axis=-1) & (totals > 0).all(axis=-1), score, 0.0)


def bleu_costs(hypotheses: Sequence[str], references: References, tokenizer: str | None = None) -> list[float]:
    """1 − sentence BLEU; effective order, because a segment shorter than four words has no 4-grams to match."""
    metric = _bleu(tokenizer, references, effective_order=True)
    pairs = zip(hypotheses, references, strict=True)
    return [1.0 - metric.sentence_score(hypothesis, list(texts)).score / 100 for hypothesis, texts in pairs]


def counter(name: str, **options: Any) -> Callable[[Sequence[str], References], Statistics]:
    """A function that counts with the sacreBLEU metric of this name."""

    def count(hypotheses: Sequence[str], references: References) -> Statistics:
        module = importlib.import_module(f"sacrebleu.metrics.{name.lower()}")
        return _counted(getattr(module, name)(**options), hypotheses, references)

    return count


def combine_chrf(sums: FloatArray) -> FloatArray:
    """chrF and chrF++ (Popović 2015, 2017): F₂ of mean precision and mean recall over the orders that occur.

    The statistics are n-grams of the hypothesis, of the best reference, and matches, for each order.
    """
    in_hypothesis, in_reference, matches = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    occurring = (in_hypothesis > 0) & (in_reference > 0)
    orders = occurring.sum(axis=-1)
    precision = ratio((ratio(matches, in_hypothesis) * occurring).sum(axis=-1), orders)
    recall = ratio((ratio(matches, in_reference) * occurring).sum(axis=-1), orders)
    factor = CHRF_BETA**2
    return 100 * ratio((1 + factor) * precision * recall, factor * precision + recall)


def pairwise_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> FloatArray:
    """1 − chrF of each pair: (H, R). sacreBLEU's sentence_score would count the n-grams of a text for every pair."""
    precision = np.zeros((len(hypotheses), len(references)))
    recall, orders = np.zeros_like(precision), np.zeros_like(precision)
    for order in range(1, CHRF_ORDER + 1):
        index: dict[str, int] = {}
        counters = [_count_ngrams(texts, order, index) for texts in (hypotheses, references)]
        left, right = (_count_matrix(rows, len(index)) for rows in counters)  # (H, n-grams), (R, n-grams)
        # Row by row: all pairs at once would take (H, R, n-grams) numbers.
        matches = np.array([np.minimum(row, right).sum(1) for row in left]).reshape(precision.shape)
        in_hypothesis, in_reference = left.sum(1)[:, None], right.sum(1)[None]
        both = (in_hypothesis > 0) & (in_reference > 0)  # an order counts where both texts are long enough for it
        precision += np.where(both, matches / np.maximum(in_hypothesis, 1), 0.0)
        recall += np.where(both, matches / np.maximum(in_reference, 1), 0.0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    weight = CHRF_BETA**2
    return np.asarray(1.0 - ratio((1 + weight) * precision * recall, weight * precision + recall))


def _count_ngrams(texts: Sequence[str], order: int, index: dict[str, int]) -> list[Counter[int]]:
    """The n-grams of each text, spaces removed; `index` numbers the n-grams and grows."""
    rows = []
    for text in texts:
        text = "".join(text.split())
        ngrams = (text[start : start + order] for start in range(len(text) - order + 1))
        rows.append(Counter(index.setdefault(ngram, len(index)) for ngram in ngrams))
    return rows


def _count_matrix(rows: Sequence[Counter[int]], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    matrix = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        matrix[number, list(row)] = list(row.values())
    return matrix


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
PACKAGES = {"ja-mecab": ("mecab-python3", "ja"), "ko-mecab": ("sacrebleu[ko]",)}
bleu = partial(TextMetric, percent=False, combine=combine_bleu)
METRICS = (
    bleu(
        "bleu",
        "BLEU",
        "word 1- to 4-gram precision with a brevity penalty",
        count=count_bleu,
        sentence_costs=bleu_costs,
    ),
    *(
        bleu(
            f"bleu-{tokenizer}",
            f"BLEU ({tokenizer})",
            f"BLEU over {about}",
            count=partial(count_bleu, tokenizer=tokenizer),
            sentence_costs=partial(bleu_costs, tokenizer=tokenizer),
            needs=needs,
        )
        for tokenizer, (about, needs) in BLEU_TOKENIZERS.items()
    ),
    TextMetric(
        "chrf",
        "chrF",
        "F₂ of character 1- to 6-grams",
        percent=False,
        count=counter("CHRF"),
        combine=combine_chrf,
        pairwise=pairwise_chrf,
    ),
    TextMetric(
        "chrf++",
        "chrF++",
        "chrF with word 1- and 2-grams",
        percent=False,
        count=counter("CHRF", word_order=2),
        combine=combine_chrf,
    ),
    TextMetric(
        "ter",
        "TER",
        "edits and block shifts per reference word",
        higher_is_better=False,
        percent=False,
        count=counter("TER"),
        combine=combine_ter,
    ),
)
