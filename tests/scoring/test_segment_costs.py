"""Costs of single outputs, which minimum Bayes risk decoding and minimum risk training use."""

from __future__ import annotations

import random

import pytest

from dragoman.scoring.registry import metrics_for, segment_cost_metrics
from dragoman.scoring.report import score_table

NOT_ZERO_WHEN_EQUAL = ("meteor_exact_stem", "rouge-2")  # one chunk has a penalty; one word has no 2-gram


@pytest.mark.parametrize("metric", list(segment_cost_metrics()))
def test_pairwise_costs_are_the_costs_of_each_pair(metric: str) -> None:
    generator = random.Random(0)
    seen = set()
    for _ in range(30):
        # From empty and shorter than six characters to several words, some with repeated spaces.
        hypotheses, references = (
            ["".join(generator.choices("ab ü ", k=generator.randint(0, 14))) for _ in range(generator.randint(1, 4))]
            for _ in range(2)
        )
        references.append(hypotheses[0])
        costs = segment_cost_metrics()[metric].pairwise_costs(hypotheses, references)
        assert costs.shape == (len(hypotheses), len(references))
        for row, hypothesis in enumerate(hypotheses):
            for column, reference in enumerate(references):
                expected = segment_cost_metrics()[metric].costs([hypothesis], [[reference]])[0]
                assert costs[row, column] == pytest.approx(expected, abs=1e-9)
                seen.add(round(expected, 6))
    assert {1.0} | (set() if metric in NOT_ZERO_WHEN_EQUAL else {0.0}) <= seen
    assert metric in ("exact_match", "rouge-2") or len(seen) > 8


def test_costs_follow_from_the_scores_of_one_segment() -> None:
    costs = segment_cost_metrics()
    hypotheses, references = ["a b c", "a", "x y"], [["a b d"], ["a"], ["x z y"]]
    for segment in zip(hypotheses, references, strict=True):
        one = [segment[0]], [segment[1]]
        scores = score_table(*one)
        assert costs["wer"].costs(*one) == pytest.approx([scores["wer"]])
        assert costs["cer"].costs(*one) == pytest.approx([scores["cer"]])
        assert costs["chrf"].costs(*one) == pytest.approx([1 - scores["chrf"] / 100])
        assert costs["exact_match"].costs(*one) == [1 - scores["exact_match"]]
        assert costs["per"].costs(*one) == costs["wer"].costs(*one)
    assert costs["bleu"].costs(["a b c d e"], [["a b c d e"]]) == pytest.approx([0.0], abs=1e-9)
    assert 0 < costs["bleu"].costs(["a b c d f"], [["a b c d e"]])[0] < 1


def test_a_metric_that_needs_the_whole_corpus_has_no_costs() -> None:
    assert set(metrics_for("words")) - set(segment_cost_metrics()) == {"cider"}
