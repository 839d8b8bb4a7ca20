"""Minimum-risk training: the expected cost against brute force, and what it does to a model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.base.errors import RunError
from dragoman.data.batch import batch_of, pad_tokens
from dragoman.data.tokenizers.base import EOS
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.runs import Run, train
from dragoman.scoring.registry import segment_cost_metrics
from dragoman.training.display import Display
from dragoman.training.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig, RiskBatch, sample_tokens
from tests.training.conftest import Configure
from tests.training.kill_driver import sha256

LETTERS = {4: "a", 5: "b", 6: "c"}
SOURCES = [[4, 5], [6], [5, 5, 4]]
TARGETS = [[4, 5, 6], [6], [4, 4]]


class Spelling:
    """Just enough of a tokenizer."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(LETTERS[token] for token in tokens if token in LETTERS)


def build(dropout: float = 0.0) -> EncoderDecoder:
    torch.manual_seed(2)
    config = EncoderDecoderConfig(
        encoder=RecurrentEncoderConfig(embedding=6, width=8, dropout=dropout),
        decoder=RecurrentDecoderConfig(embedding=6, width=8, dropout=dropout),
    )
    return EncoderDecoder(config, 7, 7).train()


def objective(**settings: Any) -> MinimumRisk:
    corpus: Any = SimpleNamespace(codec=PairCodec(Spelling(), Spelling()), report={"length_ratio": 1.0})
    return MinimumRisk(MinimumRiskConfig(**settings), corpus)


def log_probability(model: EncoderDecoder, source: list[int], target: list[int]) -> torch.Tensor:
    return model.score(batch_of([source], [target])).log_probabilities.sum()


@pytest.mark.parametrize("sharpness", [0.005, 1.0])
def test_the_loss_is_the_expected_cost_over_all_texts(sharpness: float) -> None:
    """Every text of at most two letters is a candidate: Σ p^α Δ / Σ p^α, and its gradient, by brute force."""
    torch.set_default_dtype(torch.float64)
    try:
        model = build()
        texts = [list(text) for size in range(3) for text in product(LETTERS, repeat=size)]
        costs = [[abs(len(text) - 1.5) + 0.1 * place for place, text in enumerate(texts)] for _ in SOURCES]
        costs[1][3] = torch.inf  # not a candidate of the second source
        rows = pad_tokens([text for _ in SOURCES for text in texts])
        given = RiskBatch(replace(batch_of(SOURCES), target=rows), torch.tensor(costs))
        found = objective(sharpness=sharpness).loss(model, given).total
        found.backward()
        gradients = {name: part.grad.clone() for name, part in model.named_parameters()}
        model.zero_grad()
        expected = torch.zeros(())
        for source, prices in zip(SOURCES, costs, strict=True):
            kept = [(text, price) for text, price in zip(texts, prices, strict=True) if price != torch.inf]
            weights = torch.stack([(sharpness * log_probability(model, source, text)).exp() for text, _ in kept])
            expected = expected + (weights * torch.tensor([price for _, price in kept])).sum() / weights.sum()
        expected.backward()
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10)
        for name, part in model.named_parameters():
            torch.testing.assert_close(gradients[name], part.grad, rtol=0.0, atol=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


NOT_ZERO_WHEN_EQUAL = ("meteor_exact_stem", "rouge-2")  # one chunk has a penalty; one word has no 2-gram


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("metric", list(segment_cost_metrics()))
def test_candidates_are_drawn_priced_and_counted_once(metric: Any, reference: bool) -> None:
    torch.manual_seed(0)
    model = build(dropout=0.5)
    count = 6 + reference
    aim = objective(metric=metric, samples=6, reference=reference)
    batch, costs = prepared = aim.prepare(model, batch_of(SOURCES, TARGETS))
    assert model.training
    assert batch.target.shape[0] == 3 * count
    assert costs.shape == (3, count)
    for source, truth in enumerate(TARGETS):
        rows = batch.target[source * count : (source + 1) * count].tolist()
        texts = [Spelling().decode(row[: row.index(EOS)]) for row in rows]
        prices = segment_cost_metrics()[metric].costs(texts, [[Spelling().decode(truth)]] * count)
        seen = set()
        for row, price, risk in zip(rows, prices, costs[source].tolist(), strict=True):
            key = tuple(row[: row.index(EOS)])
            assert risk == (float("inf") if key in seen else pytest.approx(price * (len(truth) + 1), rel=1e-5))
            seen.add(key)
        if reference:
            assert rows[0][: rows[0].index(EOS)] == truth
            if metric not in NOT_ZERO_WHEN_EQUAL:
                assert costs[source, 0] == pytest.approx(0.0, abs=1e-6)
    total = aim.loss(model, prepared).total
    assert total.isfinite()
    total.backward()


@pytest.mark.slow
def test_training_on_risk_lowers_the_risk() -> None:
    """From scratch on three pairs: what it draws becomes what is right."""
    model = build()
    aim = objective(metric="cer", samples=12, sharpness=1.0, reference=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    risks = []
    for step in range(120):
        torch.manual_seed(step)
        loss = aim.loss(model, aim.prepare(model, batch_of(SOURCES, TARGETS)))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        risks.append(float(loss.total.detach()))
    assert sum(risks[-5:]) < 0.3 * sum(risks[:5])


def test_a_run_starts_from_another(configure: Configure, tmp_path: Path) -> None:
    quiet = Display(quiet=True)
    train(configure("train.steps=30"), tmp_path / "first", quiet)
    start = f"train.start_from={tmp_path / 'first'}"
    risk = ("train.objective=minimum-risk", "train.objective.metric=cer", "train.objective.samples=2")
    train(configure(start, *risk, "train.steps=1", "train.optimizer.learning_rate=1e-9"), tmp_path / "second", quiet)
    first, second = (Run(tmp_path / name).model(torch.device("cpu")) for name in ("first", "second"))
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0.0, atol=1e-6)
    with pytest.raises(RunError, match="weights do not fit the configuration"):
        train(configure(start, "model.encoder.feedforward=24"), tmp_path / "third", quiet)
    with pytest.raises(RunError, match="has another source vocabulary than these data"):
        train(configure(start, "tokenizer.source.kind=words"), tmp_path / "fourth", quiet)
    with pytest.raises(RunError, match="nowhere"):
        train(configure(f"train.start_from={tmp_path / 'nowhere'}"), tmp_path / "fifth", quiet)
    assert not (tmp_path / "fifth").exists()


def test_a_run_trains_on_risk_and_resumes_exactly(configure: Configure, tmp_path: Path) -> None:
    settings = ("train.objective.kind=minimum-risk", "train.objective.metric=cer", "train.objective.samples=3")
    short, long = (configure(*settings, f"train.steps={steps}", "train.save_every=2") for steps in (2, 4))
    quiet = Display(quiet=True)
    train(long, tmp_path / "whole", quiet)
    train(short, tmp_path / "parts", quiet)
    train(long, tmp_path / "parts", quiet)
    states = [
        sha256(run / "checkpoints" / "00000004" / "weights.safetensors")
        for run in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert states[0] == states[1]
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses
    assert all(0 <= loss < 3 for loss in losses)


def test_a_draw_at_the_limit_is_possible_however_unlikely() -> None:
    scores = torch.full((3, 7), -torch.inf)
    scores[:, EOS] = -500.0
    assert sample_tokens(scores, torch.arange(3), 9).tolist() == [EOS] * 3
