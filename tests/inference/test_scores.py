"""Scores of given targets: those of the search, and every check of the pipeline holds for them."""

from __future__ import annotations

import math

import pytest

import dragoman
from dragoman.base.errors import DragomanError, RunError
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.predictor import Predictor
from tests.conftest import TrainedFolder, words


@pytest.fixture
def run(inside: TrainedFolder) -> Predictor:
    return dragoman.load(inside.run, device="cpu")


def test_the_score_of_an_output_is_that_of_the_search(run: Predictor) -> None:
    texts = words(20, seed=5)
    outputs = run.predict(texts, n_best=2, beam=3)
    others = [(text, *output.alternatives) for text, output in zip(texts, outputs, strict=True)]
    pairs = [(text, output.text) for text, output in others]
    scored = run.score(pairs, batch_size=3)
    for (_, output), score in zip(others, scored, strict=True):
        assert score.token_scores == pytest.approx(output.token_scores, abs=1e-4)
        assert score.tokens[:-1] == output.tokens
        assert score.log_probability == pytest.approx(sum(output.token_scores), abs=1e-4)
        assert score.score == pytest.approx(score.log_probability / len(score.tokens))
    (best,) = run.score([(texts[0], outputs[0].text)])
    assert all(best.correct)  # greedy search would write the same
    loss = run.evaluate(pairs)["loss"]
    tokens = sum(len(score.tokens) for score in scored)
    assert loss == pytest.approx(-sum(score.log_probability for score in scored) / tokens)


def test_pairs_are_checked_as_inputs_are(run: Predictor, inside: TrainedFolder) -> None:
    long = "ab" * 2_500  # tokens, of which training allowed far fewer
    pairs = [("abc", "ABC"), (long, "AB"), ("\ufeffabc", "A\x80BC"), ("é", "A"), ("ab" * 200, "AB")]
    refused, unknown, warnings = dict[int, DragomanError](), dict[int, list[str]](), list[str]()
    with pytest.raises(InputTooLongError, match=r"input 2: source: found 5,000 tokens, .* data\.max_length"):
        run.score(pairs, on_warning=warnings.append)
    scores = run.score(
        pairs, on_refused=refused.__setitem__, on_unknown=unknown.__setitem__, on_warning=warnings.append, batch_size=1
    )
    assert list(refused) == [2]
    assert unknown == {4: ["é"]}
    assert scores[0] == scores[2]
    assert scores[1].as_table() == {"log_probability": None, "score": None, "tokens": [], "token_scores": []}
    assert warnings[-1].startswith("input 5: source: found 400 tokens")
    assert math.isfinite(scores[4].score)
    inside.write("scored.tsv", "abc\tABC\n")
    assert run.score("scored.tsv") == scores[:1]


def test_an_evaluation_counts_references_of_sources_that_cannot_be_read_as_a_whole(run: Predictor) -> None:
    """Its loss was computed by one pass over as many tokens as there were."""
    scores = run.evaluate(
        [("abc", "ABC"), ("ab" * 2_500, "AB")], beam=1, max_length=2, on_warning=lambda line: None, metrics="chrf"
    ).scores
    assert scores["too_long"] == 1
    assert scores["loss"] == pytest.approx(-run.score([("abc", "ABC")])[0].score)


def test_a_model_without_probabilities_scores_nothing(run: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(run.scorer), "likelihood", "none")
    with pytest.raises(RunError, match="no probability of a text"):
        run.score([("abc", "ABC")])
