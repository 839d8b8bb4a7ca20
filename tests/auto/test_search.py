"""The model search: its plan, that a killed search goes on to the same leaderboard, ensembles, distillation."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.auto.configure import configure, configure_candidates
from dragoman.auto.search import plan, worker
from dragoman.auto.search.members import ensemble_score, helpful_members
from dragoman.auto.search.rest import rest_of_time
from dragoman.auto.search.run import (
    Pool,
    Search,
    SearchOptions,
    is_within_error,
)
from dragoman.auto.search.state import SearchState, Trial, check_folder, describe, load_search, standard_error
from dragoman.auto.search.trial_config import cost_of, planned_settings, prepared_validation, search_metric
from dragoman.auto.search.worker import Job, Outcome, run_job, warm_rate
from dragoman.commands.search import Duration
from dragoman.config import settings
from dragoman.errors import ConfigError, DragomanError, RunError
from dragoman.inference.load import load_predictor
from dragoman.runs import Run
from dragoman.runs.folder import member_folders, write_members
from dragoman.tasks.config import load
from dragoman.training.objectives.consistency import RDropConfig
from dragoman.training.signals import SearchStopped, stop_search_on_signals
from tests.conftest import call, words, write_rows
from tests.processes import Command, sleep_then

TINY = [
    "train.steps=6", "train.validate_every=2", "train.save_every=1", "train.decode=10", "train.batch_tokens=128",
    "train.device=cpu",
]  # fmt: skip


def test_stages_keep_a_quarter() -> None:
    assert plan.stage_sizes(16) == [16, 4, 1]
    assert plan.stage_sizes(2) == [2, 1]
    assert plan.stage_sizes(1) == [1]
    assert plan.stage_shares(16) == [0.25, 0.5]
    assert plan.stage_shares(16, 4.0) == [1.0, 1.0]
    assert plan.stage_shares(3) == [0.5]
    assert plan.stage_steps(900, [0.25, 0.5], 10) == [220, 450]
    assert plan.stage_steps(7, [0.25, 0.5], 10) == [7, 7]


@pytest.mark.parametrize("seconds", [60, 300, 1200, 7200])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("start", [0.0, 10.0])
@pytest.mark.parametrize("ensemble", [1, 5])
def test_the_plan_fits_into_the_time(seconds: float, workers: int, start: float, ensemble: int) -> None:
    costs = [plan.Cost(20 / (1 + number % 3), 2.0, start, 3000, 100) for number in range(15)]
    given = plan.Resources(seconds, workers, ensemble=ensemble)
    made = plan.make_plan(costs, given)
    shortest = ensemble * (start + 2.1)  # each run at least starts and is validated
    longest = plan.ALONE * seconds if made.trials == 1 else seconds  # a deadline ends the former
    assert plan.plan_seconds(costs, made, given) <= max(longest, shortest)
    assert made.trials == 1 or seconds > 60  # usual training takes 210 s or more
    assert made.trials == 15 or seconds < 7200
    assert made.trials == 1 or made.shares[0] >= 0.25


@pytest.mark.parametrize("seconds", [300, 540, 1200])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_search_keeps_its_time_whichever_trials_survive(seconds: float, workers: int) -> None:
    """The jobs of every stage are drawn and timed here; the plan only knows averages."""
    draw = random.Random(seconds + workers)
    late = 0
    for _ in range(100):
        costs = [plan.Cost(draw.uniform(8, 60), draw.uniform(0.5, 2), draw.uniform(2, 8), 3000, 100) for _ in range(16)]
        given = plan.Resources(seconds, workers)
        made = plan.make_plan(costs, given)
        longest, total = given.longest(made.trials), 0.0
        going, trained = list(range(made.trials)), [0] * made.trials
        for share, size in zip([*made.shares, None], [*plan.stage_sizes(made.trials)[1:], 0], strict=False):
            jobs = []
            for one in going:
                last = costs[one].last_step(longest, made.times if share is None else 1.0)
                end = last if share is None else plan.stage_steps(last, [share], costs[one].every)[0]
                jobs.append(costs[one].seconds(end - trained[one]) if end > trained[one] else 0.0)
                trained[one] = max(end, trained[one])
            total += plan.scheduled(jobs, workers)
            kept = size if size > 1 else given.finalists(made.trials) - 1
            others = [one for one in going if one]
            going = [0, *draw.sample(others, min(kept, len(others)))]
        late += total > seconds and made.trials > 1  # the deadline ends a trial that trains alone
    assert late <= 5, late


def test_more_time_means_more_trials_then_longer_ones() -> None:
    costs = [plan.Cost(20.0, 2.0, 0.0, 3000, 100)] * 15
    plans = [plan.make_plan(costs, plan.Resources(seconds, 2)) for seconds in (250, 600, 1200, 4000, 40_000)]
    sizes = [(made.trials, *made.shares[:1], made.times) for made in plans[1:]]
    assert plans[0].trials == 1  # usual training takes 210 s
    longer = plan.make_plan([plan.Cost(1.0, 2.0, 0.0, 9000, 100)] * 15, plan.Resources(300, 2))
    assert longer.trials == 1  # never less than the usual model trained for that time
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 2
    assert plans[-1] == plan.Plan(15, [1.0, 1.0], 4.0)


def test_patience_is_that_of_the_usual_training() -> None:
    assert plan.Cost(speed=100.0, validation=0.1, usual_every=150).every == 150
    assert plan.Cost(speed=100.0, validation=1.0, usual_every=150).every == 400  # validations take a fifth of the time


def test_a_second_allows_one_configuration() -> None:
    assert plan.affordable_trials(1.0, 2, 15) == 1
    cost = plan.Cost(speed=10.0, validation=2.0, usual=1000, usual_every=100)
    assert cost.last_step(1.0) == 1  # trained a little all the same
    assert cost.last_step(5.0) == 30
    assert cost.last_step(13.0) == 100
    assert cost.last_step(1e6) == 1000
    assert cost.last_step(1e6, 4.0) == 4000


def test_the_speed_is_that_after_the_start() -> None:
    captures, replays = [10.0, 12.0, 11.0], [900.0, 1000.0, 1000.0, 1100.0]
    assert 900 <= warm_rate([1.0, *captures, *replays]) <= 1100
    assert warm_rate([8.0]) == 8.0
    assert warm_rate([]) == 0


def test_survivors_follow_from_scores_alone() -> None:
    trials = [Trial(name, scores=[score]) for name, score in zip("abcd", [0.1, 0.4, 0.3, 0.2], strict=True)]
    trials[1].error, trials[1].scores = "diverged", [-math.inf]
    state = SearchState("cer", None, 1, 1, 1, 1, [4, 2, 1], trials, stage=1)
    assert [trial.name for trial in state.surviving()] == ["c", "d", "a"]  # the first is the default model
    assert [trial.name for trial in state.ranking()] == ["c", "d", "a", "b"]
    trials[2].error = "diverged later"
    assert [trial.name for trial in state.surviving()] == ["c", "d", "a"]  # so that a resumed search goes on with these


def test_the_usual_choice_wins_within_the_noise_of_the_folds() -> None:
    def names(usual: list[float], other: list[float]) -> list[str]:
        trials = [
            Trial(name, scores=[sum(part) / len(part)], fold_scores=part)
            for name, part in (("usual", usual), ("other", other))
        ]
        return [trial.name for trial in SearchState("chrf", None, 1, 3, 1, 1, [2, 1], trials).winners()]

    assert names([80, 83, 86], [82, 83, 87]) == ["usual", "other"]
    assert names([80, 83, 86], [92, 93, 95]) == ["other", "usual"]
    assert names([80, 83, 86], [70, 71, 72]) == ["usual", "other"]
    assert names([80], [81]) == ["other", "usual"]  # one score has no standard error


@pytest.mark.parametrize(("workers", "members"), [(1, "ba"), (2, "ba"), (3, "bca"), (4, "bcda"), (9, "bcda")])
def test_idle_workers_train_more_trials_to_the_end(workers: int, members: str, tmp_path: Path) -> None:
    """The default model, the first, is always among them unless it failed; trials of earlier stages are not."""
    search = Search(tmp_path, lambda line: None, lambda state: None)

    def chosen(last: str) -> str:
        trials = [Trial(name, scores=[score] * (1 + (name in last))) for name, score in
                  zip("abcde", [0.1, 0.4, 0.3, 0.2, 0.05], strict=True)]  # fmt: skip
        trials[0].error = "" if "a" in last else "diverged"
        state = SearchState("chrf", None, 1, 1, workers, 1, [5, 4, 1], trials)
        search._choose_members(state)
        return "".join(state.members)

    assert chosen("abcd") == members
    assert chosen("ab") == "ba"
    assert chosen("bc") == "bc"


def outcome(score: float, error: str = "") -> Outcome:
    """Of a job that trained 100 steps at 10 a second."""
    return Outcome(
        -math.inf if error else score, 0 if error else 100, 10.0, 0.0, 1.0, 0.0 if error else 10.0, 7, error=error
    )


def test_the_usual_choice_wins_within_the_standard_error() -> None:
    """1,000 words of which 450 are wrong: 0.1347 · √(0.8 / 450) = 0.0057."""
    state = SearchState("cer", None, 1, 1, 1, 1, [2, 1], [Trial("a"), Trial("b")], decoded=1000)
    usual = outcome(-0.1347)._replace(exact=0.55)
    assert is_within_error(usual._replace(score=-0.1298), usual, state)
    assert not is_within_error(usual._replace(score=-0.1280), usual, state)
    assert not is_within_error(usual, usual._replace(score=-math.inf), state)
    assert standard_error(90.0, "chrf", 100, 0.0) == pytest.approx(0.5)
    assert standard_error(0.8, "exact_match", 100, 0.8) == pytest.approx(0.2 * math.sqrt(1.05 / 20))
    assert standard_error(-0.2, "wer", 0, 0.5) == 0


def test_the_standard_error_is_that_of_drawn_samples() -> None:
    """Wrong outputs have from one to three errors in ten letters."""
    draw = random.Random(1)
    for exact in (0.1, 0.5, 0.9):
        rates = [sum(draw.choice((1, 2, 3)) for _ in range(400) if draw.random() > exact) / 4000 for _ in range(400)]
        expected = stdev(rates)
        assert 0.75 <= standard_error(-mean(rates), "cer", 400, exact) / expected <= 1.35


class FakeSearch(Search):
    """A search whose jobs have these outcomes: the name of a run, then those of its jobs in turn."""

    def __init__(self, folder: Path, **results: list[Outcome]) -> None:
        super().__init__(folder, lambda line: None, lambda state: None)
        self.results = results

    def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
        for trial, job in jobs:
            yield trial, job, self.results[Path(job.folder).name].pop(0)

    def _use_rest(self, state: SearchState, pool: Any, trained: Any) -> None:
        """Jobs that take no time would leave all of it."""

    def _place(self, state: SearchState) -> None:
        pass


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_failures_lose_only_what_failed(seconds: float | None, cached: Path, tmp_path: Path) -> None:
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", [*rows[:200]])
    write_rows(tmp_path / "valid.tsv", [*rows[200:]])
    overrides = [*TINY[1:], "train.steps=300", f"data.valid={tmp_path / 'valid.tsv'}"]
    configs, _ = configure_candidates(str(tmp_path / "pairs.tsv"), overrides)
    chosen = dict(zip("abcd", configs.values(), strict=False))

    def run(name: str, **results: list[Outcome]) -> SearchState:
        measured = 0 if seconds is None else 1  # jobs before the stages
        search = FakeSearch(tmp_path / name, **{one: found[:measured] + found for one, found in results.items()})
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


@pytest.mark.parametrize(
    ("workers", "second", "steps"), [(2, 30.0, 3700), (2, 60.0, 7500), (2, 0.0, 1200), (1, None, 1200)]
)
def test_a_trial_that_trains_alone_is_measured_alone(
    workers: int, second: float | None, steps: int, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others it was slower: 10 steps a second. If the second measurement fails, the first one counts."""
    monkeypatch.setattr("dragoman.auto.search.run.seconds_left", lambda state, deadline: 100.0)
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    overrides = [*TINY[1:], f"data.valid={tmp_path / 'valid.tsv'}"]
    config, _ = configure(str(tmp_path / "pairs.tsv"), [*overrides, "train.steps=2000", "train.validate_every=100"])
    measured = outcome(0.5)._replace(overhead=0.0)
    failed = outcome(0, "out of memory")
    alone = measured._replace(speed=second, seconds=100 / second) if second else failed
    again = [] if second is None else [alone]
    search = FakeSearch(tmp_path / "run", a=[measured, *again, outcome(0.5)], b=[failed], c=[measured])
    search.create(dict.fromkeys("abc", config), SearchOptions(100.0, workers=workers), [])
    left_by_a_killed_search = tmp_path / "run" / "trials" / "a"
    left_by_a_killed_search.mkdir()
    found = search.run()
    assert [trial.name for trial in found.trials if not trial.error and not trial.later] == ["a"]
    assert found.trials[0].steps == [steps]
    assert not left_by_a_killed_search.exists()


