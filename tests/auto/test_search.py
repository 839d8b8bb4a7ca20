"""The model search: what its trials and its winner are, ensembles, distillation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dragoman.auto.configure import configure, configure_candidates
from dragoman.auto.options import SearchOptions
from dragoman.auto.search.members import Judge, Outputs, choose_members
from dragoman.auto.search.run import (
    Search,
)
from dragoman.auto.search.state import SearchState, describe, load_search
from dragoman.auto.search.trial_config import cost_of
from dragoman.auto.search.worker import run_job
from dragoman.auto.trial import Outcome
from dragoman.base.errors import DragomanError
from dragoman.inference.load import load_predictor
from dragoman.runs import Run
from dragoman.runs.folder import member_folders
from tests.auto.searches import TINY, FakeSearch, job_for, outcome
from tests.conftest import call, words, write_rows


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_failures_lose_only_what_failed(seconds: float | None, cached: Path, tmp_path: Path) -> None:
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", [*rows[:200]])
    write_rows(tmp_path / "valid.tsv", [*rows[200:]])
    overrides = [*TINY[1:], "train.steps=300", f"data.valid={tmp_path / 'valid.tsv'}"]
    configs, _ = configure_candidates(str(tmp_path / "pairs.tsv"), overrides)
    chosen = dict(zip("abcd", configs.values(), strict=False))

    def run(name: str, **results: list[Outcome]) -> SearchState:
        measured = (
            dict.fromkeys("abcd", 0) if seconds is None else {"a": 2, "b": 1, "c": 1, "d": 1}
        )  # before the stages
        search = FakeSearch(
            tmp_path / name, **{one: found[:1] * measured[one] + found for one, found in results.items()}
        )
        search.create(chosen, SearchOptions(seconds, 4), [])
        return search.run()

    good, failed = [outcome(0.5)] * 3, [outcome(0, "diverged")]
    ends_badly = run("late", a=[outcome(0.4), outcome(0, "diverged")], b=good, c=good, d=good)
    assert ends_badly.members == ["b"]
    assert describe(ends_badly).startswith("best: b")
    usual_fails = run("usual", a=failed, b=good, c=good, d=good)
    assert usual_fails.members == ["b"]
    assert {trial.name for trial in usual_fails.trials} == set("abcd")
    with pytest.raises(DragomanError, match=r"every configuration failed; the first: diverged"):
        run("all", a=failed, b=failed, c=failed, d=failed)
    bad = [outcome(-0.9)] * 3
    little = run("little", a=[outcome(-0.6), outcome(-0.5)], b=[outcome(-0.5), outcome(-0.49)], c=bad, d=bad)
    assert little.members == ["a"]  # the default model
    assert (tmp_path / "little" / "leaderboard.md").read_text().endswith("\n\n" + little.note + "\n")
    much = run("much", a=[outcome(-0.6), outcome(-0.5)], b=[outcome(-0.5), outcome(-0.2)], c=bad, d=bad)
    assert much.members == ["b"]
    tie = run("tie", a=[outcome(0.4), outcome(0.6)], b=[outcome(0.5), outcome(0.6)], c=good, d=good)
    assert tie.members == ["a"]  # the default model
    assert describe(tie).startswith("best: a")
    assert tie.ranking()[0].name == "a"


@pytest.mark.parametrize(("workers", "alone", "beside"), [(2, 10.0, None), (1, 10.0, None), (2, 60.0, 10.0)])
def test_a_trial_trains_alone_from_its_first_step_on(
    workers: int, alone: float, beside: float | None, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A usual training of 2,000 steps takes 200 of 100 seconds at 10 steps a second, 33 at 60."""
    monkeypatch.setattr("dragoman.auto.search.run.seconds_left", lambda state, deadline: 100.0)
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    overrides = [*TINY[1:], f"data.valid={tmp_path / 'valid.tsv'}"]
    config, _ = configure(str(tmp_path / "pairs.tsv"), [*overrides, "train.steps=2000", "train.validate_every=100"])
    measured = outcome(0.5)._replace(overhead=0.0)
    failed = outcome(0, "out of memory")
    found = [measured._replace(speed=speed, seconds=100 / speed) for speed in (alone, beside) if speed]
    search = FakeSearch(tmp_path / "run", a=[*found, outcome(0.5)], b=[failed], c=[measured])
    search.create(dict.fromkeys("abc", config), SearchOptions(100.0, workers=workers), [])
    left = [tmp_path / "run" / "trials" / name for name in ("a", "c-measured")]  # by a search that was killed
    for folder in left:
        folder.mkdir()
    state = search.run()
    assert [trial.name for trial in state.trials if not trial.error and not trial.later] == ["a"]
    assert state.trials[0].steps == [2000]
    assert state.trials[0].settings == ["train.minutes=1.650"]  # the rest of the time, but for a second to end
    assert [folder.exists() for folder in left] == [True, False]


