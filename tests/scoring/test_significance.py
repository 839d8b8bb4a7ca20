"""Confidence intervals, significance tests and buckets, on systems whose differences are known."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from dragoman.base.errors import DataError
from dragoman.inspect.measure.score_plots import comparison_lines, draw_buckets, draw_comparison
from dragoman.scoring import significance
from dragoman.scoring.buckets import Bucket, by_frequency, by_length, by_tag, score_buckets
from dragoman.scoring.metric import Statistics, TextMetric
from dragoman.scoring.registry import metrics_for, select_metrics
from dragoman.scoring.significance import (
    approximate_randomisation,
    bootstrap,
    bootstrap_sums,
    compare_to_baseline,
    exchange_sums,
    interval,
    paired_bootstrap,
)
from tests.scoring.test_metrics import corpus, corrupted

METRICS = metrics_for("words")


def systems(segments: int = 150) -> tuple[dict[str, list[str]], list[list[str]]]:
    base, references = corpus(11, segments=segments, references=1)
    draw = random.Random(12)
    better = [texts[0] if draw.random() < 0.3 else output for output, texts in zip(base, references, strict=True)]
    worse = [corrupted(draw, output) for output in base]
    return {"base": base, "same": list(base), "better": better, "worse": worse}, references


def test_identical_systems_do_not_differ_and_different_ones_do() -> None:
    outputs, references = systems()
    metrics = select_metrics(["all"])
    for standing in compare_to_baseline(outputs, references, metrics, draws=200):
        metric = metrics[standing.metric]
        assert standing.score == metric.score(metric.statistics(outputs[standing.system], references))
        assert standing.interval.low <= standing.score <= standing.interval.high
        if standing.system == "base":
            assert standing.versus is None
            continue
        versus = standing.versus
        assert versus is not None
        if standing.system == "same":
            assert versus == (0.0, False, 1.0, 1.0)
        else:
            assert versus.better == (standing.system == "better")
            assert versus.bootstrap < 0.05, standing
            assert versus.randomisation < 0.05, standing
            assert versus.randomisation >= 1 / 201


def randomisation(metric: TextMetric, one: Statistics, other: Statistics, draws: int, seed: int = 1) -> float:
    exchanged = exchange_sums(other.rows - one.rows, draws, seed)
    return approximate_randomisation(metric, one.rows, other.rows, exchanged)


def test_comparing_many_metrics_at_once_equals_comparing_each_alone() -> None:
    outputs, references = systems(40)
    metrics = select_metrics(["bleu", "wer", "chrf"])
    found = {
        (one.metric, one.system): one for one in compare_to_baseline(outputs, references, metrics, draws=64, seed=5)
    }
    for name, metric in metrics.items():
        base, other = (metric.statistics(outputs[system], references) for system in ("base", "worse"))
        drawn = [bootstrap(metric, counts, 64, 5) for counts in (other, base)]
        versus = found[name, "worse"].versus
        assert versus is not None
        assert found[name, "worse"].interval == pytest.approx(interval(drawn[0]))
        assert versus.bootstrap == paired_bootstrap(*drawn, versus.difference)
        assert versus.randomisation == randomisation(metric, other, base, 64, 5)


def test_p_values_of_equal_systems_are_uniform() -> None:
    """Two systems that differ by chance alone have p below 0.1 about once in ten."""
    draw = np.random.default_rng(3)
    small, metric = 0, METRICS["exact_match"]
    for seed in range(200):
        one, other = (Statistics(np.stack([draw.random(80) < 0.5, np.ones(80)], 1).astype(float), "") for _ in "ab")
        small += randomisation(metric, one, other, 100, seed) < 0.1
    assert 5 <= small <= 36  # mean 20, deviation 4.2; discrete scores make it a little smaller


def test_exact_randomisation_of_few_segments() -> None:
    """With three segments all eight exchanges can be listed; p converges to the share with as large a difference."""
    one = Statistics(np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), "")
    other = Statistics(np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]), "")
    # Differences ±2/3 in 2 of 4 exchanges of the two segments that differ.
    assert randomisation(METRICS["exact_match"], one, other, 20_000) == pytest.approx(0.5, abs=0.02)
    with pytest.raises(DataError, match="cannot score 2 hypotheses against references for 3 segments"):
        compare_to_baseline({"one": ["a", "b"], "other": ["a", "b"]}, [["a"]] * 3, select_metrics(["exact_match"]))


def test_the_interval_of_a_share_is_binomial() -> None:
    rows = np.stack([np.arange(400) < 100, np.ones(400)], 1).astype(float)
    found = interval(bootstrap(METRICS["exact_match"], Statistics(rows, ""), 4000))
    half = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert found == pytest.approx((0.25 - half, 0.25 + half), abs=0.006)
    narrow = interval(bootstrap(METRICS["exact_match"], Statistics(rows, ""), 4000), 0.5)
    assert found.low < narrow.low < 0.25 < narrow.high < found.high


def test_bootstrapped_bleu_equals_sacrebleu_on_the_drawn_corpora() -> None:
    outputs, references = systems(30)
    metric, segments = METRICS["bleu"], 30
    found = bootstrap(metric, metric.statistics(outputs["base"], references), 5, seed=9)
    places = np.random.default_rng(9).integers(0, segments, (5, segments))
    for score, rows in zip(found, places, strict=True):
        truth = [[references[row][0] for row in rows]]
        assert score == pytest.approx(
            BLEU(force=True).corpus_score([outputs["base"][row] for row in rows], truth).score
        )


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).random((7, 3))
    whole = bootstrap_sums(rows, 20, 4)
    assert (bootstrap_sums(rows, 20, 4) == whole).all()
    assert (bootstrap_sums(rows, 20, 5) != whole).any()
    assert exchange_sums(rows, 50, 4).min() >= 0
    assert exchange_sums(rows, 50, 4).max(axis=0) == pytest.approx(rows.sum(axis=0), rel=0.5)
    monkeypatch.setattr(significance, "BLOCK", 21)
    assert bootstrap_sums(rows, 20, 4) == pytest.approx(whole, abs=1e-12)
    assert exchange_sums(rows, 20, 4).shape == (20, 3)


def test_the_comparison_is_printed_and_drawn(tmp_path: Path) -> None:
    outputs, references = systems(30)
    metrics = select_metrics(["bleu", "wer"])
    standings = compare_to_baseline(outputs, references, metrics, draws=50)
    lines = list(comparison_lines(standings, metrics))
    assert lines[0].startswith("BLEU: higher is better   nrefs:1|")
    assert sum(line.startswith("  same ") and "1.000    1.000" in line for line in lines) == 2
    assert draw_comparison(standings, metrics, tmp_path / "a.png").stat().st_size > 10_000


# --- cuts


def test_buckets_have_every_segment_once_and_its_score() -> None:
    outputs, references = systems(90)
    sources = [texts[0] for texts in references]
    metric = METRICS["chrf"]
    counts = metric.statistics(outputs["base"], references)
    for groups in (
        by_length(sources, 4),
        by_tag([text.split()[0] for text in sources]),
        by_frequency(sources, sources[:3]),
    ):
        assert sorted(place for group in groups for place in group.segments) == list(range(90))
        assert len(groups) > 1
        for group, part in zip(groups, score_buckets(metric, counts, groups, draws=20), strict=True):
            alone = metric.statistics(
                [outputs["base"][p] for p in group.segments], [references[p] for p in group.segments]
            )
            assert part.score == pytest.approx(metric.score(alone), abs=1e-9)
            assert (part.label, part.segments) == (group.label, len(group.segments))
            assert part.interval.low <= part.score + 1e-9


def test_frequency_is_that_of_the_rarest_word() -> None:
    training = ["a " * 1000, "b " * 100, "c " * 99, "d d", "e"]
    sources = ["a", "a b", "b c", "d", "a e", "a x", "", "c"]
    assert by_frequency(sources, training) == [
        Bucket("unseen", [5]),
        Bucket("once", [4]),
        Bucket("2–9", [3]),
        Bucket("10–99", [2, 7]),
        Bucket("100–999", [1]),
        Bucket("1000+", [0]),
    ]
    assert by_tag(["de", "fr", "de"]) == [Bucket("de", [0, 2]), Bucket("fr", [1])]
    assert [group.label for group in by_length(["a", "a b", "a b c", "a b c d"], 2)] == ["1–2", "3–4"]


def test_the_buckets_are_drawn(tmp_path: Path) -> None:
    outputs, references = systems(60)
    metric, groups = METRICS["wer"], by_length([texts[0] for texts in references], 3)
    parts = score_buckets(metric, metric.statistics(outputs["base"], references), groups, draws=20)
    assert draw_buckets(parts, metric, tmp_path / "cut.svg", "words").stat().st_size > 5_000
    with pytest.raises(DataError, match="bucket 'x': found segment 61, expected at most 60"):
        score_buckets(metric, metric.statistics(outputs["base"], references), [Bucket("x", [60])])


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_p_values_are_near_those_of_sacrebleu(kind: str) -> None:
    """The draws differ, their distribution does not; the systems differ little, so that p is far from 0 and 1."""
    base, references = corpus(21, segments=120, references=1)
    draw = random.Random(22)
    other = [corrupted(draw, output) if draw.random() < 0.5 else output for output in base]
    mended = [texts[0] if draw.random() < 0.25 else output for output, texts in zip(other, references, strict=True)]
    streams = [[texts[0] for texts in references]]
    test = PairedTest([("base", base), ("mended", mended)], {"BLEU": BLEU(force=True)}, streams, kind, n_samples=2000)
    expected = test()[1]["BLEU"][1].p_value
    versus = compare_to_baseline({"base": base, "mended": mended}, references, select_metrics(["bleu"]), draws=4000)[
        1
    ].versus
    assert versus is not None
    assert 0.02 < expected < 0.9
    if kind == "ar":
        assert versus.randomisation == pytest.approx(expected, abs=0.05)
        return
    # sacreBLEU takes absolute values before it centres the draws and so looks at one tail; ours looks at both.
    metric = METRICS["bleu"]
    one, two = (bootstrap(metric, metric.statistics(outputs, references), 4000) for outputs in (base, mended))
    apart = np.abs(two - one)
    assert np.mean(apart - apart.mean() > versus.difference) == pytest.approx(expected, abs=0.05)
    assert expected < versus.bootstrap < 3.5 * expected
    assert versus.bootstrap == pytest.approx(versus.randomisation, abs=0.05)


def test_several_systems_and_metrics_compare_as_in_sacrebleu() -> None:
    """Four systems by two metrics, p from 0.02 to 0.8; both of our tests are two-sided and agree with sacreBLEU's."""
    base, references = corpus(21, segments=120, references=1)
    others = {}
    for seed in range(22, 26):
        draw = random.Random(seed)
        other = [corrupted(draw, output) if draw.random() < 0.5 else output for output in base]
        others[str(seed)] = [
            texts[0] if draw.random() < 0.25 else output for output, texts in zip(other, references, strict=True)
        ]
    streams, metrics = [[texts[0] for texts in references]], {"BLEU": BLEU(force=True), "chrF2": CHRF()}
    named = [("base", base), *others.items()]
    theirs = {kind: PairedTest(named, metrics, streams, kind, n_samples=2000)()[1] for kind in ("bs", "ar")}
    seen = []
    for standing in compare_to_baseline(
        {"base": base, **others}, references, select_metrics(["bleu", "chrf"]), draws=4000
    ):
        if standing.versus is None:
            continue
        place = 1 + list(others).index(standing.system)
        one_tail, two_tails = (
            theirs[kind][{"bleu": "BLEU", "chrf": "chrF2"}[standing.metric]][place] for kind in theirs
        )
        assert standing.score == pytest.approx(two_tails.score, abs=1e-9)
        assert standing.versus.randomisation == pytest.approx(two_tails.p_value, abs=0.04)
        assert standing.versus.bootstrap == pytest.approx(two_tails.p_value, abs=0.04)
        assert 1.2 < standing.versus.bootstrap / one_tail.p_value < 3.5  # absolute differences, centred: about one tail
        seen.append(two_tails.p_value)
    assert len(seen) == 8
    assert min(seen) < 0.05 < 0.5 < max(seen)


def test_the_bootstrap_is_two_sided() -> None:
    """The order of two systems does not matter, and p of a share is that of the two-sided normal test."""
    draw = np.random.default_rng(5)
    metric = METRICS["exact_match"]
    one, other = (
        Statistics(np.stack([draw.random(300) < share, np.ones(300)], 1).astype(float), "") for share in (0.55, 0.5)
    )
    drawn = [bootstrap(metric, counts, 20_000) for counts in (one, other)]
    difference = metric.score(one) - metric.score(other)
    found = paired_bootstrap(*drawn, difference)
    assert found == paired_bootstrap(*drawn[::-1], -difference)
    spread = (one.rows[:, 0] - other.rows[:, 0]).std() / 300**0.5
    assert found == pytest.approx(math.erfc(abs(difference) / spread / 2**0.5), abs=0.01)
    assert 0.05 < found < 0.9
