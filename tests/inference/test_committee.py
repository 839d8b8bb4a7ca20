"""Ensembles of runs that cannot be averaged token by token, against votes counted by hand."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import ConfigError, RunError
from dragoman.decoding.sampling import Sampling
from dragoman.inference.committee import PSEUDO_INPUTS, learned_weights
from dragoman.inference.predictor import Prediction, Predictor
from dragoman.runs.folder import write_members
from tests.conftest import SMALL, call, own_copy, quiet_machine, words, write_rows

FEW = ("train.steps=40", "train.validate_every=40", "train.decode=5", "train.optimizer.warmup=9", "train.device=cpu")
RUNS = {
    "letters": ("pairs.tsv", *SMALL, *FEW, "train.optimizer.learning_rate=2e-2", "search.beam=3"),
    "other": ("more.tsv", *SMALL, *FEW, "train.optimizer.learning_rate=2e-2", "search.beam=3"),
    "ngrams": ("pairs.tsv", "preset=ngram-transducer"),
    "phrases": ("pairs.tsv", "preset=phrase-based"),
}
INPUTS = ["ab cd", "dab", "abcd ba"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = own_copy(tmp_path_factory, "committee", train)
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        yield folder


def train(folder: Path) -> None:
    some = words(240, longest=4, letters="abcd")
    rows = [
        (f"{first} {second}", f"{first.upper()} {second}") for first, second in zip(some[::2], some[1::2], strict=True)
    ]
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        write_rows(folder / "pairs.tsv", rows)
        write_rows(folder / "more.tsv", [*rows, ("xyz", "XYZ")])
        write_rows(folder / "back.tsv", [row[::-1] for row in rows])
        write_rows(folder / "test.tsv", rows[:9])
        for name, (data, *settings) in RUNS.items():
            said = call("train", data, "--run", name, *settings, "--quiet")
            assert said.code == 0, said.err
        shutil.copytree("letters", "mixed")
        shutil.copytree("ngrams", "mixed/trials/ngrams")
        write_members(Path("mixed"), ["trials/ngrams"], [0.75, 0.25])


@pytest.fixture(autouse=True)
def inside(place: Path) -> Iterator[None]:
    with contextlib.chdir(place):
        yield


def every(prediction: Prediction) -> list[str]:
    return [output.text for output in (prediction, *prediction.alternatives)]


def by_hand(names: tuple[str, ...], weights: list[float], text: str, beam: int) -> dict[str, float]:
    """The probability of each candidate."""
    runs: list[Predictor] = [dragoman.load(name) for name in names]
    best = [run.predict([text], beam=beam, n_best=beam)[0] for run in runs]
    union = list(dict.fromkeys(output for prediction in best for output in every(prediction)))
    total = dict.fromkeys(union, 0.0)
    for run, prediction, weight in zip(runs, best, weights, strict=True):
        if run.likelihood == "none":
            own = {output.text: output.score for output in (prediction, *prediction.alternatives)}
            logs = [own.get(output, -math.inf) for output in union]
        else:
            logs = [score.log_probability for score in run.score([(text, output) for output in union])]
        odds = [math.exp(log - max(logs)) for log in logs]
        for output, one in zip(union, odds, strict=True):
            total[output] += weight * one / sum(odds)
    return total


@pytest.mark.parametrize("names", [("letters", "ngrams"), ("letters", "other"), ("letters", "other", "phrases")])
def test_members_vote_with_their_probabilities(names: tuple[str, ...]) -> None:
    weights = [3.0, 2.0, 1.0][: len(names)]
    shares = [weight / sum(weights) for weight in weights]
    found = dragoman.load(list(names)).predict(INPUTS, n_best=4, beam=4, weights=tuple(weights))
    for text, prediction in zip(INPUTS, found, strict=True):
        expected = by_hand(names, shares, text, 4)
        best = sorted(expected, key=lambda output: -expected[output])[:4]
        assert every(prediction) == best
        for output, one in zip((prediction, *prediction.alternatives), best, strict=True):
            assert math.exp(output.score) == pytest.approx(expected[one], abs=1e-5)
            assert output.probability == pytest.approx(expected[one], abs=1e-5)
    Path("in.txt").write_text("".join(f"{text}\n" for text in INPUTS), encoding="utf-8")
    options = [*(f"ensemble.runs={name}" for name in names[1:]), *(f"ensemble.weights={weight}" for weight in weights)]
    said = call("predict", names[0], "in.txt", "--beam", "4", "--n-best", "4", "--json", *options)
    assert said.code == 0, said.err
    assert [json.loads(line)["text"] for line in said.lines] == [prediction.text for prediction in found]


def test_weights_of_models_that_are_averaged_token_by_token(tmp_path: Path) -> None:
    """One member alone, and the same member twice, are the member; 2 and 1 are the first one twice and the second."""
    shutil.copytree("letters", "again", dirs_exist_ok=True)
    said = call("train", "pairs.tsv", "--run", "seed", *RUNS["letters"][1:], "train.seed=5", "--quiet")
    assert said.code == 0, said.err
    run: Predictor = dragoman.load("letters")
    alone = run.predict(INPUTS)
    for weights in ((1.0, 0.0), (1.0, 0.0)):
        assert [one.text for one in run.predict(INPUTS, ensemble=["seed"], weights=weights)] == [
            one.text for one in alone
        ]
    for average in ("probability", "log"):
        weighted = run.predict(INPUTS, ensemble=["seed"], weights=(2.0, 1.0), average=average)
        twice = run.predict(INPUTS, ensemble=["again", "seed"], average=average)
        assert [one.text for one in weighted] == [one.text for one in twice]
        assert [one.score for one in weighted] == pytest.approx([one.score for one in twice], abs=1e-5)


def test_a_run_folder_of_several_kinds() -> None:
    """The whole of it, or a refusal that names a member."""
    run: Predictor = dragoman.load("mixed")
    together = run.predict(INPUTS)
    expected = [by_hand(("letters", "ngrams"), [0.75, 0.25], text, 3) for text in INPUTS]
    assert [one.text for one in together] == [max(one, key=lambda output, own=one: own[output]) for one in expected]
    assert "parameters" in repr(run)
    scores = json.loads(call("evaluate", "mixed", "test.tsv", "--json").out)
    assert "loss" not in scores
    assert scores["segments"] == 9
    for arguments in (("translate", "mixed", "in.txt", "--force"), ("info", "mixed"), ("bench", "mixed", "test.tsv")):
        Path("in.txt").write_text("ab cd\n", encoding="utf-8")
        said = call(*arguments)
        assert said.code == 0, said.err
    for arguments in (
        ("export", "mixed", "--to", "onnx", "--output", "out"), ("score", "mixed", "test.tsv"),
        ("align", "mixed", "test.tsv"), ("inspect", "mixed", "ab"), ("train", "mixed"), ("attention", "mixed", "ab"),
        ("calibrate", "mixed", "test.tsv"),
    ):  # fmt: skip
        said = call(*arguments)
        assert said.code == 2, arguments
        assert said.err.count("\n") == 1, said.err
        assert "mixed" in said.err, said.err


def test_inputs_with_constraints_and_empty_ones() -> None:
    run: Predictor = dragoman.load(["letters", "other"])
    found = run.predict(["ab cd", "", "dab"], prefix="B")
    assert [one.text[:1] for one in found] == ["B", "", "B"]
    assert [one.text for one in run.predict(["ab cd", "dab"], batch_size=1)] == [
        one.text for one in run.predict(["dab", "ab cd"])
    ][::-1]


def test_what_cannot_be() -> None:
    run: Predictor = dragoman.load("letters")
    with pytest.raises(ConfigError, match=r"ensemble\.weights: found 3, expected one for each of 2 members"):
        run.predict(["ab"], ensemble=["ngrams"], weights=(1.0, 2.0, 3.0))
    with pytest.raises(ConfigError, match=r"ensemble\.weights: found -1\.0, 1\.0, expected finite numbers"):
        run.predict(["ab"], ensemble=["ngrams"], weights=(-1.0, 1.0))
    with pytest.raises(ConfigError, match="found another decoding method, expected models with the same vocabularies"):
        run.predict(["ab"], ensemble=["ngrams"], method=Sampling())
    said = call("train", "back.tsv", "--run", "back", *SMALL, *FEW, "train.steps=1", "--quiet")
    assert said.code == 0, said.err
    with pytest.raises(RunError, match="found a run from the targets to the sources of letters"):
        run.predict(["ab"], ensemble=["back"])
    (Path("mixed") / "ensemble.json").write_text('{"members": ["trials/ngrams"], "weights": [1.0]}', encoding="utf-8")
    try:
        with pytest.raises(RunError, match=r"found the weights \[1\.0\], expected one from 0 to 1 for each member"):
            dragoman.load("mixed")
    finally:
        write_members(Path("mixed"), ["trials/ngrams"], [0.75, 0.25])


def test_weights_make_references_probable_but_few_inputs_say_little() -> None:
    votes = [[math.log(0.9), math.log(0.2)], [math.log(0.6), math.log(0.5)], [-50.0, math.log(0.3)]]

    def objective(weight: float, rows: list[list[float]]) -> float:
        mixed = [weight * math.exp(first) + (1 - weight) * math.exp(second) for first, second in rows]
        prior = PSEUDO_INPUTS / 2 * (math.log(weight) + math.log(1 - weight))
        return math.fsum(map(math.log, mixed)) + prior

    for times in (1, 100):
        rows = votes[:2] * times + votes[2:]
        best = max((number / 1000 for number in range(1, 1000)), key=lambda weight: objective(weight, rows))
        assert learned_weights(rows) == pytest.approx((best, 1 - best), abs=2e-2)
    assert learned_weights(votes)[0] == pytest.approx(0.5, abs=0.02)
    assert learned_weights(votes[:1] * 1000)[0] > 0.9
    assert learned_weights([]) == (1.0,)
