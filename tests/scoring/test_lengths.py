"""BLEU by source length."""

from __future__ import annotations

import pytest
import sacrebleu

from dragoman.scoring.buckets import by_length, score_buckets
from dragoman.scoring.registry import metrics_for


def sentences(lengths: list[int], wrong_from: int) -> tuple[list[str], list[str], list[list[str]]]:
    truths = [" ".join(f"w{place}" for place in range(length)) for length in lengths]
    outputs = [" ".join(text.split()[:wrong_from] + ["x"] * max(0, len(text.split()) - wrong_from)) for text in truths]
    return truths, outputs, [[text] for text in truths]


def test_bucket_scores_equal_sacrebleu() -> None:
    lengths = [12, 4, 4, 8, 20, 4, 8, 5, 16, 9, 30, 7]
    sources, outputs, references = sentences(lengths, 8)
    metric, buckets = metrics_for("words")["bleu"], by_length(sources, 4)
    scores = score_buckets(metric, metric.statistics(outputs, references), buckets, draws=10)
    assert sum(score.segments for score in scores) == len(lengths)
    assert buckets[0].label == "4"
    assert buckets[-1].label.endswith("–30")
    groups = [{lengths[segment] for segment in bucket.segments} for bucket in buckets]
    assert sum(len(group) for group in groups) == len(set(lengths))  # a length is in one bucket only
    for bucket, score in zip(buckets, scores, strict=True):
        rows = bucket.segments
        expected = sacrebleu.corpus_bleu([outputs[row] for row in rows], [[sources[row] for row in rows]])
        assert score.score == pytest.approx(expected.score, abs=1e-9)
    assert scores[0].score == pytest.approx(100.0)
    assert scores[-1].score < 50


def test_few_segments_make_few_buckets() -> None:
    assert [len(bucket.segments) for bucket in by_length(sentences([5, 5, 5], 9)[0])] == [3]
