"""A non-autoregressive model end to end: check, train, load, predict, evaluate and info, without attention plots."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.auto import checking as checking
from dragoman.auto import estimates
from dragoman.base.config import dump
from dragoman.base.errors import ConfigError
from dragoman.data.corpus import prepare_corpus
from dragoman.inference.predictor import Predictor
from dragoman.models.non_autoregressive import NonAutoregressive
from dragoman.runs.data_report import target_length_warning
from dragoman.runs.tasks import config
from dragoman.runs.tasks.table import task_of
from dragoman.runs.tasks.translate import build_model
from tests.conftest import TrainedFolder, call, quiet_machine, words, write_rows

STACK = {"kind": "transformer", "layers": 1, "width": 32, "heads": 2, "feedforward": 64, "dropout": 0.0}
FEED_FORWARD = {"kind": "feed-forward", "width": 32, "feedforward": 64, "dropout": 0.0}
WORDS = words(240)


def table(folder: Path, alignment: Any) -> dict[str, Any]:
    """Letters to capitals; three steps a letter are room enough."""
    return {
        "data": {"train": str(folder / "pairs.tsv")},
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"kind": "non-autoregressive", "encoder": STACK, "decoder": FEED_FORWARD, "alignment": alignment},
        "train": {
            "steps": 60, "validate_every": 30, "batch_tokens": 400, "device": "cpu", "average": "none",
            "optimizer": {"learning_rate": 1e-2, "warmup": 10},
        },
        "search": {"length_penalty": 0.0},
    }  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> TrainedFolder:
    """A folder with pairs, a configuration for each alignment, and a run of each."""
    folder = tmp_path_factory.mktemp("non-autoregressive")
    write_rows(folder / "pairs.tsv", [(word, word.upper()) for word in WORDS])
    with quiet_machine(folder / "cache"):
        for name, alignment in (
            ("ctc", {"kind": "ctc", "upsample": 2}),
            ("length", {"kind": "length", "max_length": 9}),
        ):
            whole = table(folder, alignment)
            (folder / f"{name}.toml").write_text(dump(config.build(whole)), encoding="utf-8")
            dragoman.train(whole, folder / name, quiet=True)
    return TrainedFolder(folder, folder / "ctc", call("--version"))


@pytest.fixture(params=["ctc", "length"])
def run(request: pytest.FixtureRequest, here: TrainedFolder) -> Predictor:
    return dragoman.load(here.folder / request.param)


def test_a_trained_run_predicts_and_is_scored(run: Predictor) -> None:
    assert isinstance(run.model, NonAutoregressive)
    pairs = [(word, word.upper()) for word in words(40, seed=7)]
    scores, outputs = run.evaluate(pairs)
    assert scores["exact_match"] > 0.2
    assert 0 < scores["loss"] < 1
    assert scores["token_accuracy"] > 0.7
    assert [output.text for output in outputs] == [output.text for output in run.predict([word for word, _ in pairs])]
    alone = [run.predict([word])[0].text for word, _ in pairs[:5]]
    assert alone == [output.text for output in outputs[:5]]
    assert run.predict(["", "abc"])[0].text == ""


def test_loss_is_that_of_the_outputs_scores(run: Predictor) -> None:
    sources = words(10, seed=4)
    outputs = run.predict(sources, beam=1)
    pairs = [(source, output.text) for source, output in zip(sources, outputs, strict=True)]
    parts = [score for output in outputs for score in output.token_scores]
    scores, _ = run.evaluate(pairs, beam=1)
    assert scores["loss"] == pytest.approx(-sum(parts) / len(parts), rel=1e-4, abs=1e-6)
    assert scores["token_accuracy"] == 1


def test_references_that_cannot_be_written_are_counted(run: Predictor) -> None:
    pairs = [(word, word.upper()) for word in words(5, seed=7)]
    alone, _ = run.evaluate(pairs)
    scores, _ = run.evaluate([("a", "A" * 500), *pairs, ("b", "B" * 500)])
    assert (scores["segments"], scores["too_long"]) == (7, 2)
    assert scores["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert "too_long" not in alone


def test_validation_and_curve_are_those_of_other_runs(run: Predictor) -> None:
    validated = [row["valid"] for row in run.run.metrics() if "valid" in row]
    assert len(validated) == 2
    assert validated[1]["loss"] < validated[0]["loss"]
    assert {"perplexity", "token_accuracy", "cer", "exact_match"} <= set(validated[0])


def test_n_best_are_different_and_ordered(here: TrainedFolder, run: Predictor) -> None:
    said = call("predict", run.run.folder, "--json", "--n-best", "4", "--beam", "4", stdin=b"abc\n\nfade\n")
    assert said.code == 0, said.err
    rows = [json.loads(line) for line in said.lines]
    assert rows[1]["text"] == ""
    for row in (rows[0], rows[2]):
        together = [row, *row["alternatives"]]
        assert len({tuple(one["tokens"]) for one in together}) == 4
        scores = [one["score"] for one in together]
        assert scores == sorted(scores, reverse=True)
        for one in together:
            assert len(one["token_scores"]) == len(one["tokens"]) + 1
            assert sum(one["token_scores"]) == pytest.approx(one["score"], abs=1e-4)


def test_info_shows_the_parts(here: TrainedFolder) -> None:
    found = json.loads(call("info", here.run, "--json").out)
    shapes = {layer["name"]: layer["shape"] for layer in found["layers"]}
    assert shapes["encoder"] == "2×8×32"
    assert shapes["decoder"] == "2×16×32"
    assert shapes["output"].startswith("2×16×")
    assert found["config"]["model"]["alignment"] == {"kind": "ctc", "upsample": 2}
    assert "Instant" not in call("info", here.run).err
    assert "Upsample" in call("info", here.run).out


def test_there_is_no_attention_to_draw(here: TrainedFolder, tmp_path: Path) -> None:
    said = call("attention", here.run, "abc", "--output", tmp_path / "none.png")
    assert said.code == 2
    assert said.err == ("dragoman: no attention to show: this model has no attention from output to source\n")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- check


@pytest.mark.parametrize("name", ["ctc", "length"])
def test_check_proves_it(here: TrainedFolder, name: str) -> None:
    with quiet_machine(here.folder / "cache"):
        said = call("check", here.folder / f"{name}.toml")
    assert said.code == 0, said.err
    assert said.lines[-1].startswith(("all is well", "the run can start"))
    assert any(re.fullmatch(r"room: 0 of \d+ targets \(0\.0%\) are too long to be written at all", line)
               for line in said.lines)  # fmt: skip
    assert any(line.startswith("cycle: trained 2 steps") for line in said.lines)


def test_check_counts_what_has_no_room(tmp_path: Path, cached: Path) -> None:
    rows = [(word, word * (1 + (number % 4 == 0) * 4)) for number, word in enumerate(WORDS)]
    write_rows(tmp_path / "pairs.tsv", rows)
    whole = config.build(table(tmp_path, {"kind": "ctc", "upsample": 2}))
    corpus = prepare_corpus(whole.data, whole.tokenizer)
    source, target = corpus.train.source, corpus.train.target
    expected = 0
    for row in range(len(source.lengths())):
        text = target.rows([row])[0].tolist()
        repeats = sum(left == right for left, right in itertools.pairwise(text))
        expected += len(text) + repeats > 2 * (int(source.lengths()[row]) + 1)
    assert 30 < expected < 100
    said: list[str] = []
    model = task_of(whole).model(whole, corpus.source_tokenizer, corpus.target_tokenizer)
    checking.check_target_lengths(whole, corpus, model, said.append)
    count = len(source.lengths())
    found = f"{expected} of {count} targets ({expected / count:.1%}) are too long to be written at all"
    assert said[0] == f"room: {found}"
    (warning,) = target_length_warning(whole, model, corpus)  # the plan has it, for training and check
    assert warning.startswith(f"{found}, so the model never learns from them; raise model.alignment.upsample")
    whole = replace(whole, train=replace(whole.train, steps=3))
    dragoman.train(whole, tmp_path / "run", quiet=True)  # goes on all the same: such pairs give no loss


def test_check_refuses_a_model_that_can_write_nothing(tmp_path: Path, cached: Path) -> None:
    write_rows(tmp_path / "pairs.tsv", [(word, word * 9) for word in WORDS])
    (tmp_path / "my.toml").write_text(
        dump(config.build(table(tmp_path, {"kind": "ctc", "upsample": 1}))),
        encoding="utf-8",
    )
    said = call("check", tmp_path / "my.toml")
    assert said.code == 2
    assert said.err.startswith("dragoman: no target can be written: raise model.alignment.upsample")


def test_memory_counts_every_position(here: TrainedFolder) -> None:
    with quiet_machine(here.folder / "cache"):
        whole = config.load(here.folder / "ctc.toml")
        corpus = prepare_corpus(whole.data, whole.tokenizer)
    model = build_model(whole, len(corpus.source_tokenizer), len(corpus.target_tokenizer)).train()
    assert isinstance(model, NonAutoregressive)
    assert model.positions(10, 4) == 20
    few, many = (estimates.batch_memory(model, (rows, 12, 6)) for rows in (4, 8))
    assert 1.8 < many / few < 2.1


# ---------------------------------------------------------------------- configuration


def test_kinds_of_models_are_told_apart() -> None:
    data = {"data": {"train": "pairs.tsv"}}
    assert config.build(data).model.kind == "encoder-decoder"
    assert config.build(data | {"model": "non-autoregressive"}).model.kind == "non-autoregressive"
    preset = config.build(data | {"preset": "nat-ctc-small"})
    assert (preset.model.kind, preset.search.length_penalty) == ("non-autoregressive", 0.0)
    # A preset of the other kind lends its stacks.
    lent = config.build(
        data | {"preset": "transformer-small"}, ["model.kind=non-autoregressive", "model.alignment=length"]
    )
    assert (lent.model.kind, lent.model.encoder.width, lent.model.tie) == ("non-autoregressive", 256, "all")
    assert isinstance(build_model(lent, 50, 50), torch.nn.Module)
    with pytest.raises(ConfigError, match=r'train\.objective: "minimum-risk" samples token by token'):
        config.build(data | {"model": "non-autoregressive"}, ["train.objective=minimum-risk"])