@pytest.mark.parametrize(("score", "winner"), [(0.9, "b"), (0.1, "a")])
def test_a_fitted_model_competes_with_a_trial_that_trains_alone(
    score: float, winner: str, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was fitted while its speed was measured, so it takes no more time."""
    monkeypatch.setattr("dragoman.auto.search.run.seconds_left", lambda state, deadline: 100.0)
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    path, valid = str(tmp_path / "pairs.tsv"), f"data.valid={tmp_path / 'valid.tsv'}"
    neural, _ = configure(path, [*TINY[1:], valid, "train.steps=2000", "train.validate_every=100"])
    fitted, _ = configure(path, [valid, "train.device=cpu", "preset=ngram-transducer"])
    slow, _ = configure(path, [valid, "train.device=cpu", "preset=phrase-based"])
    measured = outcome(0.5)._replace(overhead=0.0)
    found = [measured, outcome(score)]
    search = FakeSearch(tmp_path / "run", a=[measured, measured, outcome(0.5)], b=found, c=[measured])
    search.create({"a": neural, "c": neural, "b": fitted, "d": slow}, SearchOptions(100.0, workers=2), [])
    state = search.run()
    assert {trial.name for trial in state.ranking()} == {"a", "b"}
    assert state.members == [winner]
    failed = [outcome(0, "diverged")]
    search = FakeSearch(tmp_path / "only", a=[*failed], b=[measured, outcome(score)], c=[*failed])
    search.create({"a": neural, "c": neural, "b": fitted}, SearchOptions(100.0, workers=2), [])
    assert search.run().members == ["b"]


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


@pytest.mark.parametrize(("given", "decoded"), [([], 300), (["train.decode=70"], 70)])
def test_a_search_decodes_enough_validation_pairs(given: list[str], decoded: int, cached: Path, tmp_path: Path) -> None:
    rows = [(word, word[::-1]) for word in words(800)]
    write_rows(tmp_path / "pairs.tsv", rows[:400])
    write_rows(tmp_path / "valid.tsv", rows[400:])
    overrides = [f"data.valid={tmp_path / 'valid.tsv'}", "train.device=cpu", "train.decode=20", *given]
    configs, _ = configure_candidates(str(tmp_path / "pairs.tsv"), overrides)
    search = Search(tmp_path / "run", lambda line: None, lambda state: None)
    search.create(configs, SearchOptions(60.0), given)
    assert load_search(tmp_path / "run").decoded == decoded
    assert {load(path).train.decode for path in (tmp_path / "run" / "trials").glob("*.toml")} == {decoded}
    none = {name: replace(one, train=replace(one.train, decode=0)) for name, one in configs.items()}
    with pytest.raises(ConfigError, match=r"train\.decode: found 0"):
        Search(tmp_path / "none", lambda line: None, lambda state: None).create(none, SearchOptions(60.0), given)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("text", "seconds"), [("20m", 1200), ("1h30m", 5400), ("45", 45), ("1.5m", 90)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_a_bad_time_is_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.tsv", [("a", "b"), ("c", "d")])
    said = call("train", tmp_path / "pairs.tsv", "--time", "soon")
    assert said.code == 2
    assert "expected a time such as 90s, 20m or 1h30m" in said.err
    said = call("train", tmp_path / "x.toml", "--trials", "2")
    assert said.code == 2
    assert "need a data file" in said.err


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over two configurations in processes of its own, with an ensemble of two."""
    place = tmp_path_factory.mktemp("search")
    some = words(90, seed=3, shortest=2, longest=4, letters="abcdef")
    write_rows(place / "pairs.tsv", [(word, word.upper()) for word in some])
    write_rows(place / "valid.tsv", [(word, word.upper()) for word in some[:30]] * 6)
    run_search(place, place / "run")
    return place


def command(place: Path, run: Path) -> list[str]:
    """The search as a command of its own process."""
    settings = [*TINY, f"data.cache={place / 'cache'}", f"data.valid={place / 'valid.tsv'}"]
    options = ["--trials", "2", "--ensemble", "2", "--run", str(run), "--quiet"]
    return [sys.executable, "-m", "dragoman", "train", str(place / "pairs.tsv"), *options, *settings]


def run_search(place: Path, run: Path) -> None:
    """Search until the end."""
    code, said = Command(command(place, run)[3:]).finish()
    assert code == 0, said


def scores(run: Path) -> list[tuple[str, list[float], float | None, int]]:
    """What the leaderboard follows from."""
    return [(trial.name, trial.scores, trial.final, trial.step) for trial in load_search(run).ranking()]


def test_the_winner_is_the_run_itself(searched: Path) -> None:
    run = searched / "run"
    state = load_search(run)
    assert state.done
    assert state.folds == 1
    assert state.members == ["wu-2019"]  # of two, since both together are no better
    table = (run / "leaderboard.md").read_text(encoding="utf-8")
    assert all(trial.name in table for trial in state.trials)
    said = call("info", run, "--depth", "1")
    assert said.code == 0, said.err
    assert "| rank | configuration |" in said.out
    resumed = call("train", run, "train.steps=7", "--quiet")
    assert resumed.code == 0, resumed.err
    assert (
        call("train", searched / "pairs.tsv", "--trials", "2", "--run", run, "--quiet").code == 0
    )  # finished: no change


def test_an_ensemble_is_scored_on_the_validation_inputs_and_dropped_where_it_is_no_better(searched: Path) -> None:
    """The scores that decide are those of `evaluate`, whose ensemble is named member by member."""
    run = searched / "run"
    state = load_search(run)
    members = [run / "trials" / name for name in ("wu-2019", "wu-2019-seed1")]
    rows = [line.split("\t") for line in (searched / "valid.tsv").read_text(encoding="utf-8").splitlines()[:10]]
    expected = [
        load_predictor(folders, "cpu").evaluate([(source, target) for source, target in rows], beam=1)["cer"]
        for folders in (members, members[:1])
    ]
    score = ensemble_score(members[0], "cer")
    assert [score(folders) for folders in (members, members[:1])] == [-value for value in expected]
    assert expected[0] >= expected[1]
    assert not member_folders(run)
    for text in (state.note, (run / "leaderboard.md").read_text(encoding="utf-8"), call("info", run).out):
        assert f"no ensemble is better than wu-2019 alone (cer: wu-2019 {100 * expected[1]:.2f} %, " in text


@pytest.mark.parametrize(
    ("gains", "kept", "told"),
    [
        ({"b": 5.0, "c": 1.0}, "abc", "ensemble of 3 models: chrf 66.00; alone: a 60.00, b 59.00, c 50.00"),
        (
            {"b": 5.0, "c": -1.0},
            "ab",
            "ensemble of 2 models: chrf 65.00; alone: a 60.00, b 59.00, c 50.00; without c,",
        ),
        ({"b": 0.0, "c": -1.0}, "a", "no ensemble is better than a alone (chrf: a 60.00, b 59.00, c 50.00)"),
    ],
)
def test_an_ensemble_keeps_the_members_that_help(gains: dict[str, float], kept: str, told: str) -> None:
    alone = {"a": 60.0, "b": 59.0, "c": 50.0}

    def score(members: Sequence[Path]) -> float:
        names = [member.name for member in members]
        return alone[names[0]] + sum(gains[name] for name in names[1:])

    found, note = helpful_members([Path("trials", name) for name in "acb"], score, "chrf", 3)
    assert ([member.name for member in found], note[: len(told)]) == ([*kept], told)


@pytest.mark.parametrize(
    ("metric", "overrides", "expected"),
    [("loss", [], "chrf"), ("per", [], "per"), ("wer", [], "exact_match"), ("wer", ["train.metric=wer"], "wer")],
)
def test_trials_are_compared_by_what_the_task_is_about(metric: str, overrides: list[str], expected: str) -> None:
    config: Any = SimpleNamespace(train=SimpleNamespace(metric=metric))
    assert search_metric(config, overrides) == expected


def test_a_second_signal_waits_until_the_workers_have_saved() -> None:
    saved = []

    def search() -> None:
        with stop_search_on_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                saved.append(True)

    with pytest.raises(SearchStopped):
        search()
    assert saved


def test_a_shortened_training_goes_on_with_its_warm_ups(cached: Path, tmp_path: Path) -> None:
    """Where the rest of the time lengthens a run; with the warm-up of the new length it could not be resumed."""
    rows = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    overrides = ["preset=luong-2015-small", "model.encoder.width=8", "model.decoder.width=8", *TINY[1:]]
    config, _ = configure(str(rows), [*overrides, "train.steps=40", "train.optimizer.warmup=20"])
    path, folder = tmp_path / "trial.toml", tmp_path / "trial"
    path.write_text(settings.dump(config), encoding="utf-8")
    begun = planned_settings(config, 2, 2)
    assert "train.optimizer.warmup=1" in begun
    for steps, given in ((2, begun), (4, planned_settings(config, 4, 2, begun))):
        done = run_job(Job(str(path), str(folder), steps, 1, "cer", tuple(given)))
        assert (done.error, done.step) == ("", steps)


def test_a_search_that_is_stopped_in_the_rest_of_its_time_goes_on(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan trains 24 steps, the rest of the time 30 and a second seed, which a signal keeps from its begin."""
    rows = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    small = ["preset=luong-2015-small", "model.encoder.width=8", "model.decoder.width=8"]
    config, _ = configure(str(rows), [*small, *TINY])

    def rest(state: SearchState, trained: Any, left: float, tried: Any) -> list[Any]:
        usual = state.trials[0]
        return [] if tried else [("a", usual, 30), ("a-seed1", usual, 30)]

    class Stopping(Search):
        def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
            for found in super()._outcomes(pool, jobs, *limits):
                yield found
                if found[1].until == 30:
                    time.sleep(1.1)
                    raise SearchStopped(143, 0)

    monkeypatch.setattr("dragoman.auto.search.run.rest_of_time", rest)
    search = Stopping(tmp_path / "run", lambda line: None, lambda state: None)
    search.create({"a": config}, SearchOptions(600.0, workers=1), [])
    with pytest.raises(SearchStopped):
        search.run()
    stopped = load_search(tmp_path / "run")
    assert (stopped.members, stopped.trials[0].steps) == (["a", "a-seed1"], [30])
    assert stopped.spent > 1
    done = Search(tmp_path / "run", lambda line: None, lambda state: None).run()
    assert done.done
    states = [worker.state_of(tmp_path / "run" / "trials" / name) for name in stopped.members]
    assert [state and state.step for state in states] == [30, 30]
    assert done.spent > stopped.spent


def test_the_table_shows_the_run_that_is_kept(tmp_path: Path) -> None:
    """Another seed of the default model is better by less than the standard error."""
    state = SearchState("cer", None, 1, 1, 1, 1, [1], [Trial("a", steps=[100])], decoded=1000, members=["a", "a-seed1"])
    kept = outcome(-0.1347)._replace(exact=0.55, step=90)
    search = FakeSearch(tmp_path, **{"a": [kept], "a-seed1": [kept._replace(score=-0.1300, step=100, seconds=12.0)]})
    search._config = lambda name: SimpleNamespace(  # type: ignore[method-assign, assignment, return-value]
        model=SimpleNamespace(kind="encoder-decoder"), train=SimpleNamespace(steps=100)
    )
    search._finish(state, None)  # type: ignore[arg-type]
    assert state.members == ["a"]
    assert (state.trials[0].final, state.trials[0].step, state.trials[0].seconds) == (-0.1347, 90, 10.0)


def test_the_rest_of_the_time_is_used() -> None:
    """Longer training of the best and the default model, then candidates that waited, then seeds; none twice."""
    measured = asdict(plan.Cost(speed=10.0, validation=0.0, usual=1000, usual_every=10))
    trials = [Trial(name, cost=measured, steps=[500], later=name == "c") for name in "abcd"]
    state = SearchState("chrf", 600.0, 1, 1, 3, 1, [2, 1], trials)
    done = outcome(50.0)._replace(step=500, seconds=50.0)
    trained = {"a": done, "b": done._replace(score=60.0)}

    def runs(seconds: float, *tried: tuple[str, int]) -> list[tuple[str, int]]:
        return [(name, steps) for name, _, steps in rest_of_time(state, trained, seconds, tried)]

    assert runs(100.0) == [("b", 1400), ("a", 1400), ("c", 900)]
    assert runs(100.0, ("c", 900)) == [("b", 1400), ("a", 1400)]  # a trial has one length: no seeds of b meanwhile
    assert runs(100.0, ("b", 1400), ("a", 1400), ("c", 900)) == [(f"b-seed{seed}", 500) for seed in (1, 2, 3)]
    assert runs(1000.0)[0] == ("b", 4000)  # at most four times the usual training
    trained |= {"a": done._replace(step=300), "b": done._replace(score=60.0, step=400)}  # they stopped early
    assert runs(100.0)[0] == ("c", 900)
    assert runs(5.0) == []
    trained["b-seed1"] = done
    assert runs(100.0)[1:] == [("b-seed2", 500), ("b-seed3", 500)]
    trained |= {f"b-seed{seed}": done for seed in range(2, 9)}
    assert runs(100.0)[1:] == []


def test_members_outside_the_run_are_refused(tmp_path: Path) -> None:
    write_members(tmp_path, ["../other"])
    with pytest.raises(Exception, match="expected folders inside"):
        member_folders(tmp_path)


def slow(*names: str) -> list[Any]:
    """Cases that are like others of the same test: `make campaign` runs them."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def unfinished_search(searched: Path, tmp_path: Path) -> Path:
    """A search whose models are trained, but which is not marked as done."""
    run = shutil.copytree(searched / "run", tmp_path / "run")
    table = json.loads((run / "search.json").read_text())
    (run / "search.json").write_text(json.dumps(table | {"done": False}))
    return run


@pytest.mark.parametrize("name", ["best/mine", *slow("metrics.jsonl", "ensemble.json")])
def test_a_search_writes_through_no_link(name: str, unfinished_search: Path, tmp_path: Path) -> None:
    """The folder of a stranger, whose best run is copied over links to a file of the user's."""
    mine, link = tmp_path / "mine.txt", unfinished_search / name
    mine.write_text("precious")
    if name == "best/mine":  # a link in the run that is copied
        link = unfinished_search / "trials" / load_search(unfinished_search).members[0] / name
    link.unlink(missing_ok=True)
    link.symlink_to(mine)
    done = call("train", unfinished_search, "--quiet")
    assert (done.code, mine.read_text()) == (2 if name == "best/mine" else 0, "precious")
    assert link.is_symlink() == (name == "best/mine")


@pytest.mark.parametrize("name", ["trials", *slow("best", "trials/0")])
def test_a_search_writes_into_no_linked_folder(name: str, unfinished_search: Path, tmp_path: Path) -> None:
    state = load_search(unfinished_search)
    mine, link = tmp_path / "mine", unfinished_search / name.replace("0", state.members[0])
    shutil.move(link, mine)
    link.symlink_to(mine)
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    done = call("train", unfinished_search, "--quiet")
    assert done.code == 2
    assert "found a symbolic link, expected a f" in done.err
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["trials"][0].update(name="../../mine"), "found the trial '../../mine', expected the name"),
        (lambda table: table.update(members=["../../mine"]), "found the trial '../../mine', expected the name"),
        (lambda table: table.update(members=["other"]), "found the trial 'other', expected the name"),
        (lambda table: table.update(trials=[]), "expected the name of a folder"),
        (lambda table: table.update(seconds="soon"), "seconds: found 'soon', expected float"),
        (lambda table: table["trials"][0].update(steps=[1, "x"]), "steps: found [1, 'x'], expected list[int]"),
        (lambda table: table["trials"][0].update(cost={"speed": "fast", "validation": 1}), "expected numbers"),
    ],
)
def test_a_damaged_search_is_refused(change: Any, message: str, unfinished_search: Path, tmp_path: Path) -> None:
    """A trial is a folder that the search removes and trains in: its name must not lead elsewhere."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.toml").write_text("")
    table = json.loads((unfinished_search / "search.json").read_text())
    change(table)
    (unfinished_search / "search.json").write_text(json.dumps(table))
    done = call("train", unfinished_search, "--quiet")
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow  # a search that is killed ten times
@pytest.mark.timeout(1800)
def test_a_killed_search_goes_on_to_the_same_leaderboard(searched: Path, tmp_path: Path) -> None:
    """Killed ten times, each time a little later after something in its folder has changed."""
    run, killed = tmp_path / "run", 0

    def content() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in run.rglob("*") if path.exists())

    while killed < 10:
        process = subprocess.Popen(command(searched, run), stderr=subprocess.DEVNULL)
        before, deadline = content(), time.monotonic() + 120
        while content() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.15 * killed)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed >= 5, "the search was finished too early to be killed"
    run_search(searched, run)
    assert scores(run) == scores(searched / "run")


LATE_WORKER = """
import multiprocessing, os, sys, time
def begin(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(1)  # the search is killed meanwhile
    from dragoman.auto.search.worker import end_with_parent
    end_with_parent()
    time.sleep(100)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=begin, args=(sys.argv[1],)).start()
    time.sleep(100)
