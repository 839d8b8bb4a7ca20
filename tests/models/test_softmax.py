"""Sampled softmax (Jean et al. 2015) and scheduled sampling (Bengio et al. 2015)."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dragoman.base.errors import ConfigError
from dragoman.data import batching
from dragoman.data.batch import batch_of
from dragoman.data.batching import BatchPlan, VocabularyParts
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.models.config import (
    EncoderDecoderConfig,
    ExponentialDecayConfig,
    ForcingConfig,
    FullSoftmaxConfig,
    InverseSigmoidDecayConfig,
    LinearDecayConfig,
    PartitionedSoftmaxConfig,
    SampledSoftmaxConfig,
    TeacherForcingConfig,
    TransformerConfig,
)
from dragoman.models.convs2s import ConvS2SDecoderConfig
from dragoman.models.decoders.recurrent import FixedContextDecoderConfig, LuongDecoderConfig, RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.softmax import CrossEntropy, SoftmaxCriterion, full_loss, partitioned_loss, sampled_loss
from dragoman.models.kernels.alignment import ALIGNMENT, aligned_logits


def test_a_sample_of_everything_is_the_full_loss() -> None:
    output = nn.Linear(6, 40)
    hidden, target = torch.randn(3, 5, 6), torch.randint(4, 40, (3, 5))
    target[1, 3:] = PAD
    for smoothing in (0.0, 0.1):
        full = full_loss(FullSoftmaxConfig(), hidden, target, output, smoothing)
        sampled = sampled_loss(SampledSoftmaxConfig(size=40), hidden, target, output, smoothing)
        torch.testing.assert_close(sampled, full)
    assert not full[1, 3:].any()


def test_the_softmax_of_a_part_compares_its_words_alone() -> None:
    torch.manual_seed(1)
    output = nn.Linear(6, 40).double().requires_grad_(False)
    hidden, target = torch.randn(3, 5, 6, dtype=torch.float64), torch.randint(4, 20, (3, 5))
    target[1, 3:] = PAD
    everything = torch.arange(40)
    words = torch.cat([torch.randperm(16) + 4, torch.tensor([EOS, 30])])
    for smoothing in (0.0, 0.1):
        full = full_loss(FullSoftmaxConfig(), hidden, target, output, smoothing)
        torch.testing.assert_close(partitioned_loss(hidden, target, output, smoothing, everything), full)
        found = partitioned_loss(hidden, target, output, smoothing, words)
        for row, column in itertools.product(range(3), range(5)):
            scores = {word: float(output(hidden[row, column])[word]) for word in words.tolist()}
            norm = math.log(sum(map(math.exp, scores.values())))
            truth = int(target[row, column])
            expected = 0.0
            if truth != PAD:
                mean = sum(norm - score for score in scores.values()) / len(scores)
                expected = (1 - smoothing) * (norm - scores[truth]) + smoothing * mean
            assert float(found[row, column]) == pytest.approx(expected, abs=1e-12)
    config = PartitionedSoftmaxConfig()
    criterion = SoftmaxCriterion(output, CrossEntropy(), config, 0.1)
    total = replace(criterion, words=everything)(hidden, target)
    torch.testing.assert_close(total, full.sum())
    torch.testing.assert_close(replace(criterion, words=words)(hidden, target), found.sum())


def test_parts_are_consecutive_and_as_long_as_their_words_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "ROWS", 100)
    draw = random.Random(2)
    rows = [[draw.randint(4, 30) for _ in range(draw.randint(0, 5))] for _ in range(600)]
    with StoreWriter(tmp_path / "store", 40, 40) as writer:
        writer.add(rows, rows)
    column = TokenStore(tmp_path / "store").target
    parts = VocabularyParts(column, 40, 12)
    numbers = parts.of_row.tolist()
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(parts)))
    for part in range(len(parts)):
        own = [row for row, number in zip(rows, numbers, strict=True) if number == part]
        words = {EOS, *(word for row in own for word in row)}
        assert sorted(words) == parts.words[part].tolist()
        following = numbers.index(part + 1) if part + 1 < len(parts) else None
        assert len(words) <= 12
        assert following is None or len(words | set(rows[following])) > 12
    plan = BatchPlan(TokenStore(tmp_path / "store"), 256, 1, parts=parts.of_row)
    epoch = plan.epoch(0)
    assert sorted(epoch.rows.tolist()) == list(range(len(rows)))
    assert all(len(set(parts.of_row[epoch[index]].tolist())) == 1 for index in range(len(epoch)))
    assert [words.tolist() for words in VocabularyParts(column, 40, 40).words] == [list(range(40))]
    with pytest.raises(ConfigError, match=r"model\.softmax\.size: found 4, but a target has 6 different"):
        VocabularyParts(column, 40, 4)


def test_padding_rows_of_the_table_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    output = nn.Linear(6, 41)
    hidden, target = torch.randn(3, 5, 6, requires_grad=True), torch.randint(4, 41, (3, 5))
    target[1, 3:] = PAD
    wanted = [hidden, output.weight, output.bias]
    found = []
    for alignment in (1, 8):
        monkeypatch.setitem(ALIGNMENT, "cpu", alignment)
        with torch.autocast("cpu", torch.bfloat16):
            assert aligned_logits(hidden, output).shape[-1] == (41 if alignment == 1 else 48)
            loss = full_loss(FullSoftmaxConfig(), hidden, target, output, 0.1)
        found.append((loss, *torch.autograd.grad(loss.sum(), wanted)))
    assert aligned_logits(hidden, output).shape[-1] == 41  # single precision has no need of it
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-2, atol=1e-2)


def test_a_small_sample_estimates_the_full_loss_and_its_gradient() -> None:
    torch.manual_seed(0)
    output = nn.Linear(8, 3000)
    hidden, target = torch.randn(2, 4, 8), torch.randint(4, 3000, (2, 4))
    target[1, 2:] = PAD
    full = full_loss(FullSoftmaxConfig(), hidden, target, output, 0.0)
    full.sum().backward()
    expected = output.weight.grad.clone()
    output.zero_grad()
    draws = []
    for seed in range(200):
        torch.manual_seed(seed)
        one = sampled_loss(SampledSoftmaxConfig(size=200), hidden, target, output, 0.0)
        (one.sum() / 200).backward()
        draws.append(one.detach())
        assert not one[1, 2:].any()
    mean = torch.stack(draws).mean(0)
    assert (mean - full).abs().max() < 0.03  # of about log 3000 = 8
    assert torch.stack(draws).std(0)[0].min() > 1e-4
    similarity = torch.nn.functional.cosine_similarity(output.weight.grad.flatten(), expected.flatten(), dim=0)
    assert similarity > 0.97


def test_only_the_sampled_words_get_a_gradient() -> None:
    torch.manual_seed(0)
    output = nn.Linear(8, 3000, bias=False)
    hidden, target = torch.randn(2, 4, 8), torch.randint(4, 3000, (2, 4))
    sampled_loss(SampledSoftmaxConfig(size=50), hidden, target, output, 0.0).sum().backward()
    touched = output.weight.grad.abs().sum(1) > 0
    assert int(touched.sum()) == 50 + target.numel()
    assert touched[target.flatten()].all()


def test_evaluation_uses_the_whole_vocabulary() -> None:
    config = EncoderDecoderConfig(
        tie="none",
        softmax=SampledSoftmaxConfig(size=4),
        label_smoothing=0.0,
        encoder=RecurrentEncoderConfig(embedding=4, width=6, dropout=0.0),
        decoder=RecurrentDecoderConfig(embedding=4, width=6, dropout=0.0),
    )
    torch.manual_seed(0)
    model = EncoderDecoder(config, 300, 300)
    batch = batch_of([[5, 6], [7]], [[8, 9], [10]])
    model.eval()
    full = float(model(batch).total.detach())
    assert full == pytest.approx(-float(model.score(batch).log_probabilities.sum().detach()), rel=1e-5)
    model.train()
    losses = {float(model(batch).total.detach()) for _ in range(3)}
    assert len(losses) == 3


# Scheduled sampling


@pytest.mark.parametrize(
    ("forcing", "points"),
    [
        (TeacherForcingConfig(), {0: 1.0, 10**6: 1.0}),
        (LinearDecayConfig(steps=100, floor=0.2), {0: 1.0, 50: 0.5, 90: 0.2, 1000: 0.2}),
        (ExponentialDecayConfig(rate=0.9), {0: 1.0, 1: 0.9, 10: 0.9**10}),
        (InverseSigmoidDecayConfig(k=10), {0: 10 / 11, 10: 10 / (10 + math.e), 10**6: 0.0}),
    ],
)
def test_decays_are_those_of_the_paper(forcing: ForcingConfig, points: dict[int, float]) -> None:
    """Bengio et al. 2015 section 2.4."""
    for step, expected in points.items():
        assert forcing.teacher_probability(step) == pytest.approx(expected, abs=1e-12)


DECODERS = {
    "transformer": TransformerConfig(layers=1, width=8, heads=2, feedforward=8, dropout=0.0),
    "recurrent": RecurrentDecoderConfig(embedding=8, width=8, dropout=0.0),
    "fixed-context": FixedContextDecoderConfig(embedding=8, width=8, dropout=0.0),
    "luong": LuongDecoderConfig(embedding=8, width=8, dropout=0.0),
    "convolutional": ConvS2SDecoderConfig(layers=2, embedding=8, width=8, dropout=0.0),
}


def build(name: str, forcing: ForcingConfig) -> EncoderDecoder:
    torch.manual_seed(1)
    encoder = RecurrentEncoderConfig(embedding=8, width=8, dropout=0.0)
    config = EncoderDecoderConfig(encoder=encoder, decoder=DECODERS[name], forcing=forcing, label_smoothing=0.0)  # type: ignore[arg-type]
    return EncoderDecoder(config, 12, 12).train()


SOURCE = [[5, 6, 7], [8, 9]]
TARGET = [[4, 5, 6, 7, 8], [9, 10]]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("passes", [0, 2])
def test_at_the_start_it_is_teacher_forcing(name: str, passes: int) -> None:
    batch = batch_of(SOURCE, TARGET)
    plain, mixed = build(name, TeacherForcingConfig()), build(name, LinearDecayConfig(steps=10, passes=passes))
    assert float(mixed(batch).total.detach()) == pytest.approx(float(plain(batch).total.detach()), rel=1e-6)
    mixed.set_step(9)
    torch.manual_seed(0)
    assert abs(float(mixed(batch).total.detach()) - float(plain(batch).total.detach())) > 1e-4
    mixed.eval()
    assert float(mixed(batch).total.detach()) == pytest.approx(float(plain.eval()(batch).total.detach()), rel=1e-5)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("passes", [0, 9])
def test_without_teacher_it_reads_its_own_samples(name: str, passes: int) -> None:
    """With all probability on one word, sampling is certain: the loss is that of the greedy words as inputs."""
    batch = batch_of(SOURCE, TARGET)
    model = build(name, replace(LinearDecayConfig(steps=1, floor=0.0), passes=passes))
    model.set_step(5)
    with torch.no_grad():
        model.output.weight.mul_(3000.0)
    found = float(model(batch).total.detach())
    model.eval()
    state = model.start(batch)
    token = torch.full((2,), 2)
    total = 0.0
    for step in range(batch.target.shape[1]):
        scores, state = model.step(token, state)
        for row in range(2):
            if batch.target[row, step] != PAD:
                total -= float(scores[row, batch.target[row, step]].detach())
        token = scores.argmax(-1)
    assert found == pytest.approx(total, rel=1e-3)


def test_gradients_flow_through_every_step_of_sampled_inputs() -> None:
    model = build("transformer", LinearDecayConfig(steps=1, floor=0.5))
    model.set_step(3)
    model(batch_of(SOURCE, TARGET)).total.backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


def test_smoothing_gives_every_word_its_share_in_a_sample_too() -> None:
    torch.manual_seed(0)
    output = nn.Linear(8, 3000)
    hidden, target = torch.randn(2, 4, 8), torch.randint(4, 3000, (2, 4))
    full = full_loss(FullSoftmaxConfig(), hidden, target, output, 0.3)
    draws = []
    for seed in range(300):
        torch.manual_seed(seed)
        draws.append(sampled_loss(SampledSoftmaxConfig(size=200), hidden, target, output, 0.3).detach())
    assert (torch.stack(draws).mean(0) - full).abs().max() < 0.03
