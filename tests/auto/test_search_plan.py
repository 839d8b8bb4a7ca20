"""The plan of a model search: its trials, stages and time, and which trials go on."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.auto.configure import configure, configure_candidates
from dragoman.auto.options import SearchOptions
from dragoman.auto.search import plan
from dragoman.auto.search.rest import plan_alone, plan_remaining_time
from dragoman.auto.search.run import (
    Search,
)
from dragoman.auto.search.state import SearchState, Trial, is_within_error, load_search, standard_error
from dragoman.auto.search.trial_config import affordable_fits, planned_settings, prepared_sizes, search_metric
from dragoman.auto.search.worker import Job, run_job
from dragoman.auto.trial import warm_rate
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError
from dragoman.commands.options import Duration
from dragoman.runs.tasks.config import load
from dragoman.training.objectives.consistency import RDropConfig
from tests.auto.searches import TINY, outcome
from tests.conftest import words, write_rows


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


@pytest.mark.parametrize(("text", "seconds"), [("20m", 1200), ("1h30m", 5400), ("45", 45), ("1.5m", 90)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("metric", "overrides", "expected"),
    [("loss", [], "chrf"), ("per", [], "per"), ("wer", [], "exact_match"), ("wer", ["train.metric=wer"], "wer")],
)
def test_trials_are_compared_by_what_the_task_is_about(metric: str, overrides: list[str], expected: str) -> None:
    config: Any = SimpleNamespace(train=SimpleNamespace(metric=metric))
    assert search_metric(config, overrides) == expected


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


def test_the_rest_of_the_time_is_used() -> None:
    """Longer training of the best and the default model, then candidates that waited, then seeds; none twice."""
    measured = asdict(plan.Cost(speed=10.0, validation=0.0, usual=1000, usual_every=10))
    trials = [Trial(name, cost=measured, steps=[500], later=name == "c") for name in "abcd"]
    state = SearchState("chrf", 600.0, 1, 1, 3, 1, [2, 1], trials)
    done = outcome(50.0)._replace(step=500, seconds=50.0)
    trained = {"a": done, "b": done._replace(score=60.0)}

    def runs(seconds: float, *tried: tuple[str, int]) -> list[tuple[str, int]]:
        return [(name, steps) for name, _, steps in plan_remaining_time(state, trained, seconds, tried)]

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


@pytest.mark.parametrize(("steps", "joins"), [(400, True), (200, False)])
def test_a_model_that_copies_trains_beside_a_default_model_that_would_hardly_begin(
    steps: int, joins: bool, tmp_path: Path
) -> None:
    """400 and 200 steps at one a second, of which 100 fit into the time."""
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)]))
    presets = {"a": "luong-2015-small", "b": "copy-transducer-small", "c": "luong-2015-small", "d": "ngram-transducer"}
    configs = {name: configure(path, [f"preset={preset}"])[0] for name, preset in presets.items()}
    trials = [Trial("a"), Trial("b"), Trial("c"), Trial("d", fitted=True)]
    state = SearchState("chrf", 200.0, 1, 3, 2, 1, [3, 1], trials)
    said = plan_alone(state, configs, plan.Cost(speed=1.0, validation=0.0, usual=steps), left=101.0, elapsed=20.0)
    assert ("b, which copies the source" in said) == joins
    assert [trial.name for trial in trials if not trial.later] == (["a", "b", "d"] if joins else ["a", "d"])
    assert (trials[0].steps, trials[0].settings) == ([steps], ["train.minutes=2.000"])
    assert (trials[1].settings == ["train.minutes=1.667"]) == joins
    assert (state.folds, state.sizes) == (1, [1])


@pytest.mark.parametrize(("asked", "tried"), [(SearchOptions(20.0), True), (SearchOptions(trials=2), False)])
def test_a_short_search_tries_models_without_steps(
    asked: SearchOptions, tried: bool, cached: Path, tmp_path: Path
) -> None:
    rows = [(word, " ".join(word.upper())) for word in words(500)]
    write_rows(tmp_path / "valid.tsv", rows[:200])
    path, valid = str(write_rows(tmp_path / "pairs.tsv", rows[200:])), f"data.valid={tmp_path / 'valid.tsv'}"
    configs, _ = configure_candidates(path, [valid, "train.device=cpu"])
    Search(tmp_path / "run", lambda line: None, lambda state: None).create(configs, asked, [])
    trials = load_search(tmp_path / "run").trials
    assert ("ngram-transducer" in [trial.name for trial in trials if trial.fitted]) == tried
    assert len(trials) < len(configs)


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
    assert prepared_sizes(config) == (180, 20)


@pytest.mark.parametrize(
    ("seconds", "pairs", "tuned"),
    [(None, 20_000, True), (300.0, 4000, True), (300.0, 6000, False), (600.0, 20_000, True)],
)
def test_phrases_are_tuned_where_there_is_time_for_it(
    seconds: float | None, pairs: int, tuned: bool, tmp_path: Path
) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)]))
    configs = {name: configure(path, [f"preset={name}"])[0] for name in ("transformer-tiny", "phrase-based")}
    kept, line = affordable_fits(configs, seconds, pairs)
    assert (kept == configs, "from --time 6m on" in line) == (tuned, not tuned)
    assert kept["phrase-based"].model.tune == (4 if tuned else 0)
    asked = {"phrase-based": configs["phrase-based"]}
    assert affordable_fits(asked, 1.0, pairs)[0] == asked


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


def test_an_ensemble_has_no_more_members_than_can_train_a_fair_share() -> None:
    usual = plan.Cost(speed=10.0, validation=1.0, usual=4000, usual_every=100)
    for seconds, members in ((60, 1), (200, 2), (400, 4), (600, 5)):
        given = plan.without_undertrained(usual, plan.Resources(seconds, workers=2, ensemble=5))
        assert given.ensemble == members
        assert members == 1 or usual.last_step(given.longest(2)) >= 1000
