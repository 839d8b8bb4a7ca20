"""CTC: paths and their texts; best path and prefix beam search against brute force over all paths."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.non_autoregressive import decode_ctc, decode_lengths
from dragoman.models.contracts import CTCEmissions, LengthBeam
from dragoman.models.layers.ctc import collapse, ctc_log_probability, min_path_length, viterbi_positions

Text = tuple[int, ...]
FIRST = 4  # the first real symbol


def emissions_of(seed: int, lengths: list[int], symbols: int, sharpness: float = 1.5) -> CTCEmissions:
    """Random emissions in float64; positions beyond a row's length must not matter, so they are NaN."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(lengths), max(lengths), FIRST + symbols
    found = (sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)).log_softmax(-1)
    for row, length in enumerate(lengths):
        found[row, length:] = math.nan
    return CTCEmissions(found, torch.tensor(lengths))


def text_of(path: Text) -> Text:
    """Merge repeats, then drop blanks: the definition."""
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != PAD)


def all_texts(frames: Tensor) -> dict[Text, float]:
    """The probability of every text, by summing over every path of frames (T, V)."""
    symbols = [PAD, *range(FIRST, frames.shape[1])]
    found: dict[Text, float] = defaultdict(float)
    for path in itertools.product(symbols, repeat=len(frames)):
        found[text_of(path)] += math.exp(sum(float(frames[index, symbol]) for index, symbol in enumerate(path)))
    return {text: math.log(probability) for text, probability in found.items()}


def spans_of(path: Text) -> list[tuple[int, int]]:
    """The first and last position of every symbol of a path's text."""
    found, index = [], 0
    for symbol, run in itertools.groupby(path):
        size = len(list(run))
        if symbol != PAD:
            found.append((index, index + size - 1))
        index += size
    return found


@pytest.mark.parametrize("seed", range(12))
def test_token_positions_are_those_of_the_best_path(seed: int) -> None:
    lengths = [5, 3, 6, 1]
    emissions = emissions_of(seed, lengths, 2)
    texts = [(4, 5), (4, 4, 5), (5, 5, 4), ()]  # the second needs four positions
    sizes = torch.tensor([len(text) for text in texts])
    padded = torch.tensor([[*text, *[PAD] * (3 - len(text))] for text in texts])
    first, last = viterbi_positions(emissions.log_probabilities, emissions.lengths, padded, sizes, PAD)
    for row, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        frames = emissions.log_probabilities[row, :length].tolist()
        paths = [path for path in itertools.product([PAD, 4, 5], repeat=length) if text_of(path) == text]
        expected = [(-1, -1)] * 3
        if paths:
            best = max(paths, key=lambda path: sum(frame[symbol] for frame, symbol in zip(frames, path, strict=True)))
            expected[: len(text)] = spans_of(best)
        assert list(zip(first[row].tolist(), last[row].tolist(), strict=True)) == expected


def read(
    emissions: CTCEmissions, beam: int, n_best: int, penalty: float = 0.0, limit: int = 99
) -> list[list[Hypothesis]]:
    limits = torch.full_like(emissions.lengths, limit)
    return decode_ctc(emissions, limits, SearchConfig(beam=beam, length_penalty=penalty), n_best)


# ---------------------------------------------------------------------- paths and texts


def test_hello() -> None:
    letters = {"-": PAD, "H": 4, "e": 5, "l": 6, "o": 7}
    path = torch.tensor([[letters[letter] for letter in "HHHHHH-eeeelll-lll--oo---"]])
    texts, sizes = collapse(path, torch.tensor([25]), PAD)
    names = {number: letter for letter, number in letters.items()}
    assert "".join(names[symbol] for symbol in texts[0, : sizes[0]].tolist()) == "Hello"
    assert set(texts[0, 5:].tolist()) == {PAD}
    emissions = CTCEmissions(F.one_hot(path, 8).double().mul(9).log_softmax(-1), torch.tensor([25]))
    for beam in (1, 4):
        assert read(emissions, beam, 1)[0][0].tokens == (4, 5, 6, 6, 7, EOS)


def test_collapsing_is_the_definition() -> None:
    rng = random.Random(0)
    for _ in range(200):
        lengths = [rng.randint(0, 7) for _ in range(4)]
        paths = torch.tensor([[rng.choice([PAD, PAD, 4, 5]) for _ in range(7)] for _ in lengths])
        texts, sizes = collapse(paths, torch.tensor(lengths), PAD)
        for row, length in enumerate(lengths):
            expected = text_of(tuple(paths[row, :length].tolist()))
            assert tuple(texts[row].tolist()) == expected + (PAD,) * (7 - len(expected))
            assert int(sizes[row]) == len(expected)


def test_shortest_path_is_the_definition() -> None:
    for size in range(4):
        for text in itertools.product([4, 5], repeat=size):
            min_length = next(
                length
                for length in range(9)
                if any(text_of(path) == text for path in itertools.product([PAD, 4, 5], repeat=length))
            )
            padded = torch.tensor([[*text, EOS, PAD, PAD]])
            assert int(min_path_length(padded, torch.tensor([size]))) == min_length


