"""Each option of beam search, against a slow plain-list search with the same option."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig, StopRule
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.decoding.trace import COMPLETE, KEPT, LATE, PRUNED, Trace
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.decoding.test_beam import DECODERS, ENCODERS, Found, Guess, Prefix, Table, any_case, same, writable


class Options(NamedTuple):
    """Options of a search."""

    width: int
    penalty: float
    normalisation: str
    stop: StopRule
    min_length: int
    no_repeat_ngram: int
    n_best: int


def divided(length: int, options: Options) -> float:
    if options.normalisation == "none":
        return 1.0
    if options.normalisation == "gnmt":
        return ((5 + length) / 6) ** options.penalty  # Wu et al. 2016, eq. 14
    return length**options.penalty


def repeats(tokens: Prefix, size: int) -> bool:
    grams = [tokens[index : index + size] for index in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


def slow(guess: Guess, limit: int, options: Options) -> list[Found]:
    """As `slow_beam`, with every option; a certain search simply runs to the very end.

    Unless it stops as soon as enough are complete, the greedy output stays in the beam, in its last place if need be.
    """
    live: list[tuple[float, Prefix, tuple[float, ...]]] = [(0.0, (), ())]
    done: list[Found] = []
    stop = "complete" if options.width == 1 else options.stop
    greedy: Prefix | None = None if stop == "complete" else ()

    def settled(length: int) -> bool:
        """Whether the search ends."""
        if not live:
            return True
        best = sorted((one.normalised for one in done), reverse=True)
        if stop == "certain" or len(best) < options.width:
            return False
        if stop == "complete":
            return True
        now = max(total for total, _, _ in live) / divided(length, options)
        final = next((total / divided(limit, options) for total, tokens, _ in live if tokens == greedy), -math.inf)
        return len(best) >= options.n_best and best[options.n_best - 1] >= now and best[0] >= final

    while not settled(len(live[0][1]) if live else 0):
        candidates = []
        for total, tokens, parts in live:
            for token, part in writable(guess, tokens, limit):
                new = (*tokens, token)
                if token == EOS and len(tokens) < options.min_length and len(new) < limit:
                    continue
                if token != EOS and options.no_repeat_ngram and repeats(new, options.no_repeat_ngram):
                    continue
                candidates.append((total + part, new, (*parts, part)))
        candidates.sort(key=lambda one: -one[0])
        best = candidates[: 2 * options.width]
        ending = [one for one in best[: options.width] if one[1][-1] == EOS]
        live = [one for one in best if one[1][-1] != EOS][: options.width]
        if greedy is not None:
            step = next((one for one in candidates if one[1][:-1] == greedy), None)  # the best of its continuations
            greedy = None if step is None or step[1][-1] == EOS else step[1]
            if greedy is None and step is not None and step not in ending:
                ending.append(step)
            elif step is not None and greedy is not None and step not in live:
                live = [*live[: options.width - 1], step]
        done += [Found(total / divided(len(tokens), options), tokens, parts) for total, tokens, parts in ending]
    return sorted(done, key=lambda one: -one.normalised)[: options.n_best]


def fast(
    table: Table, sources: Sequence[int], limits: Sequence[int], options: Options, trace: Trace | None = None
) -> list[list[Hypothesis]]:
    return beam_search(
        table.step,
        table.start(sources),
        torch.tensor([limits[source] for source in sources]),
        BeamOptions(
            options.width,
            options.n_best,
            stop=options.stop,
            min_length=options.min_length,
            no_repeat_ngram=options.no_repeat_ngram,
        ),
        Scorer(options.penalty, options.normalisation),  # type: ignore[arg-type]
        trace=trace,
    )


def any_options(seed: int) -> Options:
    rng = random.Random(seed)
    width = rng.randint(1, 5)
    return Options(
        width,
        rng.choice([0.0, 0.6, 1.0, 2.0]),
        rng.choice(["power", "gnmt", "none"]),
        rng.choice(["ahead", "complete", "certain"]),
        rng.choice([0, 0, 2, 4, 9]),
        rng.choice([0, 1, 2, 3]),
        rng.randint(1, width),
    )


def test_every_option_is_what_the_slow_search_finds() -> None:
    reached = {"short": 0, "repeat": 0, "stop": 0}
    for seed in range(250):
        case, options = any_case(seed), any_options(seed)
        together = fast(case.table, range(len(case.limits)), case.limits, options)
        for source, found in enumerate(together):
            same(found, slow(case.table.of(source), case.limits[source], options))
            assert fast(case.table, [source], case.limits, options) == [found]
            for name, plain in (
                ("short", options._replace(min_length=0)),
                ("repeat", options._replace(no_repeat_ngram=0)),
                ("stop", options._replace(stop="complete")),
            ):
                reached[name] += slow(case.table.of(source), case.limits[source], plain) != slow(
                    case.table.of(source), case.limits[source], options
                )
    assert min(reached.values()) > 10, reached


def test_a_certain_search_stops_when_no_open_hypothesis_can_win() -> None:
    """Without normalisation, the first complete output that leads all open ones has won."""
    sooner = 0
    for seed in range(30):
        steps = {}
        for stop in ("complete", "certain"):
            table = Table(seed, 9, 1.5, 1.0, 0.0)
            found = fast(table, [0], [12], Options(4, 0.0, "none", stop, 0, 0, 1))
            steps[stop] = len(table.rows)
        same(found[0], slow(table.of(0), 12, Options(4, 0.0, "none", "certain", 0, 0, 1)))
        sooner += steps["certain"] < steps["complete"]
    assert sooner > 5


def test_minimum_and_limit_meet_at_the_limit() -> None:
    table = Table(2, 8, 1.0, 5.0, 0.0)
    for limit in (1, 3, 6):
        for one in fast(table, [0], [limit], Options(3, 1.0, "power", "ahead", 9, 0, 3))[0]:
            assert len(one.tokens) == limit


def test_a_trace_has_every_node_once_and_the_path_of_every_output() -> None:
    fates = set()
    for seed in range(60):
        case, options = any_case(seed), any_options(seed)
        trace = Trace(len(case.limits))
        together = fast(case.table, range(len(case.limits)), case.limits, options, trace)
        for source, found in enumerate(together):
            nodes = {node.number: node for node in trace.nodes[source]}
            assert list(nodes) == list(range(1, len(nodes) + 1))
            alone = Trace(1)
            fast(case.table, [source], case.limits, options, alone)
            assert alone.nodes[0] == trace.nodes[source]
            complete = {}
            for node in nodes.values():
                tokens: Prefix = (node.token,)
                above = node
                while above.parent:
                    above = nodes[above.parent]
                    assert above.fate == KEPT
                    tokens = (above.token, *tokens)
                assert node.step == len(tokens)
                assert node.log_probability == pytest.approx(case.table.guess(source, tokens[:-1])[node.token])
                assert node.normalised == pytest.approx(node.score / divided(node.step, options))
                fates.add(node.fate)
                if node.fate == COMPLETE:
                    complete[tokens] = node.normalised
            for one in found:
                assert complete[one.tokens] == one.normalised
    assert fates == {KEPT, COMPLETE, LATE, PRUNED}


def real_model(decoder: str, seed: int = 0) -> EncoderDecoder:
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(encoder=ENCODERS["gru"], decoder=DECODERS[decoder], tie="none")
    model = EncoderDecoder(config, 11, 11).double().eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    return model


@pytest.mark.parametrize("decoder", ["transformer", "lstm"])
def test_coverage_follows_from_the_attention_of_the_whole_output(decoder: str) -> None:
    """Wu et al. 2016, eq. 14, from one teacher-forced reading of each output."""
    from dragoman.inference.align.attention import record_attention

    sources, beta = [[5, 6, 7, 8], [9], [10, 4, 6]], 0.7
    changed = 0
    for seed in range(4):
        model = real_model(decoder, seed)
        config = SearchConfig(beam=3, max_length=6, coverage_penalty=beta, normalisation="gnmt", length_penalty=0.6)
        found = search(model, batch_of(sources), config, 1.0, n_best=3)
        plain = search(model, batch_of(sources), SearchConfig(beam=3, max_length=6), 1.0, n_best=3)
        changed += [row[0].tokens for row in found] != [row[0].tokens for row in plain]
        for source, row in zip(sources, found, strict=True):
            alone = search(model, batch_of([source]), config, 1.0, n_best=3)[0]
            assert [one.tokens for one in alone] == [one.tokens for one in row]
            assert [one.normalised for one in row] == sorted((one.normalised for one in row), reverse=True)
            for one in row:
                kinds = dict(model.named_modules())
                with record_attention(model) as seen:
                    model.score(batch_of([source], [list(one.tokens[:-1])]))
                reading = [parts for name, parts in seen.items() if getattr(kinds[name], "is_cross_attention", False)]
                weights = torch.cat(reading[-1], 2)[0].mean(0)  # (T, S)
                cost = sum(math.log(min(float(column), 1.0)) for column in weights.sum(0))
                divisor = ((5 + len(one.tokens)) / 6) ** 0.6
                assert one.normalised == pytest.approx(one.score / divisor + beta * cost, abs=1e-9)
    assert changed


def test_coverage_without_attention_is_refused() -> None:
    table = Table(0, 6, 1.0, 0.0, 0.0)
    mask = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match="coverage_penalty: this model"):
        beam_search(
            table.step,
            table.start([0]),
            torch.tensor([4]),
            BeamOptions(2),
            Scorer(coverage_penalty=0.2),
            source_mask=mask,
        )
