"""Decoders that sum over alignments, against brute-force sums over every alignment in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from dragoman.data.batch import batch_of, token_batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.contracts import Memory
from dragoman.models.decoders.copy_transducer import CopyTransducerConfig
from dragoman.models.decoders.edit_transducer import (
    COPY,
    DELETE,
    INSERT,
    SUBSTITUTE,
    EditTransducerConfig,
    optimal_edits,
)
from dragoman.models.decoders.hard_attention import HardAttentionDecoderConfig
from dragoman.models.decoders.monotone import MonotoneDecoder
from dragoman.models.decoders.recurrent import LuongDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.decoder_head import DecoderHead
from dragoman.models.layers.rnn_attention import GeneralConfig

VOCABULARY = 8
SOURCES = [[4, 5, 6, 5], [7, 4]]
TARGETS = [[5, 6, 4], [7, 4, 4]]
DECODERS = {
    "order 0, anywhere": HardAttentionDecoderConfig(order=0, monotonic=False, embedding=5, width=6, dropout=0.0),
    "order 0": HardAttentionDecoderConfig(order=0, embedding=5, width=6, dropout=0.0),
    "order 1": HardAttentionDecoderConfig(order=1, jump=2, embedding=5, width=6, dropout=0.0),
    "edits": EditTransducerConfig(embedding=5, width=6, dropout=0.0),
    "copies": CopyTransducerConfig(embedding=5, width=6, dropout=0.0),
}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(kind: str, smoothing: float = 0.0) -> EncoderDecoder:
    torch.manual_seed(3)
    encoder = RecurrentEncoderConfig(embedding=5, width=6, dropout=0.0)
    config = EncoderDecoderConfig(encoder=encoder, decoder=DECODERS[kind], label_smoothing=smoothing)
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    model.copied = torch.arange(VOCABULARY).masked_fill(torch.arange(VOCABULARY) < 4, PAD)
    return model


def log_probability(model: EncoderDecoder, source: list[int], target: list[int]) -> float:
    return float(model.score(batch_of([source], [target])).log_probabilities.sum())


def steps_of(model: EncoderDecoder, source: list[int], target: list[int]) -> tuple[Tensor, list[Tensor]]:
    """The decoder's states (T, D) and its actions (T, …), from the layers alone."""
    decoder = model.decoder
    assert isinstance(decoder, MonotoneDecoder)
    state = model.start(batch_of([source]))
    tokens = torch.tensor([[SOS, *target]])
    states, _ = decoder.stack(decoder.embedding(tokens), state.cache[0])
    return states[0], [table[0] for table in decoder._read(tokens, state)[2].tokens]


def transition(model: EncoderDecoder, states: Tensor, source: list[int]) -> list[list[list[float]]]:
    """p(a_t = j | a_{t−1} = i) by the formulas of the papers, one at a time."""
    decoder, batch = model.decoder, batch_of([source])
    memory = model.encode(batch.source.data, batch.source.mask)
    config = model.config.decoder
    assert isinstance(config, HardAttentionDecoderConfig)
    size = memory.keys.shape[1]
    tables = []
    for state in states:
        table = []
        for i in range(size):
            if config.order == 0:
                scores = [float(state @ decoder.key(memory.keys[0, j])) for j in range(size)]  # type: ignore[operator]
                reach = range(i if config.monotonic else 0, size)
            else:
                moves = decoder.query(state) + decoder.key(memory.keys[0, i])  # type: ignore[operator]
                scores = [float(moves[j - i]) if 0 <= j - i <= config.jump else -math.inf for j in range(size)]
                reach = range(i, min(size, i + config.jump + 1))
            total = sum(math.exp(scores[j]) for j in reach)
            table.append([math.exp(scores[j]) / total if j in reach else 0.0 for j in range(size)])
        tables.append(table)
    return tables


def sum_over_positions(model: EncoderDecoder, source: list[int], target: list[int]) -> float:
    states, (actions,) = steps_of(model, source, target)
    moves, written = transition(model, states, source), [*target, EOS]
    total = 0.0
    for path in product(range(len(source) + 1), repeat=len(written)):
        probability, before = 1.0, 0
        for t, position in enumerate(path):
            probability *= moves[t][before][position] * math.exp(actions[t, position, written[t]])
            before = position
        total += probability
    return math.log(total)


