"""`dragoman evaluate` says what predict and score say, and what `Predictor.evaluate` does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.commands.evaluate import SCHEMA
from dragoman.data.readers.lines import read_lines
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.options import DecodingOptions
from dragoman.inference.evaluation import EvaluationOptions
from tests.conftest import TrainedFolder, call


@pytest.fixture
def rows(inside: TrainedFolder) -> list[list[str]]:
    """The test pairs; their sources and references also stand in files."""
    found = [line.split("\t") for line in read_lines(inside.folder / "test.tsv")]
    inside.write("sources.txt", "".join(f"{row[0]}\n" for row in found))
    inside.write("references.txt", "".join("\t".join(row[1:]) + "\n" for row in found))
    inside.write("terms.tsv", "a\tJJ\nb\tHI\n")
    inside.write("allowed.txt", "ABC\nJIH\nDD\n")
    return found


def evaluated(*options: str) -> dict[str, Any]:
    result = call("evaluate", "runs/pairs", "test.tsv", "--json", *options)
    assert result.code == 0, result.err
    scores: dict[str, Any] = json.loads(result.out)
    return scores


def test_metrics_and_intervals_are_those_of_score(rows: list[list[str]], tmp_path: Path) -> None:
    output = str(tmp_path / "out.txt")
    metrics = ("--metric", "ter", "--metric", "chrf++", "--intervals")
    asked = (*metrics, "evaluation.draws=60", "evaluation.draws_seed=5")
    scores = evaluated(*asked, "--output", output)
    alone = json.loads(call("score", output, "references.txt", "--json", *metrics, "--draws=60", "--draws-seed=5").out)
    assert set(alone) == {"ter", "chrf++", "segments", "signatures", "intervals"}
    assert {name: scores[name] for name in alone} == alone
    assert set(scores) - set(alone) == {"loss", "perplexity", "token_accuracy"}
    low, high = scores["intervals"]["ter"]
    assert low < scores["ter"] < high
    other = evaluated(*asked[:-1], "evaluation.draws_seed=6")
    assert other["ter"] == scores["ter"]
    assert other["intervals"] != scores["intervals"]
    shown = call("evaluate", "runs/pairs", "test.tsv", *asked)
    assert re.search(rf"^TER +{scores['ter']:.2f} +{low:.2f} to +{high:.2f}   nrefs:2", shown.out, re.MULTILINE)
    assert evaluated()["bleu"] == evaluated("--metric", "bleu")["bleu"]
    assert set(evaluated("--metric", "all")) > {"meteor_exact_stem", "rouge-l", "ter", "cer"}


# Options, the same in Python, and what every output then is.
CONTROLS: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "prefix": (["constraints.prefix=BA"], {"prefix": "BA"}, "BA.*"),
    "forbid": (["constraints.forbid=A", "constraints.forbid=B"], {"forbid": ["A", "B"]}, "[^AB]*"),
    "require": (["constraints.require=HG", "constraints.require=J"], {"require": ["HG", "J"]}, "(?=.*HG)(?=.*J).*"),
    "pattern": (["constraints.pattern=[CD]{3}"], {"pattern": "[CD]{3}"}, "[CD]{3}"),
    "allow": (["constraints.allow=allowed.txt"], {"allow": ["ABC", "JIH", "DD"]}, "ABC|JIH|DD"),
    "terminology": (["constraints.terminology=terms.tsv"], {"terminology": "terms.tsv"}, ".*"),
    "placeholders": (["constraints.placeholders=true"], {"placeholders": True}, ".*"),
}


@pytest.mark.parametrize("kind", CONTROLS)
def test_what_is_asked_of_outputs(inside: TrainedFolder, rows: list[list[str]], kind: str, tmp_path: Path) -> None:
    options, arguments, expected = CONTROLS[kind]
    if kind in ("terminology", "placeholders"):
        rows = [["a <1> b", "AB", "BA"], ["a", "A"]]
        inside.write("sources.txt", "".join(f"{row[0]}\n" for row in rows))
    pairs = [(row[0], row[1:]) for row in rows]
    inside.write("asked.tsv", "".join("\t".join(row) + "\n" for row in rows))
    output = tmp_path / "out.txt"
    result = call("evaluate", inside.run, "asked.tsv", *options, "--output", output, "--json")
    (inside.folder / "asked.tsv").unlink()
    assert result.code == 0, result.err
    written = output.read_text(encoding="utf-8")
    assert written == call("predict", inside.run, "sources.txt", *options).out
    assert all(re.fullmatch(expected, line) for line in written.splitlines())
    scores, predictions = dragoman.load(inside.run).evaluate(pairs, **arguments)
    assert "".join(f"{one.text}\n" for one in predictions) == written
    assert json.loads(result.out) == scores
    if kind == "terminology":
        assert "JJ" in written.splitlines()[0]
        assert "HI" in written.splitlines()[0]
        assert "HI" not in written.splitlines()[1]
    if kind == "placeholders":
        assert written.splitlines()[0].count("<1>") == 1


def test_outputs_may_be_asked_for_one_by_one(inside: TrainedFolder, rows: list[list[str]]) -> None:
    pairs = [(row[0], row[1]) for row in rows[:3]]
    _, found = dragoman.load(inside.run).evaluate(pairs, require=[["HH"], [], ["GG"]], prefix=[None, "C", None])
    assert "HH" in found[0].text
    assert found[1].text.startswith("C")
    assert "GG" in found[2].text


def test_the_seed_of_outputs_and_that_of_draws_are_two(rows: list[list[str]]) -> None:
    drawn = ("--sample", "method.temperature=3", "--intervals", "evaluation.draws=20", "--metric", "cer")
    one = evaluated(*drawn, "--seed", "1", "evaluation.draws_seed=1", "--output", "one.txt")
    assert evaluated(*drawn, "--seed", "1", "evaluation.draws_seed=1") == one
    again = evaluated(*drawn, "--seed", "1", "evaluation.draws_seed=2")
    assert again["cer"] == one["cer"]
    assert again["intervals"] != one["intervals"]
    evaluated(*drawn, "--seed", "2", "evaluation.draws_seed=1", "--output", "other.txt")
    assert Path("other.txt").read_text() != Path("one.txt").read_text()


def test_settings_have_the_names_of_the_fields_they_set() -> None:
    places = [setting.place for setting in SCHEMA.static]
    names = {part for place in places for part in place.split(".")}
    python = {field.name for cls in (DecodingOptions, EvaluationOptions) for field in fields(cls)}
    assert python - names == {"n_best", "method", "scores"}
    assert {field.name for field in fields(SearchConfig)} <= {field.name for field in fields(DecodingOptions)}


def test_progress_counts_outputs(inside: TrainedFolder, rows: list[list[str]]) -> None:
    counts: list[int] = []
    run = dragoman.load(inside.run)
    run.evaluate([(row[0], row[1]) for row in rows], beam=1, batch_size=7, progress=counts.append)
    assert sum(counts) == len(rows)
    seen: list[int] = []
    first = next(run.stream(["ab", "", "cd"], beam=1, progress=seen.append))
    assert first.text == run.predict(["ab"], beam=1)[0].text
    assert sum(seen) == 3  # the window is done, whatever has been taken out of it


def test_mistakes_come_before_the_search(
    inside: TrainedFolder, rows: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dragoman.load(inside.run)
    monkeypatch.setattr(run, "stream", None)
    with pytest.raises(DataError, match=r"found 'blue', which is no metric\. Did you mean 'bleu'"):
        run.evaluate([("a", "A")], metrics="blue")
    with pytest.raises(ConfigError, match="draws: found 3, expected at least 10"):
        run.evaluate([("a", "A")], intervals=True, draws=3)
    with pytest.raises(DataError, match="input 1: require: found"):
        run.evaluate([("a", "A")], require=[" "])


def test_more_than_two_columns_are_said_to_be_references(inside: TrainedFolder) -> None:
    """The third column may be an earlier output, which would make a perfect score."""
    result = call("evaluate", inside.run, "test.tsv")
    assert result.code == 0, result.err
    assert "test.tsv: found 3 columns: every column after the first is a reference" in result.err
    assert "data.columns=1,2" in result.err
    named = call("evaluate", inside.run, "test.tsv", "data.columns=1,2")
    assert (named.code, "columns" in named.err) == (0, False)
    both = call("evaluate", inside.run, "test.tsv", "data.columns=1,2,3")
    assert (both.code, "columns" in both.err) == (0, False)
