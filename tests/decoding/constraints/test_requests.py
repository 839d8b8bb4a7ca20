"""What is asked of outputs as text (FIELD H9): from Python, from the command line, over a trained run."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

import dragoman
from dragoman.data.tokenizers.tokenizer import EOS, SubwordsConfig, WordsConfig, learn
from dragoman.decoding.constraints.automata import Rules
from dragoman.decoding.constraints.regex import Grammar
from dragoman.decoding.constraints.requests import (
    Control,
    Ruler,
    Terminology,
    completed,
    controls,
    placeholders,
    restored,
)
from dragoman.decoding.constraints.token_bytes import Surfaces
from dragoman.errors import ConfigError, DataError
from dragoman.inference.predictor import Predictor
from tests.conftest import Workshop, call
from tests.decoding.constraints.test_automata import SIZE, SURFACES, everything, found_by, same, slow, text_of
from tests.decoding.test_beam import Table


@pytest.fixture
def run(inside: Workshop) -> Predictor:
    return dragoman.load(inside.run, engine="torch")  # outputs of one search are compared to the last bit


@pytest.mark.parametrize("pattern", ["(ab)*a?", "a{2,3}b+", "[^a]+|aba", "a.b|b", "(a|bb){2}", "\\w{3}"])
def test_outputs_match_a_regular_expression_whenever_they_can(pattern: str) -> None:
    for seed in range(6):
        limit = random.Random(seed).randint(2, 5)
        table = Table(seed, SIZE, 1.0, 0.0, 0.0)
        outputs = everything(limit, lambda tokens: re.fullmatch(pattern, text_of(tokens)) is not None)
        found = found_by(table, [0], [limit], 3, [Rules([Grammar(SURFACES, pattern)], SIZE)])
        same(found[0], slow(table.of(0), limit, 3, outputs)[:3])


@pytest.mark.parametrize("pattern", ["(a", "a(?=b)", "^a", r"(a)\1"])
def test_expressions_that_are_no_regular_grammar_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern: found"):
        Grammar(SURFACES, pattern)


def test_a_character_of_several_bytes_matches_when_it_is_whole() -> None:
    tokenizer = learn(SubwordsConfig(vocabulary=300), ["the cat sat"] * 5)
    rules = Rules([Grammar(Surfaces(tokenizer), "[ä-ü]{2}")], len(tokenizer))
    found = found_by(Table(1, len(tokenizer), 1.0, 0.0, 0.0), [0], [8], 2, [rules])
    assert found[0]
    assert all(re.fullmatch("[ä-ü]{2}", tokenizer.decode(one.tokens)) for one in found[0])


def test_placeholders_are_found_once_each() -> None:
    text = "Click <1>here</1> on {name} or {name}: https://a.b/c?x={y}. <br/> %s %(n)d 3 < 4 > 2, mail a.b@c.de"
    assert dict(placeholders(text)) == {
        "<1>": 1, "</1>": 1, "{name}": 2, "https://a.b/c?x={y}": 1, "<br/>": 1, "%s": 1, "%(n)d": 1, "a.b@c.de": 1,
    }  # fmt: skip
    assert placeholders("nothing < to > keep, 50 % so") == ()


KINDS: list[Any] = [SubwordsConfig(vocabulary=330), WordsConfig()]


class QuickTable(Table):
    """As random, drawn at once for the whole vocabulary."""

    def guess(self, source: int, prefix: tuple[int, ...]) -> list[float]:
        if (source, prefix) not in self.known:
            draw = np.random.default_rng([self.seed, source, *prefix])
            logits = draw.normal(0.0, self.sharpness, self.vocabulary)
            logits[EOS] += self.ending
            self.known[source, prefix] = (logits - np.log(np.exp(logits).sum())).tolist()
        return self.known[source, prefix]


@pytest.mark.parametrize("config", KINDS)
def test_placeholders_survive_as_often_as_they_came(config: Any) -> None:
    """With both tokenizers more than 1,000 sources that hold any, ten a batch."""
    texts = ["the cat <1> sat </1> on {name}", "see http://a.b/c and http://a.b or %s."] * 5
    tokenizer = learn(config, texts)
    ruler, written, put = Ruler(tokenizer), 0, 0
    pool = ["<1>", "</1>", "{name}", "http://a.b/c", "http://a.b", "%s", "{unseen_7}", "<x9>", "cat", "sat", "on"]
    cases = 0
    for seed in range(56):
        chance = random.Random(seed)
        sources = [" ".join(chance.choices(pool, k=chance.randint(1, 5))) for _ in range(10)]
        asked = [completed(Control(), source, None, True) for source in sources]
        rules = [ruler.rules(control) for control in asked]
        table = QuickTable(seed, len(tokenizer), 1.0, 3.0, 0.0)
        rooms = [chance.randint(1, 9) + (int(one.distance(one.start)) if one else 0) for one in rules]
        found = found_by(table, range(10), rooms, 2, rules, most=1)
        for source, control, row in zip(sources, asked, found, strict=True):
            text = restored(tokenizer.decode(row[0].tokens), source, control.kept)
            for one, count in control.kept:
                inside_another = any(one in other for other, _ in control.kept if other != one)
                assert text.count(one) == count or (inside_another and text.count(one) > count)
                written += ruler.spells(one)
                put += not ruler.spells(one)
            cases += bool(control.kept)
    assert cases > 500
    assert written > 500
    assert put > 100 or config.kind == "subwords"  # sub-words spell everything


def test_what_cannot_be_spelled_is_put_where_it_stood() -> None:
    assert restored("ein Haus steht da", "<1> a house stands", (("<1>", 1),)) == "<1> ein Haus steht da"
    assert restored("ein Haus", "a {x} house", (("{x}", 1),)) == "ein {x} Haus"
    assert restored("a {x} b", "{x} {x}", (("{x}", 2),)).count("{x}") == 2
    assert restored("", "<1>", (("<1>", 1),)) == "<1>"


def test_terminology_asks_only_for_whole_terms(inside: Workshop) -> None:
    path = inside.write("terms.tsv", "cat\tKatze\ncat food\tKatzenfutter\ncat\tKater\n\n")
    terms = Terminology.read(path)
    assert terms.asked_by("a cat.") == (("Katze", "Kater"),)
    assert terms.asked_by("category concat") == ()
    assert terms.asked_by("cat food for a cat") == (("Katzenfutter",), ("Katze", "Kater"))
    with pytest.raises(DataError, match=r"bad.tsv:2: found 1 columns"):
        Terminology.read(inside.write("bad.tsv", "a\tb\nc\n"))


def test_one_value_for_all_or_one_for_each() -> None:
    assert [one.forbid for one in controls(2, forbid=["a", "b"])] == [("a", "b")] * 2
    assert [one.forbid for one in controls(2, forbid=[["a"], None])] == [("a",), ()]
    assert [one.prefix for one in controls(2, ["x", None])] == ["x", ""]
    assert controls(1, require=[("a", "b"), "c"])[0].require == (("a", "b"), ("c",))
    with pytest.raises(ConfigError, match="prefix: found 1 entries, expected one for each of the 2 inputs"):
        controls(2, ["x"])
    with pytest.raises(DataError, match="input 1: require: found"):
        controls(1, require=[""])


def test_a_run_keeps_to_what_is_asked(run: Predictor) -> None:
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
    assert run.predict(["ab <1> c"], placeholders=True)[0].text.count("<1>") == 1  # "<" was never seen
    with pytest.raises(DataError, match="input 2: no output can keep all that is asked of it"):
        run.predict(["a", "b"], require=[[], ["AB"]], forbid=[[], ["B"]])
    with pytest.raises(DataError, match="input 1: require: 'ÜX' cannot be spelled"):
        run.predict(["a"], require="ÜX")


def test_search_settings_reach_the_search(run: Predictor) -> None:
    assert len(run.predict(["ab"], search={"min_length": 9})[0].tokens) >= 9
    once = run.predict(["aaaa", "bbbb"], search={"no_repeat_ngram": 1})
    assert all(len(set(one.tokens)) == len(one.tokens) for one in once)
    nodes = run.trace("abc", search={"beam": 1})
    assert [node["step"] for node in nodes if node["fate"] == "complete"] == [max(node["step"] for node in nodes)]
    assert nodes[-1]["token"] == EOS or any(node["token"] == EOS for node in nodes)


def test_the_command_line_asks_the_same(inside: Workshop, run: Predictor) -> None:
    inside.write("in.txt", "abc\n\nddcc\n")
    asked = ["--prefix", "B", "--require", "HG", "--forbid", "A", "--no-repeat-ngram", "2"]
    said = call("predict", "runs/pairs", "in.txt", *asked, "--beam-trace", "trace.jsonl")
    assert said.code == 0, said.err
    lines = said.out.split("\n")
    expected = run.predict(["abc", "", "ddcc"], prefix="B", require="HG", forbid="A", search={"no_repeat_ngram": 2})
    assert lines[:3] == [one.text for one in expected]
    assert lines[1] == ""
    rows = [json.loads(line) for line in (inside.folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["source"] for row in rows] == ["abc", "", "ddcc"]
    assert {"piece", "parent", "log_probability", "score", "normalised", "fate"} <= set(rows[0]["nodes"][0])
    inside.write("in.jsonl", '{"source": "abc", "prefix": "J"}\n{"source": "abc", "require": ["HH"]}\n"abc"\n')
    inside.write("terms.tsv", "abc\tEE\n")
    said = call("predict", "runs/pairs", "in.jsonl", "--prefix", "C", "--terminology", "terms.tsv")
    first, second, third = said.out.split("\n")[:3]
    assert first[0] + second[0] + third[0] == "JCC"
    assert all("EE" in line for line in (first, second, third))
    assert "HH" in second
    inside.write("wrong.jsonl", '{"source": "abc", "prefx": "J"}\n')
    said = call("predict", "runs/pairs", "wrong.jsonl")
    assert said.code == 2
    assert "wrong.jsonl:1: found the field 'prefx'. Did you mean 'prefix'?" in said.err
    assert call("evaluate", "runs/pairs", "test.tsv", "--stop", "certain", "--normalisation", "gnmt").code == 0
