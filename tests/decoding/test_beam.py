"""Law 10: beam search equals a slow plain-list beam search, and a wide enough beam equals exhaustive search."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dragoman.base.errors import DragomanError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.contracts import State
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.cells import GRUConfig, LSTMConfig
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.layers.rnn_attention import AdditiveConfig
from dragoman.models.registry import DecoderConfig, EncoderConfig

CASES = 500
NEVER = float("-inf")
Prefix = tuple[int, ...]
Guess = Callable[[Prefix], Sequence[float]]  # what was written → log-probability of every token


class Found(NamedTuple):
    """A hypothesis of the slow search."""

    normalised: float
    tokens: Prefix
    parts: tuple[float, ...]


def writable(guess: Guess, prefix: Prefix, limit: int) -> list[tuple[int, float]]:
    """The tokens that may follow: at the limit only <eos>, never suppressed tokens."""
    options = list(enumerate(guess(prefix)))
    if len(prefix) + 1 >= limit:
        options = [options[EOS]]
    return [(token, part) for token, part in options if token not in (PAD, UNK, SOS) and part > NEVER]


def slow_beam(
    guess: Guess, limit: int, *, width: int, length_penalty: float, n_best: int, complete: int | None
) -> list[Found]:
    """One source at a time, with plain lists, as the docstring of `beam_search` describes it."""
    live: list[tuple[float, Prefix, tuple[float, ...]]] = [(0.0, (), ())]
    done: list[Found] = []
    enough = width if complete is None else complete
    while live and len(done) < enough:
        candidates = []
        for total, tokens, parts in live:
            for token, part in writable(guess, tokens, limit):
                candidates.append((total + part, (*tokens, token), (*parts, part)))
        candidates.sort(key=lambda one: -one[0])
        best = candidates[: 2 * width]
        for total, tokens, parts in best[:width]:
            if tokens[-1] == EOS:
                done.append(Found(total / len(tokens) ** length_penalty, tokens, parts))
        live = [one for one in best if one[1][-1] != EOS][:width]
    return sorted(done, key=lambda one: -one.normalised)[:n_best]


def exhaustive(guess: Guess, vocabulary: int, limit: int, length_penalty: float) -> list[Found]:
    """All outputs, best first."""
    outputs = []
    words = [token for token in range(vocabulary) if token not in (PAD, UNK, SOS, EOS)]
    for size in range(limit):
        for text in product(words, repeat=size):
            tokens = (*text, EOS)
            parts = tuple(guess(tokens[:index])[token] for index, token in enumerate(tokens))
            outputs.append(Found(sum(parts) / len(tokens) ** length_penalty, tokens, parts))
    return sorted((one for one in outputs if one.normalised > NEVER), key=lambda one: -one.normalised)


@dataclass
class Table:
    """A model whose probabilities are random functions of the source and the whole prefix."""

    seed: int
    vocabulary: int
    sharpness: float
    ending: float  # how much likelier <eos> is than a word
    holes: float  # share of tokens that are impossible
    known: dict[tuple[int, Prefix], list[float]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)  # of every step

    def guess(self, source: int, prefix: Prefix) -> list[float]:
        if (source, prefix) not in self.known:
            rng = random.Random(f"{self.seed} {source} {prefix}")
            logits = [rng.gauss(0.0, self.sharpness) for _ in range(self.vocabulary)]
            logits[EOS] += self.ending
            for token in range(self.vocabulary):
                if token != EOS and rng.random() < self.holes:
                    logits[token] = NEVER
            total = math.log(sum(math.exp(logit) for logit in logits))
            self.known[source, prefix] = [logit - total for logit in logits]
        return self.known[source, prefix]

    def of(self, source: int) -> Guess:
        return lambda prefix: self.guess(source, prefix)

    def start(self, sources: Sequence[int]) -> State:
        names = torch.tensor(sources)
        return State(static=(names,), cache=(torch.empty(len(sources), 0, dtype=torch.long),), length=0)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Every hypothesis carries the tokens it has read, so a wrong reordering gives wrong probabilities."""
        (names,), (read,) = state.static, state.cache
        read = torch.cat([read, tokens[:, None]], 1)
        assert read.shape[0] == names.shape[0] * state.hypotheses
        self.rows.append(read.shape[0])
        out = []
        for row, prefix in enumerate(read.tolist()):
            assert prefix[0] == SOS
            out.append(self.guess(int(names[row // state.hypotheses]), tuple(prefix[1:])))
        return torch.tensor(out, dtype=torch.float64), state._replace(cache=(read,), length=state.length + 1)


class Case(NamedTuple):
    """A tiny model, some sources, and options of a search."""

    table: Table
    limits: list[int]
    width: int
    length_penalty: float
    n_best: int
    complete: int | None

    def found(self, sources: Sequence[int] | None = None) -> list[list[Hypothesis]]:
        chosen = range(len(self.limits)) if sources is None else sources
        return beam_search(
            self.table.step,
            self.table.start(chosen),
            torch.tensor([self.limits[source] for source in chosen]),
            BeamOptions(self.width, self.n_best, self.complete, stop="complete"),
            Scorer(self.length_penalty),
        )

    def expected(self, source: int) -> list[Found]:
        return slow_beam(
            self.table.of(source),
            self.limits[source],
            width=self.width,
            length_penalty=self.length_penalty,
            n_best=self.n_best,
            complete=self.complete,
        )


def any_case(seed: int) -> Case:
    rng = random.Random(seed)
    width = rng.randint(1, 6)
    return Case(
        table=Table(
            seed=seed,
            vocabulary=rng.choice([5, 6, 7, 9, 14]),
            sharpness=rng.choice([0.3, 1.0, 2.0]),
            ending=rng.choice([-2.0, 0.0, 1.0, 2.0]),
            holes=rng.choice([0.0, 0.0, 0.3]),
        ),
        limits=[rng.randint(1, 7) for _ in range(rng.randint(1, 4))],
        width=width,
        length_penalty=rng.choice([0.0, 0.6, 1.0, 1.0, 2.0]),
        n_best=rng.choice([1, width, width + 2]),
        complete=rng.choice([None, None, 1, 2, width + 3]),
    )


def same(found: Sequence[Hypothesis], expected: Sequence[Found]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for left, right in zip(found, expected, strict=True):
        assert left.token_scores == pytest.approx(right.parts, abs=1e-12)
        assert left.score == pytest.approx(sum(right.parts), abs=1e-12)
        assert left.normalised == pytest.approx(right.normalised, abs=1e-12)


def test_beam_search_is_the_slow_beam_search() -> None:
    several = cut = narrow = changed = 0
    for seed in range(CASES):
        case = any_case(seed)
        for source, found in enumerate(case.found()):
            expected = case.expected(source)
            same(found, expected)
            several += len(expected) > 1
            cut += any(len(one.tokens) == case.limits[source] for one in expected)
            narrow += case.table.vocabulary < 2 * case.width
            greedy = slow_beam(
                case.table.of(source), case.limits[source], width=1, length_penalty=1.0, n_best=1, complete=1
            )
            changed += greedy[0].tokens != expected[0].tokens
    assert min(several, cut, narrow, changed) > 100, "the cases must reach the corners"


def test_a_wide_enough_beam_is_exhaustive_search() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        words = rng.randint(1, 3)
        limits = [rng.randint(1, 5 if words < 3 else 4) for _ in range(rng.randint(1, 3))]
        everything = sum(words**size for size in range(max(limits)))
        case = Case(
            table=Table(seed, 4 + words, rng.choice([0.3, 1.0, 2.0]), rng.choice([-1.0, 1.0]), 0.0),
            limits=limits,
            width=everything,
            length_penalty=rng.choice([0.0, 0.6, 1.0, 2.0]),
            n_best=everything,
            complete=None,
        )
        for source, found in enumerate(case.found()):
            expected = exhaustive(case.table.of(source), 4 + words, limits[source], case.length_penalty)
            assert len(expected) == sum(words**size for size in range(limits[source]))
            same(found, expected)


def test_a_source_has_the_same_outputs_alone_and_in_any_batch() -> None:
    for seed in range(150):
        case = any_case(seed)
        together = case.found()
        order = random.Random(seed).sample(range(len(case.limits)), len(case.limits))
        assert case.found(order) == [together[source] for source in order]
        for source in order:
            assert case.found([source]) == [together[source]]
        assert case.found([0, 0]) == [together[0], together[0]]


def test_beam_of_one_is_greedy() -> None:
    for seed in range(200):
        case = any_case(seed)._replace(width=1, n_best=1, complete=None)
        limits = torch.tensor(case.limits)
        start = case.table.start(range(len(case.limits)))
        greedy = greedy_search(case.table.step, start, limits, Scorer(case.length_penalty))
        for source, (found, one) in enumerate(zip(case.found(), greedy, strict=True)):
            assert [row.tokens for row in found] == [one.tokens]
            assert found[0].token_scores == pytest.approx(one.token_scores, abs=1e-12)
            assert found[0].score == pytest.approx(one.score, abs=1e-12)
            assert found[0].normalised == pytest.approx(one.normalised, abs=1e-12)
            written: Prefix = ()
            for token in one.tokens:  # and greedy is the most probable token, one after another
                options = writable(case.table.of(source), written, case.limits[source])
                assert token == max(options, key=lambda option: option[1])[0]
                written = (*written, token)


def test_several_outputs_are_distinct_and_best_first() -> None:
    counts = set()
    for seed in range(100):
        case = any_case(seed)
        case = case._replace(n_best=case.width, complete=None)
        for source, found in enumerate(case.found()):
            counts.add(len(found))
            assert 1 <= len(found) <= case.n_best
            assert len({one.tokens for one in found}) == len(found)
            ranks = [one.normalised for one in found]
            assert ranks == sorted(ranks, reverse=True)
            for one in found:
                assert one.tokens[-1] == EOS
                assert one.tokens.count(EOS) == 1
                assert not {PAD, UNK, SOS} & set(one.tokens)
                assert len(one.token_scores) == len(one.tokens) <= case.limits[source]
                assert one.normalised == pytest.approx(one.score / len(one.tokens) ** case.length_penalty, abs=1e-12)
            best = case._replace(n_best=1).found([source])[0]
            assert best == found[:1]
    assert counts == set(range(1, 7))


class Story(Table):
    """A model for which ending at once is more probable, but going on has the better mean per token."""

    def guess(self, source: int, prefix: Prefix) -> list[float]:
        story: dict[Prefix, dict[int, float]] = {(): {EOS: 0.6, 4: 0.4}, (4,): {5: 1.0}, (4, 5): {EOS: 1.0}}
        chances = story.get(prefix, {EOS: 1.0})
        return [math.log(chances[token]) if token in chances else NEVER for token in range(self.vocabulary)]


def test_the_setting_of_num_complete_reaches_the_beam() -> None:
    assert BeamOptions.of(SearchConfig(), 3).num_complete is None
    assert BeamOptions.of(SearchConfig(num_complete=2), 1).num_complete == 2
    assert BeamOptions.of(SearchConfig(num_complete=2), 4).num_complete == 4  # all that are asked for
    assert BeamOptions.of(SearchConfig(beam=1, num_complete=2), 1).num_complete is None  # greedy search


def test_num_complete_sets_how_many_hypotheses_must_be_complete() -> None:
    table = Story(0, 6, 1.0, 0.0, 0.0)
    found = {}
    for complete in (1, 2):
        case = Case(table, [5], width=2, length_penalty=1.0, n_best=2, complete=complete)
        table.rows.clear()
        found[complete] = (case.found()[0], len(table.rows))
    hypotheses, steps = found[1]
    assert [one.tokens for one in hypotheses] == [(EOS,)]
    assert steps == 1
    hypotheses, steps = found[2]
    assert [one.tokens for one in hypotheses] == [(4, 5, EOS), (EOS,)]  # log 0.4 / 3 > log 0.6
    assert hypotheses[0].normalised == pytest.approx(math.log(0.4) / 3)
    assert steps == 3


def test_length_penalty_decides_between_short_and_long() -> None:
    table = Story(0, 6, 1.0, 0.0, 0.0)
    for penalty, best in ((0.0, (EOS,)), (1.0, (4, 5, EOS))):
        case = Case(table, [5], width=2, length_penalty=penalty, n_best=1, complete=None)
        assert case.found()[0][0].tokens == best


def test_more_complete_hypotheses_never_give_a_worse_output() -> None:
    better = 0
    for seed in range(100):
        case = any_case(seed)._replace(n_best=1)
        few, many = (case._replace(complete=complete).found() for complete in (1, 20))
        for left, right in zip(few, many, strict=True):
            assert right[0].normalised >= left[0].normalised
            better += right[0].normalised > left[0].normalised
    assert better > 20


def test_finished_sources_leave_the_batch() -> None:
    table = Table(3, 8, 1.0, -3.0, 0.0)
    Case(table, [2, 5, 3], width=4, length_penalty=1.0, n_best=1, complete=None).found()
    assert table.rows == [12, 12, 8, 4, 4]


def test_no_sources_no_outputs() -> None:
    assert Case(Table(3, 8, 1.0, 0.0, 0.0), [], 4, 1.0, 1, None).found() == []


def test_a_broken_model_ends_the_search() -> None:
    """NaN is neither above nor below any number; a search that waits for −∞ would never end."""
    steps: list[int] = []

    def broken(tokens: Tensor, state: State) -> tuple[Tensor, State]:
        steps.append(len(tokens))
        return torch.full((len(tokens), 7), math.nan), state

    start = State(static=(torch.zeros(2),), cache=(torch.zeros(2),), length=0)
    assert beam_search(broken, start, torch.tensor([4, 6]), BeamOptions(3)) == [[], []]
    assert len(steps) == 6

    model = EncoderDecoder(EncoderDecoderConfig(encoder=ENCODERS["gru"], decoder=DECODERS["lstm"]), 11, 11).eval()
    with torch.no_grad():
        model.output.weight.fill_(math.nan)
    with pytest.raises(DragomanError, match="NaN"):
        search(model, batch_of([[5, 6], [7]]), SearchConfig(beam=3, max_length=5), ratio=1.0)


ENCODERS: dict[str, EncoderConfig] = {
    "transformer": TransformerConfig(layers=1, width=8, heads=2, feedforward=12, dropout=0.0),
    "gru": RecurrentEncoderConfig(cell=GRUConfig(), layers=1, embedding=6, width=8, dropout=0.0),
}
DECODERS: dict[str, DecoderConfig] = {
    "transformer": TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0),
    "lstm": RecurrentDecoderConfig(
        cell=LSTMConfig(), layers=2, embedding=6, width=9, attention=AdditiveConfig(width=7), dropout=0.0
    ),
}


@pytest.mark.parametrize("width", [1, 3])
def test_no_search_exceeds_learned_positions(width: int) -> None:
    """An untrained model seldom ends by itself; the limit must be one its decoder can read."""
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        encoder=ENCODERS["gru"], decoder=replace(DECODERS["transformer"], positions=LearnedConfig(max_positions=9))
    )
    model = EncoderDecoder(config, 11, 11).eval()
    with torch.no_grad():
        model.output.weight[EOS] = -10 * model.output.weight[4:].mean(0)
    found = search(model, batch_of([[5, 6, 7, 8], [9]]), SearchConfig(beam=width, max_length=50), ratio=1.0)
    assert max(len(row[0].tokens) for row in found) == 9


@pytest.mark.parametrize(("encoder", "decoder"), list(product(ENCODERS, DECODERS)))
def test_beam_search_over_a_real_model_is_the_slow_beam_without_a_cache(encoder: str, decoder: str) -> None:
    sources = [[5, 6, 7, 8], [9], [10, 4, 6]]
    limits = [6, 3, 7]
    lengths = set()
    for seed in range(3):
        torch.manual_seed(seed)
        config = EncoderDecoderConfig(encoder=ENCODERS[encoder], decoder=DECODERS[decoder], tie="none")
        model = EncoderDecoder(config, 11, 11).double().eval()
        with torch.no_grad():
            model.output.weight.mul_(3.0)

        def guess_for(source: list[int], model: EncoderDecoder = model) -> Guess:
            def guess(prefix: Prefix) -> list[float]:
                with torch.no_grad():
                    out, _ = model.step(torch.tensor([[SOS, *prefix]]), model.start(batch_of([source])))
                row: list[float] = out[0].tolist()
                return row

            return guess

        options = BeamOptions(3, n_best=3, stop="complete")
        found = beam_search(model.step, model.start(batch_of(sources)), torch.tensor(limits), options)
        for source, limit, row in zip(sources, limits, found, strict=True):
            expected = slow_beam(guess_for(source), limit, width=3, length_penalty=1.0, n_best=3, complete=None)
            assert [one.tokens for one in row] == [one.tokens for one in expected]
            for left, right in zip(row, expected, strict=True):
                assert left.token_scores == pytest.approx(right.parts, abs=1e-10)
                assert left.normalised == pytest.approx(right.normalised, abs=1e-10)
            lengths |= {len(one.tokens) for one in row}
    assert len(lengths) > 2
