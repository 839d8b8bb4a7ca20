"""Token-level distillation against torch's own cross-entropy and divergence; exact resume; what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dragoman.auto.distillation import distil
from dragoman.auto.options import DistilOptions
from dragoman.base.errors import ConfigError, RunError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import PAD
from dragoman.inference.prediction import Prediction
from dragoman.models.config import TransformerConfig
from dragoman.models.decoders.recurrent import LuongDecoderConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.runs import Run, train
from dragoman.runs.folder import write_members
from dragoman.testing.laws import SOURCES, TARGETS, assert_close, in_float64, small_model
from dragoman.training.display import Display
from dragoman.training.objectives.distillation import TokenDistillation, TokenDistillationConfig
from tests.training.conftest import Configure
from tests.training.kill_driver import sha256

QUIET = Display(quiet=True)
RECURRENT = RecurrentEncoderConfig(embedding=6, width=8, dropout=0.0)


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 1.0), (0.9, 2.0)])
def test_it_is_the_likelihood_and_the_divergence_from_the_mean_of_the_teachers(
    share: float, temperature: float
) -> None:
    with in_float64():
        stack = TransformerConfig(layers=1, width=8, heads=2, feedforward=16, dropout=0.0)
        student = small_model(stack, stack, smoothing=0.1).train()
        teachers = [small_model(RECURRENT, LuongDecoderConfig(layers=1, embedding=6, width=8, dropout=0.4))]
        teachers.append(small_model(RECURRENT, stack))
        objective = TokenDistillation(TokenDistillationConfig(("runs/five",), share, temperature))
        objective.set_teachers(teachers)
        batch = batch_of(SOURCES, TARGETS)
        found = objective.loss(student, objective.prepare(student, batch))
        real, logits = batch.target != PAD, student.logits(batch)
        mean = torch.stack([teacher.eval().logits(batch).softmax(-1) for teacher in teachers]).mean(0)[real]
        soft = mean ** (1 / temperature)
        soft /= soft.sum(-1, keepdim=True)
        log_student = (logits[real] / temperature).log_softmax(-1)
        likelihood = F.cross_entropy(logits[real], batch.target[real], reduction="sum", label_smoothing=0.1)
        divergence = F.kl_div(log_student, soft, reduction="sum")
        expected = (1 - share) * likelihood + share * temperature**2 * divergence
        assert divergence.item() > 1e-3
        assert found.count == real.sum()
        assert_close(found.total, expected)
        parts = list(student.parameters())
        assert_close(torch.autograd.grad(found.total, parts), torch.autograd.grad(expected, parts))


def test_a_student_of_an_ensemble_resumes_exactly(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tmp_path / "two"
    train(configure("train.steps=3", "train.validate_every=3"), teacher, QUIET)
    train(configure("train.steps=3", "train.validate_every=3", "train.seed=5"), teacher / "other", QUIET)
    write_members(teacher, ["other"])
    monkeypatch.chdir(tmp_path)
    asked = ("train.objective.kind=token-distillation", 'train.objective.teachers=["two"]', "train.save_every=2")
    short, long = (configure(*asked, f"train.steps={steps}") for steps in (2, 4))
    train(long, tmp_path / "whole", QUIET)
    train(short, tmp_path / "parts", QUIET)
    monkeypatch.chdir(tmp_path.parent)  # the run folder names its teachers by absolute paths
    train(Run(tmp_path / "parts").config, tmp_path / "parts", QUIET)
    assert Run(tmp_path / "parts").config.train.objective.runs == (str(teacher),)
    train(configure(*asked[::2], f'train.objective.teachers=["{teacher}"]', "train.steps=4"), tmp_path / "parts", QUIET)
    weights = Path("checkpoints", "00000004", "weights.safetensors")
    assert sha256(tmp_path / "whole" / weights) == sha256(tmp_path / "parts" / weights)
    lines = distil(
        teacher, tmp_path / "one", "train.steps=2", options=DistilOptions(token_level=True), device="cpu", quiet=True
    )
    assert lines[0].startswith("teacher (2 models) → student")
    assert isinstance(Run(tmp_path / "one").config.train.objective, TokenDistillationConfig)


def test_what_cannot_teach_is_refused(configure: Configure, tmp_path: Path, pairs: Path) -> None:
    kind = "train.objective.kind=token-distillation"
    with pytest.raises(ConfigError, match="teachers: found none"):
        configure(kind)
    with pytest.raises(RunError, match=r"train\.objective\.teachers: .*absent"):
        train(configure(kind, 'train.objective.teachers=["absent"]'), tmp_path / "run", QUIET)
    other = tmp_path / "other.tsv"
    other.write_text(pairs.read_text(encoding="utf-8").replace("a", "ä"), encoding="utf-8")
    train(configure("train.steps=1", data=other), tmp_path / "teacher", QUIET)
    with pytest.raises(RunError, match="has another source vocabulary"):
        train(configure(kind, f'train.objective.teachers=["{tmp_path}/teacher"]'), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


def test_outputs_that_are_no_text_are_left_out(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A weak teacher writes bytes: the student learns from the other outputs, where it stopped with an error."""
    train(configure("train.steps=1"), tmp_path / "teacher", QUIET)
    written = ["\x00", " ", "one\x07", "two\ufeff words"]  # the last has a harmless mark inside

    def outputs(teacher: object, sources: Sequence[str], display: object) -> list[tuple[str, Prediction]]:
        return [(source, Prediction(text, 0.0, (), ())) for source, text in zip(sources, written, strict=False)]

    monkeypatch.setattr("dragoman.auto.distillation.translated", outputs)
    distil(tmp_path / "teacher", tmp_path / "student", "train.steps=1", device="cpu")
    assert "3 of 4 outputs of the teacher are left out" in capsys.readouterr().err
    lines = (tmp_path / "student.data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[0]["target"] == "two words"
    assert not {row["target"] for row in rows} & set(written[:3])
