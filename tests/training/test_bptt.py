"""Training on running text: exact resume, and half precision with a carried state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.data.bptt import BpttPlan, RunningText
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.models.config import TransformerConfig
from dragoman.models.language_model import (
    LanguageModel,
    LanguageModelConfig,
    RecurrentStackConfig,
    carried_tensors,
    restore_carried,
)
from dragoman.models.layers.config import RotaryConfig, SegmentsConfig
from dragoman.training.config import OptimizerConfig
from dragoman.training.optimizer import build_optimizer, load_weights, optimizer_tensors, restore_optimizer
from dragoman.training.step import step_seed

WORDS = 30
CONFIGS = {
    "lstm": LanguageModelConfig(
        embedding_dropout=0.1, output_dropout=0.3, activation_penalty=2.0, change_penalty=1.0,
        stack=RecurrentStackConfig(layers=2, embedding=12, width=16),
    ),
    "segments": LanguageModelConfig(
        memory=8, embedding_dropout=0.1, output_dropout=0.1,
        stack=TransformerConfig(
            layers=2, width=16, heads=2, feedforward=32, positions=RotaryConfig(), attention=SegmentsConfig(length=8)
        ),
    ),
    "full": LanguageModelConfig(
        memory=6, stack=TransformerConfig(layers=2, width=16, heads=2, feedforward=32, positions=RotaryConfig())
    ),
}  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> BpttPlan:
    random = np.random.default_rng(0)
    lines = []
    for _ in range(60):  # every word is followed by the next one, more or less
        first = int(random.integers(4, WORDS))
        lines.append([4 + (first - 4 + place) % (WORDS - 4) for place in range(random.integers(0, 14))])
    with StoreWriter(tmp_path / "store", 1, WORDS) as writer:
        writer.add([[]] * len(lines), lines)
    return BpttPlan(RunningText(TokenStore(tmp_path / "store").target), 4, 8, seed=3)


class Training:
    """The least that trains: what a checkpoint must hold is what `saved` gives."""

    def __init__(self, name: str, plan: BpttPlan) -> None:
        torch.manual_seed(1)
        self.plan, self.step = plan, 0
        self.model = LanguageModel(CONFIGS[name], WORDS)
        self.optimizer = build_optimizer(OptimizerConfig(), self.model)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-2
        self.carried = self.model.empty_carry(plan.streams)

    def run(self, steps: int) -> list[float]:
        losses = []
        self.model.train()
        for _ in range(steps):
            segment = self.plan.read(*divmod(self.step, len(self.plan)))
            torch.manual_seed(step_seed(1, self.step, 0))
            loss = self.model(replace(segment, carried=self.carried))
            (loss.total / loss.count).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(float(loss.total.detach() / loss.count))
            self.step += 1
        return losses

    def saved(self) -> dict[str, Any]:
        parts: dict[str, dict[str, Tensor]] = {
            "weights": dict(self.model.named_parameters()),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "carried": carried_tensors(self.carried),
        }
        copies = {name: {key: tensor.detach().clone() for key, tensor in part.items()} for name, part in parts.items()}
        return {"step": self.step, **copies}

    def restore(self, saved: dict[str, Any]) -> None:
        self.step = saved["step"]
        load_weights(self.model, saved["weights"])
        restore_optimizer(self.optimizer, self.model, saved["optimizer"])
        restore_carried(self.carried, saved["carried"])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("stop", [3, 17])  # in the first epoch, in the second
def test_a_stopped_run_goes_on_exactly(name: str, stop: int, plan: BpttPlan) -> None:
    assert 3 < len(plan) < 17
    straight = Training(name, plan)
    expected = straight.run(20)
    first, second = Training(name, plan), Training(name, plan)
    found = first.run(stop)
    second.restore(first.saved())
    found += second.run(20 - stop)
    assert found == expected
    for mine, other in zip(second.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert expected[-1] < expected[0]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_half_precision_carries_its_state(name: str, plan: BpttPlan) -> None:
    model = Training(name, plan).model.cuda().eval()
    found: dict[bool, list[Tensor]] = {}
    for half in (False, True):
        carried = model.empty_carry(plan.streams)
        found[half] = []
        for number in range(4):
            segment = replace(plan.read(0, number).to(torch.device("cuda")), carried=carried)
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = model(segment)
            loss.total.backward()
            found[half].append(loss.total.detach().float() / loss.count)
        assert all(part.dtype == torch.float32 for part in carried_tensors(carried).values())
    torch.testing.assert_close(torch.stack(found[True]), torch.stack(found[False]), rtol=0.05, atol=0.0)
