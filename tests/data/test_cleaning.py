"""Cleaning: each rule rejects what it should, near duplicates are those that brute force finds, nothing is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.data.cleaning.cleaner import NearDuplicates, Verdict, gram_hashes, judge, normal_form, similarity
from dragoman.data.cleaning.rules import RULES, Settings, chosen_rules, scripts_of
from dragoman.data.examples import Example
from tests.conftest import call, words, write_rows

GOOD = [
    ("A dog swims in the cold water.", "Ein Hund schwimmt im kalten Wasser."),
    ("Two men are talking in the street.", "Zwei Männer unterhalten sich auf der Straße."),
    ("Berlin 2016", "Berlin 2016"),
    ("Yes.", "Aber ja doch, gern."),
    ("Press <b>Enter</b> now & then.", "Drücken Sie <b>Enter</b> & warten Sie."),
    ("The Greek letter α is the first.", "Der griechische Buchstabe α ist der erste."),
]
BAD = {
    "duplicate": ("A dog  swims in the cold water.", "Ein Hund schwimmt im kalten Wasser. "),
    "copy": ("Nobody has translated this line", "nobody has  translated this line"),
    "ratio": ("Swimming race with roped off lap areas for all of the teams.", "@@"),
    "script": ("A man walks.", "Мужчина идёт."),
    "markup": ("Stone &amp; tile are used here.", "Stein und Fliesen werden hier benutzt."),
    "repetition": ("The bird sits here.", "Aaaaaaaa sitzt hier."),
    "contradiction": ("A dog swims in the cold water.", "Ein Hund schwimmt im warmen Wasser."),
    "near-duplicate": ("Two men are talking in the streets!", "Zwei Männer unterhalten sich auf der Straße"),
    "language": ("Er hat den Brief gestern Abend noch geschrieben.", "Und dann ging er früh ins Bett und schlief ein."),
    "numbers": ("There are 12 of them in the box.", "Es sind 13 Stück in der Kiste."),
}


def verdicts(pairs: list[tuple[str, str]], names: list[str], **settings: object) -> list[Verdict]:
    items = [Example(source, (target,), "a.tsv", number) for number, (source, target) in enumerate(pairs, 1)]
    rules = [RULES[name] for name in names]
    return list(judge(lambda: iter(items), rules, Settings(**settings), lambda doing, count: None))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_rejects_what_it_is_for_alone(name: str) -> None:
    languages = ("en", "de") if name == "language" else ()
    pairs = {"duplicate": [*GOOD, BAD[name]], "contradiction": [BAD[name], *GOOD * 3]}.get(name, [*GOOD * 3, BAD[name]])
    found = verdicts(pairs, [name], languages=languages)
    if name == "contradiction":  # the later pair counts
        found.reverse()
    assert [one.rule for one in found][-1] == name
    if name not in ("near-duplicate", "duplicate"):
        assert {one.rule for one in found[:-1]} == {""}


def test_rules_that_reject_good_translations_are_off() -> None:
    assert [rule.name for rule in chosen_rules((), ())] == [
        "duplicate",
        "copy",
        "ratio",
        "script",
        "markup",
        "repetition",
    ]
    assert [rule.name for rule in chosen_rules(("numbers",), ("copy", "markup"))][-2:] == ["repetition", "numbers"]
    with pytest.raises(ConfigError, match="Did you mean 'ratio'"):
        chosen_rules(("ration",), ())
    with pytest.raises(ConfigError, match="languages=en,de"):
        verdicts(GOOD, ["language"])


def test_scripts() -> None:
    assert scripts_of("日本語のテキスト") == {"CJK": 8}
    assert scripts_of("Привет, abc") == {"CYRILLIC": 6, "LATIN": 3}


def test_near_duplicates_are_those_of_brute_force() -> None:
    draw = random.Random(1)
    vocabulary = words(300, longest=9)
    texts = [" ".join(draw.choices(vocabulary, k=draw.randint(4, 12))) for _ in range(150)]
    for text in list(texts):
        changed = text.split()
        changed[draw.randrange(len(changed))] = draw.choice(vocabulary)
        texts.append(" ".join(changed))
    draw.shuffle(texts)
    grams = [gram_hashes(normal_form(text)) for text in texts]
    expected: set[int] = set()
    for index in range(len(texts)):
        earlier = (other for other in range(index) if other not in expected)
        if any(similarity(grams[index], grams[other]) >= 0.7 for other in earlier):
            expected.add(index)
    near = NearDuplicates(0.7)
    for text in texts:
        near.add(text)
    found = near.earlier()
    assert len(expected) > 10
    assert set(found) <= expected
    assert len(expected - set(found)) <= 1  # 1 − (1 − 0.7⁴)¹⁶ = 0.99
    assert all(similarity(grams[index], grams[other]) >= 0.7 for index, other in found.items())


def test_the_command_loses_nothing(tmp_path: Path) -> None:
    rows = [*GOOD, *BAD.values(), ("one column",)]
    pairs = write_rows(tmp_path / "pairs.tsv", rows)
    result = call("clean", pairs, "-o", tmp_path / "clean.tsv")
    assert result.code == 0, result.err
    assert "duplicate" in result.out
    assert "lengths 60 and 2" in result.out
    kept = (tmp_path / "clean.tsv").read_text(encoding="utf-8").splitlines()
    rejected = [line.split("\t") for line in (tmp_path / "clean.rejected.tsv").read_text(encoding="utf-8").splitlines()]
    assert len(kept) + len(rejected) == len(rows)
    assert [row[0] for row in rejected] == ["duplicate", "copy", "ratio", "script", "markup", "repetition", "faulty"]
    assert all(len(row) == 5 for row in rejected)
    assert rejected[0][1].endswith("pairs.tsv:7")
    result = call("clean", pairs, "-o", tmp_path / "c.jsonl", "--without", "ratio", "--with", "numbers", "--json")
    report = json.loads(result.out)
    assert report["kept"] == len(kept)
    assert report["rejected"]["numbers"] == 1
    assert "ratio" not in report["rejected"]
    assert len((tmp_path / "c.jsonl").read_text(encoding="utf-8").splitlines()) == report["kept"]
    again = call("clean", tmp_path / "clean.tsv", "-o", tmp_path / "again.tsv")
    assert again.code == 0
    assert (tmp_path / "again.tsv").read_bytes() == (tmp_path / "clean.tsv").read_bytes()
    refused = call("clean", pairs, "-o", pairs)
    assert refused.code == 2
    assert "overwrite the input" in refused.err
    rejects = tmp_path / "clean.rejected.tsv"
    before = rejects.read_bytes()
    refused = call("clean", rejects, "-o", tmp_path / "clean.tsv", "--columns", "4,5")
    assert refused.code == 2
    assert "would overwrite the input" in refused.err
    assert rejects.read_bytes() == before