def edit_table(model: EncoderDecoder, source: list[int], target: list[int]) -> list[list[list[float]]]:
    """The probabilities of V insertions, V substitutions, deletion and copying at every step and position."""
    actions = steps_of(model, source, target)[1]
    if len(actions) == 1:
        return actions[0].exp().tolist()  # type: ignore[no-any-return]
    choices, tokens = (table.exp() for table in actions)
    insert, substitute = (choices[:, :, None, kind] * tokens[:, None] for kind in (0, 1))
    insert[..., EOS] += choices[..., 4]
    return torch.cat([insert, substitute, choices[..., 2:4]], -1).tolist()  # type: ignore[no-any-return]


def sum_over_edits(model: EncoderDecoder, source: list[int], target: list[int]) -> float:
    table = edit_table(model, source, target)

    def rest(i: int, t: int) -> float:
        """The probability of all action sequences that write target[t:] from source position i."""
        insert, substitute = table[t][i][:VOCABULARY], table[t][i][VOCABULARY : 2 * VOCABULARY]
        delete, copy = table[t][i][2 * VOCABULARY :]
        if i == len(source):  # <eos>: insertions and the end only
            end = insert[EOS]
            assert sum(insert) == pytest.approx(1.0)
            return end if t == len(target) else insert[target[t]] * rest(i, t + 1)
        assert insert[EOS] == substitute[EOS] == 0.0
        total = delete * rest(i + 1, t)
        if t < len(target):
            move_on = substitute[target[t]] + (copy if source[i] == target[t] else 0.0)
            total += insert[target[t]] * rest(i, t + 1) + move_on * rest(i + 1, t + 1)
        return total

    return math.log(rest(0, 0))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(("source", "target"), [*zip(SOURCES, TARGETS, strict=True), ([4, 5, 6], []), ([4], [4, 5, 6])])
def test_the_score_is_the_sum_over_all_alignments(kind: str, source: list[int], target: list[int]) -> None:
    model = build(kind)
    oracle = sum_over_edits if kind in ("edits", "copies") else sum_over_positions
    with torch.no_grad():
        assert log_probability(model, source, target) == pytest.approx(oracle(model, source, target), abs=1e-10)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_loss_over_target_tokens_is_that_of_the_whole_distribution(kind: str) -> None:
    model, batch = build(kind), batch_of(SOURCES, TARGETS)
    gradients = []
    for total in (model(batch).total, -model.score(batch).log_probabilities.sum()):
        model.zero_grad()
        total.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.0, atol=1e-10)
    assert all(gradient.isfinite().all() for gradient in gradients[0])


@pytest.mark.parametrize("kind", DECODERS)
def test_probabilities_sum_to_one(kind: str) -> None:
    model, batch = build(kind), batch_of(SOURCES, TARGETS)
    inputs = torch.cat([torch.full((2, 1), SOS), batch.target[:, :-1]], 1)
    total = model.decoder(inputs, model.start(batch))[0].exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("kind", ["edits", "copies"])
def test_a_long_source_deletes_its_way_to_the_end_without_underflow(kind: str) -> None:
    model = build(kind).float()
    batch = batch_of([[4, 5, 6, 7] * 40], [[4]])
    loss = model(batch)
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_label_smoothing_uses_the_whole_distribution() -> None:
    plain, smooth, batch = build("edits").train(), build("edits", 0.2).train(), batch_of(SOURCES, TARGETS)
    logits = plain.logits(batch)
    count = (batch.target != PAD).sum()
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD, label_smoothing=0.2
    )
    torch.testing.assert_close(smooth(batch).total / count, expected, rtol=0.0, atol=1e-10)


def test_a_sampled_softmax_is_refused() -> None:
    from dragoman.models.config import SampledSoftmaxConfig

    config = EncoderDecoderConfig(decoder=EditTransducerConfig(embedding=512), softmax=SampledSoftmaxConfig())
    assert any("softmax: found 'sampled'" in problem for problem in config.problems())
    other = LuongDecoderConfig(embedding=512, attention=GeneralConfig())
    assert not any("softmax" in problem for problem in EncoderDecoderConfig(decoder=other).problems())


def cheapest(source: list[int], target: list[int]) -> int:
    """The fewest actions, by recursion."""
    if not source or not target:
        return len(source) + len(target)
    move_on = cheapest(source[1:], target[1:]) + (source[0] != target[0])
    return min(cheapest(source[1:], target) + 1, cheapest(source, target[1:]) + 1, move_on)