@pytest.mark.parametrize(("score", "winner"), [(0.9, "b"), (0.1, "a")])
def test_a_fitted_model_competes_with_a_trial_that_trains_alone(
    score: float, winner: str, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fitted beside that training."""
    monkeypatch.setattr("dragoman.auto.search.run.seconds_left", lambda state, deadline: 100.0)
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    path, valid = str(tmp_path / "pairs.tsv"), f"data.valid={tmp_path / 'valid.tsv'}"
    neural, _ = configure(path, [*TINY[1:], valid, "train.steps=2000", "train.validate_every=100"])
    fitted, _ = configure(path, [valid, "train.device=cpu", "preset=ngram-transducer"])
    measured = outcome(0.5)._replace(overhead=0.0)
    search = FakeSearch(tmp_path / "run", a=[measured, outcome(0.5)], b=[outcome(score)], c=[measured])
    search.create({"a": neural, "c": neural, "b": fitted}, SearchOptions(100.0, workers=2), [])
    state = search.run()
    assert {trial.name for trial in state.ranking()} == {"a", "b"}
    assert state.members == [winner]
    failed = [outcome(0, "diverged")]
    search = FakeSearch(tmp_path / "only", a=[*failed], b=[measured, outcome(score)], c=[*failed])
    search.create({"a": neural, "c": neural, "b": fitted}, SearchOptions(100.0, workers=2), [])
    alone = search.run()
    assert (alone.members, alone.note) == (["b"], "")  # an n-gram model is never under-trained


def test_fitted_models_take_no_place_of_trained_ones(cached: Path, tmp_path: Path) -> None:
    """They are complete at once, so the stages, which compare parts of a training, do without them."""
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    path, valid = str(tmp_path / "pairs.tsv"), f"data.valid={tmp_path / 'valid.tsv'}"
    neural, _ = configure(path, [*TINY[1:], valid, "train.steps=300"])
    fitted, _ = configure(path, [valid, "train.device=cpu", "preset=ngram-transducer"])
    configs = {"a": neural, "b": neural, "c": neural, "d": neural, "e": fitted}
    for name, score, winner in (("worse", 0.6, "b"), ("better", 0.95, "e")):
        results = {"a": [outcome(0.1)] * 2, "b": [outcome(0.5), outcome(0.9)], "e": [outcome(score)]}
        search = FakeSearch(tmp_path / name, **results, c=[outcome(0.2)], d=[outcome(0.2)])
        search.create(configs, SearchOptions(None, 5, workers=2), [])
        assert search.run().members == [winner]


@pytest.mark.parametrize(("preset", "setting"), [("ngram-transducer", "order=2"), ("phrase-based", "tune=0")])
def test_a_fitted_trial_keeps_its_score(preset: str, setting: str, cached: Path, tmp_path: Path) -> None:
    """Its jobs measure it, then compare it with others; it is fitted once."""
    rows = [(" ".join(word), " ".join(word.upper())) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    overrides = [f"data.valid={tmp_path / 'valid.tsv'}", "train.device=cpu", "train.decode=10"]
    overrides += [f"preset={preset}", f"model.{setting}"]
    config, _ = configure(str(tmp_path / "pairs.tsv"), overrides)
    search = Search(tmp_path / "run", lambda line: None, lambda state: None)
    search.create({"usual": config, "other": config}, SearchOptions(900.0, workers=1), overrides)
    state = load_search(tmp_path / "run")
    trial = state.trials[1]
    assert trial.fitted
    measured = run_job(search._probe_job(state, trial, "cpu", 10.0))
    assert not measured.error
    trial.cost = asdict(cost_of(measured, config))
    search._plan(state, [replace(trial, name="usual", fitted=False), trial], 900.0)
    (job,) = search._jobs(state, trial, trial.steps[-1])
    again = run_job(job)
    assert not again.error
    assert again.score == measured.score > 0
    assert again.seconds > 0  # of fitting


def test_a_bad_time_is_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.tsv", [("a", "b"), ("c", "d")])
    said = call("train", tmp_path / "pairs.tsv", "--time", "soon")
    assert said.code == 2
    assert "expected a time such as 90s, 20m or 1h30m" in said.err
    said = call("train", tmp_path / "x.toml", "--trials", "2")
    assert said.code == 2
    assert "need a data file" in said.err


def test_the_winner_is_the_run_itself(searched: Path) -> None:
    run = searched / "run"
    state = load_search(run)
    assert state.done
    assert state.folds == 1
    assert sorted(state.members) == ["makarov-2020", "wu-2019"]  # one of each family
    table = (run / "leaderboard.md").read_text(encoding="utf-8")
    assert all(trial.name in table for trial in state.trials)
    said = call("info", run, "--depth", "1")
    assert said.code == 0, said.err
    assert "| rank | configuration |" in said.out
    assert "found an ensemble of 2 models" in call("train", run, "train.steps=7").err
    resumed = call("train", run / "trials" / state.members[1], "train.steps=7", "--quiet")
    assert resumed.code == 0, resumed.err
    assert (
        call("train", searched / "pairs.tsv", "--trials", "2", "--run", run, "--quiet").code == 0
    )  # finished: no change


def test_an_ensemble_has_all_members_and_says_what_each_costs(searched: Path) -> None:
    """The scores are those of `evaluate`, whose ensemble is named member by member."""
    run = searched / "run"
    state = load_search(run)
    names = state.members
    members = [run / "trials" / name for name in names]
    rows = [line.split("\t") for line in (searched / "valid.tsv").read_text(encoding="utf-8").splitlines()[:10]]
    judge = Judge.of(members[0], "cer")
    for folders in (members, members[:1]):
        expected = load_predictor(folders, "cpu").evaluate([(source, target) for source, target in rows])["cer"]
        assert judge.outputs(folders).score == -expected
    assert len(member_folders(run)) == 1
    assert len(state.members) == 2
    for text in (state.note, (run / "leaderboard.md").read_text(encoding="utf-8"), call("info", run).out):
        assert "ensemble of 2 models: cer " in text
        assert all(name in text for name in names)


@pytest.mark.parametrize(
    ("worse", "most", "kept", "told"),
    [
        ((), 3, "abd", "ensemble of 3 models: chrf 90.00; alone: a 60.00, b 59.00, c 58.00, d 20.00"),
        ((), 2, "ad", "ensemble of 2 models: chrf 90.00; alone: a 60.00, b 59.00, c 58.00, d 20.00"),
        (("abd",), 3, "ab", "ensemble of 2 models: chrf 90.00"),
        (("abd", "ab"), 3, "a", "every ensemble is worse than a alone (chrf: a 60.00, b 59.00"),
    ],
)
def test_an_ensemble_has_all_members_unless_they_are_worse_together(
    worse: tuple[str, ...], most: int, kept: str, told: str
) -> None:
    """Of each family one; then the best others."""
    alone = {"a": 60.0, "b": 59.0, "c": 58.0, "d": 20.0}

    class Fake(Judge):
        def outputs(self, folders: Sequence[Path], weights: Sequence[float] = ()) -> Outputs:
            names = "".join(folder.name for folder in folders)
            return Outputs([names], alone.get(names, 90.0), 0.02, f"{1000 * len(names):,} parameters")

        def weights(self, folders: Sequence[Path]) -> tuple[float, ...]:
            return tuple(1 / len(folders) for _ in folders)

        def is_worse(self, together: Outputs, alone: Outputs) -> bool:
            return together.texts[0] in worse

    folders = [Path("trials", name) for name in "dcab"]
    chosen = choose_members(
        folders, Fake(["x"], [["y"]], "words", "chrf", "cpu"), lambda one: str(one.name == "d"), most
    )
    assert "".join(folder.name for folder in chosen.members) == kept
    assert chosen.note[: len(told)] == told
    assert chosen.lines[0].startswith(f"ensemble of {min(most, 3)} models: chrf 90.00, ")
    assert [line.split(":")[0].strip() for line in chosen.lines[-4:]] == ["a", "b", "c", "d"]
    assert "1,000 parameters, 20.0 ms an input" in chosen.lines[-1]


def test_a_paired_test_says_what_is_worse() -> None:
    truth = [[f"word{number}"] for number in range(60)]
    right, half = [row[0] for row in truth], [row[0] if number % 2 else "x" for number, row in enumerate(truth)]
    judge = Judge([""] * 60, truth, "words", "exact_match", "cpu")
    good, bad, near = (Outputs(texts, 0.0, 0.0, "") for texts in (right, half, [*right[:59], "x"]))
    assert judge.is_worse(bad, good)
    assert not judge.is_worse(good, bad)
    assert not judge.is_worse(near, good)  # one input more wrong is chance


def test_distillation_says_what_is_lost(searched: Path) -> None:
    student, teacher = searched / "student", shutil.copytree(searched / "run", searched / "teacher")
    other = load_search(teacher).members[1]
    assert member_folders(teacher) == (teacher / "trials" / other,)
    said = call("distil", teacher, "--run", student, "train.steps=4", "--quiet")
    assert said.code == 0, said.err
    assert "teacher (2 models) → student on the validation pairs: " in said.out

    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (searched / f"{name}.data" / "train.jsonl").read_text().splitlines()]

    assert 90 <= len(rows("student")) <= 180
    held_out = (searched / "valid.tsv").read_text(encoding="utf-8").split("\t")[0]
    (searched / "more.txt").write_text(f"aabbaabb\n\n{rows('student')[0]['source']}\n{held_out}\naabbaabb\n")
    more = ("distil", teacher, "--unlabelled", searched / "more.txt", "train.steps=2", "--run")
    for name, least, added in (("all", 0.0, ["aabbaabb"]), ("none", 1.0, [])):
        said = call(*more, searched / name, "--min-confidence", least)
        assert said.code == 0, said.err
        (line,) = (line for line in said.err.splitlines() if line.startswith("unlabelled: "))
        assert line == f"unlabelled: the teacher is confident of its outputs for {len(added)} of 1 new inputs"
        assert [row["source"] for row in rows(name)[len(rows("student")) :]] == added
    assert "name another student" in call(*more, student).err
    assert "no such file" in call("distil", teacher, "--unlabelled", "gone.txt", "--run", searched / "x").err


def test_a_trial_keeps_its_weights_by_its_own_metric(cached: Path, tmp_path: Path) -> None:
    """Its outcome has the search's metric of the weights with the least loss."""
    given = [*TINY, "train.steps=8", "train.metric=loss", "train.optimizer.learning_rate=0.3"]
    found = run_job(job_for(tmp_path, 120, given, until=8))
    validations = [row["valid"] for row in Run(tmp_path / "a").metrics() if "valid" in row]
    best = min(validations, key=lambda valid: valid["loss"])
    assert found.score == -best["cer"]
    assert found.score != max(-valid["cer"] for valid in validations)


def test_stages_train_as_one_training_would(cached: Path, tmp_path: Path) -> None:
    """A stage is a pause: the cosine schedule, which depends on the last step, is that of the whole training."""
    given = [*TINY, "train.steps=12", "train.validate_every=4", "train.optimizer.schedule=cosine"]
    job = job_for(tmp_path, 80, given, until=12)
    whole = run_job(job)
    for until in (4, 12):
        staged = run_job(job._replace(folder=str(tmp_path / "staged"), until=until))
        assert staged.step == until
    assert staged.score == whole.score
    runs = [Run(tmp_path / name) for name in ("a", "staged")]
    assert runs[0].weights_path().read_bytes() == runs[1].weights_path().read_bytes()
    rates = [[row["learning_rate"] for row in run.metrics() if "loss" in row] for run in runs]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--time", "5m", "--restart"], "--restart: a search cannot be restarted"),
        (["--ensemble", "3", "preset=ngram-transducer"], "--ensemble 3: found ngram-transducer models alone"),
        (["--time", "0s"], "expected a time above zero, such as 20m"),
    ],
)
def test_searches_that_cannot_be(given: list[str], message: str, cached: Path, tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)]))
    result = call("train", path, "--run", str(tmp_path / "run"), *given)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "run").exists()