"""


@pytest.mark.slow  # starts two processes
@pytest.mark.timeout(60)
def test_a_worker_that_begins_after_its_search_was_killed_ends(tmp_path: Path) -> None:
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(LATE_WORKER)
    process = subprocess.Popen([sys.executable, script, begun])
    while not begun.exists() or not begun.read_text().endswith(" "):
        time.sleep(0.02)
    process.kill()
    process.wait()
    worker_folder = Path("/proc") / begun.read_text().strip()
    while worker_folder.exists():  # the test's limit ends an endless wait
        time.sleep(0.1)


def test_ctrl_c_stops_a_search_and_the_same_command_goes_on(searched: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal; a search in the background begins with SIGINT ignored."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        command(searched, run), stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any((run / "trials").glob("*/lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == (
        "stopped; the trials that were training are saved, and the same command goes on with the search"
    )


def test_distillation_says_what_is_lost(searched: Path) -> None:
    student, teacher = searched / "student", shutil.copytree(searched / "run", searched / "teacher")
    write_members(teacher, ["trials/wu-2019-seed1"])
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


def test_a_search_killed_while_it_began_begins_again(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / ".search.json.part").touch()  # it was being written
    check_folder(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match="holds no search"):
        check_folder(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. GPU 0 is full."),
        MemoryError("2 GiB: not enough memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_trial_without_enough_memory_fails_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(job: Job) -> Outcome:
        raise error

    monkeypatch.setattr(worker, "train_up_to", full)
    failed = worker.run_job(Job("a.toml", "a", 10, 1, "chrf"))
    assert failed.error == f"not enough memory ({str(error) or 'MemoryError'})"
    error.args = (
        f"{str(error) or 'MemoryError'} Process 7 has 4.64 GiB memory in use. Process 8 …\nTry another setting.",
    )
    assert worker.run_job(Job("a.toml", "a", 10, 1, "chrf")).error == failed.error
    assert failed.score == -math.inf


def job_for(folder: Path, count: int, given: list[str], until: int) -> Job:
    """A job that trains the choice for so many reversed words, in the folder's part "a"."""
    rows = [(word, word[::-1]) for word in words(count)]
    config, _ = configure(str(write_rows(folder / "pairs.tsv", rows)), given)
    (folder / "a.toml").write_text(settings.dump(config))
    return Job(str(folder / "a.toml"), str(folder / "a"), until, 1, "cer")


