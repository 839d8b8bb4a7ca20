"""One registration makes a metric usable everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dragoman import register
from dragoman.base.errors import ConfigError
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.scoring.metric import FloatArray, Metric, References, Statistics, TextMetric, as_rows, ratio, signature
from dragoman.scoring.registry import (
    BUILT_IN,
    METRICS,
    checkpoint_metrics,
    higher_is_better,
    metrics_for,
    segment_cost_metrics,
)
from dragoman.training.validation import Seq2SeqValidator, ValidationResult
from tests.conftest import TrainedFolder, call


def count_length_errors(hypotheses: Sequence[str], references: References) -> Statistics:
    """Characters too many or too few, and reference length, for the first reference."""
    pairs = zip(hypotheses, references, strict=True)
    rows = [(abs(len(hypothesis) - len(texts[0])), len(texts[0])) for hypothesis, texts in pairs]
    return Statistics(as_rows(rows), signature(references, tok="char"))


def combine_length_errors(sums: FloatArray) -> FloatArray:
    return ratio(sums[..., 0], sums[..., 1])


LENGTH_ERROR = TextMetric(
    name="length_error",
    label="length error",
    about="difference in characters per reference character",
    higher_is_better=False,
    count=count_length_errors,
    combine=combine_length_errors,
)


@pytest.fixture
def length_error() -> Iterator[TextMetric]:
    register(LENGTH_ERROR)
    yield LENGTH_ERROR
    METRICS.remove(LENGTH_ERROR)


def test_score_takes_a_registered_metric(length_error: TextMetric, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("abc\nab\n", encoding="utf-8")
    (tmp_path / "ref").write_text("abcd\nab\n", encoding="utf-8")
    arguments = ("score", tmp_path / "out", tmp_path / "ref", "--metric", "length_error")
    assert json.loads(call(*arguments, "--json").out)["length_error"] == pytest.approx(1 / 6)
    assert call(*arguments).lines[0].startswith("length error      16.67 %   nrefs:1|tok:char|")
    assert "length_error" in call("score", "--help").out
    assert length_error.costs(["abc"], [["abcd"]]) == [0.25]
    assert "length_error" in segment_cost_metrics()


def test_evaluate_takes_a_registered_metric(length_error: TextMetric, inside: TrainedFolder) -> None:
    said = call("evaluate", "runs/pairs", "test.tsv", "--metric", "length_error", "--json",
                "method=mbr", "method.samples=2", "method.metric=length_error")  # fmt: skip
    assert said.code == 0, said.err
    assert 0 <= json.loads(said.out)["length_error"] < 1


@pytest.mark.parametrize("higher", [False, True])
def test_training_keeps_the_best_weights_and_stops_early_by_a_registered_metric(
    higher: bool, inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metric = Metric(
        name="toy", label="toy", about="scores from a list", outputs=("words",), higher_is_better=higher, percent=False
    )
    register(metric)
    try:
        scores = iter([3.0, 1.0, 2.0, 4.0, 2.5, 3.5, 2.2])
        validation = lambda self, model, interrupted: ValidationResult({"loss": 1.0, "toy": next(scores)})  # noqa: E731
        monkeypatch.setattr(Seq2SeqValidator, "measure", validation)
        overrides = [
            "data.train=pairs.tsv", "train.metric=toy", "train.steps=14", "train.validate_every=2", "train.patience=3",
            "model.encoder.layers=1", "model.decoder.layers=1", "train.save_every=100",
            *(f"model.{side}.{size}" for side in ("encoder", "decoder") for size in ("width=16", "heads=2")),
        ]  # fmt: skip
        progress = train(build({}, overrides), tmp_path / "run")
    finally:
        METRICS.remove(metric)
    best, best_step, last_step = (4.0, 8, 14) if higher else (-1.0, 4, 10)
    assert progress.best == [(best, best_step)]
    assert progress.step == last_step


def test_names_agree_on_direction_and_are_registered_once() -> None:
    with pytest.raises(ConfigError, match=r"the metric 'words \w+' in .*, but dragoman has registered one"):
        register(BUILT_IN[0])
    with pytest.raises(ConfigError, match="direction or format differs"):
        register(Metric(name="wer", label="WER", about="", outputs=("labels",)))
    assert "wer" not in metrics_for("labels")


def test_every_metric_states_its_direction() -> None:
    lower = {metric.name for metric in BUILT_IN if not metric.higher_is_better}
    likelihood = {"loss", "perplexity", "word_perplexity", "character_perplexity", "character_nats", "byte_bits"}
    assert lower == {"wer", "cer", "per", "ter", "mse", "pseudo_perplexity"} | likelihood
    assert not higher_is_better("loss")


def test_checkpoint_metrics_follow_from_the_outputs() -> None:
    assert checkpoint_metrics("likelihood") == ("loss",)
    assert checkpoint_metrics("masked tokens") == ("loss", "accuracy")
    assert checkpoint_metrics("numbers") == ("loss", "mse", "pearson", "spearman")
    assert set(checkpoint_metrics("phonemes")) - set(checkpoint_metrics("words")) == {"per"}
