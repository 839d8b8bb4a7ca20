"""Law 12: a default beam never returns an output that its own score ranks below the greedy one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig, StopRule
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from tests.decoding.constraints.test_automata import SIZE, any_constraints
from tests.decoding.test_beam import Table
from tests.decoding.test_beam_options import any_options, real_model

CASES = 30


class Peaked(Table):
    """A model that is sure of a word that never ends, and otherwise likes to end."""

    def guess(self, source: int, prefix: tuple[int, ...]) -> list[float]:
        row = torch.tensor(super().guess(source, prefix), dtype=torch.float64)
        row[random.Random(f"{self.seed} {source} {prefix}").randint(4, 8) if len(prefix) < 5 else EOS] += 4.0
        peaked: list[float] = row.log_softmax(0).tolist()
        return peaked


def losses(wide: Sequence[list[Hypothesis]], greedy: Sequence[list[Hypothesis]]) -> int:
    """How many sources the beam gave a worse output than greedy search; both give one whenever greedy does."""
    assert all(mine for mine, other in zip(wide, greedy, strict=True) if other)
    pairs = [(mine[0], other[0]) for mine, other in zip(wide, greedy, strict=True) if other]
    return sum(mine.normalised < other.normalised - 1e-9 for mine, other in pairs)


@pytest.mark.parametrize("stop", ["ahead", "certain"])
def test_no_option_makes_a_beam_lose_to_greedy(stop: StopRule) -> None:
    lost = 0
    for seed in range(CASES):
        options = any_options(seed)
        table, limits = Peaked(seed, 9, 1.0, 1.0, 0.0), torch.tensor([12, 7])
        scorer = Scorer(options.penalty, options.normalisation, diversity_penalty=0.5)  # type: ignore[arg-type]
        restrictions = {"min_length": options.min_length, "no_repeat_ngram": options.no_repeat_ngram}

        def found(
            width: int, stop: StopRule, groups: int = 1, limits: Tensor = limits, table: Table = table,
            scorer: Scorer = scorer, restrictions: dict[str, int] = restrictions,
        ) -> list[list[Hypothesis]]:  # fmt: skip
            beam = BeamOptions(width, stop=stop, groups=groups, **restrictions)
            return beam_search(table.step, table.start([0, 1]), limits, beam, scorer)

        greedy, width = found(1, stop), 2 + seed % 4
        assert not losses(found(width, stop), greedy)
        assert not losses(found(width, stop, groups=2), greedy)
        lost += losses(found(width, "complete"), greedy)
    assert lost, "a beam that stops at its k-th output must lose here, or the test shows nothing"


def test_no_constraint_makes_a_beam_lose_to_greedy() -> None:
    kinds_of = [("prefix",), ("forbid",), ("among",), ("require",), ("require", "forbid"), ("require", "prefix")]
    compared = 0
    for seed in range(CASES):
        rng = random.Random(seed)
        table = Table(seed, SIZE, rng.choice([0.5, 1.5]), rng.choice([-1.0, 2.0]), 0.0)
        limits = torch.tensor([rng.randint(4, 9) for _ in range(3)])
        automata = [ConstraintAutomaton(any_constraints(rng, rng.choice(kinds_of))[0], SIZE) for _ in range(2)]
        possible = [
            one if one.distance(one.start) < limit - 1 else None
            for one, limit in zip(automata, limits.tolist(), strict=False)
        ]

        def found(
            width: int, stop: StopRule, table: Table = table, limits: Tensor = limits, possible: Any = possible
        ) -> list[list[Hypothesis]]:
            options = BeamOptions(width, stop=stop)
            return beam_search(table.step, table.start(range(3)), limits, options, constraints=[*possible, None])

        greedy = found(1, "ahead")
        assert not losses(found(rng.randint(2, 5), "ahead"), greedy)
        compared += sum(one is not None for one in possible)
    assert compared > CASES


def test_an_ensemble_and_a_coverage_penalty_do_not_lose_to_greedy() -> None:
    sources, lost = [[5, 6, 7, 8], [9], [10, 4, 6]], 0
    for seed in range(3):
        members = [real_model("transformer", seed), real_model("transformer", seed + 50)]
        for model, change in ((Ensemble(members), {}), (members[0], {"coverage_penalty": 0.3}), (members[0], {})):
            config = {"max_length": 14, "length_penalty": 0.8, **change}
            greedy, wide, early = (
                search(model, batch_of(sources), SearchConfig(**config, beam=beam, stop=stop), 1.0)  # type: ignore[arg-type]
                for beam, stop in ((1, "ahead"), (4, "ahead"), (4, "complete"))
            )
            assert not losses(wide, greedy)
            lost += losses(early, greedy)
    assert lost, "a beam that stops at its k-th output must lose here, or the test shows nothing"


class Smoothed(Table):
    """A model trained to write 24 words, with a tenth of its probability smoothed over a small vocabulary."""

    def guess(self, source: int, prefix: tuple[int, ...]) -> list[float]:
        right = EOS if len(prefix) == 24 else 4 + (len(prefix) % (self.vocabulary - 4))
        probabilities = torch.full((self.vocabulary,), 0.1 / self.vocabulary)
        probabilities[right] += 0.9
        probabilities[EOS] += 1e-4
        row: list[float] = probabilities.log().tolist()
        return row


@pytest.mark.parametrize("width", [2, 5, 10])
def test_smoothing_over_a_small_vocabulary_does_not_cut_outputs(width: int) -> None:
    """Every step has an early end among its best candidates: k of them are complete long before the right output."""
    table = Smoothed(0, 10, 1.0, 0.0, 0.0)
    found, early = (
        beam_search(table.step, table.start([0]), torch.tensor([40]), BeamOptions(width, stop=stop))[0][0]
        for stop in ("ahead", "complete")
    )
    assert len(found.tokens) == 25
    assert len(early.tokens) < 25
