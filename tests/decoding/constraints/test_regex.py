"""Regular expressions as automata, against Python's own `re`."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.regex import CharacterAutomaton, RegexConstraint
from dragoman.decoding.constraints.token_bytes import TokenBytes
from tests.decoding.constraints.test_automata import SIZE, TOKEN_BYTES, everything, found_by, same, slow, text_of
from tests.decoding.test_beam import Table


def matches(pattern: str, text: str) -> bool:
    automaton = CharacterAutomaton(pattern)
    nodes = automaton.start
    for character in text:
        nodes = automaton.next_nodes(nodes, character)
    return automaton.final in nodes


def any_pattern(chance: random.Random, depth: int = 3) -> str:
    """A random pattern over a few characters, with nested groups, alternatives and repeats."""
    parts = []
    for _ in range(chance.randint(0 if depth < 3 else 1, 3)):
        if depth and chance.random() < 0.4:
            inside = "|".join(any_pattern(chance, depth - 1) for _ in range(chance.randint(1, 3)))
            atom = chance.choice(["(", "(?:"]) + inside + ")"
        else:
            atom = chance.choice(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\W", "ä", r"[^\W\d]", r"\x61", "[]b]", r"\."])
        parts.append(atom + chance.choice(["", "", "*", "+?", "?", "{2}", "{,2}", "{1,3}", "{1,}"]))
    return "".join(parts)


def test_random_patterns_match_what_python_matches() -> None:
    rng, counts = random.Random(0), [0, 0]
    for _ in range(150):
        pattern = rng.choice(["", "", "(?i)", "(?s)"]) + any_pattern(rng)
        for _ in range(15):
            text = "".join(rng.choice("aabbAÄä1.]\n ") for _ in range(rng.randint(0, 5)))
            expected = re.fullmatch(pattern, text) is not None
            assert matches(pattern, text) == expected, (pattern, text)
            counts[expected] += 1
    assert min(counts) > 180


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\d+ Euro", "120 Euro"),
        (r"\w+", "Größe"),
        ("a{x}", "a{x}"),
        ("(?P<y>[0-9]{4})-x", "2024-x"),
        (r"\101", "A"),
    ],
)
def test_common_patterns_match(pattern: str, text: str) -> None:
    assert matches(pattern, text)
    assert not matches(pattern, text + "!")


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a(?=b)", "(?<!a)b", "^a", "a$", r"(a)\1", r"\bab", "a*+", "(?x)a", "(a{1000}){1000}", "a{99999999999}",
     f"a{{{'9' * 5000}}}"],
)  # fmt: skip
def test_expressions_that_are_not_regular_or_too_large_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern: found"):
        RegexConstraint(TOKEN_BYTES, pattern)


def test_deeply_nested_groups_are_parsed_in_linear_time() -> None:
    assert matches("(" * 60 + "a" + ")?" * 60, "a")


@pytest.mark.parametrize("pattern", ["(ab)*a?", "a{2,3}b+", "[^a]+|aba", "a.b|b", "(a|bb){2}", "\\w{3}"])
def test_the_search_finds_a_matching_output_whenever_there_is_one(pattern: str) -> None:
    for seed in range(6):
        limit = random.Random(seed).randint(2, 5)
        table = Table(seed, SIZE, 1.0, 0.0, 0.0)
        outputs = everything(limit, lambda tokens: re.fullmatch(pattern, text_of(tokens)) is not None)
        constraints: list[Any] = [ConstraintAutomaton([RegexConstraint(TOKEN_BYTES, pattern)], SIZE)]
        found = found_by(table, [0], [limit], 3, constraints)
        same(found[0], slow(table.of(0), limit, 3, outputs)[:3])


def test_a_character_of_several_bytes_matches_when_it_is_whole() -> None:
    tokenizer = train_tokenizer(SubwordsConfig(vocab_size=300), ["the cat sat"] * 5)
    constraint = RegexConstraint(TokenBytes(tokenizer), "[ä-ü]{2}")
    automaton = ConstraintAutomaton([constraint], len(tokenizer))
    found = found_by(Table(1, len(tokenizer), 1.0, 0.0, 0.0), [0], [8], 2, [automaton])
    assert found[0]
    assert all(re.fullmatch("[ä-ü]{2}", tokenizer.decode(one.tokens)) for one in found[0])
