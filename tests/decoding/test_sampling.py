"""Sampling follows the model's distribution and does not depend on the batch."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from dragoman.base.errors import DragomanError
from dragoman.data.batch import batch_of
from dragoman.data.collate import batches_by_length
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding import sampling
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.method import Request
from dragoman.decoding.sampling import Sampling, draw_samples, sample_key, sample_token, truncate, uniform
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.decoding.test_beam import DECODERS, ENCODERS, Table, exhaustive

CONFIG = SearchConfig(max_length=4)
CPU = torch.device("cpu")


def model_of(encoder: str = "gru", decoder: str = "lstm", seed: int = 0, vocabulary: int = 9) -> EncoderDecoder:
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(encoder=ENCODERS[encoder], decoder=DECODERS[decoder], tie="none")
    model = EncoderDecoder(config, vocabulary, vocabulary).double().eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    return model


def spelled(tokens: object) -> str:
    return " ".join(str(token) for token in tokens if token != EOS)  # type: ignore[attr-defined]


def request_for(model: EncoderDecoder, sources: list[list[int]], longest: int = 4, n_best: int = 1) -> Request:
    limits = torch.full((len(sources),), longest + 1)
    return Request(model, batch_of(sources), limits, SearchConfig(max_length=longest), n_best, spelled)


def far_from(counts: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """Chi-square a degree of freedom; outcomes expected less than five times are counted as one."""
    total = sum(counts.values())
    assert set(counts) <= set(chances)
    cells = [(counts[one], total * rng) for one, rng in chances.items() if total * rng >= 5]
    rest = total - sum(seen for seen, _ in cells), total - sum(expected for _, expected in cells)
    cells += [rest] if rest[1] > 1 else []
    return sum((seen - expected) ** 2 / expected for seen, expected in cells) / (len(cells) - 1)


# ---------------------------------------------------------------------- chance


def test_random_numbers_are_uniform_and_depend_on_seed_source_sample_and_step() -> None:
    keys = [
        sample_key(seed, source, sample) for seed in (0, 1) for source in ([5], [5, 6], [56]) for sample in (0, 1, 10)
    ]
    drawn = [uniform(key, step) for key in keys for step in range(500)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= one < 1 for one in drawn)
    tenths = Counter(int(10 * one) for one in drawn)
    assert sum((tenths[index] - 900) ** 2 / 900 for index in range(10)) < 27.9  # 0.1 % of fair dice exceed it
    apart = [first * second for first, second in pairwise(drawn)]
    assert sum(apart) / len(apart) == pytest.approx(0.25, abs=0.01)  # one step says nothing of the next
    assert uniform(sample_key(3, [7, 8], 2), 5) == uniform(sample_key(3, [7, 8], 2), 5)


def test_sample_token_inverts_the_cumulative_distribution() -> None:
    rng = random.Random(0)
    for _ in range(300):
        weights = [rng.choice([0.0, rng.random()]) for _ in range(7)]
        weights[rng.randrange(7)] += 0.1
        ball = rng.choice([0.0, 1 - 2**-53, rng.random()])
        running, expected = 0.0, -1
        for token, weight in enumerate(weights):
            running += weight / sum(weights)
            if weight and expected < 0 and ball < running:
                expected = token
        if expected < 0:  # rounding at the very end
            continue
        logs = torch.tensor([[math.log(weight) if weight else -math.inf for weight in weights]])
        found = int(sample_token(logs.double(), torch.tensor([ball], dtype=torch.float64))[0])
        assert weights[found] > 0
        assert found == expected


def plainly_narrowed(chances: list[float], wheel: Sampling) -> list[float]:
    """Temperature, top-k and top-p as the papers define them, token by token."""
    warm = [rng ** (1 / wheel.temperature) for rng in chances]
    warm = [one / sum(warm) for one in warm]
    ranking = sorted(range(len(warm)), key=lambda token: (-warm[token], token))
    kept = ranking[: wheel.top_k or None]
    mass = sum(warm[token] for token in kept)
    nucleus: list[int] = []
    for token in kept:
        if sum(warm[one] for one in nucleus) / mass >= wheel.top_p:
            break
        nucleus.append(token)
    mass = sum(warm[token] for token in nucleus)
    return [warm[token] / mass if token in nucleus else 0.0 for token in range(len(warm))]


def test_temperature_top_k_and_top_p_against_a_plain_reference() -> None:
    rng = random.Random(1)
    sizes = set()
    for _ in range(400):
        weights = [rng.choice([0.0, 1.0, rng.expovariate(1.0)]) for _ in range(9)]
        weights[EOS] += 0.2
        chances = [weight / sum(weights) for weight in weights]
        wheel = Sampling(
            temperature=rng.choice([0.3, 1.0, 2.5]),
            top_k=rng.choice([0, 1, 2, 5, 40]),
            top_p=rng.choice([1.0, 0.9, 0.5, 0.01]),
        )
        logs = torch.tensor([[math.log(one) if one else -math.inf for one in chances]], dtype=torch.float64)
        found = truncate(logs, wheel).softmax(-1)[0].tolist()
        assert found == pytest.approx(plainly_narrowed(chances, wheel), abs=1e-12)
        sizes.add(sum(one > 0 for one in found))
    assert {1, 2, 3, 5} <= sizes


# ---------------------------------------------------------------------- samples


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_are_as_likely_as_the_model_says(temperature: float) -> None:
    """Every output of a tiny model has a known probability; 6,000 samples come as often as that."""
    table = Table(4, 6, 1.0, 0.5, 0.0)
    words = exhaustive(table.of(0), 6, 3, 1.0)

    def chance_of(tokens: tuple[int, ...]) -> float:
        product = 1.0
        for index, token in enumerate(tokens):
            options = [EOS] if index == 2 else [EOS, 4, 5]
            guess = table.guess(0, tokens[:index])
            product *= math.exp(guess[token] / temperature) / sum(math.exp(guess[one] / temperature) for one in options)
        return product

    class Story:
        max_positions = None
        step = table.step

        def start(self, batch: object) -> object:
            return table.start([0])

    request = Request(Story(), batch_of([[5]]), torch.tensor([3]), CONFIG, 1, spelled)  # type: ignore[arg-type]
    drawn = draw_samples(request, Sampling(temperature=temperature), 6000, "sampling")[0]
    chances = {one.tokens: chance_of(one.tokens) for one in words}
    assert sum(chances.values()) == pytest.approx(1.0)
    assert far_from(Counter(one.tokens for one in drawn), chances) < 2.6  # 6 degrees: exceeded once in 60
    assert far_from(Counter(one.tokens for one in drawn), dict.fromkeys(chances, 1 / len(chances))) > 20
    parts = {one.tokens: one.parts for one in words}
    for one in drawn[:50]:  # a sample's score is the model's own, whatever the temperature
        assert one.token_scores == pytest.approx(parts[one.tokens])


def test_samples_do_not_depend_on_batch_or_order() -> None:
    model = model_of("transformer", "transformer").float()
    rng = random.Random(2)
    sources = [[rng.randint(4, 8) for _ in range(rng.randint(1, 7))] for _ in range(100)]
    wheel = Sampling(temperature=1.3, top_p=0.95, seed=7)

    def found(rows: int, order: list[int]) -> list[list[tuple[int, ...]]]:
        out: list[list[tuple[int, ...]]] = [[]] * len(sources)
        asked = [sources[index] for index in order]
        for indices, batch in batches_by_length(asked, rows):
            for index, hypotheses in zip(indices, search(model, batch, CONFIG, 1.0, 3, method=wheel), strict=True):
                out[order[index]] = [one.tokens for one in hypotheses]
        return out

    straight = list(range(len(sources)))
    expected = found(1, straight)
    assert len({tuple(row) for row in expected}) > 60
    assert {len(row) for row in expected} <= {1, 2, 3}
    for rows in (3, 64):
        assert found(rows, straight) == expected
        assert found(rows, random.Random(rows).sample(straight, len(straight))) == expected


def test_many_samples_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for(model_of(), [[5, 6, 7], [8], [4]])
    whole = draw_samples(request, Sampling(), 20, "test")
    for rows in (1, 9, 31):
        monkeypatch.setattr(sampling, "MAX_ROWS", rows)
        parts = draw_samples(request, Sampling(), 20, "test")
        assert [[one.tokens for one in row] for row in parts] == [[one.tokens for one in row] for row in whole]


def test_seeds_differ_and_distinct_samples_come_best_first() -> None:
    model = model_of()
    sources = [[5, 6, 7], [8]]
    texts = set()
    for seed in range(5):
        found = search(model, batch_of(sources), CONFIG, 1.0, 20, method=Sampling(seed=seed, temperature=0.7))
        for row in found:
            assert len({one.tokens for one in row}) == len(row) <= 20
            assert [one.normalised for one in row] == sorted((one.normalised for one in row), reverse=True)
        texts.add(str([[one.tokens for one in row] for row in found]))
    assert len(texts) == 5
    few = search(model, batch_of(sources), CONFIG, 1.0, 1, method=Sampling(samples=20, temperature=0.7, seed=4))
    assert few == [row[:1] for row in found]  # the best of twenty


def test_top_k_of_one_is_greedy() -> None:
    model = model_of()
    sources = [[5, 6, 7], [8], [4, 4]]
    greedy = search(model, batch_of(sources), replace(CONFIG, beam=1), 1.0)
    for wheel in (Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(temperature=1e-4)):
        assert search(model, batch_of(sources), replace(CONFIG, beam=1), 1.0, method=wheel) == greedy


def test_a_samples_score_is_its_teacher_forced_score() -> None:
    model = model_of("gru", "transformer")
    source = [5, 6, 7, 8]
    for one in search(model, batch_of([source]), CONFIG, 1.0, 8, method=Sampling(temperature=2.0))[0]:
        with torch.no_grad():
            truth = model.score(batch_of([source], [one.tokens[:-1]]))
        assert one.token_scores == pytest.approx(truth.log_probabilities[0].tolist(), abs=1e-10)


def test_a_broken_model_is_an_error() -> None:
    model = model_of()
    with torch.no_grad():
        model.output.weight.fill_(math.nan)
    with pytest.raises(DragomanError, match="NaN"):
        search(model, batch_of([[5]]), CONFIG, 1.0, method=Sampling(top_k=3))
