"""Settings derived from train.steps follow an override of it, and the stated budget is the one in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.auto.configure import configure
from dragoman.runs import Run
from tests.conftest import TrainedFolder, words, write_rows


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("derived") / "pairs.tsv"
    return str(write_rows(path, [(word, word.upper()) for word in words(300)]))


def test_warmup_and_validation_follow_the_steps(pairs: str) -> None:
    usual, _ = configure(pairs)
    assert (usual.train.steps, usual.train.optimizer.warmup) == (3400, 340)
    short, reasons = configure(pairs, ["train.steps=60"])
    assert (short.train.optimizer.warmup, short.train.validate_every) == (6, 20)
    budget = next(reason for reason in reasons if reason.startswith("budget:"))
    assert budget.startswith("budget: 60 steps of 512 tokens, about ")
    assert "validated every 20 steps" in budget
    long, _ = configure(pairs, ["train.steps=10000"])
    assert (long.train.optimizer.warmup, long.train.validate_every) == (1000, 400)


def test_a_derived_setting_that_is_set_stays(pairs: str) -> None:
    config, _ = configure(pairs, ["train.steps=60", "train.optimizer.warmup=30", "train.validate_every=7"])
    assert (config.train.optimizer.warmup, config.train.validate_every) == (30, 7)


@pytest.mark.parametrize("task", ["classify", "language-model"])
def test_other_tasks_follow_too(tmp_path: Path, task: str) -> None:
    rows = [(word, "even" if len(word) % 2 == 0 else "odd") for word in words(60)]
    path = write_rows(tmp_path / "rows.tsv", rows)
    config, _ = configure(str(path), [f"task={task}", "train.steps=40"])
    assert config.train.optimizer.warmup <= 8
    assert config.train.validate_every <= 40


def test_a_run_to_start_from_gives_its_model_and_tokenizers(inside: TrainedFolder, pairs: str) -> None:
    theirs = Run(inside.run).config
    config, reasons = configure(pairs, [f"train.start_from={inside.run}"])
    assert config.model == theirs.model
    assert config.tokenizer.source.kind == "run"
    assert config.train.optimizer.learning_rate == theirs.train.optimizer.learning_rate
    assert reasons[0] == f"model and tokenizers: those of {inside.run}, from which training starts"
    wider, _ = configure(pairs, [f"train.start_from={inside.run}", "model.encoder.dropout=0.2"])
    assert wider.model.encoder.dropout == 0.2


def test_the_stated_tokenizer_is_the_one_in_force(pairs: str) -> None:
    """tokenizer.target=none announced sub-words."""
    _, reasons = configure(pairs, ["tokenizer.target=none"])
    assert "target: the tokenizer of the source, as tokenizer.target says" in reasons
    _, reasons = configure(pairs, ["tokenizer.source.kind=words"])
    assert "source: words, as tokenizer.source says" in reasons
