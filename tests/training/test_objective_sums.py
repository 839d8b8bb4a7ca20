"""Accumulation and data-parallel training of any objective give the gradients of one big batch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.data.batch import Batch, batch_of, pad_tokens
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.decoders.recurrent import RecurrentDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.layers.embeddings import WordDropout
from dragoman.runs import train
from dragoman.training.checkpoints import read_tensors, write_tensors
from dragoman.training.config import TrainConfig
from dragoman.training.objectives.base import Objective
from dragoman.training.objectives.consistency import SimCut, SimCutConfig
from dragoman.training.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig, RiskBatch
from dragoman.training.runtime import ProcessGroup, Runtime
from dragoman.training.step import TrainingStep
from tests.conftest import made_once
from tests.processes import CONTEXT, free_port, two_processes
from tests.training.conftest import Configure
from tests.training.kill_driver import table, write_config

LETTERS = {4: "a", 5: "b", 6: "c"}
SOURCES = [[4, 5], [6], [5, 5, 4], [6, 4], [4]]
TARGETS = [[4, 5, 6], [6], [4, 4], [5, 6, 4, 4], [5]]
PARTS = (slice(0, 2), slice(2, 5))  # of different sizes: a mean of means would show
KINDS = ("likelihood", "minimum-risk", "simcut")


class Spelling:
    """Just enough of a tokenizer."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(LETTERS[token] for token in tokens if token in LETTERS)


class HidesFours(WordDropout):
    """Hides the same tokens in batches of any size."""

    def hide(self, tokens: Tensor, share: float) -> Tensor:
        return tokens.masked_fill(tokens == 4, UNK)


class RowwiseRisk(MinimumRisk):
    """Minimum risk whose samples follow from each row alone, so that batches of any size have the same ones."""

    def prepare(self, model: Any, batch: Batch) -> RiskBatch:
        rows: list[list[int]] = []
        costs = []
        for source, target in zip(batch.source.data.tolist(), batch.target.tolist(), strict=True):
            torch.manual_seed(1)
            words = [[token for token in side if token > 3] for side in (source, target)]
            prepared = super().prepare(model, batch_of(words[:1], words[1:]))
            rows += [row[: row.index(EOS)] for row in prepared.batch.target.tolist()]
            costs.append(prepared.costs)
        return RiskBatch(replace(batch, target=pad_tokens(rows)), torch.cat(costs).double())


def objective_of(kind: str) -> Objective:
    if kind == "minimum-risk":
        corpus: Any = SimpleNamespace(codec=PairCodec(Spelling(), Spelling()), report={"length_ratio": 1.0})
        return RowwiseRisk(MinimumRiskConfig(metric="cer", samples=4, sharpness=0.5), corpus)
    return SimCut(SimCutConfig()) if kind == "simcut" else Objective()


class Watched(TrainingStep):
    """Keeps the gradients of a step in place of an update."""

    def update(self) -> None:
        self.gradients = {name: part.grad.clone() for name, part in self.model.named_parameters()}


def gradients(kind: str, parts: tuple[slice, ...], processes: ProcessGroup) -> dict[str, torch.Tensor]:
    """The gradients, and the loss of this process, of one step over these parts of the data."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(2)
        still = {"embedding": 6, "width": 8, "dropout": 0.0}
        config = EncoderDecoderConfig(encoder=RecurrentEncoderConfig(**still), decoder=RecurrentDecoderConfig(**still))
        model = EncoderDecoder(config, 7, 7).train()
        model.source_dropout = model.target_dropout = HidesFours(0.0)
        step = Watched(TrainConfig(device="cpu"), model, objective_of(kind), Runtime(torch.device("cpu"), processes))
        indices = range(processes.rank, len(parts), processes.world_size)
        batches = [(index, batch_of(SOURCES[parts[index]], TARGETS[parts[index]])) for index in indices]
        step(batches, indices[-1], 1, sum(len(row) + 1 for row in TARGETS), 0.1, 1)
        return step.gradients | {"loss": step.loss}
    finally:
        torch.set_default_dtype(torch.float32)


def child(environment: dict[str, str], folder: Path) -> None:
    os.environ.update(environment)
    processes = ProcessGroup()
    with processes.initialized(torch.device("cpu")):
        for kind in KINDS:
            write_tensors(folder / f"{kind}-{processes.rank}.safetensors", gradients(kind, PARTS, processes))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gradients of every objective by two processes."""
    return made_once(tmp_path_factory, "gradients", run_two)


def run_two(folder: Path) -> None:
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    children = [CONTEXT.Process(target=child, args=(both | rank, folder)) for rank in ranks]
    for started in children:
        started.start()
    for started in children:
        started.join(240)
        assert started.exitcode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_and_two_processes_equal_one_big_batch(kind: str, of_two: Path) -> None:
    alone = ProcessGroup()
    expected = gradients(kind, (slice(0, 5),), alone)
    first, second = (read_tensors(of_two / f"{kind}-{rank}.safetensors") for rank in range(2))
    first["loss"] += second.pop("loss")
    accumulated = gradients(kind, PARTS, alone)
    assert float(expected["loss"]) > 0
    assert max(float(part.abs().max()) for part in expected.values()) > 1e-3
    for other in (accumulated, first, second):
        for name, part in other.items():
            torch.testing.assert_close(part, expected[name], rtol=0.0, atol=1e-12)


@pytest.mark.slow  # whole trainings; the sums and gradients of two processes are compared above
@pytest.mark.timeout(300)
def test_two_processes_train_on_risk_like_one(configure: Configure, pairs: Path, tmp_path: Path) -> None:
    """Samples follow from (seed, step, batch), whichever process draws them."""
    risk = {"kind": "minimum-risk", "metric": "cer", "samples": 3}
    runs = {}
    for processes, accumulate in ((2, 1), (1, 2)):
        content = table(pairs)
        content["train"] |= {"steps": 6, "accumulate": accumulate, "validate_every": 6, "objective": risk}
        config = write_config(tmp_path / f"{processes}.toml", content)
        runs[processes] = tmp_path / f"run-{processes}"
        if processes == 1:
            train(configure("train.steps=6", "train.accumulate=2", "train.validate_every=6",
                            *(f"train.objective.{name}={value}" for name, value in risk.items())), runs[1])  # fmt: skip
        else:
            for code, said in two_processes(["train", config, "--quiet", "--run", runs[2]], {"TMPDIR": str(tmp_path)}):
                assert code == 0, said
    left, right = (read_tensors(run / "weights.safetensors") for run in runs.values())
    for name, part in left.items():
        torch.testing.assert_close(part, right[name], rtol=1e-4, atol=1e-6)
