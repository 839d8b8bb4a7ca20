"""Costs of all pairs are those of the pairs one by one."""

from __future__ import annotations

import random

import pytest

from dragoman.scoring.pairwise import pairwise_costs
from dragoman.scoring.segments import COSTS


@pytest.mark.parametrize("metric", list(COSTS))
def test_all_pairs_cost_what_each_pair_costs(metric: str) -> None:
    chance = random.Random(0)
    seen = set()
    for _ in range(30):
        # From empty and shorter than six characters to several words, some with odd spaces.
        hypotheses, references = (
            ["".join(chance.choices("ab ü ", k=chance.randint(0, 14))) for _ in range(chance.randint(1, 4))]
            for _ in range(2)
        )
        references.append(hypotheses[0])
        found = pairwise_costs(hypotheses, references, metric)
        assert found.shape == (len(hypotheses), len(references))
        for row, hypothesis in enumerate(hypotheses):
            for column, reference in enumerate(references):
                expected = COSTS[metric]([hypothesis], [[reference]])[0]
                assert found[row, column] == pytest.approx(expected, abs=1e-9)
                seen.add(round(expected, 6))
    assert {0.0, 1.0} <= seen
    assert metric == "exact_match" or len(seen) > 8