def test_a_trial_keeps_its_weights_by_its_own_metric(cached: Path, tmp_path: Path) -> None:
    """Its outcome has the search's metric of the weights with the least loss."""
    given = [*TINY, "train.steps=8", "train.metric=loss", "train.optimizer.learning_rate=0.3"]
    found = worker.train_up_to(job_for(tmp_path, 120, given, until=8))
    validations = [row["valid"] for row in Run(tmp_path / "a").metrics() if "valid" in row]
    best = min(validations, key=lambda valid: valid["loss"])
    assert found.score == -best["cer"]
    assert found.score != max(-valid["cer"] for valid in validations)


class DyingPool(Pool):
    """A pool whose job "dies" ends its process."""

    def submit(self, job: Job) -> Any:
        return self.executor.submit(*((os._exit, 3) if job.folder == "dies" else (sleep_then, 0.05, outcome(1.0))))


def test_a_process_that_dies_fails_one_trial(tmp_path: Path) -> None:
    search = Search(tmp_path, lambda line: None, lambda state: None)
    search.workers = 2
    jobs = [(Trial(name), Job("", name, 1, 1, "cer")) for name in ("a", "b", "dies", "c", "d")]
    pool = DyingPool(2)
    found = {trial.name: outcome for trial, _, outcome in search._outcomes(pool, jobs)}
    pool.executor.shutdown()
    assert found.keys() == {"a", "b", "dies", "c", "d"}
    assert found["dies"].error == "its process was killed, perhaps for lack of memory"
    assert all(not outcome.error for name, outcome in found.items() if name != "dies")


