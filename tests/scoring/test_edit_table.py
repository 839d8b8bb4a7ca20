"""Edit alignments with costs: the table as text and as a plot, and edits counted by kind."""

from __future__ import annotations

import random
from pathlib import Path

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel, Levenshtein

from dragoman.base.errors import DataError
from dragoman.inspect.measure.score_plots import alignment_lines, draw_edit_table
from dragoman.scoring.edit import align_edits
from dragoman.scoring.error_rates import edit_alignments

WORDS = st.text("abc ", max_size=12)


@pytest.mark.parametrize(
    ("left", "right", "substitution", "cost"),
    [
        ("INTENTION", "EXECUTION", 1, 5),
        ("INTENTION", "EXECUTION", 2, 8),
        ("Hello", "Hella", 1, 1),
        ("monkey", "money", 1, 1),
        ("flaw", "lawn", 1, 2),
    ],
)
def test_worked_cases(left: str, right: str, substitution: int, cost: int) -> None:
    found = align_edits(left, right, substitution=substitution)
    assert found.cost == cost == found.table[-1][-1]
    assert f"[{cost}]" == found.render_table().split()[-1]


def test_the_table_is_printed_with_its_path() -> None:
    assert align_edits("flaw", "lawn").render_table() == "\n".join(
        [
            "       l   a   w   n",
            "  [0]  1   2   3   4",
            "f [1]  1   2   3   4",
            "l  2  [1]  2   3   4",
            "a  3   2  [1]  2   3",
            "w  4   3   2  [1] [2]",
        ]
    )
    wide = align_edits(["語"], ["x y", "語"]).render_table().split("\n")
    assert wide == ["       x␣y  語", "   [0]  [1]  2", "語  1    1  [1]"]


@given(WORDS, WORDS, st.integers(1, 3))
def test_the_edits_of_the_path_sum_to_the_cost(left: str, right: str, substitution: int) -> None:
    found = align_edits(left, right, substitution=substitution)
    assert ("".join(map(str, found.left)), "".join(map(str, found.right))) == (left, right)
    assert found.path[0] == (0, 0)
    assert found.path[-1] == (len(left), len(right))
    assert found.cost == substitution * found.substitutions + found.insertions + found.deletions
    assert len(found.operations) == found.matches + found.substitutions + found.insertions + found.deletions
    assert found.matches + found.substitutions + found.deletions == len(left)
    assert len(left) + found.insertions - found.deletions == len(right)


def test_costs_equal_rapidfuzz_on_ten_thousand_pairs() -> None:
    draw = random.Random(2)
    for _ in range(10_000):
        left, right = ("".join(draw.choices("abcd", k=draw.randint(0, 7))) for _ in range(2))
        weights = draw.choice([(1, 1, 1), (1, 1, 2), (1, 1, 3)])
        found = align_edits(left, right, substitution=weights[2])
        assert found.cost == Levenshtein.distance(left, right, weights=weights)
        if weights == (1, 1, 2):
            assert found.cost == Indel.distance(left, right)


@pytest.mark.parametrize("units", ["words", "characters"])
def test_errors_by_kind_equal_jiwer(units: str) -> None:
    draw = random.Random(4)
    hypotheses, references = (
        [" ".join(draw.choices(["a", "b", "cc"], k=draw.randint(1, 6))) for _ in range(2000)] for _ in range(2)
    )
    found = edit_alignments(hypotheses, [[text] for text in references], units=units)  # type: ignore[arg-type]
    process = jiwer.process_words if units == "words" else jiwer.process_characters
    for one, hypothesis, reference in zip(found, hypotheses, references, strict=True):
        oracle = process(reference, hypothesis)
        assert len(one.operations) - one.matches == oracle.substitutions + oracle.insertions + oracle.deletions
        # Equally cheap alignments may differ in kinds, but never in this.
        assert one.insertions - one.deletions == oracle.insertions - oracle.deletions


def test_the_closest_reference_is_aligned() -> None:
    one = edit_alignments(["a b c"], [["x y", "a c"]])[0]
    assert (one.left, one.right) == (("a", "c"), ("a", "b", "c"))
    assert (one.substitutions, one.insertions, one.deletions) == (0, 1, 0)
    lines = list(alignment_lines([one], "words", table=False))
    assert lines == ["line 1: 0 S, 1 I, 0 D of 2 words, cost 1", "a * c", "a b c", "  I", "",
                     "all lines: 0 S, 1 I, 0 D of 2 words, 50.00 %"]  # fmt: skip


def test_the_table_is_drawn(tmp_path: Path) -> None:
    path = draw_edit_table(align_edits("INTENTION", "EXECUTION", substitution=2), tmp_path / "table.png")
    assert path.stat().st_size > 10_000
    assert draw_edit_table(align_edits("", ""), tmp_path / "nothing.png").stat().st_size > 1_000
    assert draw_edit_table(align_edits("a$b$", "語"), tmp_path / "odd.svg").stat().st_size > 1_000
    with pytest.raises(DataError, match="cannot draw a table of 81 × 1 symbols: expected at most 80 per side"):
        draw_edit_table(align_edits("a" * 81, "a"), tmp_path / "long.png")
