"""Damaged tensors of run folders are refused with one line, whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.base.errors import RunError
from dragoman.classical.aligner import WordAlignerConfig, WordAlignerModel
from dragoman.classical.dictionary import Memorise
from dragoman.classical.kalman import KalmanConfig, KalmanRegressor
from dragoman.classical.model import FittedModel
from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.classical.ngram_transducer import NGramTransducer, NGramTransducerConfig
from dragoman.classical.rows import Ragged
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer

LINES = ["a b", "b a a", "a b b a", "b"]
TOKENIZER = WordTokenizer.train(WordsConfig(split="spaces"), LINES)
ROWS = Ragged.of(TOKENIZER.encode_batch(LINES))


def dictionary() -> FittedModel:
    model = Memorise(vocabulary=len(TOKENIZER))
    model.count((ROWS[row], ROWS[row]) for row in range(len(ROWS)))
    return model


def aligner(method: str) -> FittedModel:
    model = WordAlignerModel(WordAlignerConfig(method, 1), TOKENIZER, TOKENIZER)  # type: ignore[arg-type]
    model.fit_rows(ROWS, ROWS)
    return model


def transducer() -> FittedModel:
    model = NGramTransducer(NGramTransducerConfig(order=2, iterations=1), TOKENIZER, TOKENIZER)
    model.fit_rows(ROWS, ROWS)
    return model


def kalman() -> FittedModel:
    model = KalmanRegressor(KalmanConfig(states=2, iterations=1))
    model.fit_series([np.arange(4.0)[:, None]])
    return model


MODELS: dict[str, Callable[[], FittedModel]] = {
    "dictionary": dictionary,
    "n-grams": lambda: NGramModel(NGramConfig(2), len(TOKENIZER)).fit_rows(ROWS),
    "hmm": lambda: aligner("hmm"),
    "ibm3": lambda: aligner("ibm3"),
    "transducer": transducer,
    "kalman": kalman,
}


def damaged(tensor: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Other shapes and types of a tensor."""
    yield tensor[None]
    yield tensor.flatten()[: max(0, tensor.size // 2)]
    yield np.array(1, tensor.dtype)
    yield tensor.astype(np.float16)
    if np.issubdtype(tensor.dtype, np.floating):
        yield np.full_like(tensor, np.nan)


@pytest.mark.parametrize("name", MODELS)
def test_damaged_tensors_are_refused(name: str) -> None:
    model = MODELS[name]()
    tensors = dict(model.tensors)
    model.load(tensors)
    for key, tensor in tensors.items():
        for other in damaged(tensor):
            with pytest.raises(RunError, match="damaged"):
                model.load({**tensors, key: other})
        with pytest.raises(RunError, match="do not fit the configuration"):
            model.load({one: value for one, value in tensors.items() if one != key})
        if key.endswith(("offsets", "keys", "targets")):  # values that lead outside of other tensors
            with pytest.raises(RunError, match="damaged"):
                model.load({**tensors, key: np.full_like(tensor, 2**30)})