@pytest.mark.slow
def test_jobs_that_do_not_pause_are_killed_once_one_is_done(tmp_path: Path) -> None:
    """Fitting, loading and validating cannot pause."""

    class SleepingPool(Pool):
        def submit(self, job: Job) -> Any:
            return self.executor.submit(sleep_then, float(job.folder), outcome(1.0))

    search = Search(tmp_path, lambda line: None, lambda state: None)
    search.workers = 2
    jobs = [(Trial(str(seconds)), Job("", str(seconds), 1, 1, "cer")) for seconds in (0.1, 600, 500)]
    pool, started = SleepingPool(2), time.time()
    found = {trial.name: outcome.error for trial, _, outcome in search._outcomes(pool, jobs, overdue=started + 3)}
    assert found == {"0.1": "", "600": worker.OVERDUE, "500": worker.OVERDUE}
    assert time.time() - started < 60
    assert pool.submit(jobs[0][1]).result().error == ""  # the pool goes on
    pool.executor.shutdown()


def test_a_deadline_ends_a_job_with_a_validation(cached: Path, tmp_path: Path) -> None:
    job = job_for(tmp_path, 80, [*TINY, "train.steps=4000", "train.validate_every=2000"], until=4000)
    late = worker.train_up_to(job._replace(deadline=time.time()))
    assert late.step == 1  # a run without a step has no weights
    assert math.isfinite(late.score)
    assert worker.outcome_of_killed(job)._replace(loading=late.loading, overhead=late.overhead) == late
    assert worker.outcome_of_killed(job._replace(folder=str(tmp_path / "none"))).error == worker.OVERDUE