def test_probability_of_a_text_is_that_of_all_its_paths_and_torchs() -> None:
    rng = random.Random(1)
    for seed in range(60):
        lengths = [rng.randint(1, 5) for _ in range(3)]
        emissions = emissions_of(seed, lengths, symbols=2)
        texts = [[[rng.choice([4, 5]) for _ in range(rng.randint(0, 4))] for _ in range(2)] for _ in lengths]
        padded = torch.tensor([[text + [PAD] * (4 - len(text)) for text in row] for row in texts])
        sizes = torch.tensor([[len(text) for text in row] for row in texts])
        found = ctc_log_probability(*emissions, padded, sizes, PAD)
        for row, length in enumerate(lengths):
            truth = all_texts(emissions.log_probabilities[row, :length])
            for index, text in enumerate(texts[row]):
                assert float(found[row, index]) == pytest.approx(truth.get(tuple(text), -math.inf), abs=1e-10)
                theirs = torch_score(emissions.log_probabilities[row, :length], text)
                assert float(found[row, index]) == pytest.approx(theirs, abs=1e-10)


def torch_score(frames: Tensor, text: list[int] | Text) -> float:
    loss = F.ctc_loss(
        frames[:, None], torch.tensor([[*text, PAD]]), torch.tensor([len(frames)]), torch.tensor([len(text)]),
        blank=PAD, reduction="sum",
    )  # fmt: skip
    return -float(loss)


# ---------------------------------------------------------------------- searches


@pytest.mark.parametrize(("symbols", "longest", "width"), [(1, 6, 5), (2, 4, 32), (3, 3, 41)])
def test_wide_prefix_beam_is_brute_force(symbols: int, longest: int, width: int) -> None:
    """120 batches of three rows for each size: every text, in order, with its probability."""
    rng = random.Random(symbols)
    for seed in range(120):
        lengths = [rng.randint(1, longest) for _ in range(3)]
        emissions = emissions_of(seed, lengths, symbols)
        found = read(emissions, beam=width, n_best=width)
        for row, length in enumerate(lengths):
            truth = all_texts(emissions.log_probabilities[row, :length])
            assert {one.tokens[:-1] for one in found[row]} == set(truth)
            assert len(found[row]) == len(truth)
            for one in found[row]:
                assert one.tokens[-1] == EOS
                assert one.score == pytest.approx(truth[one.tokens[:-1]], abs=1e-8)
                assert one.normalised == one.score  # no penalty
            scores = [one.score for one in found[row]]
            assert scores == sorted(scores, reverse=True)


def plain_prefix_beam(frames: Tensor, width: int) -> set[Text]:
    """One source, dictionaries, no tensors."""
    beam: dict[Text, tuple[float, float]] = {(): (1.0, 0.0)}  # paths that end in the blank, and in the last symbol
    for frame in frames.exp().tolist():
        later: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for text, (parted, lasting) in beam.items():
            later[text][0] += (parted + lasting) * frame[PAD]
            if text:
                later[text][1] += lasting * frame[text[-1]]
            for symbol in range(FIRST, len(frame)):
                before = parted if text and symbol == text[-1] else parted + lasting
                later[(*text, symbol)][1] += before * frame[symbol]
        best = sorted(later.items(), key=lambda item: -sum(item[1]))[:width]
        beam = {text: (both[0], both[1]) for text, both in best if sum(both) > 0}
    return set(beam)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_narrow_prefix_beam_is_a_plain_one(width: int) -> None:
    rng = random.Random(width)
    for seed in range(60):
        lengths = [rng.randint(3, 9) for _ in range(4)]
        emissions = emissions_of(seed, lengths, symbols=4, sharpness=1.0)
        found = read(emissions, beam=width, n_best=width)
        for row, length in enumerate(lengths):
            frames = emissions.log_probabilities[row, :length]
            assert {one.tokens[:-1] for one in found[row]} == plain_prefix_beam(frames, width)


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_score_is_torchs_ctc_loss(beam: int) -> None:
    for seed in range(30):
        lengths = [12, 3, 8]
        emissions = emissions_of(seed, lengths, symbols=6)
        found = read(emissions, beam, n_best=beam, penalty=1.0)
        for row, length in enumerate(lengths):
            for one in found[row]:
                expected = torch_score(emissions.log_probabilities[row, :length], one.tokens[:-1])
                assert one.score == pytest.approx(expected, abs=1e-8)
                assert sum(one.token_scores) == pytest.approx(one.score, abs=1e-12)
                assert len(one.token_scores) == len(one.tokens)
                assert one.normalised == pytest.approx(one.score / len(one.tokens))


