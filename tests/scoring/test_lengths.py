"""BLEU by source length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import sacrebleu

from dragoman.errors import DataError
from dragoman.reports.plots import draw_by_length
from dragoman.scoring.lengths import bleu_by_length


def sentences(lengths: list[int], wrong_from: int) -> tuple[list[str], list[str], list[list[str]]]:
    truths = [" ".join(f"w{place}" for place in range(length)) for length in lengths]
    outputs = [" ".join(text.split()[:wrong_from] + ["x"] * max(0, len(text.split()) - wrong_from)) for text in truths]
    return truths, outputs, [[text] for text in truths]


def test_bucket_scores_equal_sacrebleu() -> None:
    lengths = [12, 4, 4, 8, 20, 4, 8, 5, 16, 9, 30, 7]
    sources, outputs, references = sentences(lengths, 8)
    found = bleu_by_length(sources, outputs, references, buckets=4)
    assert sum(group.segments for group in found) == len(lengths)
    assert found[0].min_length == 4
    assert found[-1].max_length == 30
    for left, right in pairwise(found):
        assert left.max_length < right.min_length  # a length is in one group only
    for group in found:
        rows = [row for row, length in enumerate(lengths) if group.min_length <= length <= group.max_length]
        assert len(rows) == group.segments
        expected = sacrebleu.corpus_bleu([outputs[row] for row in rows], [[sources[row] for row in rows]])
        assert group.bleu == pytest.approx(expected.score, abs=1e-9)
    assert found[0].bleu == pytest.approx(100.0)
    assert found[-1].bleu < 50


def test_few_segments_make_few_buckets() -> None:
    sources, outputs, references = sentences([5, 5, 5], 9)
    assert [group.segments for group in bleu_by_length(sources, outputs, references)] == [3]
    with pytest.raises(DataError, match="found 3 sources, 2 hypotheses and 3 segments"):
        bleu_by_length(sources, outputs[:2], references)


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    sources, outputs, references = sentences([4, 8, 12, 16, 20, 24], 8)
    path = draw_by_length({"one": bleu_by_length(sources, outputs, references)}, tmp_path / "lengths.png", "a title")
    assert path.stat().st_size > 5000
