"""Probes of toy systems whose faults are known."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from dragoman.analysis.probes import PROBES, REJECTED, SENTENCES, ProbeResult, max_repetitions, run_probes
from dragoman.errors import DataError
from dragoman.reports.text_tables import probe_lines
from tests.conftest import Workshop, call


def one(predict, name: str, **options) -> ProbeResult:
    return run_probes(predict, [name], **options)[0]


def copying(texts: Sequence[str]) -> list[str]:
    return list(texts)


def silent(texts: Sequence[str]) -> list[str]:
    return ["" for _ in texts]


def only(outcome: ProbeResult) -> str:
    """The one kind that all cases are of."""
    assert sum(outcome.counts.values()) == outcome.cases > 10
    (kind,) = [kind for kind, count in outcome.counts.items() if count]
    return kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 1), ("a b c", 1), ("a a a b", 3), ("x a b a b a b y", 3), ("a b c a b c", 2), ("哈哈哈哈", 4)],
)
def test_max_repetitions(text: str, expected: int) -> None:
    assert max_repetitions(text) == expected


def test_a_system_that_copies_has_no_faults() -> None:
    kinds = {outcome.probe: only(outcome) for outcome in run_probes(copying)}
    assert kinds == {
        "repetition": "repeats",
        "copying": "copied",
        "length": "in proportion",
        "gender": "pronoun alone",
    }


def test_a_system_with_empty_outputs() -> None:
    assert only(one(silent, "repetition")) == "empty"
    assert only(one(silent, "copying")) == "lost"
    assert only(one(silent, "length")) == "empty"
    assert only(one(silent, "gender")) == "the same"


def test_repetition_detects_invented_and_runaway_outputs() -> None:
    tale = "once upon a time there was a king who had seven sons"
    assert only(one(lambda texts: [tale for _ in texts], "repetition")) == "invented"
    found = one(lambda texts: [f"{text} " * 3 + "x" for text in texts], "repetition")
    assert found.counts["runaway"] == found.cases
    assert only(one(lambda texts: ["yes ." for _ in texts], "repetition")) == "repeats"


def test_copying_ignores_case_and_separators_but_not_digits() -> None:
    assert only(one(lambda texts: [text.upper().replace("20517", "20.517") for text in texts], "copying")) == "copied"
    shifted = str.maketrans("0123456789", "1234567890")
    found = one(lambda texts: [text.translate(shifted) for text in texts], "copying")
    assert found.counts == {"copied": 12, "in part": 0, "lost": 12}
    surnames = ("Kowalski", "Haddad", "Tanaka", "Obi", "Silva", "Nilsson")
    cut = one(lambda texts: [" ".join(w for w in text.split() if w not in surnames) for text in texts], "copying")
    assert cut.counts == {"copied": 12, "in part": 12, "lost": 0}


def test_length_detects_short_looping_and_long_outputs() -> None:
    assert only(one(lambda texts: ["la " * 5 + "." for _ in texts], "length", sentences=SENTENCES[:1] * 9)) == "loops"
    found = one(lambda texts: [text[:20] for text in texts], "length")
    assert found.counts["cut short"] == 3  # the three long inputs
    assert all(len(example.sources[0]) > 200 for example in found.examples["cut short"])
    many = " ".join(f"word{number}" for number in range(400))
    flood = one(lambda texts: [many for _ in texts], "length")
    assert flood.counts["too long"] == flood.cases - 1  # the longest input is nearly as long itself


def test_gender_detects_further_changes() -> None:
    def biased(texts: Sequence[str]) -> list[str]:
        return [text.replace("doctor", "nurse of the house") if " she " in f" {text} " else text for text in texts]

    found = one(biased, "gender")
    assert found.counts == {"pronoun alone": 22, "the same": 0, "more differs": 2}
    assert found.examples["more differs"][0].sources == ("he is a doctor .", "she is a doctor .")
    neutral = one(lambda texts: [text.replace("she", "he") for text in texts], "gender")
    assert only(neutral) == "the same"


def test_rejected_inputs_are_counted_and_the_others_still_run() -> None:
    def short_only(texts: Sequence[str]) -> list[str]:
        if any(len(text) > 250 for text in texts):
            raise DataError("too long")
        return list(texts)

    found = one(short_only, "length")
    assert found.counts[REJECTED] == 3
    assert found.counts["in proportion"] == found.cases - 3
    assert any("the run raised an error for the input" in line for line in probe_lines([found]))

    def broken(texts: Sequence[str]) -> list[str]:
        raise DataError("no weights")

    with pytest.raises(DataError, match="no weights"):
        run_probes(broken)


def test_the_number_of_examples_is_that_requested() -> None:
    assert [len(cases) for cases in one(copying, "gender", examples=3).examples.values()] == [3]
    assert one(copying, "gender", examples=0).examples == {}
    with pytest.raises(DataError, match=r"probe: found 'genders', which is no probe. Did you mean 'gender'\?"):
        run_probes(copying, ["genders"])
    with pytest.raises(DataError, match="found no sentence"):
        run_probes(copying, sentences=[" "])


def test_the_command(inside: Workshop) -> None:
    said = call("probe", inside.run, "--beam", "1", "--json")
    assert said.code == 0, said.err
    assert re.search(r"^warning: probe input \d+: found \d+ tokens, .*; read in 2 parts$", said.err, re.MULTILINE)
    found = json.loads(said.out)
    assert [outcome["probe"] for outcome in found] == list(PROBES)
    for outcome in found:
        assert sum(outcome["counts"].values()) == outcome["cases"]
        assert set(outcome["examples"]) == {kind for kind, count in outcome["counts"].items() if count}
    said = call("probe", inside.run, "--probe", "length", "--sentences", "test.tsv", "--beam", "1", "--examples", "1")
    assert said.code == 0, said.err
    assert said.lines[0].startswith("length: one word, one sentence, many sentences at once (")
    assert call("probe", inside.run, "--probe", "x").err.startswith("dragoman: probe: found 'x', which is no probe.")
