"""The laws of encoders and decoders, for every encoder with every decoder, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dragoman.data.batch import Batch, batch_of, token_batch
from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.scorer import Scorer
from dragoman.kernels.graph_inputs import GraphInputs
from dragoman.models.contracts import State
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES, SOURCES, TARGETS, VOCABULARY, build

CLOSE = {"rtol": 0.0, "atol": 1e-10}


def inputs_of(batch: Batch) -> Tensor:
    begin = batch.target.new_full((batch.target.shape[0], 1), SOS)
    return torch.cat([begin, batch.target[:, :-1]], 1)


def gradients_of(model: EncoderDecoder) -> dict[str, Tensor]:
    """Gradients of all parameters that have one; a decoder may leave some of the memory unused."""
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert gradients
    return gradients


def in_parts(model: EncoderDecoder, tokens: Tensor, state: State, sizes: list[int]) -> Tensor:
    outputs = []
    for part in tokens.split(sizes, 1):
        hidden, state = model.decoder(part, state)
        outputs.append(hidden)
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 4], [1, 5, 1], [6, 1]])
def test_law_1_any_split_gives_the_same_outputs_and_gradients(
    model: EncoderDecoder, batch: Batch, sizes: list[int]
) -> None:
    tokens = inputs_of(batch)
    weight = torch.randn(tokens.shape[0], tokens.shape[1], model.decoder.width)
    whole = in_parts(model, tokens, model.start(batch), [tokens.shape[1]])
    (whole * weight).sum().backward()
    expected = gradients_of(model)
    model.zero_grad()
    split = in_parts(model, tokens, model.start(batch), sizes)
    (split * weight).sum().backward()
    torch.testing.assert_close(split, whole, **CLOSE)
    assert expected
    for name, part in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(part.grad, expected[name], **CLOSE)


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [2, 5]])
def test_law_1_static_and_growing_caches_agree(model: EncoderDecoder, batch: Batch, sizes: list[int]) -> None:
    tokens = inputs_of(batch)
    with torch.no_grad():
        growing = in_parts(model, tokens, model.start(batch), [7])
        static = in_parts(model, tokens, model.start(batch, capacity=9), sizes)
    torch.testing.assert_close(static, growing, **CLOSE)


def test_law_2_select_and_reorder_commute_with_stepping(model: EncoderDecoder, batch: Batch) -> None:
    tokens = inputs_of(batch)
    rows = torch.tensor([2, 0, 0, 3])
    with torch.no_grad():
        _, state = model.decoder(tokens[:, :2], model.start(batch))
        after, moved = model.decoder(tokens[:, 2:4], state)
        selected, _ = model.decoder(tokens[rows, 2:4], state.select(rows))
        torch.testing.assert_close(selected, after[rows], **CLOSE)
        torch.testing.assert_close(
            model.decoder(tokens[rows, 4:5], moved.select(rows))[0],
            model.decoder(tokens[:, 4:5], moved)[0][rows],
            **CLOSE,
        )
        # Three hypotheses per source: reorder them within their source, then select some sources.
        wide = state.expand(3)
        fan = tokens.repeat_interleave(3, 0).clone()
        fan[:, 2] = torch.arange(12) % (VOCABULARY - 4) + 4
        out, stepped = model.decoder(fan[:, 2:3], wide)
        order = torch.tensor([1, 1, 0, 5, 4, 3, 6, 8, 8, 11, 9, 10])
        torch.testing.assert_close(
            model.decoder(fan[order, 3:4], stepped.reorder(order))[0],
            model.decoder(fan[:, 3:4], stepped)[0][order],
            **CLOSE,
        )
        kept = torch.tensor([3, 1])
        rows_kept = torch.tensor([9, 10, 11, 3, 4, 5])
        torch.testing.assert_close(
            model.decoder(fan[rows_kept, 3:4], stepped.select(kept))[0],
            model.decoder(fan[:, 3:4], stepped)[0][rows_kept],
            **CLOSE,
        )
        assert out.shape[0] == 12


def test_law_3_source_padding_changes_nothing(model: EncoderDecoder, batch: Batch) -> None:
    extra = batch.source.data.new_full((len(SOURCES), 5), PAD)
    longer = torch.cat([batch.source.data, extra], 1)
    with torch.no_grad():
        plain = model.logits(batch)
        padded = model.logits(token_batch(longer, batch.target))
    torch.testing.assert_close(padded, plain, **CLOSE)


def test_law_3_target_padding_changes_neither_loss_nor_gradient(model: EncoderDecoder, batch: Batch) -> None:
    extra = batch.target.new_full((len(TARGETS), 4), PAD)
    gradients = []
    for target in (batch.target, torch.cat([batch.target, extra], 1)):
        model.zero_grad()
        loss = model(replace(batch, target=target))
        loss.total.backward()
        gradients.append((loss, gradients_of(model)))
    (first, left), (second, right) = gradients
    torch.testing.assert_close(second.total, first.total, **CLOSE)
    assert int(first.count) == int(second.count) == sum(len(row) + 1 for row in TARGETS)
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(right[name], left[name], **CLOSE)


def test_law_4_rows_do_not_see_each_other(model: EncoderDecoder, batch: Batch) -> None:
    with torch.no_grad():
        together = model.logits(batch)
        for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            alone = model.logits(batch_of([source], [target]))[0]
            torch.testing.assert_close(together[row, : alone.shape[0]], alone, **CLOSE)


def test_law_5_no_token_sees_the_future(model: EncoderDecoder, batch: Batch) -> None:
    changed = batch.target.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model.logits(batch), model.logits(replace(batch, target=changed))
    torch.testing.assert_close(after[:, :4], before[:, :4], **CLOSE)
    assert (after[:, 4:] - before[:, 4:]).abs().max() > 1e-6


@pytest.mark.parametrize("width", [1, 3])
def test_law_6_a_search_score_is_the_teacher_forced_score(model: EncoderDecoder, width: int) -> None:
    batch = batch_of(SOURCES)
    limits = torch.tensor([6, 7, 5, 9])
    found = beam_search(model.step, model.start(batch), limits, BeamOptions(width, n_best=width))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            with torch.no_grad():
                scores = model.score(batch_of([source], [hypothesis.tokens[:-1]]))
            torch.testing.assert_close(torch.tensor(hypothesis.token_scores), scores.log_probabilities[0], **CLOSE)
            assert hypothesis.score == pytest.approx(float(scores.log_probabilities.sum()), abs=1e-10)


def test_law_7_beam_of_one_is_greedy(model: EncoderDecoder) -> None:
    batch = batch_of(SOURCES)
    limits = torch.tensor([6, 7, 5, 9])
    wide = beam_search(model.step, model.start(batch), limits, BeamOptions(1))
    greedy = greedy_search(model.step, model.start(batch), limits)
    assert [row[0].tokens for row in wide] == [row.tokens for row in greedy]
    for left, right in zip(wide, greedy, strict=True):
        assert left[0].score == pytest.approx(right.score, abs=1e-10)
        assert left[0].normalised == pytest.approx(right.normalised, abs=1e-10)


@pytest.mark.parametrize("name", ENCODER_CASES)
def test_law_8_encoders_ignore_padding_and_neighbours(name: str) -> None:
    model = build(name, "gru").eval()
    batch = batch_of(SOURCES)
    longer = torch.cat([batch.source.data, batch.source.data.new_full((4, 3), PAD)], 1)
    with torch.no_grad():
        memory = model.encode(longer, longer != PAD)
        for row, source in enumerate(SOURCES):
            alone = batch_of([source])
            expected = model.encode(alone.source.data, alone.source.mask)
            # Real entries, which need not be one a token.
            seen, entries = memory.mask[row], expected.mask[0]
            assert entries.any()
            torch.testing.assert_close(memory.keys[row, seen], expected.keys[0, entries], **CLOSE)
            torch.testing.assert_close(memory.values[row, seen], expected.values[0, entries], **CLOSE)
            for left, right in zip(memory.final, expected.final, strict=True):
                torch.testing.assert_close(left[row], right[0], **CLOSE)


def test_law_9_accumulated_gradients_are_those_of_one_batch(model: EncoderDecoder, batch: Batch) -> None:
    whole = model(batch)
    (whole.total / whole.count).backward()
    expected = gradients_of(model)
    model.zero_grad()
    for rows in (slice(0, 1), slice(1, 4)):
        part = model(batch_of(SOURCES[rows], TARGETS[rows]))
        (part.total / whole.count).backward()
    found = gradients_of(model)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], **CLOSE)


@pytest.mark.parametrize("scorer", [Scorer(), Scorer(0.6, "gnmt")], ids=["power", "gnmt"])
def test_law_12_a_default_beam_never_ranks_its_output_below_greedy(model: EncoderDecoder, scorer: Scorer) -> None:
    batch, limits = batch_of(SOURCES), torch.tensor([6, 9, 5, 12])
    wide = beam_search(model.step, model.start(batch), limits, BeamOptions(2), scorer)
    greedy = greedy_search(model.step, model.start(batch), limits, scorer)
    for mine, other in zip(wide, greedy, strict=True):
        assert mine[0].normalised >= other.normalised - 1e-10


@pytest.mark.parametrize("decoder", DECODER_CASES)
def test_one_model_serves_two_requests_at_once(decoder: str) -> None:
    model = build("recurrent", decoder).eval()
    first, second = batch_of(SOURCES[:2]), batch_of(SOURCES[2:])
    tokens = torch.tensor([SOS, SOS])
    with torch.no_grad():
        alone, _ = model.step(torch.tensor([5, 6]), model.step(tokens, model.start(first))[1])
        _, one = model.step(tokens, model.start(first))
        _, other = model.step(tokens, model.start(second))
        model.step(torch.tensor([7, 8]), other)
        interleaved, _ = model.step(torch.tensor([5, 6]), one)
    torch.testing.assert_close(interleaved, alone, **CLOSE)


def test_longer_rows_move_no_memory_of_the_model(model: EncoderDecoder, batch: Batch) -> None:
    """A captured CUDA graph keeps the addresses of weights and buffers, so no input may make a model replace them."""
    read = GraphInputs(model)
    tokens = inputs_of(batch).repeat(1, 60)[:, : model.max_positions or 420]
    with torch.no_grad():
        model.decoder(tokens, model.start(batch))
        model.decoder(tokens[:, :1], model.start(batch, capacity=tokens.shape[1]))
    assert not read.moved()
