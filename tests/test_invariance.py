"""Output does not depend on the batch size, the order of the inputs, or the neighbours in a batch."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.inference.predictor import Prediction, Predictor
from tests.conftest import quiet_machine, words, write_rows

COUNT, BATCH_SIZES = 100, (1, 7, 64)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        side: {"kind": "transformer", "layers": 1, "width": 32, "heads": 4, "feedforward": 64, "dropout": 0.0}
        for side in ("encoder", "decoder")
    },
    "rnn": {
        "encoder": {"kind": "recurrent", "layers": 1, "embedding": 24, "width": 32, "dropout": 0.0},
        "decoder": {
            "kind": "recurrent",
            "layers": 1,
            "embedding": 24,
            "width": 32,
            "attention": {"kind": "additive", "width": 16},
            "dropout": 0.0,
        },
    },
}


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A model that is right about most words of its kind."""
    folder = tmp_path_factory.mktemp(f"invariance-{request.param}")
    write_rows(folder / "pairs.tsv", [(word, word.upper()) for word in words(400, longest=8)])
    table = {
        "data": {"train": str(folder / "pairs.tsv")},
        "tokenizer": {"source": {"kind": "characters"}},
        "model": MODELS[request.param],
        "train": {
            "steps": 160, "batch_tokens": 600, "validate_every": 160, "device": "cpu",
            "optimizer": {"learning_rate": 1e-2, "warmup": 20},
        },
    }  # fmt: skip
    with quiet_machine(folder / "cache"):
        return dragoman.train(table, folder / "run", quiet=True)


def in_any_batch_and_order(run: Predictor, inputs: list[str], beam: int) -> list[Prediction]:
    """The predictions, after they were found to be the same in every way of asking for them."""
    assert len(inputs) == COUNT
    expected = run.predict(inputs, beam=beam, batch_size=COUNT)
    draw = random.Random(beam)
    for size in BATCH_SIZES:
        order = list(range(len(inputs)))
        draw.shuffle(order)
        shuffled = run.predict([inputs[place] for place in order], beam=beam, batch_size=size)
        found = dict(zip(order, shuffled, strict=True))
        assert [found[place].text for place in range(COUNT)] == [one.text for one in expected]
        assert [found[place].tokens for place in range(COUNT)] == [one.tokens for one in expected]
        assert [found[place].score for place in range(COUNT)] == pytest.approx(
            [one.score for one in expected], abs=1e-4
        )
    return expected


@pytest.mark.parametrize("beam", [1, 5], ids=["greedy", "beam"])
def test_text_is_the_same_in_any_batch_and_order(run: Predictor, beam: int, tmp_path: Path) -> None:
    inputs = words(COUNT, seed=7, longest=8)
    with quiet_machine(tmp_path):
        found = in_any_batch_and_order(run, inputs, beam)
    right = sum(one.text == text.upper() for one, text in zip(found, inputs, strict=True))
    assert right > 25


@pytest.mark.parametrize("beam", [1, pytest.param(5, marks=pytest.mark.slow)], ids=["greedy", "beam"])
def test_nothing_but_rounding_could_make_a_difference(run: Predictor, beam: int, tmp_path: Path) -> None:
    """On strange inputs a model hovers between outputs; in float64 not even there do neighbours tip the balance."""
    exact = copy.copy(run)
    exact.model = copy.deepcopy(run.model).double()
    some = words(COUNT - 10, seed=8, shortest=1, longest=12, letters="abcxyz ")
    inputs = [*some, "", " ", "ü☃", "a", "a" * 25, "j" * 25, "abc abc", "xyz", "", some[0]]
    with quiet_machine(tmp_path):
        found = in_any_batch_and_order(exact, inputs, beam)
    assert found[0] == found[-1]  # the same text in two places
    assert len({one.text for one in found}) > 50
    assert [place for place, one in enumerate(found) if not one.tokens] == [
        place for place, text in enumerate(inputs) if not text.strip()
    ]


def test_scores_are_the_same_in_any_batch(run: Predictor, tmp_path: Path) -> None:
    pairs = [(text, text.upper()) for text in words(60, seed=9, longest=8)]
    with quiet_machine(tmp_path):
        one, other = (run.evaluate(pairs, beam=1, batch_size=size)[0] for size in (7, 64))
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for key in ("bleu", "chrf", "wer", "cer", "exact_match", "token_accuracy"):
        assert one[key] == other[key]
