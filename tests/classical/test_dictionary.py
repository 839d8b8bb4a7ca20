"""Copy, memorise and nearest: as models, as runs, and as baselines of an evaluation."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.classical.dictionary import Copy, Memorise, Nearest, NearestConfig
from dragoman.data.batch import batch_of
from dragoman.scoring.edit import edit_distance
from tests.conftest import call

PAIRS = [("ab", "AB"), ("ab", "AB"), ("ab", "Ab"), ("cd", "CD"), ("ab cd", "X Y"), ("abcdef", "long")]


def rows(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def text(tokens: tuple[int, ...]) -> str:
    return "".join(map(chr, tokens))


def fitted(model: Memorise | Nearest) -> Memorise | Nearest:
    model.count((rows(source), rows(target)) for source, target in PAIRS)
    return model


@pytest.mark.parametrize(
    ("source", "expected"),
    [("ab", "AB"), ("cd ab", "CD AB"), ("cd ab cd zz", "CD X Y zz"), ("zz", "zz"), ("", ""), (" ab ", " AB ")],
)
def test_memorise_takes_the_longest_match_and_copies_the_rest(source: str, expected: str) -> None:
    model = fitted(Memorise(space=ord(" ")))
    assert text(model.transduce([rows(source)], 1, 1)[0][0].tokens) == expected


def test_memorise_gives_relative_frequencies() -> None:
    first, second = fitted(Memorise(space=ord(" "))).transduce([rows("ab")], 4, 4)[0]
    assert (text(first.tokens), text(second.tokens)) == ("AB", "Ab")
    assert np.exp([sum(first.token_scores), sum(second.token_scores)]) == pytest.approx([2 / 3, 1 / 3])


def test_nearest_is_the_nearest_of_all() -> None:
    random.seed(2)
    texts = sorted({"".join(random.choices("abcdef", k=random.randint(3, 9))) for _ in range(700)})
    model = Nearest(NearestConfig())
    model.count((rows(one), rows(one)) for one in texts)
    for query in ("", "abc", "fedcba", "zzz", *("".join(random.choices("abcdef", k=6)) for _ in range(20))):
        outputs = model.transduce([rows(query)], 3, 3)[0]
        expected = sorted(edit_distance(query, one) for one in texts)[:3]
        assert [-sum(one.token_scores) for one in outputs] == expected
        assert [edit_distance(query, text(one.tokens)) for one in outputs] == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dictionary")


@pytest.mark.parametrize("kind", ["copy", "memorise", "nearest"])
def test_a_baseline_is_a_run(folder: Path, cached: Path, kind: str) -> None:
    words = ["über", "haus", "mauſ", "baum", "raum", "saum", "kraut", "braut", "haut", "laut", "strauß", "tau"]
    data, test, run = folder / "data.tsv", folder / "test.tsv", folder / kind
    data.write_text("".join(f"{word}\t{word.upper()}\n" for word in words), encoding="utf-8")
    test.write_text("haus\tHAUS\t你好\nbaum zaun\tBAUM ZAUN\n", encoding="utf-8")
    told = call("train", data, f"preset={kind}", "--run", run)
    assert told.code == 0, told.err
    weights = (run / "weights.safetensors").read_bytes()
    (run / ".weights.safetensors.part").mkdir()  # killed just after the weights were moved to their place
    again = call("train", run)
    assert "fitted already" in again.err
    assert not (run / ".weights.safetensors.part").exists()
    assert (run / "weights.safetensors").read_bytes() == weights
    (run / "weights.safetensors").unlink()
    assert call("train", run).code == 0  # an interrupted fit is done again, with the same result
    assert (run / "weights.safetensors").read_bytes() == weights
    scores = json.loads(call("evaluate", run, test, "--json", "--baseline").out)
    assert "loss" not in scores
    assert scores["exact_match"] == scores["baselines"].get(kind, scores)["exact_match"]
    assert scores["exact_match"] == (0.0 if kind == "copy" else 0.5)
    outputs = call("predict", run, stdin="mau𝔖 你\n\nhaus\n".encode()).out.split("\n")
    assert outputs[1] == ""
    if kind == "copy":
        assert outputs[0] == "mau𝔖 你"
    answers = [json.loads(line) for line in call("predict", run, "--json", stdin=b"haus\nhausx\n").out.splitlines()]
    assert all(np.isfinite(one["score"]) for one in answers)
    assert "numbers" in call("info", run).out
    assert call("check", data, f"preset={kind}").lines[-1] == "all is well"
    refused = call("predict", run, "--sample", stdin=b"haus\n")
    assert (refused.code, "no neural network" in refused.err) == (2, True)


def test_copying_needs_one_vocabulary(folder: Path, cached: Path) -> None:
    (folder / "two.tsv").write_text("ab\tcd\nef\tgh\n", encoding="utf-8")
    units = ("tokenizer.target.kind=bytes",)
    told = call("train", folder / "two.tsv", "preset=copy", *units, "--run", folder / "none")
    assert (told.code, "leave tokenizer.target out" in told.err) == (2, True)


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(Exception, match="do not fit the configuration"):
        Memorise().load({"pairs": torch.tensor(1)})


def test_a_model_without_probabilities_refuses_to_score_given_outputs() -> None:
    with pytest.raises(ConfigError, match="Copy models find outputs, but have no probabilities of given ones"):
        Copy().score(batch_of([[4, 5]], [[4, 5]]))
