"""Speculative decoding gives the large model's greedy output, whatever the draft proposes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.decoding import speculative
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.searches import search
from dragoman.decoding.speculative import Speculative
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from tests.contract.conftest import DECODER_CASES
from tests.decoding.test_beam import DECODERS, ENCODERS
from tests.decoding.test_sampling import model_of

PAIRS = list(product(["transformer", "gru"], ["transformer", "lstm"]))


def some_sources(seed: int, count: int, vocabulary: int = 9) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randint(4, vocabulary - 1) for _ in range(rng.randint(1, 8))] for _ in range(count)]


def limits_of(seed: int, count: int, longest: int) -> list[int]:
    rng = random.Random(f"limits {seed}")
    return [rng.randint(1, longest) for _ in range(count)]


def seldom_ending(model: EncoderDecoder) -> EncoderDecoder:
    with torch.no_grad():
        model.output.weight[3] *= 0.3
    return model


def test_output_is_greedy_search_on_a_thousand_inputs_with_any_two_models() -> None:
    """Random drafts of either architecture agree by chance: rows accept none, some or all of a proposal."""
    kept_shares, lengths = set(), set()
    inputs = 0
    for seed, (large, small) in enumerate(product(PAIRS, PAIRS)):
        target = seldom_ending(model_of(*large, seed=seed, vocabulary=7))
        draft = model_of(*small, seed=100 + seed, vocabulary=7)
        sources, limits = some_sources(seed, 64, 7), limits_of(seed, 64, 40 if seed % 4 == 0 else 14)
        method = Speculative(draft, tokens=1 + seed % 5)
        batch = batch_of(sources)
        with torch.no_grad():
            greedy = greedy_search(target.step, target.start(batch), torch.tensor(limits))
        found = method.decode(target, batch, limits)
        assert [one.tokens for one in found] == [one.tokens for one in greedy]
        for left, right in zip(found, greedy, strict=True):
            assert left.token_scores == pytest.approx(right.token_scores, abs=1e-10)
            assert left.normalised == pytest.approx(right.normalised, abs=1e-10)
        inputs += len(sources)
        lengths |= {len(one.tokens) for one in found}
        kept_shares.add(method.stats.accepted / method.stats.proposed)
        assert method.stats.greedy_calls == max(len(one.tokens) for one in found)
    assert inputs >= 1000
    assert min(kept_shares) < 0.15 < max(kept_shares) < 1
    assert len(lengths) > 15
    assert max(lengths) > speculative.MIN_ADVANCE + 6  # states were moved on


@pytest.mark.parametrize("decoder", list(DECODER_CASES))
def test_every_decoder_can_verify_a_draft(decoder: str) -> None:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(encoder=ENCODERS["gru"], decoder=DECODER_CASES[decoder], tie="none")
    target = EncoderDecoder(config, 9, 9).double().eval()
    batch, limits = batch_of(some_sources(1, 6)), [25, 3, 9, 1, 24, 12]
    with torch.no_grad():
        greedy = greedy_search(target.step, target.start(batch), torch.tensor(limits))
        for draft in (target, model_of(seed=5)):
            found = Speculative(draft, tokens=3).decode(target, batch, limits)
            assert [one.tokens for one in found] == [one.tokens for one in greedy]


def test_a_perfect_draft_saves_most_calls() -> None:
    model = seldom_ending(model_of("transformer", "transformer", seed=1))
    batch = batch_of(some_sources(2, 10))
    method = Speculative(model, tokens=4)
    longest = max(len(one.tokens) for one in method.decode(model, batch, [41] * 10))
    stats = method.stats
    assert longest == 41
    assert stats.accepted == stats.proposed > 0
    # Five tokens a call, and one more call for every 16 or more tokens.
    assert stats.calls <= 9 + 2
    assert stats.greedy_calls == 41
    assert "in place of 41" in str(stats)


def test_one_row_alone_is_as_in_a_batch() -> None:
    model, draft = model_of(seed=1), model_of("transformer", "transformer", seed=2)
    sources, limits = some_sources(3, 12), limits_of(3, 12, 20)
    together = Speculative(draft).decode(model, batch_of(sources), limits)
    for source, limit, one in zip(sources, limits, together, strict=True):
        assert Speculative(draft).decode(model, batch_of([source]), [limit])[0].tokens == one.tokens


def test_an_ensemble_may_verify_and_may_propose() -> None:
    members = [model_of(seed=1), model_of("transformer", "transformer", seed=2)]
    target = Ensemble(members)
    batch, limits = batch_of(some_sources(4, 20)), limits_of(4, 20, 20)
    with torch.no_grad():
        greedy = greedy_search(target.step, target.start(batch), torch.tensor(limits))
    for draft in (members[0], Ensemble(members, "log")):
        found = Speculative(draft).decode(target, batch, limits)
        assert [one.tokens for one in found] == [one.tokens for one in greedy]


def test_a_draft_with_fewer_positions_stops_proposing() -> None:
    target = seldom_ending(model_of(seed=1))
    torch.manual_seed(0)
    short = replace(DECODERS["transformer"], positions=LearnedConfig(max_positions=6))
    draft = EncoderDecoder(EncoderDecoderConfig(encoder=ENCODERS["gru"], decoder=short), 9, 9).double().eval()
    batch, limits = batch_of(some_sources(5, 9)), [30, 4, 6, 7, 8, 30, 1, 2, 20]
    with torch.no_grad():
        greedy = greedy_search(target.step, target.start(batch), torch.tensor(limits))
    found = Speculative(draft).decode(target, batch, limits)
    assert [one.tokens for one in found] == [one.tokens for one in greedy]
    assert max(len(one.tokens) for one in found) == 30


def test_search_runs_it_and_refuses_more_than_one_output() -> None:
    model, draft = model_of(seed=1), model_of(seed=2)
    batch, config = batch_of([[5, 6], [7, 8, 4, 5]]), SearchConfig(beam=1, max_length=6)
    expected = search(model, batch, config, 1.0)
    found = search(model, batch, config, 1.0, method=Speculative(draft))
    assert [row[0].tokens for row in found] == [row[0].tokens for row in expected]
    with pytest.raises(ConfigError, match="n_best: found 2, expected 1 with a draft"):
        search(model, batch, config, 1.0, 2, method=Speculative(draft))
    with pytest.raises(ConfigError, match="token by token"):
        Speculative(NonAutoregressive(NonAutoregressiveConfig(), 9, 9))
    with pytest.raises(ConfigError, match="found 0, expected at least 1"):
        Speculative(draft, tokens=0)
