"""What the training loop promises besides exact resume."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.base.errors import ConfigError, DragomanError, RunError, WarningLine
from dragoman.data.batch import batch_of
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import prepare_corpus
from dragoman.data.tokenizers.base import PAD
from dragoman.decoding.config import SearchConfig
from dragoman.runs import Run, train
from dragoman.runs.resume import resume_config
from dragoman.runs.tasks.config import Config
from dragoman.runs.tasks.table import task_of
from dragoman.runs.tasks.translate import build_model
from dragoman.training import step as stepping
from dragoman.training.checkpoints import Checkpoints, read_tensors
from dragoman.training.display import Display
from dragoman.training.objectives.base import build_objective
from dragoman.training.optimizer import learning_rate_at, mean_weights
from dragoman.training.runtime import Runtime
from dragoman.training.step import step_seed
from dragoman.training.trainer import Trainer
from dragoman.training.validation import Seq2SeqValidator, ValidationResult
from tests.conftest import call, words, write_rows
from tests.training.conftest import Configure
from tests.training.kill_driver import result, sha256, write_pairs


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trainer(config: Config, run: Path) -> Trainer:
    run.mkdir(exist_ok=True)
    corpus = prepare_corpus(config.data, config.tokenizer)
    torch.manual_seed(config.train.seed)
    model = build_model(config, len(corpus.source_tokenizer), len(corpus.target_tokenizer))
    task, runtime = task_of(config), Runtime(torch.device("cpu"))
    loader = task.loader(config, corpus, model, runtime.processes)
    validator = task.validator(config, corpus, runtime.device)
    objective = build_objective(config.train.objective, corpus)
    return Trainer(config.train, model, objective, loader, validator, run, runtime)


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let the validations find given losses, one after another."""
    coming = iter(losses)
    monkeypatch.setattr(
        Seq2SeqValidator, "measure", lambda self, model, interrupted: ValidationResult({"loss": next(coming)})
    )


