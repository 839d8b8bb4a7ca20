"""Language models of a search: the cache of the n-gram model, and the neural one against teacher forcing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dragoman.base.errors import DataError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding import joint_ctc
from dragoman.decoding.joint_ctc import NeuralLM, NGramLM
from dragoman.models.config import TransformerConfig
from dragoman.models.language_model import LanguageModel, LanguageModelConfig, RecurrentStackConfig
from dragoman.models.layers.config import LearnedConfig, RotaryConfig

VOCABULARY = 9
TEXTS = [[4, 5, 4], [4, 5], [6]]


def test_the_cache_of_an_ngram_model_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_ctc, "MAX_CACHED", 3 * VOCABULARY)
    model, fresh = NGramLM.of_rows(TEXTS, VOCABULARY, 3), NGramLM.of_rows(TEXTS, VOCABULARY, 3)
    texts = [(first, second) for first in range(4, 9) for second in range(4, 9)]
    for text in texts:
        assert torch.equal(model([text]), fresh([text]))
        assert len(model._cache) <= 5


STACKS = {
    "recurrent": RecurrentStackConfig(layers=2, embedding=12, width=16),
    "transformer": TransformerConfig(layers=2, width=16, heads=2, feedforward=32, positions=RotaryConfig()),
}


@pytest.mark.parametrize("stack", STACKS)
def test_a_neural_model_scores_as_by_teacher_forcing(stack: str) -> None:
    """For texts that grow in a beam, for texts that were dropped, and without any cache."""
    torch.manual_seed(1)
    model = LanguageModel(LanguageModelConfig(stack=STACKS[stack]), VOCABULARY).double().eval()
    truth: dict[tuple[int, ...], torch.Tensor] = {}
    for text in ((4, 7, 5, 8), (4, 6), (5, 5, 5), ()):
        scores = model.score(batch_of([[]], [list(text)])).log_probabilities[0].tolist()
        for index, token in enumerate((*text, EOS)):
            truth[(*text[:index], token)] = scores[index]
    scorer, read = NeuralLM(model), 0

    def step(tokens: torch.Tensor, state: Any) -> Any:
        nonlocal read
        read += tokens.numel()
        return type(model).step(model, tokens, state)

    model.step = step  # type: ignore[method-assign]
    asked = [
        [()],
        [(), (4,), (5,)],
        [(4,), (5,), (4, 7), (4, 6)],
        [(4, 7), (5, 5), (4, 7, 5), (4, 6)],
        [(4, 7, 5), (4, 7, 5, 8), (5, 5), (5, 5, 5)],
        [(4, 6), (), (5, 5, 5)],  # dropped, and back
    ]
    for texts in asked:
        found = scorer(texts)
        assert found.shape == (len(texts), VOCABULARY)
        for row, text in zip(found, texts, strict=True):
            assert bool(row[:3].isneginf().all())
            for token in range(3, VOCABULARY):
                if (*text, token) in truth:
                    assert float(row[token]) == pytest.approx(truth[*text, token])
    # Grown texts cost a token each: <sos> and nine of the first five calls; of the last (4, 6) and () are read anew.
    assert read == 1 + 2 + 2 + 2 + 2 + 3 + 1


def test_a_text_that_is_too_long_names_the_model() -> None:
    stack = TransformerConfig(layers=1, width=16, heads=2, feedforward=32, positions=LearnedConfig(max_positions=4))
    scorer = NeuralLM(LanguageModel(LanguageModelConfig(stack=stack), VOCABULARY).eval(), "runs/words")
    scorer([(4, 4)])
    with pytest.raises(DataError, match=r"^runs/words: a sequence of 6 tokens, but the model has learned 4 positions"):
        scorer([(4,) * 5])
