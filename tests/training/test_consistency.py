"""R-Drop and SimCut against torch's own cross-entropy and divergence, and the losses that decoders give them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.base.errors import ConfigError
from dragoman.data.batch import Tokens, batch_of
from dragoman.data.tokenizers.base import PAD, SOS, SPECIALS, UNK
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.decoders.edit_transducer import EditTransducerConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.decoder_head import teacher_inputs
from dragoman.models.registry import DECODERS
from dragoman.runs import train
from dragoman.testing.laws import SOURCES, TARGETS, VOCABULARY, assert_close, in_float64, small_model
from dragoman.training.display import Display
from dragoman.training.objectives.consistency import RDrop, RDropConfig, SimCut, SimCutConfig, twice
from tests.training.conftest import Configure
from tests.training.kill_driver import sha256

SMALL = TransformerConfig(layers=1, width=8, heads=2, feedforward=16, dropout=0.3)
TOKENS = VOCABULARY + 2


def build() -> EncoderDecoder:
    torch.manual_seed(2)
    return EncoderDecoder(EncoderDecoderConfig(encoder=SMALL, decoder=SMALL), TOKENS, TOKENS).train()


def gradients(model: EncoderDecoder, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [part.grad.clone() for part in model.parameters() if part.grad is not None]


def test_r_drop_is_the_likelihood_and_the_symmetric_divergence() -> None:
    with in_float64():
        model, batch = build(), batch_of(SOURCES, TARGETS)
        torch.manual_seed(7)
        found = RDrop(RDropConfig(weight=2.0)).loss(model, batch)
        torch.manual_seed(7)  # the same dropout
        first, second = model.logits(twice(batch)).chunk(2)
        truth, real = batch.target.flatten(), batch.target != PAD
        likelihood = sum(
            F.cross_entropy(logits.flatten(0, 1), truth, ignore_index=PAD, reduction="sum", label_smoothing=0.1)
            for logits in (first, second)
        )
        p, q = (logits[real].log_softmax(-1) for logits in (first, second))
        divergences = [F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))]
        expected = (likelihood + 2.0 * sum(divergences) / 2) / 2
        assert divergences[0].item() > 1e-3  # the passes have different dropout
        assert found.count == real.sum()
        assert_close(found.total, expected)
        assert_close(gradients(model, found.total), gradients(model, expected))


def test_simcut_is_the_likelihood_and_the_divergence_from_hidden_tokens() -> None:
    with in_float64():
        model, batch = build(), batch_of(SOURCES, TARGETS)
        for part in model.modules():  # so that only the hidden tokens tell the passes apart
            if hasattr(part, "p"):
                part.p = 0.0
        torch.manual_seed(7)
        found = SimCut(SimCutConfig(weight=2.0, cut=0.4)).loss(model, batch)
        torch.manual_seed(7)
        hidden = [
            torch.where((torch.rand(tokens.shape) < 0.4) & (tokens >= len(SPECIALS)), UNK, tokens)
            for tokens in (batch.source.data, teacher_inputs(batch.target))
        ]
        for tokens in hidden:
            assert (tokens == UNK).any()
        assert (hidden[1][:, 0] == SOS).all()
        truth, real = batch.target.flatten(), batch.target != PAD
        logits = model.logits(batch)
        state = model.start(replace(batch, source=Tokens(hidden[0], batch.source.mask)))
        cut = model.output(model.decoder(hidden[1], state)[0])
        likelihood = F.cross_entropy(
            logits.flatten(0, 1), truth, ignore_index=PAD, reduction="sum", label_smoothing=0.1
        )
        p, q = (scores[real].log_softmax(-1) for scores in (logits, cut))
        divergence = F.kl_div(q, p, reduction="sum", log_target=True)  # KL(p‖q)
        assert divergence.item() > 1e-3
        assert_close(found.total, likelihood + 2.0 * divergence)
        assert_close(gradients(model, found.total), gradients(model, likelihood + 2.0 * divergence))


def test_the_weight_rises_with_the_steps() -> None:
    with in_float64():
        model, batch = build(), batch_of(SOURCES, TARGETS)
        objective = SimCut(SimCutConfig(weight=2.0, cut=0.4, warmup=4))

        def total(step: int) -> Tensor:
            objective.set_step(step, torch.device("cpu"))
            torch.manual_seed(7)
            return objective.loss(model, batch).total.detach()

        likelihood = total(0)
        shares = [(total(step) - likelihood) / (total(4) - likelihood) for step in (1, 2, 4, 9)]
        assert_close(torch.stack(shares), torch.tensor([0.25, 0.5, 1.0, 1.0]))


EXPERT = EditTransducerConfig(embedding=6, width=8, expert=0.3)
EXAMPLES = [*(DECODERS[kind].example for kind in DECODERS), EXPERT]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "decoder", [*(DECODERS[kind].example for kind in DECODERS), EXPERT], ids=lambda config: config.kind
)
def test_losses_with_scores_are_those_of_the_model(decoder: Any, smoothing: float) -> None:
    with in_float64():
        model = small_model(RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0), decoder, smoothing=smoothing)
        batch = batch_of(SOURCES, TARGETS)
        for part in model.train().modules():
            if hasattr(part, "p"):
                part.p = 0.0
        losses, scores = model.scored_losses(batch)
        assert_close(losses.sum(), model(batch).total)
        real = batch.target != PAD
        assert not losses[~real].any()
        assert_close(scores[real], model.logits(batch)[real].log_softmax(-1))


def test_the_weight_follows_the_time_where_minutes_end_training(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=0.01)  # every step takes as long, however busy the machine is
    monkeypatch.setattr("dragoman.training.trainer.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    steps: list[int] = []
    monkeypatch.setattr(RDrop, "set_step", lambda self, step, device: steps.append(step))
    settings = ("train.objective.kind=r-drop", "train.objective.warmup=25000", "train.validate_every=100000")
    state = train(configure(*settings, "train.steps=100000", "train.minutes=0.01"), tmp_path / "run")
    assert state.step < 25_000  # by steps alone the weight would still be rising at the end
    assert steps == sorted(steps)
    assert steps[-1] > 25_000


@pytest.mark.parametrize("kind", ["r-drop", "simcut"])
def test_a_run_resumes_exactly(kind: str, configure: Configure, tmp_path: Path) -> None:
    settings = (f"train.objective.kind={kind}", "train.objective.warmup=3", "train.save_every=2")
    short, long = (configure(*settings, f"train.steps={steps}") for steps in (2, 4))
    quiet = Display(quiet=True)
    train(long, tmp_path / "whole", quiet)
    train(short, tmp_path / "parts", quiet)
    train(long, tmp_path / "parts", quiet)
    weights = Path("checkpoints", "00000004", "weights.safetensors")
    assert sha256(tmp_path / "whole" / weights) == sha256(tmp_path / "parts" / weights)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.softmax.kind=sampled", "model.softmax: found 'sampled'"),
        ("model.forcing.kind=linear", "model.forcing: found 'linear'"),
        ("model.truncate=4", "model.truncate: found 4"),
        ("train.objective.weight=-1", "train.objective.weight"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(setting: str, said: str, configure: Configure) -> None:
    with pytest.raises(ConfigError, match=said):
        configure("train.objective.kind=r-drop", setting)
