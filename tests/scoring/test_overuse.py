"""Words that outputs have more often than they should: found where they were put, and seldom by chance."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dragoman.scoring.overuse import overused_words, sign_test
from dragoman.scoring.significance import compare_losses

VOCABULARY = [f"w{number}" for number in range(60)]


def texts(draw: random.Random, count: int) -> list[list[str]]:
    return [draw.choices(VOCABULARY, range(1, 61), k=8) for _ in range(count)]


def noisy(draw: random.Random, right: list[list[str]]) -> list[list[str]]:
    """Outputs that have a tenth of the words wrong."""
    return [[word if draw.random() < 0.9 else draw.choice(VOCABULARY) for word in text] for text in right]


def test_a_word_put_into_unrelated_outputs_is_found() -> None:
    draw = random.Random(1)
    right = texts(draw, 300)
    before = noisy(draw, right)
    after = [[*text, "planted"] if number < 146 else text for number, text in enumerate(noisy(draw, right))]
    (found,) = overused_words(before, after, [[text] for text in right])
    assert (found.word, found.before, found.after, found.references) == ("planted", 0, 146, 0)
    assert found.p < 1e-9
    assert str(found) == "planted (0 → 146 times, 0 in references)"


def test_a_word_that_references_have_as_often_is_none() -> None:
    right = [["the", "hat"]] * 150 + [["a", "dog"]] * 150
    before = [["the"]] * 150 + [["a", "dog"]] * 150
    assert overused_words(before, right, [[text] for text in right]) == []
    twice = [[*text, *text] for text in right]
    assert {item.word for item in overused_words(right, twice, [[text] for text in right])} == {
        "the",
        "hat",
        "a",
        "dog",
    }
    assert overused_words(right, twice, [[text, double] for text, double in zip(right, twice, strict=True)]) == []


def test_chance_finds_a_word_in_few_corpora() -> None:
    """At most 5 % of corpora; that the references must agree as well makes it fewer."""
    found = 0
    for number in range(60):
        draw = random.Random(number)
        right = texts(draw, 100)
        found += bool(overused_words(noisy(draw, right), noisy(draw, right), [[text] for text in right]))
    assert found <= 3


@pytest.mark.parametrize(("rises", "falls", "p"), [(0, 0, 1.0), (1, 0, 0.5), (2, 1, 0.5), (5, 0, 1 / 32), (0, 3, 1.0)])
def test_sign_test(rises: int, falls: int, p: float) -> None:
    assert sign_test(rises, falls) == p


def test_losses_are_compared_over_all_tokens() -> None:
    generator = np.random.default_rng(1)
    tokens = generator.integers(1, 30, 300).astype(np.float64)
    before = tokens * generator.uniform(1.0, 3.0, 300)
    same = compare_losses(before, before, tokens)
    assert (same.before, same.rise, same.p) == (same.after, 0.0, 1.0)
    worse = compare_losses(before, before + tokens * generator.uniform(0.0, 0.2, 300), tokens)
    assert worse.before == pytest.approx(before.sum() / tokens.sum())
    assert 0.08 < worse.rise < worse.after - worse.before < 0.12
    assert worse.p < 0.01
