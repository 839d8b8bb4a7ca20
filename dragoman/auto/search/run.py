"""Run a search: measure, plan, train in stages, train the winners to the end, make the best one the run itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.auto.options import SearchOptions
from dragoman.auto.search import plan
from dragoman.auto.search.members import Judge, choose_members, diverse
from dragoman.auto.search.rest import plan_alone, plan_remaining_time
from dragoman.auto.search.state import (
    TRIALS,
    SearchState,
    Trial,
    cost,
    is_member,
    is_timed,
    is_within_error,
    load_search,
    resources,
    seconds_left,
    steps_per_second,
    validation_seconds,
)
from dragoman.auto.search.trial_config import (
    affordable_fits,
    cost_of,
    family,
    is_length_given,
    is_slow,
    needed_folds,
    planned_settings,
    prepared_sizes,
    search_metric,
    write_folds,
)
from dragoman.auto.search.worker import (
    OVERDUE,
    Job,
    TrialPool,
    outcome_of_killed,
)
from dragoman.auto.trial import Outcome, is_fitted, state_of
from dragoman.base import (
    ConfigError,
    DragomanError,
    copy_into,
    make_folder,
    remove_file,
    remove_folder,
    usable_cores,
    write_text,
)
from dragoman.base import config as settings
from dragoman.runs import MEMBERS_FILE, locked, write_members
from dragoman.runs.tasks import Config, load, with_absolute_paths
from dragoman.training import SearchInterrupted, duration, resolve_device, signals_wait, stop_search_on_signals

PROBE = {"cpu": 24, "cuda": 300}  # steps that measure the speed; the first ones compile and warm up
PROBE_LOG = {"cpu": 8, "cuda": 2}  # steps between two measurements; on a GPU many steps capture a graph at first
LONGEST_PROBE = {"cpu": 20.0, "cuda": 40.0}  # seconds
GPU_WORKERS = 4
LAST_TRAININGS = 0.3  # share of the time that the stages leave for the last trainings, at least
GRACE = 0.1  # share of the time after the deadline at which jobs that do not pause are killed
DECODED = {"cpu": 300, "cuda": 2000}  # validation inputs that are decoded for the score, if there are as many
SLOWLY_DECODED = 300  # the most validation inputs for models that take minutes to fit
REST = 0.12  # share of the time that may stay unused
LATE = 0.02  # share of the time before the deadline at which it counts as over
UNDERTRAINED = 0.5  # of the usual steps
Say = Callable[[str], None]
Show = Callable[[SearchState], None]


class Search:
    """A search in a folder, which becomes the run folder of its winner."""

    def __init__(self, folder: Path, say: Say, show: Show, started: float | None = None) -> None:
        self.folder, self.say, self.show = folder, say, show
        self.trials = folder / TRIALS
        self.started, self.spent_before = time.time() if started is None else started, 0.0
        self.deadline = math.inf  # time.time() at which the search must end
        self.save_time: Callable[[], None] = lambda: None  # so that a search that is killed knows how long it ran

    # ---------------------------------------------------------------------- start

    def create(self, configs: dict[str, Config], options: SearchOptions, overrides: Sequence[str]) -> None:
        """Write the configurations of all trials and the state; nothing is trained yet."""
        first = next(iter(configs.values()))
        if not first.train.decode:
            raise ConfigError("train.decode: found 0, expected 1 or more: a search compares decoded outputs")
        if options.ensemble > 1 and all(is_fitted(config) for config in configs.values()):
            raise ConfigError(
                f"--ensemble {options.ensemble}: found {first.model.kind} models alone, which are the same with any "
                "seed; expected other models beside them; leave --ensemble out"
            )
        given: Any = settings.override({}, overrides).get("train", {})
        pairs, validation = prepared_sizes(first)
        configs, line = affordable_fits(configs, options.seconds, pairs)
        if line:
            self.say(line)
        folds = needed_folds(first, validation)
        device = resolve_device(first.train.device)
        cores = usable_cores()
        workers = options.workers or (min(GPU_WORKERS, cores) if device.type == "cuda" else cores)
        count = min(len(configs), options.trials or len(configs))
        if options.seconds is not None and options.trials is None:
            count = plan.affordable_trials(options.seconds, workers, count)
        folds = folds if count > 1 and options.ensemble == 1 else 1  # an ensemble needs no single best one
        fitted = [] if options.trials else [name for name, config in configs.items() if is_fitted(config)]
        names = list(dict.fromkeys([*list(configs)[:count], *fitted]))  # models without steps take little time
        workers = max(1, min(workers, max(len(names) * folds, options.ensemble)))
        state = SearchState(
            metric=search_metric(first, overrides),
            seconds=None if is_length_given(overrides) else options.seconds,
            ensemble=options.ensemble,
            folds=folds,
            workers=workers,
            threads=max(1, cores // workers),
            sizes=plan.stage_sizes(count),
            trials=[
                Trial(name, fitted=(number > 0 or len(names) == 1) and folds == 1 and is_fitted(configs[name]))
                for number, name in enumerate(names)
            ],
        )
        decoded = first.train.decode if "decode" in given else max(first.train.decode, DECODED[device.type])
        state.decoded = min(decoded, validation)
        with signals_wait():  # or a folder would be left that is neither a run nor a search
            make_folder(make_folder(self.folder) / TRIALS)
            for name in names:
                most = SLOWLY_DECODED if is_slow(configs[name]) else decoded
                self._write_configs(name, configs[name], state, min(decoded, most))
            state.save(self.folder)

    def _write_configs(self, name: str, config: Config, state: SearchState, decoded: int) -> None:
        """The files trials/NAME.toml and, with folds, trials/NAME-1.toml, …"""
        config = with_absolute_paths(replace(config, train=replace(config.train, decode=decoded)))
        write_text(self.trials / f"{name}.toml", settings.dump(config))
        if state.folds > 1:
            for fold, own in enumerate(write_folds(config, self.trials, state.folds), 1):
                write_text(self.trials / f"{name}-{fold}.toml", settings.dump(with_absolute_paths(own)))

    # ---------------------------------------------------------------------- stages

    def run(self) -> SearchState:
        """Go on with the search until the winner is the run of this folder."""
        with locked(self.folder):
            state = load_search(self.folder)
            self.spent_before = state.spent
            if state.done:
                return state
            if state.seconds is not None:
                self.deadline = self.started + state.seconds - state.spent
            self.save_time = partial(self._save, state)
            try:
                with stop_search_on_signals(), TrialPool(state.workers) as pool:
                    if not state.planned:
                        self._measure(state, pool)
                    while state.stage < len(state.sizes) - 1:
                        self._stage(state, pool)
                    if not state.members:
                        self._choose_members(state)
                    self._finish(state, pool)
            except SearchInterrupted:
                self._save(state)  # with the time that it has taken
                if state.best:
                    self.say(f"search: use the best so far: dragoman predict {self.folder / state.best} FILE")
                raise
            self._place(state)
            state.done = True
            self._save(state)
            self.show(state)
            return state

    def _save(self, state: SearchState) -> None:
        """Write the state, with the time that the search has taken, those before a kill or a stop included."""
        state.spent = self.spent_before + time.time() - self.started
        state.save(self.folder)

    def _jobs(self, state: SearchState, trial: Trial, steps: int, overrides: tuple[str, ...] = ()) -> list[Job]:
        names = [trial.name] if state.folds == 1 else [f"{trial.name}-{fold}" for fold in range(1, state.folds + 1)]
        given = (*trial.settings, *overrides)
        return [Job(*self._paths(name), steps, state.threads, state.metric, given) for name in names]

    def _paths(self, name: str) -> tuple[str, str]:
        return str(self.trials / f"{name}.toml"), str(self.trials / name)

    def _config(self, name: str) -> Config:
        return load(self.trials / f"{name}.toml")

    def _measure(self, state: SearchState, pool: TrialPool) -> None:
        """Measure the speed of all trials and fix the steps of every stage."""
        usual = {trial.name: self._config(trial.name).train for trial in state.trials}
        if state.seconds is None:
            for trial in state.trials:
                last, every = usual[trial.name].steps, usual[trial.name].validate_every
                trial.steps = [*plan.stage_steps(last, plan.stage_shares(len(state.trials)), every), last]
        else:
            device = resolve_device(next(iter(usual.values())).device).type
            self._forget_measurements(state, device)
            until = time.time() + plan.PROBING * state.seconds
            alone = self._measure_alone(state, pool, device) if state.ensemble == 1 else None
            probed, default = list[Trial](), state.trials[0]
            if alone is None or not self._is_too_long(state, alone):
                probed = self._probe(state, pool, device, until - time.time())
            if alone and not default.error and (not default.cost or self._is_too_long(state, cost(default))):
                self._plan_alone(state, alone)
            else:
                if not is_fitted(self._config(default.name)):  # it begins anew; a fitted model is complete
                    remove_folder(Path(self._paths(default.name)[1]))
                self._plan(state, probed, seconds_left(state, self.deadline))
        state.planned = True
        self._save(state)
        self.show(state)

    def _measure_alone(self, state: SearchState, pool: TrialPool, device: str) -> plan.Cost | None:
        """Begin the default model with all cores, and measure its speed; None: it failed.

        Its run stays: where there is no time for other models, it goes on from here.
        """
        default = state.trials[0]
        self.say(f"search: measuring the speed of {default.name}, up to {PROBE[device]} steps")
        config, folder = self._paths(default.name)
        job = self._probe_job(state, default, device, LONGEST_PROBE[device])
        job = job._replace(config=config, folder=folder, threads=usable_cores(), deadline=self.deadline)
        ((_, _, outcome),) = self._outcomes(pool, [(default, job)])
        default.error = outcome.error
        if outcome.error:
            self.say(f"  {default.name}: {outcome.error}")
            return None
        self.say(f"  {steps_per_second(outcome.speed)}")
        alone = cost_of(outcome, self._config(default.name))
        if all(trial.fitted for trial in state.trials[1:]) and not self._is_too_long(state, alone):
            default.cost = asdict(alone)  # there is nothing that it will train beside
        return alone

    def _is_too_long(self, state: SearchState, usual: plan.Cost) -> bool:
        return plan.is_too_long(usual, resources(state, seconds_left(state, self.deadline)))

    def _plan_alone(self, state: SearchState, alone: plan.Cost) -> None:
        """Give all of the time to the default model: its usual training does not fit in beside others."""
        done = state_of(Path(self._paths(state.trials[0].name)[1]))
        configs = {trial.name: self._config(trial.name) for trial in state.trials}
        left = seconds_left(state, self.deadline)
        self.say(f"search: {plan_alone(state, configs, alone, left, done.elapsed if done else 0.0)}")

    def _probe(self, state: SearchState, pool: TrialPool, device: str, budget: float) -> list[Trial]:
        """Train the trials for a few steps, until the budget is over or no more would fit into the rest of the time.

        Returns those that were measured. They begin anew afterwards, so that measuring changes no result.
        """
        self.say(f"search: measuring the speed of {len(state.trials)} configurations, up to {PROBE[device]} steps each")
        waiting = [trial for trial in state.trials if not trial.cost and not trial.error]
        longest = budget * state.workers / len(state.trials)
        waiting.sort(key=lambda trial: (trial is not state.trials[0], not trial.fitted))
        over = min(time.time() + budget, self.deadline)
        jobs = [(trial, self._probe_job(state, trial, device, longest)._replace(deadline=over)) for trial in waiting]

        def measured() -> list[Trial]:
            return [trial for trial in state.trials if trial.cost]

        def enough() -> bool:
            """Whether more trials than were measured would not fit if they cost as much as most of these."""
            if time.time() > over:
                return True
            costs = [cost(trial) for trial in measured()]
            if not costs or not (state.trials[0].cost or state.trials[0].error):
                return False
            if any(trial.fitted and not trial.cost and not trial.error for trial in state.trials):
                return False
            typical = sorted(costs, key=lambda cost: cost.seconds(cost.usual))[len(costs) // 2]
            costs += [typical] * (sum(not trial.error for trial in state.trials) - len(costs))
            return plan.make_plan(costs, resources(state, seconds_left(state, self.deadline))).trials <= len(measured())

        for trial, job, outcome in self._outcomes(pool, jobs, enough, over + budget):
            if outcome.error == OVERDUE:  # not measured: there is no time for it
                continue
            trial.error, done = outcome.error, f"{len(measured()) + 1} of {len(state.trials)}: {trial.name}"
            if outcome.error:
                self.say(f"  {trial.name}: {outcome.error}")
                continue
            config = load(job.config)
            if not is_fitted(config):
                remove_folder(Path(job.folder))
            trial.cost = asdict(cost_of(outcome, config))
            self._save(state)
            self.say(f"  {done}, {'fitted' if is_fitted(config) else steps_per_second(outcome.speed)}")
        return measured()

    def _probe_job(self, state: SearchState, trial: Trial, device: str, seconds: float) -> Job:
        """The job that measures a trial, in about so many seconds."""
        steps = PROBE[device]
        asked: tuple[str, ...] = (
            f"train.log_every={PROBE_LOG[device]}", f"train.validate_every={steps}", f"train.save_every={steps}",
        )  # fmt: skip
        if not trial.fitted:  # what is only measured is no trial that a tracker should show
            asked = (*asked, "train.track=[]", "train.tensorboard=false")
        longest = max(plan.SHORTEST_PROBE, min(LONGEST_PROBE[device], seconds))
        job = self._jobs(state, trial, steps, asked)[0]
        folder = job.folder if trial.fitted else f"{job.folder}-measured"
        return job._replace(seconds=longest, folder=folder)

    def _forget_measurements(self, state: SearchState, device: str) -> None:
        """Remove what a search that was killed while measuring has trained, but for the run of the default model."""
        for trial in state.trials:
            if not is_fitted(self._config(trial.name)):
                remove_folder(Path(self._probe_job(state, trial, device, 0.0).folder))

    def _plan(self, state: SearchState, probed: Sequence[Trial], left: float) -> None:
        """Fix which trials go on, and the steps of every stage, for the seconds left. Trials that failed come last."""
        failed = [trial for trial in state.trials if trial.error]
        if not probed:
            raise DragomanError(f"every configuration failed; the first: {failed[0].error}")
        given = resources(state, left)
        fitted = [trial for trial in probed if trial.fitted]
        trained = [trial for trial in probed if not trial.fitted]
        if trained:
            given = plan.without_undertrained(cost(trained[0]), given)
        if given.ensemble < state.ensemble:
            state.networks = given.ensemble
            self.say(f"search: there is time to train {given.ensemble} of {state.ensemble} members well enough")
        made = plan.make_plan([cost(trial) for trial in trained or fitted], given)
        chosen = [*trained[: made.trials], *fitted]
        known = {trial.name for trial in (*failed, *chosen)}
        if dropped := [trial.name for trial in state.trials if trial.name not in known]:
            self.say(f"search: the plan has no time for {', '.join(dropped)}; they wait for time that is left")
        later = [trial for trial in state.trials if trial.name not in known]
        for trial in later:
            trial.later = True
        state.trials = [*chosen, *later, *failed]
        state.sizes = plan.stage_sizes(made.trials if trained else 1)
        longest = given.longest(made.trials)
        for trial in chosen:
            last, usual = (cost(trial).last_step(longest, times) for times in (made.times, 1.0))
            every = min(cost(trial).every, last)
            trial.steps = [*plan.stage_steps(min(last, usual), made.shares, every), last]
            config = self._config(trial.name)
            trial.settings = [] if is_fitted(config) else planned_settings(config, last, every)

    def _stage(self, state: SearchState, pool: TrialPool) -> None:
        """Train the surviving trials to the end of the stage; finished ones are not trained again."""
        surviving = state.surviving()
        waiting = [trial for trial in surviving if not trial.error and len(trial.scores) <= state.stage]
        self.say(
            f"search: stage {state.stage + 1} of {len(state.sizes) - 1}, "
            f"{sum(not trial.error for trial in surviving)} configurations"
            + (f" × {state.folds} folds" if state.folds > 1 else "")
        )
        due = self.deadline - LAST_TRAININGS * (state.seconds or 0.0)  # the last trainings have their share of the time
        jobs = [
            (trial, job._replace(deadline=due - validation_seconds(trial)))
            for trial in waiting
            for job in self._jobs(state, trial, trial.steps[state.stage])
        ]
        by_trial: dict[str, dict[str, Outcome]] = {trial.name: {} for trial in waiting}
        for trial, job, outcome in self._outcomes(pool, jobs, lambda: time.time() >= due, self._overdue(state)):
            if outcome.error == OVERDUE:
                continue
            by_trial[trial.name][job.folder] = outcome
            if len(by_trial[trial.name]) < state.folds:
                continue
            # In the order of the folds: in that of their ends, the last bit of the mean would differ after a stop.
            outcomes = [outcome for _, outcome in sorted(by_trial[trial.name].items())]
            trial.error = next((each.error for each in outcomes if each.error), "")
            trial.fold_scores = [each.score for each in outcomes]
            trial.scores.append(sum(trial.fold_scores) / len(outcomes))
            trial.step, trial.parameters = max(each.step for each in outcomes), outcomes[0].parameters
            trial.seconds = sum(each.seconds for each in outcomes)
            self._save(state)
            self.show(state)
        if all(trial.error for trial in surviving):
            raise DragomanError(f"every configuration failed; the first: {surviving[0].error}")
        if time.time() >= due:
            state.note = "the stages took longer than planned, so the deadline ended them"
            self.say(f"search: {state.note}")
        state.stage += 1
        self._save(state)

    def _overdue(self, state: SearchState) -> float:
        return self.deadline + GRACE * (state.seconds or 0.0)

    def _outcomes(
        self,
        pool: TrialPool,
        jobs: Sequence[tuple[Trial, Job]],
        enough: Callable[[], bool] = lambda: False,
        overdue: float = math.inf,
    ) -> Iterator[tuple[Trial, Job, Outcome]]:
        """The outcomes of a pool, with the trials that the jobs belong to."""
        trials = {job: trial for trial, job in jobs}
        for job, outcome in pool.outcomes(trials, enough, overdue, self.save_time):
            yield trials[job], job, outcome

    # ---------------------------------------------------------------------- winners

    def _choose_members(self, state: SearchState) -> None:
        """The runs to train to the end: the best trials of the last stage and the usual one.

        For an ensemble: the best trial of each family, then further seeds of those with random weights.
        """
        best = state.winners()
        if state.ensemble == 1 and state.folds == 1:
            usual = [trial for trial in state.trials[:1] if not trial.error]
            fitted = [trial for trial in best if trial.fitted and trial not in usual]
            others = [trial for trial in best if not trial.fitted]
            last = [trial for trial in others if len(trial.scores) == len(others[0].scores) and trial not in usual]
            count = resources(state, 0.0).finalists(len(others)) - len(usual)
            state.members = [trial.name for trial in (*fitted, *last[: max(0, count)], *usual)]
            self._save(state)
            return
        families = {family(self._config(trial.name)) for trial in best}
        firsts = diverse(best, lambda trial: family(self._config(trial.name)), len(families))
        fitted = [trial for trial in firsts if is_fitted(self._config(trial.name))][: state.ensemble - 1]
        networks = min(state.networks or state.ensemble, state.ensemble - len(fitted))
        seeded = [trial for trial in firsts if trial not in fitted][:networks]
        turns = (divmod(number, len(seeded)) for number in range(networks if seeded else 0))
        state.members = [self._member(state, seeded[kind], seed) for seed, kind in turns]
        state.members += [self._member(state, trial, 0) for trial in fitted]
        self._save(state)

    def _member(self, state: SearchState, trial: Trial, seed: int) -> str:
        """The name of the run for a trial and one more seed; its configuration is written."""
        if seed == 0 and state.folds == 1:
            return trial.name
        name = f"{trial.name}-seed{seed}"
        config = self._config(trial.name)
        config = replace(config, train=replace(config.train, seed=config.train.seed + seed))
        write_text(self.trials / f"{name}.toml", settings.dump(config))
        return name

    def _finish(self, state: SearchState, pool: TrialPool) -> None:
        self.say(f"search: training {', '.join(state.members)} to the end")
        busy = sum(not is_fitted(self._config(name)) for name in state.members)
        jobs = [self._last_job(state, name, min(state.workers, max(1, busy))) for name in state.members]
        trained: dict[str, Outcome] = {}
        # A member that has not begun begins in any case where no other is done: its earlier stages are all it has.
        errors = self._train_to_end(state, pool, jobs, trained, lambda: bool(trained) and time.time() >= self.deadline)
        if not trained:
            raise DragomanError(f"every run failed; the first: {next(iter(errors.values()))}")
        for trial in state.trials:
            if not any(is_member(name, trial) for name in trained):
                trial.error = trial.error or errors.get(trial.name, "")
        state.members = [name for name in state.members if name in trained]
        if state.seconds is not None:
            self._use_rest(state, pool, trained)
        if state.ensemble == 1:
            best, default = max(state.members, key=lambda name: trained[name].score), state.trials[0].name
            if default in trained and best != default and is_within_error(trained[best], trained[default], state):
                state.note = f"{default} is kept: {best} is better by no more than the standard error of the score"
                self.say(f"search: {state.note}")
                best = default
            state.members = [best]
            # Of a trial with several seeds the table shows the run that is kept.
            next(trial for trial in state.trials if is_member(best, trial)).ended(trained[best])
        else:
            self._keep_better(state)
        self._say_under_trained(state)
        self._save(state)

    def _last_job(self, state: SearchState, name: str, busy: int) -> tuple[Trial, Job]:
        """The job that trains a run to its end beside others, `busy` in all."""
        trial = next(trial for trial in state.trials if is_member(name, trial))
        due, threads = self.deadline - validation_seconds(trial), max(1, usable_cores() // busy)
        given = tuple(trial.settings)
        return trial, Job(*self._paths(name), trial.steps[-1], threads, state.metric, given, deadline=due)

    def _say_under_trained(self, state: SearchState) -> None:
        winner = next(trial for trial in state.trials if is_member(state.members[0], trial))
        trial = state.trials[0] if winner.fitted else winner
        if trial.fitted or trial.error:
            return
        over = time.time() >= self.deadline - validation_seconds(trial) - LATE * (state.seconds or 0.0)
        usual = self._config(trial.name).train.steps
        if trial is winner and trial.step < min(trial.steps[-1], usual) and over:
            self.say(
                f"search: the deadline ended the training of {trial.name} after {trial.step:,} of {trial.steps[-1]:,} "
                f"steps; dragoman train {self.folder}{' train.minutes=0' if is_timed(trial) else ''} trains the rest"
            )
        if trial.step < UNDERTRAINED * usual and (over or trial.step >= trial.steps[-1]):
            needed = duration(trial.seconds * usual / max(1, trial.step))
            line = (
                f"{trial.name} is under-trained: {trial.step:,} steps of {usual:,}, which would take about {needed}; "
                "give --time more, or train without a search"
            )
            if line not in state.note:  # of a search that was stopped at its very end
                state.note = f"{state.note}; {line}" if state.note else line
            self.say(f"search: {line}")

    def _train_to_end(
        self,
        state: SearchState,
        pool: TrialPool,
        jobs: Sequence[tuple[Trial, Job]],
        trained: dict[str, Outcome],
        late: Callable[[], bool] = lambda: False,
    ) -> dict[str, str]:
        """Run jobs and add their outcomes by the names of their runs; returns the errors by trial."""
        errors: dict[str, str] = {}
        for trial, job, outcome in self._outcomes(pool, jobs, late, self._overdue(state)):
            outcome = outcome_of_killed(job) if outcome.error == OVERDUE else outcome
            if outcome.error:
                self.say(f"  {Path(job.folder).name}: {outcome.error}")
                errors.setdefault(trial.name, outcome.error)
                continue
            trained[Path(job.folder).name] = outcome
            if trial.final is None or outcome.score > trial.final:
                trial.ended(outcome)
            self._save(state)
            self.show(state)
        return errors

    def _use_rest(self, state: SearchState, pool: TrialPool, trained: dict[str, Outcome]) -> None:
        """While time is left: train on what was cut short, then candidates that waited, then further seeds."""
        assert state.seconds is not None
        tried: set[tuple[str, int]] = set()
        while (left := self.deadline - time.time()) > REST * state.seconds:
            runs = plan_remaining_time(state, trained, left, tried)
            for name, trial, steps in runs:
                if name != trial.name:
                    self._member(state, trial, int(name.rpartition("-seed")[2]))
                every = max(1, min(cost(trial).every, steps))
                trial.settings = planned_settings(self._config(trial.name), steps, every, trial.settings)
                trial.steps = [steps]
                tried.add((name, steps))
            jobs = [self._last_job(state, name, len(runs)) for name, _, _ in runs]
            if not jobs:
                return
            names = [name for name, _, _ in runs]
            self.say(f"search: {duration(left)} left; training {', '.join(names)}")
            state.members += [name for name in names if name not in state.members]
            self._save(state)  # a search that is stopped meanwhile goes on with these steps
            self._train_to_end(state, pool, jobs, trained)
            state.members = [name for name in state.members if name in trained]

    def _keep_better(self, state: SearchState) -> None:
        """Keep the members of the ensemble, and say all scores and what a member costs."""
        if len(state.members) < 2:
            return
        folders = [self.trials / name for name in state.members]
        judge = Judge.of(folders[0], state.metric)
        chosen = choose_members(folders, judge, lambda folder: family(self._config(folder.name)), state.ensemble)
        state.members, state.weights = [folder.name for folder in chosen.members], list(chosen.weights)
        state.note = chosen.note
        for line in (*chosen.lines, chosen.note):
            self.say(f"search: {line}")

    def _place(self, state: SearchState) -> None:
        """Copy the best run into this folder; its config.toml comes last, since it makes the folder a run."""
        best = self.trials / state.members[0]
        for path in best.iterdir():
            if path.name not in ("lock", "config.toml"):
                copy_into(path, self.folder / path.name)
        remove_file(self.folder / MEMBERS_FILE)
        if len(state.members) > 1:
            write_members(self.folder, [f"trials/{name}" for name in state.members[1:]], state.weights)
        write_text(self.folder / "config.toml", (best / "config.toml").read_text(encoding="utf-8"))