def weights_after_steps(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, torch.Tensor]]:
    """The weights after each step that will be done."""
    seen: dict[int, dict[str, torch.Tensor]] = {}
    step = Trainer._step

    def watched(self: Trainer) -> None:
        step(self)
        seen[self.state.step] = {name: part.detach().clone() for name, part in self.model.named_parameters()}

    monkeypatch.setattr(Trainer, "_step", watched)
    return seen


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("case", ["ema", "recurrent"])
def test_the_loss_falls(case: str, configure: Configure, tmp_path: Path) -> None:
    overrides = ("train.steps=60", "train.validate_every=60", "train.log_every=10", "train.save_every=60")
    train(configure(*overrides, "train.batch_tokens=256", "train.decode=0", case=case), tmp_path / "run")
    losses = [row["loss"] for row in metrics(tmp_path / "run") if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    assert losses[-1] < losses[len(losses) // 2] < losses[0]


def test_a_run_is_a_function_of_its_seed(configure: Configure, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(configure("train.steps=3", f"train.seed={seed}"), tmp_path / name)
    assert result(tmp_path / "a") == result(tmp_path / "b")
    assert result(tmp_path / "a")["files"] != result(tmp_path / "c")["files"]


def test_every_batch_has_a_dropout_of_its_own() -> None:
    seeds = {step_seed(seed, step, batch) for seed in (1, 2) for step in range(1, 50) for batch in range(4)}
    assert len(seeds) == 2 * 49 * 4
    assert step_seed(1, 2, 3) == 38285329841504649  # a run started by one version must go on with the next


def test_dropout_is_seeded_by_the_place_of_a_batch_in_its_step(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    given: list[int] = []

    def seed(*rest: int) -> int:
        asked.append(rest)  # type: ignore[arg-type]
        return step_seed(*rest)

    monkeypatch.setattr(stepping, "step_seed", seed)
    training = trainer(configure("train.seed=7"), tmp_path / "run")
    forward = training.model.forward
    monkeypatch.setattr(training.model, "forward", lambda batch: given.append(torch.initial_seed()) or forward(batch))
    training._step()
    training._step()
    assert asked == [(7, 1, 0), (7, 1, 1), (7, 2, 0), (7, 2, 1)]
    assert given == [step_seed(*rest) for rest in asked]


def test_a_step_is_the_mean_over_all_tokens_of_its_batches(configure: Configure, tmp_path: Path) -> None:
    """Without dropout, two accumulated batches move the weights as one batch of all their rows."""
    config = configure(
        "train.accumulate=2", "train.clip=0.0", "model.word_dropout=0.0",
        "model.encoder.dropout=0.0", "model.decoder.dropout=0.0",
    )  # fmt: skip
    training = trainer(config, tmp_path / "run")
    plan = training.loader.plan.epoch(0)
    corpus = prepare_corpus(config.data, config.tokenizer)
    pieces = [read_batch(corpus.train, plan[index]) for index in (0, 1)]
    rows = [
        [token for token in row if token != PAD][:-1]
        for side in ([piece.source.data for piece in pieces], [piece.target for piece in pieces])
        for part in side
        for row in part.tolist()
    ]
    whole = batch_of(rows[: len(rows) // 2], rows[len(rows) // 2 :])
    model = build_model(config, len(corpus.source_tokenizer), len(corpus.target_tokenizer))
    model.load_state_dict(training.model.state_dict())
    loss = model.train()(whole)
    (loss.total / loss.count).backward()
    expected = math.sqrt(
        sum(float(part.grad.double().square().sum()) for part in model.parameters() if part.grad is not None)
    )
    training._step()
    assert float(training.train_step.gradient_norm) == pytest.approx(expected, rel=1e-4)
    assert training.state.tokens == int(loss.count)
    assert float(training.train_step.loss) == 0.0, "the first step is logged"
    assert metrics(tmp_path / "run")[0]["loss"] == pytest.approx(float(loss.total.detach() / loss.count), rel=1e-5)


@torch.no_grad()
def test_padding_is_not_counted(configure: Configure) -> None:
    config = configure("model.word_dropout=0.0", "model.encoder.dropout=0.0", "model.decoder.dropout=0.0")
    assert config.model.label_smoothing == 0.1
    model = build_model(config, 12, 12)
    short, long = ([4, 5], [5, 4, 6]), ([4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 9])
    together = batch_of(*zip(short, long, strict=True))
    alone = [batch_of([source], [target]) for source, target in (short, long)]
    assert [int(model(batch).count) for batch in (together, *alone)] == [12, 4, 8]
    totals = {}
    for training in (True, False):
        model.train(training)
        parts = [float(model(batch).total) for batch in alone]
        totals[training] = float(model(together).total)
        assert totals[training] == pytest.approx(sum(parts), rel=1e-5)
    assert totals[True] != pytest.approx(totals[False], rel=1e-3), "smoothing belongs to training alone"


def test_gradients_are_shortened_to_the_limit(configure: Configure, tmp_path: Path) -> None:
    seen = []
    for clip in ("0.0", "1e-3"):
        training = trainer(configure(f"train.clip={clip}"), tmp_path / clip)
        zero_grad = training.train_step.optimizer.zero_grad

        def watch(training: Trainer = training, zero_grad: Any = zero_grad) -> None:
            parts = [part.grad for part in training.model.parameters() if part.grad is not None]
            seen.append(float(torch.stack([part.norm() for part in parts]).norm()))
            zero_grad()

        training.train_step.optimizer.zero_grad = watch  # type: ignore[method-assign]
        training._step()
    assert seen[0] > 0.1
    assert seen[1] == pytest.approx(1e-3, rel=1e-2)


# ---------------------------------------------------------------------- validation and averages


def test_validation_happens_on_time_and_at_the_last_step(configure: Configure, tmp_path: Path) -> None:
    progress = train(configure("train.steps=14", "train.validate_every=4"), tmp_path / "run")
    assert [row["step"] for row in metrics(tmp_path / "run") if "valid" in row] == [4, 8, 12, 14]
    assert progress.validated_step == 14


def test_training_stops_when_patience_is_spent(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [3.0, 2.0, 2.5, 2.1, 2.4, 2.3])
    overrides = ("train.validate_every=2", "train.patience=3", "train.save_every=100")
    progress = train(configure(*overrides), tmp_path / "run")
    assert progress.step == 10  # 3.0, 2.0 and three that are no better
    assert progress.best == [(-2.0, 4)]
    assert Checkpoints(tmp_path / "run").steps()[-1] == 10
    assert train(configure(*overrides), tmp_path / "run").step == 10, "a stopped run stays stopped"
    monkeypatch.undo()


def test_without_patience_nothing_stops_early(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [1.0, *[2.0] * 9])
    assert train(configure("train.steps=20", "train.validate_every=2", "train.patience=0"), tmp_path / "run").step == 20


@pytest.mark.parametrize(("metric", "best"), [("loss", 2), ("bleu", 4), ("cer", 6)])
def test_the_metric_chooses_the_best(
    metric: str, best: int, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [
        {"loss": 1.0, "bleu": 5.0, "cer": 0.9},
        {"loss": 2.0, "bleu": 9.0, "cer": 0.8},
        {"loss": 3.0, "bleu": 1.0, "cer": 0.1},
    ]
    coming = iter(scores)
    monkeypatch.setattr(Seq2SeqValidator, "measure", lambda self, model, interrupted: ValidationResult(next(coming)))
    progress = train(configure("train.steps=6", "train.validate_every=2", f"train.metric={metric}"), tmp_path / "run")
    assert progress.best[0][1] == best
    assert sha256(tmp_path / "run" / "weights.safetensors") == sha256(
        tmp_path / "run" / "best" / f"{best:08d}.safetensors"
    )


def test_the_best_average_is_the_mean_of_the_kept_weights(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [2.0, 5.0, 1.0, 3.0, 4.0])
    seen = weights_after_steps(monkeypatch)
    run = tmp_path / "run"
    overrides = ("train.steps=10", "train.validate_every=2", "train.patience=0")
    progress = train(configure(*overrides, case="best"), run)
    assert [step for _, step in progress.best] == [6, 2, 8]
    expected = mean_weights([seen[2], seen[6], seen[8]])
    found = read_tensors(run / "weights.safetensors")
    assert found.keys() == expected.keys()
    for name, part in found.items():
        torch.testing.assert_close(part, expected[name], rtol=1e-6, atol=1e-8)
    assert not torch.equal(found["decoder.input.embedding.weight"], seen[6]["decoder.input.embedding.weight"])


def test_the_last_average_is_the_mean_of_the_last_weights_after_a_resume_too(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [2.0, 1.0, 5.0, 3.0])
    seen = weights_after_steps(monkeypatch)
    run = tmp_path / "run"
    overrides = ("train.validate_every=2", "train.patience=0", "train.average.kind=last", "train.average.count=2")
    train(configure(*overrides, "train.steps=4"), run)
    progress = train(configure(*overrides, "train.steps=8"), run)
    assert [step for _, step in progress.best] == [4, 8, 6]  # the best one is kept, but not averaged
    found, expected = read_tensors(run / "weights.safetensors"), mean_weights([seen[6], seen[8]])
    for name, part in found.items():
        torch.testing.assert_close(part, expected[name], rtol=1e-6, atol=1e-8)
    (run / "weights.safetensors").unlink()
    train(configure(*overrides, "train.steps=8"), run)
    again = read_tensors(run / "weights.safetensors")
    assert all(torch.equal(part, again[name]) for name, part in found.items())
    assert "steps 6, 8: the last validations" in call("info", run).out


def test_the_moving_average_is_what_is_validated_and_kept(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    config = configure("train.steps=6", "train.average.decay=0.4")
    seen = weights_after_steps(monkeypatch)
    start = dict(trainer(config, tmp_path / "start").model.named_parameters())
    progress = train(config, run)
    newest = run / "checkpoints" / "00000006"
    kept, average = read_tensors(run / "weights.safetensors"), read_tensors(newest / "average.safetensors")
    plain = read_tensors(newest / "weights.safetensors")
    assert all(torch.equal(kept[name], average[name]) for name in average)
    expected = start["decoder.input.embedding.weight"].detach()
    for step in range(1, 7):
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * seen[step]["decoder.input.embedding.weight"]
    torch.testing.assert_close(kept["decoder.input.embedding.weight"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(kept["decoder.input.embedding.weight"], plain["decoder.input.embedding.weight"])
    corpus = prepare_corpus(config.data, config.tokenizer)
    measured = Seq2SeqValidator(corpus, SearchConfig(), 0, torch.device("cpu")).measure(
        Run(run).model(torch.device("cpu"))
    )
    assert measured is not None
    assert -progress.best[0][0] == measured.scores["loss"]


def test_the_validation_loss_is_the_mean_over_all_tokens(configure: Configure, tmp_path: Path) -> None:
    config = configure("train.steps=1")
    train(config, tmp_path / "run")
    model = Run(tmp_path / "run").model(torch.device("cpu"))
    corpus = prepare_corpus(config.data, config.tokenizer)
    total, count, correct = 0.0, 0, 0
    for row in range(len(corpus.valid)):
        batch = read_batch(corpus.valid, BatchPlan(corpus.valid, 10**6, 0).epoch(0).rows[row : row + 1])
        with torch.no_grad():
            chosen = model.logits(batch).log_softmax(-1)[0]  # type: ignore[operator]
        target = batch.target[0]
        total -= float(chosen.gather(1, target[:, None]).sum())
        correct += int((chosen.argmax(-1) == target).sum())
        count += len(target)
    scores = metrics(tmp_path / "run")[-1]["valid"]
    assert scores["loss"] == pytest.approx(total / count, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert scores["token_accuracy"] == correct / count


# ---------------------------------------------------------------------- what is written


def test_the_log_says_what_a_step_did(configure: Configure, tmp_path: Path) -> None:
    config = configure("train.steps=10", "train.log_every=3")
    train(config, tmp_path / "run")
    rows = [row for row in metrics(tmp_path / "run") if "valid" not in row]
    assert [row["step"] for row in rows] == [1, 3, 6, 9, 10]
    for row in rows:
        assert row.keys() == {
            "step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens", "tokens_per_second", "seconds",
        }  # fmt: skip
        assert row["learning_rate"] == learning_rate_at(config.train.optimizer, row["step"], 10)
        assert all(math.isfinite(value) for value in row.values())
        assert row["gradient_norm"] > 0
    tokens = [row["tokens"] for row in rows]
    assert tokens == sorted(set(tokens))
    valid = metrics(tmp_path / "run")[-1]
    assert valid["step"] == 10
    assert {"loss", "perplexity", "token_accuracy", "bleu", "chrf", "wer", "cer", "exact_match"} == valid[
        "valid"
    ].keys()


def test_epochs_are_counted(configure: Configure, tmp_path: Path) -> None:
    config = configure("train.steps=30", "train.log_every=1", "train.decode=0")
    corpus = prepare_corpus(config.data, config.tokenizer)
    batches = len(BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed).epoch(0))
    progress = train(config, tmp_path / "run")
    epochs = [row["epoch"] for row in metrics(tmp_path / "run") if "epoch" in row]
    assert epochs[-1] >= 1
    assert epochs == sorted(epochs)
    assert epochs.index(1) == math.ceil(batches / 2) - 1  # two batches a step
    assert progress.tokens > corpus.report["train"]["target_tokens"]


# ---------------------------------------------------------------------- going on


def test_a_finished_run_is_left_as_it_is(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=6"), run)
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    monkeypatch.setattr(Trainer, "_step", None)  # calling it would fail
    assert train(configure("train.steps=6"), run).step == 6
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before


def test_fewer_steps_than_a_run_has_are_refused(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=8"), run)
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    expected = r"already has 8 steps, more than train\.steps = 2 .*resume with train\.steps above 8"
    with pytest.raises(RunError, match=expected):
        train(configure("train.steps=2"), run)
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    assert Run(run).config.train.steps == 8, "the configuration does not tell of steps that lie behind"


def test_more_steps_go_on_as_if_they_had_been_asked_for_at_once(configure: Configure, tmp_path: Path) -> None:
    train(configure("train.steps=20"), tmp_path / "run")
    train(configure("train.steps=24"), tmp_path / "run")
    train(configure("train.steps=24"), tmp_path / "straight")
    assert result(tmp_path / "run") == result(tmp_path / "straight")
    assert Run(tmp_path / "run").config.train.steps == 24


def test_other_settings_are_refused(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=2"), run)
    before = result(run), (run / "config.toml").read_text()
    with pytest.raises(RunError) as refused:
        train(configure("train.steps=2", "train.seed=2", "model.encoder.width=32"), run)
    assert "train.seed was 1, is 2" in str(refused.value)
    assert "model.encoder.width was 16, is 32" in str(refused.value)
    assert "train.steps" not in str(refused.value)
    assert "run=…" in str(refused.value)
    assert (result(run), (run / "config.toml").read_text()) == before


@pytest.mark.parametrize(
    "change", ["train.patience=3", "train.save_every=1", "train.log_every=1", "search.beam=2", "train.decode=0"]
)
def test_settings_that_change_no_step_may_change(change: str, configure: Configure, tmp_path: Path) -> None:
    train(configure("train.steps=2"), tmp_path / "run")
    assert train(configure("train.steps=3", change), tmp_path / "run").step == 3


def test_training_stops_after_so_many_minutes_and_validates(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = train(configure("train.steps=100000", "train.minutes=0.01", "train.validate_every=100000"), run)
    assert 0.6 <= state.elapsed < 30
    assert state.validated_step == state.step < 100_000
    assert (
        train(configure("train.steps=100000", "train.minutes=0.01", "train.validate_every=100000"), run).step
        == state.step
    )


def test_validations_are_part_of_the_minutes(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step, a validation and a checkpoint take a hundredth of a second each, of 0.6; the last validation fits in."""
    clock = itertools.count(step=0.01)
    monkeypatch.setattr("dragoman.training.trainer.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    settings = ("train.steps=100000", "train.validate_every=1", "train.save_every=100000", "train.log_every=100000")
    state = train(configure(*settings, "train.minutes=0.01", "train.patience=0"), tmp_path / "run")
    assert state.elapsed == pytest.approx(0.6, abs=0.015)
    assert 0.15 < state.pauses / state.elapsed < 0.25
    assert state.validated_step == state.step


def test_the_learning_rate_follows_the_time_where_minutes_end_training(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=0.01)  # every step takes as long, however busy the machine is
    monkeypatch.setattr("dragoman.training.trainer.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    settings = ("train.steps=100000", "train.minutes=0.01", "train.log_every=1", "train.optimizer.warmup=1")
    train(configure(*settings, "train.optimizer.schedule=cosine", "train.validate_every=100000"), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "loss" in row]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.2 * rates[0]  # by steps alone it would still be at its peak


def test_a_slow_first_step_moves_no_schedule(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step takes 0.3 of 0.6 s, as where it compiles kernels; the warm-up of a hundredth is still to come."""
    times = itertools.chain([0.0, 0.3], itertools.count(0.3, 0.004))
    monkeypatch.setattr("dragoman.training.trainer.time", SimpleNamespace(perf_counter=lambda: next(times)))
    settings = ("train.steps=1000", "train.minutes=0.01", "train.log_every=1", "train.optimizer.warmup=100")
    state = train(configure(*settings, "train.validate_every=100000", "train.save_every=100000"), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "loss" in row]
    assert rates[1] < 0.3 * max(rates), "the second step has the rate of half of the schedule"
    assert state.starting == pytest.approx(0.3, abs=0.01)
    assert state.elapsed == pytest.approx(0.6, abs=0.02)


def test_validation_on_other_inputs_is_refused_where_it_selects_weights(configure: Configure, tmp_path: Path) -> None:
    train(configure("train.steps=2", "train.metric=cer"), tmp_path / "run")
    with pytest.raises(RunError, match=r"train.decode was 8, is 9; the best weights are selected by cer"):
        train(configure("train.steps=3", "train.metric=cer", "train.decode=9"), tmp_path / "run")


def test_other_data_are_refused_and_moved_files_are_not(configure: Configure, tmp_path: Path, pairs: Path) -> None:
    run = tmp_path / "run"
    train(configure("train.steps=2"), run)
    moved = pairs.rename(tmp_path / "moved.tsv")
    assert train(configure("train.steps=3", data=moved), run).step == 3
    moved.write_text(moved.read_text().replace("a", "x", 1), encoding="utf-8")
    with pytest.raises(
        RunError, match=r"the data files are not those this run was started with; .* train\.start_from="
    ):
        train(configure("train.steps=4", data=moved), run)
    other = write_pairs(tmp_path / "other.tsv", seed=5)
    with pytest.raises(RunError, match="the data files are not those"):
        train(configure("train.steps=4", data=other), run)
    assert Checkpoints(run).steps()[-1] == 3


def test_a_folder_with_something_else_is_refused(configure: Configure, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match=r"not a run folder .* run=…"):
        train(configure(), folder)
    assert (folder / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert train(configure("train.steps=1"), tmp_path / "empty").step == 1


# ---------------------------------------------------------------------- what goes wrong


def test_a_loss_that_is_no_number_ends_the_run_and_spoils_no_checkpoint(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Saving comes before logging would notice.
    config = configure("train.optimizer.learning_rate=1e30", "train.optimizer.warmup=5", "train.save_every=1")
    with pytest.raises(
        DragomanError, match=r"became .* at step \d+; .*lower train\.optimizer\.learning_rate \(now 1e\+30\)"
    ):
        train(config, run)
    steps = Checkpoints(run).steps()
    for step in steps:
        _, files = Checkpoints(run).load(step)
        assert all(part.isfinite().all() for part in files["weights.safetensors"].values())
    assert all(math.isfinite(row["loss"]) for row in metrics(run) if "loss" in row)


def test_weights_that_are_no_numbers_are_neither_validated_nor_saved(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer._step

    def spoilt(self: Trainer) -> None:
        step(self)
        if self.state.step == 10:
            with torch.no_grad():
                next(self.model.parameters())[5, 0] = math.nan

    monkeypatch.setattr(Trainer, "_step", spoilt)
    with pytest.raises(DragomanError, match="the weights became infinite or NaN at step 10"):
        train(configure(), tmp_path / "run")
    assert Checkpoints(tmp_path / "run").steps() == [6, 9]
    assert not any("valid" in row for row in metrics(tmp_path / "run"))
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_memory_that_runs_out_says_what_to_lower(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = trainer(configure(), tmp_path / "run")

    def full(batch: object) -> None:
        raise torch.OutOfMemoryError("no room")

    training.train_step.loss_module = full
    with pytest.raises(
        DragomanError, match=r"out of memory at a batch of \d+ rows × .* lower train\.batch_tokens \(now 128\)"
    ):
        training._step()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("train.steps=0", "train.steps: found 0"),
        ("train.patience=-1", "train.patience: found -1"),
        ("train.average.decay=1.0", "train.average.decay: found 1.0"),
        ("train.metric=rouge", 'train.metric: found "rouge", but task = "translate" has loss, bleu'),
        ("train.metric=blue", r"exact_match\. Did you mean 'bleu'\?$"),
        ("train.metric=accuracy", r'task = "translate" has loss, [^.]*exact_match$'),
    ],
)
def test_settings_out_of_range_are_refused(change: str, expected: str, configure: Configure) -> None:
    with pytest.raises(ConfigError, match=expected):
        configure(change)


def test_a_metric_that_needs_decoding_gets_it(configure: Configure) -> None:
    with pytest.raises(ConfigError, match=r"train.decode: found 0, expected at least 1"):
        configure("train.metric=bleu", "train.decode=0")


def test_half_precision_needs_a_gpu(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"train\.precision: found bfloat16"):
        train(configure("train.precision=bfloat16"), tmp_path / "run")


def test_tensorboard_writes_what_metrics_have(configure: Configure, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(configure("train.tensorboard=true", "train.steps=4"), tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"train/loss", "train/learning_rate", "valid/loss", "valid/bleu"} <= set(events.Tags()["scalars"])
    rows = [row for row in metrics(tmp_path / "run") if "valid" not in row]
    assert [event.step for event in events.Scalars("train/loss")] == [row["step"] for row in rows]


def test_epochs_give_the_steps(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = configure("train.epochs=2", "train.validate_every=1000", "train.save_every=1000")
    corpus = prepare_corpus(config.data, config.tokenizer)
    batches = len(BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed).epoch(0))
    epoch = batches / config.train.accumulate  # steps
    state = train(config, run)
    assert (state.step, state.epoch, state.batch) == (2 * epoch, 2, 0)
    assert Run(run).config.train.steps == 2 * epoch  # the schedule and `info` follow
    assert train(resume_config(run, ["train.epochs=2.5"]), run).step == math.ceil(2.5 * epoch)
    with pytest.raises(RunError, match="the run already has"):
        train(resume_config(run, ["train.epochs=1"]), run)
    more = resume_config(run, ["train.steps=30"])  # what was asked for last counts
    assert (more.train.epochs, train(more, run).step) == (0.0, 30)
    assert resume_config(run, ["train.steps=40", "train.epochs=4"]).train.epochs == 4
    assert resume_config(run, ["train.epochs=4", "train.steps=40"]).train.epochs == 0


def test_a_slow_machine_shows_a_preview_that_changes_nothing(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("train.steps=12", "train.validate_every=12", "train.save_every=12")
    train(configure(*settings), tmp_path / "plain")
    monkeypatch.setattr("dragoman.training.trainer.PREVIEW_AFTER", 0.0)
    shown = io.StringIO()
    train(configure(*settings), tmp_path / "shown", Display(shown))
    lines = shown.getvalue().splitlines()
    assert sum(line.startswith("preview at step 5  loss ") for line in lines) == 1
    assert sum("(first validation in 0:0" in line for line in lines) == 1
    assert [row.get("valid") for row in metrics(tmp_path / "shown")] == [
        row.get("valid") for row in metrics(tmp_path / "plain")
    ]
    assert sha256(tmp_path / "shown" / "weights.safetensors") == sha256(tmp_path / "plain" / "weights.safetensors")


def test_a_run_of_epochs_ends_with_its_steps(tmp_path: Path) -> None:
    """train.steps of the configuration is the default: the end of training was taken for the work of train.patience."""
    rows = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    small = ["tokenizer.source.kind=characters", "train.batch_tokens=128", "train.device=cpu"]
    path = tmp_path / "my.toml"
    path.write_text(f'preset = "transformer-tiny"\n[data]\ntrain = "{rows}"\n', encoding="utf-8")
    said = call("train", path, "--run", tmp_path / "run", *small, "train.epochs=1", "train.optimizer.warmup=1")
    assert said.code == 0, said.err
    assert "done: " in said.err
    assert "stopped early" not in said.err
    assert "train.patience" not in said.err


def test_a_quiet_display_shows_warnings_alone() -> None:
    said = io.StringIO()
    lines = ["budget: 100 steps", WarningLine("warning: all targets are the same text"), "warning: a text of a user"]
    display = Display(said, quiet=True)
    display.later(lines)
    display.info(*lines)
    display.warning("more")
    other = Display(said, is_main=False)  # the main process of the job says this
    other.later(lines)
    other.info(*lines)
    assert said.getvalue() == "warning: all targets are the same text\nwarning: more\n"


def test_choices_are_shown_with_the_first_line_of_the_work() -> None:
    said = io.StringIO()
    display = Display(said)
    display.later(["model: a small one"])
    assert not said.getvalue()
    display.info("data: 3 pairs")
    display.info("trained")
    assert said.getvalue().splitlines() == ["model: a small one", "data: 3 pairs", "trained"]
