"""Edit distance and edit alignments, against rapidfuzz and against an exhaustive search."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from dragoman.scoring.edit import (
    EditAlignment,
    EditOperation,
    align_edits,
    all_edit_alignments,
    common_length,
    edit_distance,
)

ALPHABETS = ("ab", "abcdefgh", "aäßñ語🦊\u0301 \n")
texts = st.text(alphabet="abcé語", max_size=90)
short_texts = st.text(alphabet="abc", max_size=7)
costs = st.integers(min_value=0, max_value=4)


@pytest.mark.parametrize("measure", [edit_distance, common_length])
def test_lengths_without_rapidfuzz_are_the_same(
    measure: Callable[[str, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = random_pairs(200, 30)
    measured = [measure(left, right) for left, right in pairs]
    for name in [name for name in sys.modules if name.startswith("rapidfuzz")]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert [measure(left, right) for left, right in pairs] == measured


def random_pairs(count: int, longest: int) -> list[tuple[str, str]]:
    """Half of the pairs unrelated, half a text and its corrupted copy, so small distances occur too."""
    draw = random.Random(17)
    pairs = []
    for number in range(count):
        alphabet = draw.choice(ALPHABETS)
        left = "".join(draw.choices(alphabet, k=draw.randint(0, longest)))
        if number % 2:
            right = "".join(draw.choices(alphabet, k=draw.randint(0, longest)))
        else:
            right = "".join(
                draw.choice(["", draw.choice(alphabet), character * 2]) if draw.random() < 0.1 else character
                for character in left
            )
        pairs.append((left, right))
    return pairs


def cheapest(left: Sequence[str], right: Sequence[str], substitution: int) -> int:
    """The lowest cost by recursion over all edits, straight from the definition."""

    @cache
    def rest(i: int, j: int) -> int:
        ways = []
        if i < len(left):
            ways.append(1 + rest(i + 1, j))
        if j < len(right):
            ways.append(1 + rest(i, j + 1))
        if i < len(left) and j < len(right):
            ways.append((0 if left[i] == right[j] else substitution) + rest(i + 1, j + 1))
        return min(ways, default=0)

    return rest(0, 0)


@pytest.mark.parametrize(
    ("left", "right", "substitution", "cost"),
    [
        ("INTENTION", "EXECUTION", 1, 5),
        ("INTENTION", "EXECUTION", 2, 8),
        ("Hello", "Hella", 1, 1),
        ("monkey", "money", 1, 1),
        ("flaw", "lawn", 1, 2),
        ("", "", 1, 0),
        ("", "abc", 1, 3),
        ("abc", "", 1, 3),
    ],
)
def test_worked_cases(left: str, right: str, substitution: int, cost: int) -> None:
    alignment = align_edits(left, right, substitution=substitution)
    assert alignment.cost == alignment.table[-1][-1] == cost
    if substitution == 1:
        assert edit_distance(left, right) == cost


@pytest.mark.parametrize(("count", "longest"), [(3000, 20), (30, 200), (1, 1000)])
def test_alignment_cost_equals_rapidfuzz_on_characters(count: int, longest: int) -> None:
    for left, right in random_pairs(count, longest):
        assert align_edits(left, right).cost == edit_distance(left, right), (left, right)


def test_alignment_cost_equals_rapidfuzz_on_words_and_numbers() -> None:
    draw = random.Random(5)
    for symbols in (["the", "cat", "The", "", "語"], [0, 1, -7, 10**30], [("a", 1), ("a", 2), None]):
        for _ in range(300):
            left = draw.choices(symbols, k=draw.randint(0, 80))
            right = tuple(draw.choices(symbols, k=draw.randint(0, 80)))
            numbers = {symbol: number for number, symbol in enumerate(symbols)}
            expected = Levenshtein.distance([numbers[s] for s in left], [numbers[s] for s in right])
            assert edit_distance(left, right) == expected, (left, right)
            assert align_edits(left, right).cost == expected, (left, right)


@given(texts, texts)
@settings(deadline=None)
def test_distance_is_symmetric_and_bounded(left: str, right: str) -> None:
    distance = edit_distance(left, right)
    assert distance == edit_distance(right, left) == align_edits(left, right).cost
    assert abs(len(left) - len(right)) <= distance <= max(len(left), len(right))
    assert (distance == 0) == (left == right)


@given(texts, texts, texts)
@settings(deadline=None)
def test_distance_satisfies_the_triangle_inequality(left: str, middle: str, right: str) -> None:
    assert edit_distance(left, right) <= edit_distance(left, middle) + edit_distance(middle, right)


@given(short_texts, short_texts, costs)
@settings(max_examples=300, deadline=None)
def test_alignment_is_cheapest_and_consistent(left: str, right: str, substitution: int) -> None:
    alignment = align_edits(left, right, substitution=substitution)
    assert alignment.cost == cheapest(left, right, substitution)
    for i, row in enumerate(alignment.table):
        for j, cost in enumerate(row):
            assert cost == cheapest(left[:i], right[:j], substitution)
    assert (len(alignment.table), len(alignment.table[0])) == (len(left) + 1, len(right) + 1)

    assert alignment.cost == alignment.substitutions * substitution + alignment.insertions + alignment.deletions
    operations = alignment.operations
    assert "".join(str(step.left) for step in operations if step.kind != "insert") == left
    assert "".join(str(step.right) for step in operations if step.kind != "delete") == right
    for step in operations:
        assert step.kind in {"equal", "substitute", "insert", "delete"}
        if step.kind == "equal":
            assert step.left == step.right
        if step.kind == "substitute":
            assert step.left != step.right
        assert (step.left is None) == (step.kind == "insert")
        assert (step.right is None) == (step.kind == "delete")


def test_alignment_cost_equals_distance() -> None:
    for left, right in random_pairs(200, 70):
        assert align_edits(left, right).cost == edit_distance(left, right)


def test_direction_and_counts() -> None:
    added = align_edits(["a", "b"], ["a", "x", "b"])
    assert (added.matches, added.substitutions, added.insertions, added.deletions) == (2, 0, 1, 0)
    assert added.operations[1] == EditOperation("insert", None, "x")
    removed = align_edits(["a", "x", "b"], ["a", "b"])
    assert (removed.matches, removed.substitutions, removed.insertions, removed.deletions) == (2, 0, 0, 1)
    assert removed.operations[1] == EditOperation("delete", "x", None)


def test_ties_prefer_pairs_then_deletions_from_the_end() -> None:
    assert [step.kind for step in align_edits("a", "b", substitution=2).operations] == ["substitute"]
    assert [step.kind for step in align_edits("ab", "ca", substitution=3).operations] == [
        "insert",
        "equal",
        "delete",
    ]
    # One 'a' too many: the pairs are read from the end, so the surplus one is the first.
    assert [step.kind for step in align_edits("aa", "a").operations] == ["delete", "equal"]
    # Deletion and insertion cost the same here; read from the end the deletion goes first.
    assert [step.kind for step in align_edits("a", "b", substitution=9).operations] == ["insert", "delete"]


def test_render_aligns_the_rows() -> None:
    assert align_edits("monkey", "money").render() == "m o n k e y\nm o n * e y\n      D"
    assert align_edits(["the", "cat", "sat"], ["a", "cat", "sat", "down"]).render() == (
        "the cat sat *\na   cat sat down\nS           I"
    )


def test_render_keeps_columns_with_wide_and_invisible_characters() -> None:
    assert align_edits(["語", "b"], ["a", "c"]).render() == "語 b\na  c\nS  S"
    assert align_edits(["Ａ", "b"], ["a", "c"]).render() == "Ａ b\na  c\nS  S"
    assert align_edits(["e\u0301", "b"], ["e", "c"]).render() == "e\u0301 b\ne c\nS S"
    assert align_edits(["\n", " "], ["\n", "\t"]).render() == "\\n ␣\n\\n \\t\n   S"


def test_alignment_of_empty_sequences() -> None:
    assert align_edits([], []) == EditAlignment([[0]], (), 0)
    assert align_edits([], []).render() == "\n\n"


def every_path(left: str, right: str, substitution: int) -> list[tuple[int, str]]:
    """All ways to turn a text into another by brute force: cost, and one letter for each operation."""
    if not (left or right):
        return [(0, "")]
    found = []
    if left and right:
        cost, kind = (0, "=") if left[0] == right[0] else (substitution, "S")
        found += [(cost + rest, kind + path) for rest, path in every_path(left[1:], right[1:], substitution)]
    if left:
        found += [(1 + rest, "D" + path) for rest, path in every_path(left[1:], right, substitution)]
    if right:
        found += [(1 + rest, "I" + path) for rest, path in every_path(left, right[1:], substitution)]
    return found


@pytest.mark.parametrize("substitution", [1, 2])
@pytest.mark.parametrize(
    ("left", "right"), [("", ""), ("abc", "bcd"), ("aab", "ba"), ("flaw", "lawn"), ("abab", "baba")]
)
def test_all_cheapest_alignments_are_those_of_brute_force(left: str, right: str, substitution: int) -> None:
    letters = {"equal": "=", "substitute": "S", "insert": "I", "delete": "D"}
    found = all_edit_alignments(left, right, substitution=substitution, limit=10_000)
    paths = ["".join(letters[step.kind] for step in one.operations) for one in found]
    every = every_path(left, right, substitution)
    cheapest = min(cost for cost, _ in every)
    assert sorted(paths) == sorted(path for cost, path in every if cost == cheapest)
    assert found[0].operations == align_edits(left, right, substitution=substitution).operations
    assert all((one.left, one.right, one.cost) == (tuple(left), tuple(right), cheapest) for one in found)
    assert len(all_edit_alignments("a" * 12, "b" * 6, limit=50)) == 50
