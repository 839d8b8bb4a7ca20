"""The table of text metrics: a new one is one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from dragoman.errors import DataError, hint
from dragoman.scoring.cider import combine_cider, count_cider
from dragoman.scoring.error_rates import (
    combine_errors,
    combine_matches,
    combine_misses,
    count_characters,
    count_exact,
    count_tokens,
)
from dragoman.scoring.meteor import combine_meteor, count_meteor
from dragoman.scoring.metric import Metric, References, Statistics
from dragoman.scoring.rouge import combine_rouge, ngram_overlap, rouge_counter, subsequence_overlap
from dragoman.scoring.sacrebleu import (
    combine_bleu,
    combine_chrf,
    combine_ter,
    count_bleu,
    count_chrf,
    count_chrf_words,
    count_ter,
)

Units = Literal["words", "phonemes"]

METRICS: Mapping[str, Metric] = {
    "bleu": Metric("BLEU", "1- to 4-grams of words, brevity penalty", count_bleu, combine_bleu, fraction=False),
    "chrf": Metric("chrF", "1- to 6-grams of characters", count_chrf, combine_chrf, fraction=False),
    "chrf++": Metric("chrF++", "chrF with 1- and 2-grams of words", count_chrf_words, combine_chrf, fraction=False),
    "ter": Metric("TER", "edits and moved blocks a word", count_ter, combine_ter, higher=False, fraction=False),
    "meteor": Metric("METEOR", "words matched by form or English stem", count_meteor, combine_meteor),
    "cider": Metric("CIDEr-D", "tf-idf likeness of captions, 0 to 10", count_cider, combine_cider, fraction=False),
    "rouge-1": Metric("ROUGE-1", "F₁ of words, for summaries", rouge_counter(ngram_overlap(1)), combine_rouge),
    "rouge-2": Metric("ROUGE-2", "F₁ of pairs of words", rouge_counter(ngram_overlap(2)), combine_rouge),
    "rouge-l": Metric("ROUGE-L", "F₁ of the common subsequence", rouge_counter(subsequence_overlap), combine_rouge),
    "wer": Metric("WER", "edits a reference word", count_tokens, combine_errors, higher=False),
    "cer": Metric("CER", "edits a reference character", count_characters, combine_errors, higher=False),
    "per": Metric("PER", "edits a reference phoneme", count_tokens, combine_errors, higher=False),
    "exact_match": Metric("exact match", "outputs equal to a reference", count_exact, combine_matches),
}

# The literature on grapheme-to-phoneme conversion calls the share of words that are not exactly right WER.
PHONEME_METRICS: Mapping[str, Metric] = {
    **METRICS,
    "wer": Metric("WER", "words not exactly right", count_exact, combine_misses, higher=False),
}
TABLES: Mapping[Units, Mapping[str, Metric]] = {"words": METRICS, "phonemes": PHONEME_METRICS}

# What is reported when nothing is asked for: no English stems, nothing made for summaries alone.
USUAL: Mapping[Units, tuple[str, ...]] = {
    "words": ("bleu", "chrf", "chrf++", "ter", "wer", "cer", "exact_match"),
    "phonemes": ("bleu", "chrf", "wer", "cer", "per", "exact_match"),
}


def chosen(names: Iterable[str] | None = None, units: Units = "words") -> dict[str, Metric]:
    """The metrics of these names, or the usual ones; "all" is every one."""
    table = TABLES[units]
    wanted = tuple(names or USUAL[units])
    if "all" in wanted:  # over words PER would be WER once more
        return {name: metric for name, metric in table.items() if units == "phonemes" or name != "per"}
    for name in wanted:
        if name not in table:
            raise DataError(f"metric: found '{name}', which is no metric. {hint(name, table)}")
    return {name: table[name] for name in wanted}


def statistics(
    hypotheses: Sequence[str], references: References, metrics: Mapping[str, Metric]
) -> dict[str, Statistics]:
    """The counts of every segment by every metric."""
    return {name: metric.statistics(hypotheses, references) for name, metric in metrics.items()}
