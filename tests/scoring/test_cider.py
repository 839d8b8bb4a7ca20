"""CIDEr-D against the published formula, written out over the whole vocabulary of n-grams."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dragoman.scoring.ngram_overlap import CIDER_WORD
from dragoman.scoring.report import score_table

VOCABULARY = ["a", "dog", "runs", "man", "red", "ball", "the", "jumps"]


def brute_force(hypotheses: list[str], references: list[list[str]]) -> float:
    """Vedantam et al. 2015, equations 1 to 3 and 5, with dense vectors over all n-grams."""

    def grams(text: str, size: int) -> list[str]:
        parts = CIDER_WORD.findall(text.lower())
        return [" ".join(parts[place : place + size]) for place in range(len(parts) - size + 1)]

    scores = []
    for row, hypothesis in enumerate(hypotheses):
        by_order = []
        for size in (1, 2, 3, 4):
            known = sorted(
                {gram for texts in [*references, hypotheses] for text in texts for gram in grams(text, size)}
            )
            documents = [{gram for text in texts for gram in grams(text, size)} for texts in references]
            idf = np.array([np.log(len(references) / max(1, sum(gram in one for one in documents))) for gram in known])

            def vector(text: str, size: int = size, known: list[str] = known, idf: np.ndarray = idf) -> np.ndarray:
                found = grams(text, size)
                return np.array([found.count(gram) for gram in known]) * idf

            values = []
            for reference in references[row]:
                own, other = vector(hypothesis), vector(reference)
                norms = np.linalg.norm(own) * np.linalg.norm(other)
                cosine = np.minimum(own, other) @ other / norms if norms else 0.0
                apart = len(CIDER_WORD.findall(hypothesis.lower())) - len(CIDER_WORD.findall(reference.lower()))
                values.append(10 * np.exp(-(apart**2) / (2 * 6**2)) * cosine)
            by_order.append(np.mean(values))
        scores.append(np.mean(by_order))
    return float(np.mean(scores))


def test_cider_equals_the_published_formula() -> None:
    draw = random.Random(1)

    def text() -> str:
        return " ".join(draw.choice(VOCABULARY) for _ in range(draw.randint(1, 9)))

    references = [[text() for _ in range(draw.randint(1, 5))] for _ in range(12)]
    hypotheses = [draw.choice(several) if draw.random() < 0.4 else text() for several in references]
    found = score_table(hypotheses, references, ["cider"])
    assert found["cider"] == pytest.approx(brute_force(hypotheses, references), rel=1e-9)
    assert found["cider"] > 0.5


def test_ngrams_of_all_images_have_no_weight() -> None:
    references = [["a dog runs"], ["a man jumps"], ["a red ball"]]
    assert score_table(["a", "a", "a"], references, ["cider"])["cider"] == 0.0
    perfect = score_table([texts[0] for texts in references], references, ["cider"])["cider"]
    assert perfect == pytest.approx(10 * 3 / 4)  # no text has runs of four words
    # Case and punctuation count nothing, and words written over and over gain nothing.
    assert score_table(["A dog runs.", "A man jumps!", "a red ball"], references, ["cider"])["cider"] == perfect
    assert score_table(["dog dog dog", "man jumps", "red ball"], references, ["cider"])["cider"] < perfect


def test_an_empty_caption_scores_zero() -> None:
    assert score_table(["", "a dog"], [["a man"], ["a dog"]], ["cider"])["cider"] == pytest.approx(10 * 0.5 / 2)
