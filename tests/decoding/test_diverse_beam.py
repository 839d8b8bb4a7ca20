"""Diverse beam search, against a slow plain-list search in groups."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.phrases import ForbiddenTexts, PrefixConstraint, RequiredPhrases
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.decoding.trace import Trace
from dragoman.models.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from tests.decoding.constraints.test_automata import SIZE, TOKEN_BYTES, holds, text_of
from tests.decoding.test_beam import Found, Guess, Table, any_case, same, slow_beam, writable
from tests.decoding.test_beam import Prefix as Written
from tests.decoding.test_sampling import model_of

CASES = 200


class Group(NamedTuple):
    """One group of the slow search."""

    live: list[tuple[float, Written, tuple[float, ...]]]
    done: list[Found]


def slow_groups(
    guess: Guess, limit: int, *, groups: int, diversity: float, width: int, length_penalty: float, n_best: int
) -> list[Found]:
    """Algorithm 1 of Vijayakumar et al. 2016 with Hamming diversity, with plain lists; `width` is that of a group."""
    parts = [Group([(0.0, (), ())], []) for _ in range(groups)]
    while any(part.live for part in parts):
        used: Counter[int] = Counter()
        for part in parts:
            candidates = []
            for total, tokens, scores in part.live:
                for token, score in writable(guess, tokens, limit):
                    candidates.append((total + score, (*tokens, token), (*scores, score)))
            candidates.sort(key=lambda one: -(one[0] - diversity * used[one[1][-1]]))
            best = candidates[: 2 * width]
            part.done.extend(
                Found(total / len(tokens) ** length_penalty, tokens, scores)
                for total, tokens, scores in best[:width]
                if tokens[-1] == EOS
            )
            part.live[:] = [one for one in best if one[1][-1] != EOS][:width]
            used.update(tokens[-1] for _, tokens, _ in part.live)
            if len(part.done) >= width:
                part.live.clear()
    lists = [sorted(part.done, key=lambda one: -one.normalised)[: max(width, n_best)] for part in parts if part.done]
    lists.sort(key=lambda one: -one[0].normalised)
    chosen: list[Found] = []
    for depth in range(max(map(len, lists))):
        for one in lists:
            if depth < len(one) and len(chosen) < n_best and one[depth].tokens not in [two.tokens for two in chosen]:
                chosen.append(one[depth])
    return sorted(chosen, key=lambda one: -one.normalised)


class Groups(NamedTuple):
    """How many groups, and their diversity penalty."""

    count: int
    diversity: float


def fast(table: Table, limits: list[int], sources: list[int], groups: Groups, **options: Any) -> list[list[Hypothesis]]:
    rows = torch.tensor([limits[source] for source in sources])
    scorer = Scorer(options.pop("length_penalty", 1.0), diversity_penalty=groups.diversity)
    search = {name: options.pop(name, None) for name in ("constraints", "trace")}
    beam_options = BeamOptions(n_best=options.pop("n_best"), groups=groups.count, stop="complete", **options)
    return beam_search(table.step, table.start(sources), rows, beam_options, scorer, **search)


def test_diverse_beam_search_is_the_slow_search_in_any_batch() -> None:
    """Random models; no ties occur within a source, which a list and a tensor may break differently."""
    differs = several = 0
    for seed in range(CASES):
        case = any_case(seed)
        rng = random.Random(f"groups {seed}")
        groups = Groups(rng.randint(2, 4), rng.choice([0.0, 0.3, 1.0, 10.0]))
        options = {"width": rng.randint(1, 3), "length_penalty": case.length_penalty, "n_best": rng.randint(1, 6)}
        everyone = list(range(len(case.limits)))
        together = fast(case.table, case.limits, everyone, groups, **options)
        for source, found in enumerate(together):
            guess, limit = case.table.of(source), case.limits[source]
            counted = {"groups": groups.count, "diversity": groups.diversity}
            same(found, slow_groups(guess, limit, **counted, **options))
            assert len({one.tokens for one in found}) == len(found)
            several += len(found) > 1
            wide = {**options, "width": options["width"] * groups.count}
            plain = slow_beam(guess, limit, complete=None, **wide)
            differs += [one.tokens for one in plain] != [one.tokens for one in found]
            if seed % 3 == 0:
                assert fast(case.table, case.limits, [source], groups, **options) == [found]
        if seed % 3 == 0:
            turned = everyone[::-1]
            assert fast(case.table, case.limits, turned, groups, **options) == together[::-1]
    assert min(differs, several) > 80


def test_groups_without_a_penalty_are_plain_beam_search() -> None:
    for seed in range(100):
        case = any_case(seed)._replace(complete=None)
        found = fast(
            case.table, case.limits, list(range(len(case.limits))), Groups(2, 0.0),
            width=case.width, length_penalty=case.length_penalty, n_best=case.n_best,
        )  # fmt: skip
        assert found == case.found()


def test_a_large_penalty_gives_other_first_words() -> None:
    """Where there are enough words, every group begins with its own."""
    diverse = plain = 0
    for seed in range(50):
        table = Table(seed, 30, 1.0, -1.0, 0.0)
        for diversity in (0.0, 100.0):
            found = fast(table, [6], [0], Groups(4, diversity), width=1, n_best=4)[0]
            words = len({one.tokens[0] for one in found if one.tokens[0] != EOS})
            diverse += words if diversity else 0
            plain += 0 if diversity else words
    assert plain <= 50  # four times the same search, told once
    assert diverse >= 190


def test_constraints_hold_in_every_group() -> None:
    apart = 0
    for seed in range(20):
        table = Table(seed, SIZE, 1.0, 0.0, 0.0)
        require = [[(4, 5, 4)], TOKEN_BYTES.tokenizations("bb")]
        automata = [
            ConstraintAutomaton([RequiredPhrases(require)], SIZE),
            None,
            ConstraintAutomaton([PrefixConstraint(TOKEN_BYTES, "ba"), ForbiddenTexts(TOKEN_BYTES, ["aa"])], SIZE),
        ]
        options: dict[str, Any] = {"width": 2, "n_best": 4, "no_repeat_ngram": 3, "min_length": 3}
        groups = Groups(2, 1.5)
        found = fast(table, [9, 9, 9], [0, 1, 2], groups, constraints=automata, **options)
        assert found[1] == fast(table, [9, 9, 9], [1], groups, **options)[0]
        for one in found[0]:
            assert all(holds(one.tokens, rows) for rows in require)
        for one in found[2]:
            assert text_of(one.tokens).startswith("ba")
            assert "aa" not in text_of(one.tokens)
        for source, row in enumerate(found):
            assert row
            assert len({one.tokens for one in row}) == len(row)
            for one in row:  # a penalty changes the choice, never the score
                exact = [table.guess(source, one.tokens[:index])[token] for index, token in enumerate(one.tokens)]
                assert one.token_scores == pytest.approx(exact)
                assert one.normalised == pytest.approx(sum(exact) / len(exact))
            alone = fast(table, [9, 9, 9], [source], groups, constraints=[automata[source]], **options)[0]
            assert alone == row
            apart += (
                row != fast(table, [9, 9, 9], [source], Groups(2, 0.0), constraints=[automata[source]], **options)[0]
            )
    assert apart > 15


def test_the_trace_has_every_group() -> None:
    table, trace = Table(4, 9, 1.0, 0.0, 0.0), Trace(2)
    found = fast(table, [5, 6], [0, 1], Groups(3, 1.0), width=2, n_best=6, trace=trace)
    for source, nodes in enumerate(trace.nodes):
        assert [node.number for node in nodes] == list(range(1, len(nodes) + 1))
        assert {node.group for node in nodes} == {1, 2, 3}
        ends = set()
        for node in nodes:
            written, before = [node.token], node
            while before.parent:
                assert nodes[before.parent - 1].group == node.group
                before = nodes[before.parent - 1]
                written.insert(0, before.token)
            exact = [table.guess(source, tuple(written[:index]))[token] for index, token in enumerate(written)]
            assert node.score == pytest.approx(sum(exact))
            if node.fate == "complete":
                ends.add(tuple(written))
        assert {one.tokens for one in found[source]} <= ends
        assert min(node.score for node in nodes if node.fate == "kept") < 0


@pytest.mark.parametrize("decoder", ["transformer", "lstm"])
def test_settings_reach_the_groups_and_wrong_combinations_are_refused(decoder: str) -> None:
    model = model_of("transformer", decoder, seed=1)
    batch, config = (
        batch_of([[5, 6], [7, 8, 4, 5]]),
        SearchConfig(beam=4, beam_groups=2, diversity_penalty=2.0, max_length=6),
    )
    found = search(model, batch, config, 1.0, 4)
    alone = [search(model, batch_of([source]), config, 1.0, 4)[0] for source in ([5, 6], [7, 8, 4, 5])]
    for left, right in zip(found, alone, strict=True):
        assert [one.tokens for one in left] == [one.tokens for one in right]
    assert [len({one.tokens for one in row}) for row in found] == [len(row) for row in found]
    covered = search(model, batch, SearchConfig(beam=4, beam_groups=2, coverage_penalty=0.2, max_length=6), 1.0, 2)
    assert all(len(row) == 2 for row in covered)
    for wrong, arguments, message in (
        (SearchConfig(beam=4, beam_groups=3), {}, r"search.beam_groups: found 3, expected a divisor of the beam of 4"),
        (config, {"method": Sampling()}, "found beam_groups, but these go with beam search alone"),
        (
            SearchConfig(no_repeat_ngram=3),
            {"method": Sampling()},
            "found no_repeat_ngram, but these go with beam search alone",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            search(model, batch, wrong, 1.0, **arguments)
    with pytest.raises(ConfigError, match="found beam_groups, but this model outputs all tokens at once"):
        search(NonAutoregressive(NonAutoregressiveConfig(), 9, 9).eval(), batch, config, 1.0)
