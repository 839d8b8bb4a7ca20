"""Exhaustive search, against brute force over all outputs and against a wide enough beam."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding import exhaustive as module
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.exhaustive import Exhaustive, exhaustive_search
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.models.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from tests.decoding.test_beam import Table, exhaustive
from tests.decoding.test_sampling import model_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 3, 2048])
def test_exhaustive_search_is_brute_force(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", rows)
    seen = 0
    for seed in range(40):
        rng = random.Random(seed)
        words, limit = rng.randint(0, 3), rng.randint(1, 4)
        table = Table(seed, 4 + words, 1.0, 0.0, rng.choice([0.0, 0.3]))
        penalty, n_best = rng.choice([0.0, 1.0]), rng.choice([1, 5, 1000])
        expected = exhaustive(table.of(0), 4 + words, limit, penalty)
        found = exhaustive_search(table.step, table.start([0]), limit, Scorer(penalty), n_best, CPU)
        assert [one.tokens for one in found] == [one.tokens for one in expected[:n_best]]
        for left, right in zip(found, expected, strict=False):
            assert left.token_scores == pytest.approx(right.parts, abs=1e-12)
            assert left.normalised == pytest.approx(right.normalised, abs=1e-12)
            assert left.score == pytest.approx(sum(right.parts), abs=1e-12)
        seen += len(found)
    assert seen > 100


def test_exhaustive_search_agrees_with_teacher_forcing_and_a_wide_beam() -> None:
    sources = [[5, 6], [4]]
    for encoder, decoder in (("gru", "lstm"), ("transformer", "transformer")):
        model = model_of(encoder, decoder, seed=4, vocabulary=7)
        config = SearchConfig(length_penalty=0.0)
        outputs = 1 + 3 + 9 + 27
        found = search(model, batch_of(sources), config, 1.0, 1000, method=Exhaustive(length=3))
        limits = torch.tensor([4, 4])
        with torch.no_grad():
            options = BeamOptions(outputs, n_best=outputs)
            wide = beam_search(model.step, model.start(batch_of(sources)), limits, options, Scorer(length_penalty=0.0))
        for source, row, other in zip(sources, found, wide, strict=True):
            assert len(row) == outputs
            assert [one.tokens for one in row] == [one.tokens for one in other]
            texts = [list(text) for size in range(4) for text in product([4, 5, 6], repeat=size)]
            with torch.no_grad():
                truth = model.score(batch_of([source] * len(texts), texts)).log_probabilities.sum(1).tolist()
            by_text = {(*text, EOS): score for text, score in zip(texts, truth, strict=True)}
            for one in row:
                assert one.score == pytest.approx(by_text[one.tokens], abs=1e-10)
            assert sum(math.exp(one.score) for one in row) < 1


def test_all_outputs_together_have_all_the_probability() -> None:
    """A model that always ends by the third token and gives suppressed tokens no probability."""

    class Ends(Table):
        def guess(self, source: int, prefix: tuple[int, ...]) -> list[float]:
            if len(prefix) == 2:
                return [0.0 if token == EOS else -math.inf for token in range(self.vocabulary)]
            guess = super().guess(source, prefix)
            real = [one if token >= EOS else -math.inf for token, one in enumerate(guess)]
            total = math.log(sum(math.exp(one) for one in real))
            return [one - total for one in real]

    table = Ends(1, 8, 1.0, 0.0, 0.0)
    found = exhaustive_search(table.step, table.start([0]), 6, Scorer(), 10**6, CPU)
    assert sum(math.exp(one.score) for one in found) == pytest.approx(1.0, abs=1e-12)
    assert len(found) == 1 + 4 + 16


def test_a_space_that_is_too_large_is_refused_with_a_length_that_fits() -> None:
    model = model_of(vocabulary=104)
    with pytest.raises(ConfigError, match=r"found 1\.01e\+10 outputs of up to 5 tokens over 100 words.*of 2 fits"):
        search(model, batch_of([[5]]), SearchConfig(), 1.0, method=Exhaustive(length=5))
    with pytest.raises(ConfigError, match="token by token"):
        search(
            NonAutoregressive(NonAutoregressiveConfig(), 9, 9),
            batch_of([[5]]),
            SearchConfig(),
            1.0,
            method=Exhaustive(length=1),
        )
