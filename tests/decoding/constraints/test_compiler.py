"""Constraints given as text: compiled, from Python, from the command line, and over a trained run."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import numpy as np
import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.tokenizers.base import EOS
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.decoding.constraints.compiler import ConstraintCompiler
from dragoman.decoding.constraints.source import (
    Terminology,
    add_source_constraints,
    find_placeholders,
    restore_placeholders,
)
from dragoman.decoding.constraints.spec import ConstrainedInput, OutputConstraints, constraints_for_inputs
from dragoman.inference.predictor import Predictor
from tests.conftest import TrainedFolder, call
from tests.decoding.constraints.test_automata import found_by
from tests.decoding.test_beam import Table


@pytest.fixture
def run(inside: TrainedFolder) -> Predictor:
    return dragoman.load(inside.run, engine="torch")  # outputs of one search are compared to the last bit


def test_placeholders_are_found_once_each() -> None:
    text = "Click <1>here</1> on {name} or {name}: https://a.b/c?x={y}. <br/> %s %(n)d 3 < 4 > 2, mail a.b@c.de"
    assert dict(find_placeholders(text)) == {
        "<1>": 1, "</1>": 1, "{name}": 2, "https://a.b/c?x={y}": 1, "<br/>": 1, "%s": 1, "%(n)d": 1, "a.b@c.de": 1,
    }  # fmt: skip
    assert find_placeholders("nothing < to > keep, 50 % so") == ()


KINDS: list[Any] = [SubwordsConfig(vocab_size=330), WordsConfig()]


class QuickTable(Table):
    """As `Table`, but drawn at once for the whole vocabulary."""

    def guess(self, source: int, prefix: tuple[int, ...]) -> list[float]:
        if (source, prefix) not in self.known:
            draw = np.random.default_rng([self.seed, source, *prefix])
            logits = draw.normal(0.0, self.sharpness, self.vocabulary)
            logits[EOS] += self.ending
            self.known[source, prefix] = (logits - np.log(np.exp(logits).sum())).tolist()
        return self.known[source, prefix]


@pytest.mark.parametrize("config", KINDS)
def test_placeholders_occur_as_often_as_in_the_source(config: Any) -> None:
    """With each tokenizer 140 sources, ten per batch."""
    texts = ["the cat <1> sat </1> on {name}", "see http://a.b/c and http://a.b or %s."] * 5
    tokenizer = train_tokenizer(config, texts)
    compiler, written, put = ConstraintCompiler(tokenizer), 0, 0
    pool = ["<1>", "</1>", "{name}", "http://a.b/c", "http://a.b", "%s", "{unseen_7}", "<x9>", "cat", "sat", "on"]
    cases = 0
    for seed in range(14):
        rng = random.Random(seed)
        sources = [" ".join(rng.choices(pool, k=rng.randint(1, 5))) for _ in range(10)]
        asked = [add_source_constraints(OutputConstraints(), source, None, True) for source in sources]
        automata = [compiler.compile(constraints) for constraints in asked]
        table = QuickTable(seed, len(tokenizer), 1.0, 3.0, 0.0)
        rooms = [rng.randint(1, 9) + (int(one.distance(one.start)) if one else 0) for one in automata]
        found = found_by(table, range(10), rooms, 2, automata, n_best=1)
        for source, constraints, row in zip(sources, asked, found, strict=True):
            text = restore_placeholders(tokenizer.decode(row[0].tokens), source, constraints.placeholders)
            for one, count in constraints.placeholders:
                inside_another = any(one in other for other, _ in constraints.placeholders if other != one)
                assert text.count(one) == count or (inside_another and text.count(one) > count)
                written += compiler.can_spell(one)
                put += not compiler.can_spell(one)
            cases += bool(constraints.placeholders)
    assert cases > 125
    assert written > 125
    assert put > 25 or config.kind == "subwords"  # sub-words spell everything


def test_placeholders_that_cannot_be_spelled_are_inserted_at_their_position() -> None:
    assert restore_placeholders("ein Haus steht da", "<1> a house stands", (("<1>", 1),)) == "<1> ein Haus steht da"
    assert restore_placeholders("ein Haus", "a house <1>", (("<1>", 1),)) == "ein Haus <1>"  # the end stays the end
    assert restore_placeholders("ein Haus", "a {x} house", (("{x}", 1),)) == "ein {x} Haus"
    assert restore_placeholders("a {x} b", "{x} {x}", (("{x}", 2),)).count("{x}") == 2
    assert restore_placeholders("", "<1>", (("<1>", 1),)) == "<1>"


HOSTILE = {
    "letters": "a" * 40_000, "mails": "a@" * 20_000, "domain": "a@b." + "-" * 40_000, "dots": "http://" + "." * 40_000,
    "tags": "<a" * 20_000, "digits": "<" + "1" * 20_000 + " " * 20_000, "braces": "{" * 40_000,
    "open": "{{" + "a" * 40_000,
    "formats": "%(" * 20_000, "repeated": "{a} " * 10_000, "many": " ".join(f"{{{number}}}" for number in range(5_000)),
    "long": "http://" + "a" * 40_000,
}  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
def test_placeholders_of_a_hostile_text_take_little_time(name: str) -> None:
    """Quadratic patterns took half a minute for 40,000 letters."""
    tokenizer, text = train_tokenizer(KINDS[0], ["the cat {name} sat", "see http://a.b/c"] * 5), HOSTILE[name]
    start = time.process_time()
    constraints = add_source_constraints(OutputConstraints(), text, None, True)
    ConstraintCompiler(tokenizer).compile(constraints)
    restored = restore_placeholders("ein Haus", text, constraints.placeholders)
    assert time.process_time() - start < 5
    assert all(restored.count(one) >= count for one, count in constraints.placeholders[:50])


def test_placeholders_longer_than_the_output_are_inserted_after_the_search(run: Predictor) -> None:
    """One long address must not stop a file of inputs."""
    placeholders = (("ABCDEFGH", 1), ("JJ", 1))
    inputs = [ConstrainedInput("abc"), ConstrainedInput("abc ABCDEFGH", OutputConstraints(placeholders=placeholders))]
    plain, long = run.stream(inputs, max_length=4, on_unknown=lambda number, surfaces: None)
    assert plain.text == run.predict(["abc"], max_length=4)[0].text
    assert len(long.tokens) <= 4
    assert "JJ" in "".join(long.tokens)  # short enough for the search
    assert long.text.count("ABCDEFGH") == 1
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