def test_a_search_without_time_left_ends_with_what_it_has(cached: Path, tmp_path: Path) -> None:
    """A resumed search counts the seconds that it has had; its jobs get what is left."""
    rows = [(word, word[::-1]) for word in words(400)]
    write_rows(tmp_path / "pairs.tsv", rows[:200])
    write_rows(tmp_path / "valid.tsv", rows[200:])
    settings = [*TINY[1:], "train.steps=300", f"data.valid={tmp_path / 'valid.tsv'}"]
    config, _ = configure(str(tmp_path / "pairs.tsv"), settings)
    given: list[Job] = []

    class Watched(FakeSearch):
        def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
            given.extend(job for _, job in jobs)
            return super()._outcomes(pool, jobs)

    search = Watched(tmp_path / "run", a=[outcome(0.5)] * 3, b=[outcome(0.4)] * 3)
    search.create({"a": config, "b": config}, SearchOptions(1000.0, workers=2), [])
    state = load_search(tmp_path / "run")
    state.spent = 990.0
    state.save(tmp_path / "run")
    done = search.run()
    assert done.members == ["a"]
    assert 990 <= done.spent < 1000
    deadlines = [job.deadline for job in given if job.deadline < math.inf]
    assert deadlines
    assert max(deadlines) <= search.started + 10


