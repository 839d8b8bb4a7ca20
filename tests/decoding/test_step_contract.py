"""A search names what is wrong with someone's own model, at its first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.searches import search
from dragoman.models.contracts import State

VOCABULARY = 8


class OwnModel(nn.Module):
    """Writes token 5 twice, then ends; its state is the number of tokens so far."""

    max_positions: Any = None

    def start(self, batch: Any) -> Any:
        rows = len(batch.source.data)
        return State(static=(), cache=(torch.zeros(rows, dtype=torch.long),), length=0)

    def scores(self, written: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.where(written < 2, 5, EOS), VOCABULARY) * 20.0

    def step(self, tokens: Tensor, state: Any) -> Any:
        (written,) = state.cache
        return self.scores(written).log_softmax(-1), state._replace(cache=(written + 1,), length=state.length + 1)


def decode(model: Any, beam: int = 3) -> list[list[int]]:
    batch = batch_of([[4, 5], [6]], [[], []])
    return [list(best[0].tokens) for best in search(model, batch, SearchConfig(beam=beam), 2.0)]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_module_of_ones_own_is_searched(beam: int) -> None:
    assert decode(OwnModel(), beam) == [[5, 5, EOS], [5, 5, EOS]]


class Logits(OwnModel):
    def step(self, tokens: Tensor, state: Any) -> Any:
        _, after = super().step(tokens, state)
        return self.scores(state.cache[0]), after


class Suppressed(OwnModel):
    def step(self, tokens: Tensor, state: Any) -> Any:
        scores, after = super().step(tokens, state)
        scores = (scores.exp() * 0.5 + 0.5 / VOCABULARY).log()
        scores[:, 7] = -torch.inf  # as a model does with tokens that it never writes
        return scores, after


def test_suppressed_tokens_leave_less_than_one() -> None:
    assert decode(Suppressed()) == [[5, 5, EOS], [5, 5, EOS]]


class NoTuple(OwnModel):
    def step(self, tokens: Tensor, state: Any) -> Any:
        return super().step(tokens, state)[0]


class WrongShape(OwnModel):
    def step(self, tokens: Tensor, state: Any) -> Any:
        scores, after = super().step(tokens, state)
        return scores[:, None], after


class PlainState(OwnModel):
    def start(self, batch: Any) -> Any:
        return {"written": 0}


class TextLimit(OwnModel):
    max_positions = "many"


class NoStart(nn.Module):
    max_positions = None


class NoLimit(nn.Module):
    start = OwnModel.start
    step = OwnModel.step


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (
            Logits,
            ValueError,
            r"Logits.step: found scores whose exponentials sum to 4.852e\+08, .* return logits.log_soft",
        ),
        (NoTuple, TypeError, r"NoTuple.step: found Tensor, expected a tuple \(log-probabilities, state\)"),
        (WrongShape, TypeError, r"WrongShape.step: found shape \(\d, 1, 8\), expected log-probabilities of shape"),
        (PlainState, TypeError, "PlainState.start: found a state of type dict without the method 'select'; expected"),
        (TextLimit, TypeError, "TextLimit.max_positions: found 'many', expected a positive number of tokens, or None"),
        (NoStart, TypeError, r"NoStart: found no method 'start', expected start\(batch\) -> state"),
        (NoLimit, TypeError, "NoLimit: found no attribute 'max_positions', expected how many tokens"),
    ],
)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_broken_contract_is_one_line(model: type[nn.Module], error: type[Exception], message: str, beam: int) -> None:
    with pytest.raises(error, match=message) as caught:
        decode(model(), beam)
    assert "\n" not in str(caught.value)
