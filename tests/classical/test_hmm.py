"""Hidden Markov models against enumeration of all tag sequences and against hmmlearn; the HMM tagger as a run."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.base import DataError
from dragoman.classical import hmm_tagger
from dragoman.classical.hmm import (
    DiscreteHMM,
    second_order_posteriors,
    second_order_score,
    second_order_viterbi,
)
from tests.conftest import call


def random_second_order(seed: int, rows: int = 3, words: int = 4, tags: int = 3):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    transitions = np.log(rng.dirichlet(np.ones(tags + 1), (tags + 1, tags + 1)))
    emissions = np.log(rng.random((rows, words, tags)))
    mask = np.arange(words) < np.array([words, words - 2, 1])[:rows, None]
    return emissions, transitions, mask


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_second_order_passes_equal_enumeration(seed: int) -> None:
    emissions, transitions, mask = random_second_order(seed)
    best = second_order_viterbi(emissions, transitions, mask)
    shares, totals = second_order_posteriors(emissions, transitions, mask)
    for row in range(len(mask)):
        count, tags = int(mask[row].sum()), emissions.shape[2]
        paths = list(itertools.product(range(tags), repeat=count))
        padded = np.zeros((len(paths), mask.shape[1]), np.int64)
        padded[:, :count] = paths
        same = np.repeat(emissions[row : row + 1], len(paths), 0)
        scores = second_order_score(same, transitions, padded, np.repeat(mask[row : row + 1], len(paths), 0))
        by_hand = []
        for path in paths:
            whole = (tags, tags, *path, tags)
            steps = sum(transitions[whole[k : k + 3]] for k in range(len(whole) - 2))
            by_hand.append(steps + sum(emissions[row, place, tag] for place, tag in enumerate(path)))
        assert scores == pytest.approx(by_hand)
        assert tuple(best[row, :count]) == paths[int(np.argmax(scores))]
        assert totals[row] == pytest.approx(np.log(np.exp(scores).sum()))
        chances = np.exp(scores - totals[row])
        for place in range(count):
            expected = [sum(c for c, path in zip(chances, paths, strict=True) if path[place] == t) for t in range(tags)]
            assert shares[row, place] == pytest.approx(expected)


def test_the_discrete_model_is_that_of_hmmlearn() -> None:
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    rng = np.random.default_rng(5)
    start, moves = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3)
    symbols = rng.dirichlet(np.ones(4), 3)
    rows = [rng.integers(0, 4, size).tolist() for size in (7, 3, 12, 1)]
    ours = DiscreteHMM(start, moves, symbols)
    theirs = hmmlearn.CategoricalHMM(3, n_iter=1, init_params="", n_features=4, tol=-1e9)
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = start, moves, symbols
    flat, lengths = np.concatenate(rows)[:, None], list(map(len, rows))
    assert sum(map(ours.log_likelihood, rows)) == pytest.approx(theirs.score(flat, lengths))
    score, states = theirs.decode(flat, lengths)
    found = [ours.viterbi(row) for row in rows]
    assert sum(one[1] for one in found) == pytest.approx(score)
    assert [state for one in found for state in one[0]] == states.tolist()
    assert np.concatenate([ours.posteriors(row) for row in rows]) == pytest.approx(theirs.predict_proba(flat, lengths))
    after, likelihood = ours.baum_welch(rows)
    theirs.fit(flat, lengths)
    for mine, other in ((after.start, theirs.startprob_), (after.transitions, theirs.transmat_)):
        assert mine == pytest.approx(other)
    assert after.emissions == pytest.approx(theirs.emissionprob_)
    for _ in range(10):
        after, now = after.baum_welch(rows)
        assert now >= likelihood - 1e-9
        likelihood = now


def test_the_discrete_model_takes_lists_arrays_and_tensors() -> None:
    """Rabiner's urns as a person types them; all kinds of input give one result."""
    start, moves, symbols = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]
    row = [0, 1, 2]
    paths = {path: start[path[0]] * symbols[path[0]][0] for path in itertools.product(range(2), repeat=3)}
    for path in paths:
        for step in (1, 2):
            paths[path] *= moves[path[step - 1]][path[step]] * symbols[path[step]][row[step]]
    best = max(paths, key=lambda path: paths[path])
    kinds = (lambda x: x, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True))
    for kind in kinds:
        model, given = DiscreteHMM(kind(start), kind(moves), kind(symbols)), kind([float(x) for x in row])
        states, score = model.viterbi(given)
        assert (tuple(states), score) == (best, pytest.approx(np.log(paths[best]), abs=1e-6))
        assert model.log_likelihood(given) == pytest.approx(np.log(sum(paths.values())), abs=1e-6)
        assert model.posteriors(given).sum(1) == pytest.approx(np.ones(3))
        assert model.baum_welch([given, given])[1] == pytest.approx(2 * model.log_likelihood(given))


