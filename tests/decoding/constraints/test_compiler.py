"""Constraints given as text: compiled, from Python, from the command line, and over a trained run."""

from __future__ import annotations

import json
import re

import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.constraints.source import (
    Terminology,
)
from dragoman.decoding.constraints.spec import constraints_for_inputs
from dragoman.inference.predictor import Predictor
from tests.conftest import TrainedFolder, call


@pytest.fixture
def run(inside: TrainedFolder) -> Predictor:
    return dragoman.load(inside.run, engine="torch")  # outputs of one search are compared to the last bit


def test_constraints_that_need_more_than_the_longest_output_are_an_error(run: Predictor) -> None:
    with pytest.raises(
        DataError, match=r"input 2: its constraints \(require 'ABCDEF'\) need 6 tokens, expected at most 4"
    ):
        run.predict(["a", "b"], require=[[], ["ABCDEF"]], max_length=4)


def test_terminology_matches_whole_terms_only(inside: TrainedFolder) -> None:
    path = inside.write("terms.tsv", "cat\tKatze\ncat food\tKatzenfutter\ncat\tKater\n\n")
    terms = Terminology.read(path)
    assert terms.required_by("a cat.") == (("Katze", "Kater"),)
    assert terms.required_by("category concat") == ()
    assert terms.required_by("cat food for a cat") == (("Katzenfutter",), ("Katze", "Kater"))
    with pytest.raises(DataError, match=r"bad.tsv:2: found 1 columns"):
        Terminology.read(inside.write("bad.tsv", "a\tb\nc\n"))


def test_one_value_for_all_inputs_or_one_for_each() -> None:
    assert [one.forbid for one in constraints_for_inputs(2, forbid=["a", "b"])] == [("a", "b")] * 2
    assert [one.forbid for one in constraints_for_inputs(2, forbid=[["a"], None])] == [("a",), ()]
    assert [one.prefix for one in constraints_for_inputs(2, prefix=["x", None])] == ["x", ""]
    assert constraints_for_inputs(1, require=[("a", "b"), "c"])[0].require == (("a", "b"), ("c",))
    with pytest.raises(ConfigError, match="prefix: found 1 entries, expected one for each of the 2 inputs"):
        constraints_for_inputs(2, prefix=["x"])
    with pytest.raises(DataError, match="input 1: require: found"):
        constraints_for_inputs(1, require=[""])


def test_a_run_satisfies_constraints(run: Predictor) -> None:
    texts = ["abc", "dcba", "jihg", "aabb"]
    plain = run.predict(texts)
    assert run.predict(texts, require=[[], ["FF"], [], ["JA", "H"]], forbid=[["A"], [], [], []])[2] == plain[2]
    found = run.predict(texts, require=[[], ["FF"], [], ["JA", "H"]], forbid=[["A"], [], [], []], prefix="D")
    assert all(one.text.startswith("D") for one in found)
    assert "A" not in found[0].text
    assert "FF" in found[1].text
    assert {"JA", "H"} <= {found[3].text[i : i + n] for i in range(len(found[3].text)) for n in (1, 2)}
    for beam in (1, 3):
        assert {one.text for one in run.predict(texts, allow=["ABC", "JI"], beam=beam)} <= {"ABC", "JI"}
        assert all(re.fullmatch("[AB]{4}", one.text) for one in run.predict(texts, pattern="[AB]{4}", beam=beam))
    with pytest.warns(UserWarning, match="did not have: ' ' "):  # the placeholder is copied, so it is not reported
        assert run.predict(["ab <1> c"], placeholders=True)[0].text.count("<1>") == 1
    with pytest.raises(DataError, match="input 2: no output can satisfy all its constraints"):
        run.predict(["a", "b"], require=[[], ["AB"]], forbid=[[], ["B"]])
    with pytest.raises(DataError, match="input 1: require: 'ÜX' cannot be spelled"):
        run.predict(["a"], require="ÜX")


def test_search_settings_reach_the_search(run: Predictor) -> None:
    assert len(run.predict(["ab"], min_length=9)[0].tokens) >= 9
    once = run.predict(["aaaa", "bbbb"], no_repeat_ngram=1)
    assert all(len(set(one.tokens)) == len(one.tokens) for one in once)
    nodes = run.trace("abc", beam=1)
    assert [node["step"] for node in nodes if node["fate"] == "complete"] == [max(node["step"] for node in nodes)]
    assert nodes[-1]["token"] == EOS or any(node["token"] == EOS for node in nodes)


def test_the_command_line_gives_the_same_outputs(inside: TrainedFolder, run: Predictor) -> None:
    inside.write("in.txt", "abc\n\nddcc\n")
    asked = ["constraints.prefix=B", "constraints.require=HG", "constraints.forbid=A", "search.no_repeat_ngram=2"]
    result = call("predict", "runs/pairs", "in.txt", *asked, "beam_trace=trace.jsonl")
    assert result.code == 0, result.err
    lines = result.out.split("\n")
    expected = run.predict(["abc", "", "ddcc"], prefix="B", require="HG", forbid="A", no_repeat_ngram=2)
    assert lines[:3] == [one.text for one in expected]
    assert lines[1] == ""
    rows = [json.loads(line) for line in (inside.folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["source"] for row in rows] == ["abc", "", "ddcc"]
    assert {"piece", "parent", "log_probability", "score", "normalised", "fate"} <= set(rows[0]["nodes"][0])
    inside.write("in.jsonl", '{"source": "abc", "prefix": "J"}\n{"source": "abc", "require": ["HH"]}\n"abc"\n')
    inside.write("terms.tsv", "abc\tEE\n")
    result = call("predict", "runs/pairs", "in.jsonl", "constraints.prefix=C", "constraints.terminology=terms.tsv")
    first, second, third = result.out.split("\n")[:3]
    assert first[0] + second[0] + third[0] == "JCC"
    assert all("EE" in line for line in (first, second, third))
    assert "HH" in second
    inside.write("wrong.jsonl", '{"source": "abc", "prefx": "J"}\n')
    result = call("predict", "runs/pairs", "wrong.jsonl")
    assert result.code == 2
    assert "wrong.jsonl:1: found the field 'prefx'. Did you mean 'prefix'?" in result.err
    assert call("evaluate", "runs/pairs", "test.tsv", "search.stop=certain", "search.normalisation=gnmt").code == 0
