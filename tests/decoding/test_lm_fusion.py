"""Shallow fusion with CTC: a wide enough beam ranks texts as brute force over all texts does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.non_autoregressive import LMFusion, decode_ctc
from dragoman.models.contracts import CTCEmissions
from tests.decoding.test_ctc import FIRST, Text, all_texts, emissions_of


def bigrams(seed: int, symbols: int) -> Tensor:
    """Log-probabilities (V, V) of a token after another; the row of <eos> begins a text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(FIRST + symbols, FIRST + symbols, generator=generator, dtype=torch.float64).log_softmax(-1)


def fusion_of(table: Tensor, weight: float, bonus: float) -> tuple[LMFusion, list[Sequence[Text]]]:
    asked: list[Sequence[Text]] = []

    def scorer(texts: Sequence[Text]) -> Tensor:
        assert len(texts) == len(set(texts))  # each once
        before = set(asked[-1]) if asked else set()
        assert all(not text or text in before or text[:-1] in before for text in texts)  # as scorers may count on
        asked.append(texts)
        return table[[text[-1] if text else EOS for text in texts]]

    return LMFusion(scorer, weight, bonus), asked


def truth_of(frames: Tensor, table: Tensor, weight: float, bonus: float) -> dict[Text, float]:
    """CTC's log-probability of every text by brute force, and what the language model adds to it."""
    found = {}
    for text, score in all_texts(frames).items():
        tokens = [EOS, *text, EOS]
        added = sum(float(table[left, right]) for left, right in itertools.pairwise(tokens))
        found[text] = score + weight * added + bonus * len(text)
    return found


@pytest.mark.parametrize(("weight", "bonus"), [(0.7, 0.0), (1.5, 0.8), (0.2, -0.5)])
def test_a_wide_beam_ranks_as_brute_force(weight: float, bonus: float) -> None:
    changed = 0
    for seed in range(12):
        lengths = [5, 2, 4]
        emissions = emissions_of(seed, lengths, symbols=2)
        table = bigrams(seed, 2)
        fusion, asked = fusion_of(table, weight, bonus)
        config = SearchConfig(beam=60, length_penalty=0.0)
        found = decode_ctc(emissions, torch.full_like(emissions.lengths, 99), config, 4, fusion)
        for row, length in enumerate(lengths):
            frames = emissions.log_probabilities[row, :length]
            truth, alone = truth_of(frames, table, weight, bonus), all_texts(frames)
            best = sorted(truth, key=lambda text: -truth[text])[:4]
            assert [one.tokens[:-1] for one in found[row]] == best
            changed += best[0] != max(alone, key=lambda text: alone[text])
            for one in found[row]:
                assert one.normalised == pytest.approx(truth[one.tokens[:-1]], abs=1e-9)
                assert one.score == pytest.approx(alone[one.tokens[:-1]], abs=1e-9)  # CTC's own
        assert len(asked) == max(lengths) + 1  # once a position, and for the ends
    assert changed > 3  # the language model had a say


def test_rows_do_not_see_each_other_and_a_beam_of_one_searches() -> None:
    emissions = emissions_of(3, [6, 3, 5], symbols=3)
    table = bigrams(1, 3)
    for beam in (1, 3):
        config = SearchConfig(beam=beam, length_penalty=0.0)
        fusion, asked = fusion_of(table, 0.9, 0.1)
        together = decode_ctc(emissions, torch.tensor([99] * 3), config, 1, fusion)
        assert asked
        for row, length in enumerate([6, 3, 5]):
            alone = CTCEmissions(emissions.log_probabilities[row : row + 1, :length], torch.tensor([length]))
            own = decode_ctc(alone, torch.tensor([99]), config, 1, fusion_of(table, 0.9, 0.1)[0])
            assert own[0][0].tokens == together[row][0].tokens
            assert own[0][0].normalised == pytest.approx(together[row][0].normalised, abs=1e-10)


def test_tokens_that_the_language_model_rules_out_are_not_output() -> None:
    emissions = emissions_of(5, [6], symbols=2)
    table = bigrams(2, 2)
    table[:, 4] = -math.inf
    fusion, _ = fusion_of(table, 0.5, 0.0)
    found = decode_ctc(emissions, torch.tensor([99]), SearchConfig(beam=8, length_penalty=0.0), 5, fusion)
    assert found[0]
    assert all(4 not in one.tokens for one in found[0])


def test_a_uniform_language_model_changes_no_order_of_equal_lengths() -> None:
    emissions = emissions_of(6, [5], symbols=2)
    flat = LMFusion(
        lambda texts: torch.full((len(texts), FIRST + 2), -math.log(6.0), dtype=torch.float64), 1.0, math.log(6.0)
    )
    config = SearchConfig(beam=60, length_penalty=0.0)
    plain = decode_ctc(emissions, torch.tensor([99]), config, 5)
    fused = decode_ctc(emissions, torch.tensor([99]), config, 5, flat)
    assert [one.tokens for one in plain[0]] == [one.tokens for one in fused[0]]
