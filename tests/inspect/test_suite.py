"""Tests of a model: every check finds what it is for, and the command tells CI."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dragoman.base.errors import ConfigError
from dragoman.inspect.measure.suite import CHECKS, Case, Term, load_suite
from tests.conftest import TrainedFolder, call


@pytest.mark.parametrize(
    ("case", "good", "bad"),
    [
        (Case("a", equal=("b", "c")), "c ", "d"),
        (Case("a", must_have=("x", "y")), "yx", "x"),
        (Case("a", must_not_have=("x",)), "y", "axb"),
        (Case("the house", terms=(Term("house", "Haus"), Term("car", "Auto"))), "das Haus", "das Heim"),
        (Case("1,250 of 3", numbers=True), "3 von 1.250", "1.250"),
        (Case("see {name} at https://a.org", placeholders=True), "https://a.org {name}", "{name}"),
        (Case("yes", no_repetition=True), "ja ja ja", "ja ja ja ja ja"),
        (Case("ha ha ha ha ha", no_repetition=True), "ha ha ha ha ha", "ha ha ha ha ha ha ha"),
        (Case("four", min_ratio=0.5), "ab", "a"),
        (Case("four", max_ratio=2.0), "abcdefgh", "abcdefghi"),
    ],
)
def test_each_check_finds_what_it_is_for(case: Case, good: str, bad: str) -> None:
    (name,) = case.checks
    assert CHECKS[name](case, good) == ""
    assert CHECKS[name](case, bad) != ""


def test_the_first_suite_passes_and_a_broken_one_fails(inside: TrainedFolder, tmp_path: Path) -> None:
    made = call("test", inside.run, "--init")
    assert made.code == 0, made.err
    suite = tmp_path / "suite.toml"
    suite.write_text(made.out, encoding="utf-8")
    assert len(load_suite(suite).case) > 5
    first = call("test", inside.run, suite)
    assert [line for line in first.lines if line.startswith("FAIL") and "latency" not in line] == []
    pairs = (inside.folder / "test.tsv").resolve()
    suite.write_text(
        f"""
[[case]]
source = "abc"
must_have = ["?"]
[[score]]
file = {json.dumps(str(pairs))}
metric = "cer"
at_most = 1000
not_worse_than = {json.dumps(str(inside.run.resolve()))}
[limits]
size = 100
""",
        encoding="utf-8",
    )
    result = call("test", inside.run, suite, "--junit", tmp_path / "j.xml")
    assert result.code == 1, result.err
    assert [line[:4] for line in result.lines] == ["FAIL", "ok  ", "ok  ", "3 ch"]
    tree = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (tree.get("tests"), tree.get("failures")) == ("3", "1")
    assert tree.find("testcase/failure") is not None
    table = json.loads(call("test", inside.run, suite, "--json").out)
    assert [row["passed"] for row in table["results"]] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found no check"),
        ('[[case]]\nsource = "a"', "found no check of the output"),
        ('[[case]]\nsource = ""\nnumbers = true', "source: found nothing"),
        ('[[case]]\nsource = "a"\nmust_hav = ["b"]', "must_have"),
        ('[[score]]\nfile = "a.tsv"', "expected at_least, at_most or not_worse_than"),
        ('[[score]]\nmetric = "bleu"\nat_least = 1', "file"),
        ("[limits]\nlatency = -1", "latency"),
        ("case = 3", "case"),
        ("[[case", "suite.toml"),
    ],
)
def test_mistakes_in_a_suite_are_explained(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=expected):
        load_suite(path)


def test_mistakes_of_the_command(inside: TrainedFolder, tmp_path: Path) -> None:
    suite = inside.write("s.toml", '[[score]]\nfile = "missing.tsv"\nat_least = 1')
    unknown = inside.write("u.toml", '[[score]]\nfile = "test.tsv"\nmetric = "blue"\nat_least = 1')
    for arguments, expected in (
        ((), "--init > suite.toml"),
        (("--init", suite), "expected RUN alone"),
        ((tmp_path / "none.toml",), "none.toml"),
        ((suite,), "missing.tsv"),
        ((unknown,), "'blue', which is no metric"),
    ):
        result = call("test", inside.run, *arguments)
        assert (result.code, expected in result.err) == (2, True), result.err