@pytest.mark.parametrize(
    ("change", "row", "message"),
    [
        ({"start": [0.5, 0.6]}, [0], "start: found probabilities that sum to 1.1, expected 1"),
        ({"start": [[0.5, 0.5]]}, [0], "start: found an array of 1×2, expected one list of numbers"),
        ({"start": 1.0}, [0], "start: found an array of one number, expected one list"),
        ({"start": ["a", "b"]}, [0], "start: found 'a', expected numbers"),
        ({"transitions": [[0.7, 0.3], [1.0]]}, [0], "transitions: found rows of different lengths"),
        ({"transitions": [[0.7, 0.3], [0.5, 0.1]]}, [0], "transitions[1]: found probabilities that sum to 0.6"),
        ({"transitions": [[0.7, 0.3]]}, [0], "transitions: found 1×2 numbers, expected 2×2"),
        ({"emissions": [[1.0]]}, [0], "emissions: found 1 rows, expected one for each of 2 states"),
        ({"emissions": [[1.5, -0.5], [1, 0]]}, [0], "emissions: found -0.5, expected probabilities"),
        ({}, [2], "symbols: found 2, expected whole numbers from 0 to 1"),
        ({}, [0.5], "symbols: found 0.5, expected whole numbers"),
        ({}, [], "symbols: found an array of 0, expected a row of one symbol or more"),
    ],
)
def test_what_is_no_hidden_markov_model_is_one_line(change: dict[str, Any], row: list[float], message: str) -> None:
    good = {"start": [0.6, 0.4], "transitions": [[0.7, 0.3], [0.4, 0.6]], "emissions": [[0.5, 0.5], [0.1, 0.9]]}
    with pytest.raises(DataError, match=re.escape(message)):
        DiscreteHMM(**{**good, **change}).viterbi(row)


def test_an_hmm_is_a_run(tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(2)
    nouns, verbs = ["dog", "cat", "fox", "walker"], ["sees", "walks", "hears"]
    lines = []
    for _ in range(80):
        lines += ["the\tDET", f"{random.choice(nouns)}\tNOUN", f"{random.choice(verbs)}\tVERB", "the\tDET"]
        lines += [f"{random.choice(nouns)}\tNOUN", ""]
    data, run = tmp_path / "words.tsv", tmp_path / "run"
    data.write_text("\n".join(lines) + "\n")
    told = call("train", data, "task=tag", "model.kind=hmm", "--run", run)
    assert told.code == 0, told.err
    scores = json.loads(call("evaluate", run, data, "--json", "--baseline").out)
    assert scores["accuracy"] == 1.0
    assert scores["baselines"]["memorise"]["accuracy"] == 1.0
    assert abs(scores["loss"]) < 0.2
    assert call("predict", run, stdin=b"the talker talks the Zebra\n\n").out.startswith("DET NOUN VERB DET NOUN\n\n")
    one = call("predict", run, "--batch-size", "1", "--json", stdin=b"the fox sees the dog\nthe dog\n").out
    assert one == call("predict", run, "--json", stdin=b"the fox sees the dog\nthe dog\n").out
    monkeypatch.setattr(hmm_tagger, "CELLS", 1)  # a sentence at a time
    assert one == call("predict", run, "--json", stdin=b"the fox sees the dog\nthe dog\n").out
    assert call("check", data, "task=tag", "model.kind=hmm").lines[-1] == "all is well"
    for settings, message in (
        (
            ("task=tag", "model.kind=tagger"),
            'found model.kind = "hmm", which is fitted and has no weights of a network',
        ),
        (("task=tag", "model.kind=hmm"), 'train.start_from: has no meaning for model.kind = "hmm"'),
    ):
        refused = call("train", data, *settings, f"train.start_from={run}", "--run", tmp_path / "other")
        assert (refused.code, message in refused.err) == (2, True), refused.err
    assert call("inspect", run, "the fox sees", "--output", tmp_path / "seen.json").code == 0
    assert json.loads((tmp_path / "seen.json").read_text())["target"]["text"] == "the/DET fox/NOUN sees/VERB"
    refused = call("export", run, "--to", "web", "--output", tmp_path / "page")
    assert (refused.code, "model.kind: found 'hmm', which is fitted" in refused.err) == (2, True), refused.err
    long = " ".join(["fox"] * 1000)
    assert len(call("predict", run, stdin=long.encode()).out.split()) == 1000