def test_beam_of_one_is_the_best_path() -> None:
    for seed in range(50):
        emissions = emissions_of(seed, [7, 4], symbols=4)
        for row, (one,) in enumerate(read(emissions, beam=1, n_best=1)):
            frames = emissions.log_probabilities[row, : emissions.lengths[row]].clone()
            frames[:, [UNK, SOS, EOS]] = -math.inf
            assert one.tokens[:-1] == text_of(tuple(frames.argmax(-1).tolist()))


def test_best_path_is_not_always_the_best_text() -> None:
    """Two positions of 0.6 blank and 0.4 'a': the path of blanks has 0.36, but 'a' has 0.64 over three paths."""
    frames = torch.full((1, 2, 5), -math.inf, dtype=torch.float64)
    frames[:, :, PAD], frames[:, :, 4] = math.log(0.6), math.log(0.4)
    emissions = CTCEmissions(frames, torch.tensor([2]))
    assert read(emissions, beam=1, n_best=1)[0][0].tokens == (EOS,)
    best, other = read(emissions, beam=4, n_best=4)[0]
    assert (best.tokens, other.tokens) == ((4, EOS), (EOS,))
    assert math.exp(best.score) == pytest.approx(0.64)
    assert math.exp(other.score) == pytest.approx(0.36)


def test_rows_do_not_depend_on_each_other() -> None:
    emissions = emissions_of(3, [9, 2, 6, 1], symbols=5)
    for beam in (1, 3):
        together = read(emissions, beam, n_best=beam)
        for row, length in enumerate([9, 2, 6, 1]):
            alone = CTCEmissions(emissions.log_probabilities[row : row + 1, :length], emissions.lengths[row : row + 1])
            (expected,) = read(alone, beam, n_best=beam)
            assert [one.tokens for one in together[row]] == [one.tokens for one in expected]
            for left, right in zip(together[row], expected, strict=True):
                assert left.score == pytest.approx(right.score, abs=1e-10)


@pytest.mark.parametrize("beam", [1, 4, 20])
def test_limits_hold(beam: int) -> None:
    emissions = emissions_of(5, [5, 5], symbols=3, sharpness=3.0)
    limits = torch.tensor([3, 1])  # two tokens, and none, besides <eos>
    found = decode_ctc(emissions, limits, SearchConfig(beam=beam, length_penalty=0.0), beam)
    assert max(len(one.tokens) for one in found[0]) == 3
    assert [one.tokens for one in found[1]] == [(EOS,)]
    if beam == 20:
        truth = all_texts(emissions.log_probabilities[0])
        assert {one.tokens[:-1] for one in found[0]} == {text for text in truth if len(text) <= 2}


def test_suppressed_tokens_are_never_output() -> None:
    emissions = emissions_of(1, [4], symbols=2)
    emissions.log_probabilities[0, :, [UNK, SOS, EOS]] += 50
    for beam in (1, 3):
        for one in read(emissions, beam, n_best=beam)[0]:
            assert not {PAD, UNK, SOS, EOS} & set(one.tokens[:-1])


# ---------------------------------------------------------------------- one token a position


def test_length_nat_gives_the_best_texts_of_all_lengths() -> None:
    rng = random.Random(2)
    for seed in range(60):
        torch.manual_seed(seed)
        lengths = torch.tensor([rng.sample(range(4), 3) for _ in range(2)])
        written = torch.randn(2, 3, 3, FIRST + 3, dtype=torch.float64).log_softmax(-1)
        length_scores = torch.randn(2, 3, dtype=torch.float64).log_softmax(-1)
        found = decode_lengths(
            LengthBeam(written, lengths, length_scores), torch.tensor([9, 9]), SearchConfig(length_penalty=0.5), 6
        )
        for row in range(2):
            truth = {}
            for index, size in enumerate(lengths[row].tolist()):
                for text in itertools.product(range(FIRST, FIRST + 3), repeat=size):
                    parts = [float(written[row, index, at, symbol]) for at, symbol in enumerate(text)]
                    truth[*text, EOS] = (*parts, float(length_scores[row, index]))
            ranked = sorted(truth, key=lambda text: -sum(truth[text]) / len(text) ** 0.5)
            assert [one.tokens for one in found[row]] == ranked[:6]
            for one in found[row]:
                assert one.token_scores == pytest.approx(truth[one.tokens], abs=1e-12)
                assert one.score == pytest.approx(sum(truth[one.tokens]), abs=1e-12)
                assert one.normalised == pytest.approx(one.score / len(one.tokens) ** 0.5)


def test_length_nat_leaves_out_impossible_lengths() -> None:
    written = torch.randn(1, 2, 3, 7, dtype=torch.float64).log_softmax(-1)
    given = LengthBeam(written, torch.tensor([[0, 2]]), torch.tensor([[0.0, -math.inf]], dtype=torch.float64))
    assert [one.tokens for one in decode_lengths(given, torch.tensor([1]), SearchConfig(), 4)[0]] == [(EOS,)]