def test_stages_train_as_one_training_would(cached: Path, tmp_path: Path) -> None:
    """A stage is a pause: the cosine schedule, which depends on the last step, is that of the whole training."""
    given = [*TINY, "train.steps=12", "train.validate_every=4", "train.optimizer.schedule=cosine"]
    job = job_for(tmp_path, 80, given, until=12)
    whole = worker.train_up_to(job)
    for until in (4, 12):
        staged = worker.train_up_to(job._replace(folder=str(tmp_path / "staged"), until=until))
        assert staged.step == until
    assert staged.score == whole.score
    runs = [Run(tmp_path / name) for name in ("a", "staged")]
    assert runs[0].weights_path().read_bytes() == runs[1].weights_path().read_bytes()
    rates = [[row["learning_rate"] for row in run.metrics() if "loss" in row] for run in runs]
    assert rates[0] == rates[1]


def test_overrides_that_some_models_lack_leave_those_out(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(400)]))
    plain, _ = configure_candidates(path, ["train.device=cpu"])
    smoothed, reasons = configure_candidates(path, ["train.device=cpu", "model.label_smoothing=0.2"])
    assert plain.keys() - smoothed.keys() == {"ngram-transducer"}
    assert any(line.startswith("search: ngram-transducer is left out (model.label_smoothing") for line in reasons)
    short, _ = configure_candidates(path, ["train.device=cpu", "train.epochs=3"])
    usual = next(iter(short))
    assert short[usual].train.steps < plain[usual].train.steps / 10


