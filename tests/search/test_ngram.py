"""The n-gram model of tokens against Witten and Bell's formula by hand, and the neural one against teacher forcing."""

from __future__ import annotations

import pytest
import torch

from dragoman.data.batches import batch_of
from dragoman.data.tokenizers import EOS, SOS
from dragoman.models.language_model import LanguageModel, LanguageModelConfig
from dragoman.search.ngram import Neural, NGram

VOCABULARY = 9
TEXTS = [[4, 5, 4], [4, 5], [6]]


def by_hand(text: tuple[int, ...], token: int, order: int) -> float:
    """The recursion of the formula, with counts taken anew every time."""

    def share(history: tuple[int, ...]) -> float:
        shorter = 1 / (VOCABULARY - 3) if not history else share(history[1:])
        if not history:
            shorter = 0.0 if token < EOS else 1 / (VOCABULARY - 3)
        followers = []
        for row in TEXTS:
            whole = (*[SOS] * (order - 1), *row, EOS)
            for place in range(order - 1, len(whole)):
                if whole[place - len(history) : place] == history:
                    followers.append(whole[place])
        if not followers:
            return shorter
        kinds = len(set(followers))
        return (followers.count(token) + kinds * shorter) / (len(followers) + kinds)

    padded = (*[SOS] * (order - 1), *text)
    return share(padded[len(padded) - order + 1 :]) if order > 1 else share(())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_shares_are_those_of_witten_and_bell(order: int) -> None:
    model = NGram(TEXTS, VOCABULARY, order)
    for text in ((), (4,), (4, 5), (5, 4), (8, 8), (6,)):
        found = model(text).exp()
        assert float(found.sum()) == pytest.approx(1.0)
        for token in range(VOCABULARY):
            assert float(found[token]) == pytest.approx(by_hand(text, token, order)), (text, token)


def test_a_neural_model_says_what_it_says_by_teacher_forcing() -> None:
    torch.manual_seed(1)
    model = LanguageModel(LanguageModelConfig(), VOCABULARY).double().eval()
    scorer = Neural(model)
    text = (4, 7, 5)
    scores = model.score(batch_of([[]], [list(text)]))
    tokens = (*text, EOS)
    found = [float(scorer(tokens[:place])[token]) for place, token in enumerate(tokens)]
    assert found == pytest.approx(scores.log_probabilities[0].tolist())