def test_the_expert_names_the_actions_of_cheapest_completions() -> None:
    sources, targets = [[4, 5, 6, 5], [7, 4], [5]], [[5, 6, 4], [7, 4, 4, 6], [4, 5]]
    batch = batch_of(sources, targets)
    same = batch.source.data[:, None] == batch.target[:, :, None].masked_fill(batch.target[:, :, None] < 4, -1)
    found = optimal_edits(same, (batch.source.data != PAD).sum(1) - 1, (batch.target != PAD).sum(1) - 1)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for i, t in product(range(len(source) + 1), range(len(target) + 1)):
            rest, goal = source[i:], target[t:]
            costs = [math.inf] * 4
            if goal:
                costs[INSERT] = 1 + cheapest(rest, goal[1:])
            elif not rest:
                costs[INSERT] = 0  # the end
            if rest:
                costs[DELETE] = 1 + cheapest(rest[1:], goal)
            if rest and goal:
                costs[SUBSTITUTE] = 1 + cheapest(rest[1:], goal[1:])
                costs[COPY] = cheapest(rest[1:], goal[1:]) if rest[0] == goal[0] else math.inf
            assert found[row, t, i].tolist() == [cost == min(costs) for cost in costs], (source, target, i, t)
        assert not found[row, len(target) + 1 :].any()
        assert not found[row, :, len(source) + 1 :].any()


def imitator() -> EncoderDecoder:
    torch.manual_seed(0)
    encoder = RecurrentEncoderConfig(embedding=8, width=16, dropout=0.0)
    decoder = EditTransducerConfig(embedding=8, width=16, dropout=0.0, expert=1.0)
    model = EncoderDecoder(EncoderDecoderConfig(encoder=encoder, decoder=decoder, label_smoothing=0.0), 8, 8)
    model.copied = torch.arange(8).masked_fill(torch.arange(8) < 4, PAD)
    return model


def test_imitation_alone_teaches_to_copy() -> None:
    """The expert prefers copying to the substitution of the same letter."""
    model = imitator()
    batch = batch_of([[4, 5, 6], [7, 4], [5, 7, 6, 4]], [[4, 5, 6], [7, 4], [5, 7, 6, 4]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        model(batch).total.backward()
        optimizer.step()
    with torch.no_grad():
        actions = steps_of(model, [4, 5, 6], [4, 5, 6])[1][0].exp()
        assert all(actions[t, t, -1] > 0.9 for t in range(3))  # copy
        assert model.eval()(batch).total < 0.5  # −log p of all three


def test_neither_padding_nor_neighbours_change_imitation() -> None:
    model, batch = imitator(), batch_of(SOURCES, TARGETS)
    source, target = torch.nn.functional.pad(batch.source.data, (0, 2)), torch.nn.functional.pad(batch.target, (0, 3))
    with torch.no_grad():
        together = model(batch).total
        alone = sum(model(batch_of([one], [other])).total for one, other in zip(SOURCES, TARGETS, strict=True))
        torch.testing.assert_close(alone, together, rtol=0.0, atol=1e-10)
        torch.testing.assert_close(model(token_batch(source, target)).total, together, rtol=0.0, atol=1e-10)


def test_a_copy_transducer_copies_before_it_is_trained() -> None:
    torch.manual_seed(0)
    encoder = RecurrentEncoderConfig(embedding=32, width=32, dropout=0.0)
    decoder = CopyTransducerConfig(embedding=32, width=32, dropout=0.0)
    model = EncoderDecoder(EncoderDecoderConfig(encoder=encoder, decoder=decoder), 50, 50).eval()
    model.copied = torch.arange(50).masked_fill(torch.arange(50) < 4, PAD)
    sources = [[9, 8, 7, 7, 8, 30], [40, 41, 4]]
    with torch.no_grad():
        found = search(model, batch_of(sources), SearchConfig(beam=1), 1.0)
    assert [list(best[0].tokens) for best in found] == [[*source, EOS] for source in sources]


@pytest.mark.parametrize("kind", ["order 0", "edits", "copies"])
def test_a_head_over_recordings_or_images(kind: str) -> None:
    """Encoders without tokens have nothing to copy; the head scores what it trains on."""
    head = DecoderHead(DECODERS[kind], 6, VOCABULARY, tie=True).eval()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    frames = torch.randn(2, 3, 6)
    memory, target = Memory(frames, frames, mask, (frames[:, 0],)), batch_of([[4]], TARGETS[:1]).target.repeat(2, 1)
    with torch.no_grad():
        scores = head.score(memory, target).log_probabilities
        torch.testing.assert_close(head.loss(memory, target, 0.0), -scores.sum(), rtol=0.0, atol=1e-10)