def test_validation_inputs_are_counted_not_pairs(cached: Path, tmp_path: Path) -> None:
    sources = words(200)
    valid = [(source, f"{source}{letter}") for source in sources[:20] for letter in "abcd"]
    write_rows(tmp_path / "valid.tsv", valid)
    path = str(write_rows(tmp_path / "pairs.tsv", [(source, source[::-1]) for source in sources[20:]]))
    config, _ = configure(path, [f"data.valid={tmp_path / 'valid.tsv'}", "train.device=cpu"])
    assert prepared_validation(config) == 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--time", "5m", "--restart"], "--restart: a search cannot be restarted"),
        (["--ensemble", "3", "preset=ngram-transducer"], "--ensemble 3: found ngram-transducer models"),
        (["--time", "0s"], "expected a time above zero, such as 20m"),
    ],
)
def test_searches_that_cannot_be(given: list[str], message: str, cached: Path, tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)]))
    result = call("train", path, "--run", str(tmp_path / "run"), *given)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("steps", "patience", "warmup"), [(400, 10, 20), (4000, 10, 200), (4001, 11, 200), (16_000, 40, 200), (1, 10, 1)]
)
def test_patience_and_warm_up_follow_the_length(steps: int, patience: int, warmup: int, tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)]))
    given = ["train.steps=4000", "train.patience=10", "train.optimizer.warmup=200", "train.device=cpu"]
    config, _ = configure(path, given)
    planned = settings.override({}, planned_settings(config, steps, 7))["train"]
    assert (planned["steps"], planned["validate_every"], planned["save_every"]) == (steps, 7, 7)
    assert (planned["patience"], planned["optimizer"]["warmup"]) == (patience, warmup)
    assert "objective" not in planned
    objective = RDropConfig(warmup=200)
    of_r_drop = replace(config, train=replace(config.train, objective=objective))
    planned = settings.override({}, planned_settings(of_r_drop, steps, 7))["train"]
    assert planned["objective"] == {"warmup": warmup}
