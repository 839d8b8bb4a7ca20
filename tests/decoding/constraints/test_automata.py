"""Constraints inside beam search, against an enumeration of all outputs."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch

from dragoman.data.tokenizers.base import EOS, SPECIALS
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.constraints import automata
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.constraint import Constraint
from dragoman.decoding.constraints.phrases import AllowedOutputs, ForbiddenTexts, PrefixConstraint, RequiredPhrases
from dragoman.decoding.constraints.token_bytes import TokenBytes
from dragoman.decoding.hypothesis import Hypothesis
from tests.decoding.test_beam import Found, Guess, Table, exhaustive, same, writable
from tests.decoding.test_beam import Prefix as Written

CASES = 300


class Pieces:
    """A tokenizer whose pieces spell most texts in several ways."""

    kind = "characters"
    tokens = (*SPECIALS, "a", "b", "ab", "ba")

    def __len__(self) -> int:
        return len(self.tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.tokens[index] for index in ids]

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            index = max(
                (i for i in range(4, 8) if text.startswith(self.tokens[i])),
                key=lambda i: len(self.tokens[i]),
                default=1,
            )
            ids.append(index)
            text = text[len(self.tokens[index]) if index > 3 else 1 :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.tokens[index] for index in ids if index > 3)


TOKENIZER: Any = Pieces()
TOKEN_BYTES = TokenBytes(TOKENIZER)
SIZE = len(TOKENIZER)
Legal = Callable[[Written], bool]


def text_of(tokens: Written) -> str:
    return str(TOKENIZER.decode(tokens))


def any_text(chance: random.Random, longest: int) -> str:
    return "".join(chance.choice("ab") for _ in range(chance.randint(1, longest)))


def holds(tokens: Written, cuts: Sequence[tuple[int, ...]]) -> bool:
    return any(tokens[index : index + len(cut)] == cut for cut in cuts for index in range(len(tokens)))


def any_constraints(chance: random.Random, kinds: Sequence[str]) -> tuple[list[Constraint], Legal]:
    """Random constraints, and a plain test of token rows that means the same."""
    constraints: list[Constraint] = []
    tests: list[Legal] = []
    if "prefix" in kinds:
        prefix = any_text(chance, 3)
        constraints.append(PrefixConstraint(TOKEN_BYTES, prefix))
        tests.append(lambda tokens: text_of(tokens).startswith(prefix))
    if "forbid" in kinds:
        texts = [any_text(chance, 3) for _ in range(chance.randint(1, 2))]
        constraints.append(ForbiddenTexts(TOKEN_BYTES, texts))
        tests.append(lambda tokens: not any(text in text_of(tokens) for text in texts))
    if "require" in kinds:
        cuts = [TOKEN_BYTES.tokenizations(any_text(chance, 3)) for _ in range(chance.randint(1, 3))]
        constraints.append(RequiredPhrases(cuts))
        tests.append(lambda tokens: all(holds(tokens, cut) for cut in cuts))
    if "among" in kinds:
        rows = [tuple(TOKENIZER.encode(any_text(chance, 5))) for _ in range(chance.randint(1, 5))]
        constraints.append(AllowedOutputs(rows))
        tests.append(lambda tokens: tokens in rows)
    return constraints, lambda tokens: all(test(tokens) for test in tests)


def everything(limit: int, legal: Legal) -> list[Written]:
    return [text for size in range(limit) for text in product(range(4, SIZE), repeat=size) if legal(text)]


def slow(guess: Guess, limit: int, width: int, outputs: Sequence[Written]) -> list[Found]:
    """The plain-list search over continuations that some legal output begins with."""
    beginnings = {(*text, EOS)[:size] for text in outputs for size in range(1, len(text) + 2)}
    live: list[tuple[float, Written, tuple[float, ...]]] = [(0.0, (), ())]
    done: list[Found] = []
    while live and len(done) < width:
        candidates = [
            (total + part, (*tokens, token), (*parts, part))
            for total, tokens, parts in live
            for token, part in writable(guess, tokens, limit)
            if (*tokens, token) in beginnings
        ]
        candidates.sort(key=lambda one: -one[0])
        best = candidates[: 2 * width]
        done += [
            Found(total / len(tokens), tokens, parts) for total, tokens, parts in best[:width] if tokens[-1] == EOS
        ]
        live = [one for one in best if one[1][-1] != EOS][:width]
    return sorted(done, key=lambda one: -one.normalised)


def found_by(
    table: Table,
    sources: Sequence[int],
    limits: Sequence[int],
    width: int,
    automata: Sequence[ConstraintAutomaton | None],
    **options: Any,
) -> list[list[Hypothesis]]:
    return beam_search(
        table.step,
        table.start(sources),
        torch.tensor([limits[source] for source in sources]),
        BeamOptions(width, **{"n_best": width, "stop": "complete", **options}),
        constraints=[automata[source] for source in sources],
    )


def test_searches_under_constraints() -> None:
    kinds_of = [("prefix",), ("forbid",), ("among",), ("prefix", "forbid"), ("require",), ("require", "forbid"),
                ("require", "prefix"), ("require", "prefix", "forbid"), ("among", "forbid")]  # fmt: skip
    impossible = possible = 0
    for seed in range(CASES // 2):
        rng = random.Random(seed)
        table = Table(seed, SIZE, rng.choice([0.5, 1.5]), rng.choice([-1.0, 2.0]), 0.0)
        width, limits = rng.randint(1, 4), [rng.randint(2, 5) for _ in range(3)]
        kinds = [rng.choice(kinds_of), rng.choice(kinds_of), ()]
        made = [any_constraints(rng, kind) for kind in kinds]
        constraints = [ConstraintAutomaton(parts, SIZE) if parts else None for parts, _ in made]
        outputs = [everything(limit, legal) for limit, (_, legal) in zip(limits, made, strict=True)]
        together = found_by(table, range(3), limits, width, constraints)
        plain = found_by(table, [2], limits, width, [None] * 3)
        assert together[2] == plain[0]  # constraints of other sources change nothing
        for source in range(2):
            if seed % 5 == 0:
                assert found_by(table, [source], limits, width, constraints) == [together[source]]
                assert found_by(table, [2, source], limits, width, constraints)[1] == together[source]
            parts = constraints[source]
            assert parts is not None
            min_length = min((len(text) for text in outputs[source]), default=None)
            assert (parts.distance(parts.start) < limits[source]) == (min_length is not None)
            impossible += min_length is None
            possible += min_length is not None
            if min_length is not None:
                assert parts.distance(parts.start) == min_length
                assert together[source], "there is a solution and it must be found"
            for one in together[source]:
                assert one.tokens[:-1] in outputs[source]
            if "require" not in kinds[source]:
                same(together[source], slow(table.of(source), limits[source], width, outputs[source])[:width])
            for one in together[source]:  # constraints change the output, never its score
                exact = [table.guess(source, one.tokens[:index])[token] for index, token in enumerate(one.tokens)]
                assert one.token_scores == pytest.approx(exact)
    assert impossible > 50
    assert possible > CASES / 2


def test_required_phrases_are_in_all_outputs() -> None:
    """Wherever any output within the limit contains them all; every source of a batch has its own phrases."""
    solvable = tight = several = 0
    for seed in range(200):
        rng = random.Random(seed)
        table = Table(seed, SIZE, rng.choice([0.5, 1.5]), rng.choice([-1.0, 2.0]), 0.0)
        texts = [[any_text(rng, 3) for _ in range(rng.randint(1, 3))] for _ in range(8)]
        limits = [rng.randint(3, 6) for _ in texts]
        constraints = [
            ConstraintAutomaton([RequiredPhrases([TOKEN_BYTES.tokenizations(text) for text in own])], SIZE)
            for own in texts
        ]
        found = found_by(table, range(8), limits, rng.randint(1, 4), constraints, n_best=1)
        for own, limit, row in zip(texts, limits, found, strict=True):
            needed = [TOKEN_BYTES.tokenizations(text) for text in own]
            fits = [
                size
                for size in range(limit)
                if any(all(holds(text, rows) for rows in needed) for text in product(range(4, SIZE), repeat=size))
            ]
            if fits:
                solvable += 1
                tight += len(fits) == 1
                several += len(set(own)) > 1
                assert all(text in text_of(row[0].tokens) for text in own)
                assert all(holds(row[0].tokens, rows) for rows in needed)
            else:
                assert not row
    assert solvable >= CASES
    assert min(tight, several) > 200


def test_a_wide_beam_under_constraints_is_exhaustive() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        table, limit = Table(seed, SIZE, 1.0, 0.0, 0.0), rng.randint(2, 4)
        parts, legal = any_constraints(rng, rng.choice([("require",), ("forbid",), ("prefix", "require"), ("among",)]))
        best = [one for one in exhaustive(table.of(0), SIZE, limit, 1.0) if legal(one.tokens[:-1])]
        found = found_by(table, [0], [limit], 100, [ConstraintAutomaton(parts, SIZE)], num_complete=10**6)
        same(found[0], best)


def test_constraints_take_precedence_over_repetition_and_minimum_length() -> None:
    for seed in range(60):
        table = Table(seed, SIZE, 1.0, 0.0, 0.0)
        constraints = [
            ConstraintAutomaton([AllowedOutputs([(4, 4, 4)])], SIZE),
            ConstraintAutomaton([RequiredPhrases([[(4, 4, 4)]])], SIZE),
        ]
        found = found_by(table, [0, 1], [7, 7], 2, constraints, no_repeat_ngram=1, min_length=5, n_best=1)
        assert found[0][0].tokens == (4, 4, 4, EOS)
        assert holds(found[1][0].tokens, [(4, 4, 4)])


def test_very_many_phrases_are_all_output() -> None:
    """Too many for the shortest path through all of them: they are planned one after another."""
    words = 40
    phrases = [[tuple(random.Random(seed).choices(range(4, words), k=3))] for seed in range(9)]
    rule = RequiredPhrases(phrases)
    assert not rule.exact
    constraints = ConstraintAutomaton([rule], words)
    assert constraints.distance(constraints.start) <= 27
    for width in (1, 4):
        table = Table(0, words, 1.0, 2.0, 0.0)
        found = found_by(table, [0], [int(constraints.distance(constraints.start)) + 1], width, [constraints])
        assert all(holds(found[0][0].tokens, rows) for rows in phrases)


TEXTS = [
    "the cat sat on the mat.", "a category (of things), <1> {name} http://a.b/c", "Größe – ok  two", " lead the way",
] * 5  # fmt: skip


@pytest.mark.parametrize(
    "config", [SubwordsConfig(vocab_size=330), WordsConfig(), WordsConfig(split="spaces"), CharactersConfig()]
)
def test_token_bytes_write_what_the_tokenizer_decodes(config: Any) -> None:
    tokenizer = train_tokenizer(config, TEXTS)
    token_bytes, rng = TokenBytes(tokenizer), random.Random(0)
    for _ in range(500):
        ids = [rng.randrange(4, len(tokenizer)) for _ in range(rng.randint(0, 6))]
        if not any(piece.startswith("<0x") for piece in tokenizer.pieces(ids)):
            assert token_bytes.decode(ids).decode() == tokenizer.decode(ids)
    for phrase in ("cat", "the cat", "sat on", "Größe", "<1>"):
        assert token_bytes.tokenizations(phrase)
        for cut in token_bytes.tokenizations(phrase):
            for before in (4, rng.randrange(4, len(tokenizer))):
                assert phrase in token_bytes.decode([before, *cut, before]).decode("utf-8", "replace")
    whole = [index for index in range(4, len(tokenizer)) if token_bytes.texts[index][1]]
    assert token_bytes.matching_tokens(1, b"") == dict.fromkeys(range(4, len(tokenizer)), 0)
    for rest in (b" the cat", b"c", b" Gr\xc3"):
        fitting = token_bytes.matching_tokens(1, rest)
        for index in whole:
            text = token_bytes.texts[index][1]
            assert (index in fitting) == (text.startswith(rest) or rest.startswith(text))


@pytest.mark.parametrize("config", [SubwordsConfig(vocab_size=330), WordsConfig(), CharactersConfig()])
def test_constraints_over_real_tokenizers_hold_in_the_text(config: Any) -> None:
    tokenizer = train_tokenizer(config, TEXTS)
    token_bytes = TokenBytes(tokenizer)
    seen = 0
    for seed in range(30):
        rng = random.Random(seed)
        table = Table(seed, len(tokenizer), 2.0, 2.0, 0.0)
        need, never = rng.sample(["cat", "the mat", "<1>", "on the", "name", "Größe"], 2), rng.sample("ehtx", 1)
        never = [text for text in [*never, "ca", "way"] if not any(text in phrase for phrase in need)]
        constraints: list[Constraint] = [
            RequiredPhrases([token_bytes.tokenizations(text) for text in need]),
            ForbiddenTexts(token_bytes, never),
        ]
        prefix = ""
        if rng.random() < 0.5:
            prefix = rng.choice(["two", "sat on", "ok"])
            constraints.append(PrefixConstraint(token_bytes, prefix))
        if any(text in prefix for text in never):
            continue
        found = found_by(table, [0], [30], 3, [ConstraintAutomaton(constraints, len(tokenizer))], n_best=1)
        text = tokenizer.decode(found[0][0].tokens)
        assert all(one in text for one in need)
        assert not any(one in text for one in never)
        assert text.startswith(prefix)
        seen += 1
    assert seen > 15


def test_threads_share_an_automaton_whose_cache_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automata, "MAX_CACHED", 1)
    one = ConstraintAutomaton([RequiredPhrases([[(5, 6)], [(7,)]])], 12)
    expected = one.next_state(one.start, 5)

    def ask() -> set[Any]:
        return {(one.next_state(one.start, number % 12), one.next_state(one.start, 5))[1] for number in range(3000)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    finally:
        sys.setswitchinterval(before)
    assert found == [{expected}] * 4
