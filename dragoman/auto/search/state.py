"""The state of a search: one JSON file, written atomically after every trial of every stage."""

from __future__ import annotations

import json
import math
import re
import time
import typing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import variance
from typing import TYPE_CHECKING, Any

from dragoman.auto.search.plan import Cost, Resources
from dragoman.base import RunError, refuse_links, write_text
from dragoman.runs import SEARCH
from dragoman.scoring import higher_is_better, metrics_by_name

if TYPE_CHECKING:
    from dragoman.auto.trial import Outcome

TABLE_FILE = "leaderboard.md"
TRIALS = "trials"
FORMAT = 4
PAUSING = 1.0  # seconds to save a checkpoint and return
NAME = re.compile(r"\w[\w.-]*")  # of a run: it becomes the name of a folder


@dataclass
class Trial:
    """One candidate: its settings are in trials/NAME.toml, its run in trials/NAME (with folds: trials/NAME-1, …)."""

    name: str
    cost: dict[str, Any] = field(default_factory=dict)  # plan.Cost, once it was measured
    steps: list[int] = field(default_factory=list)  # at the end of each stage; the last entry: trained to the end
    settings: list[str] = field(default_factory=list)  # overrides of the plan, the same in every stage
    scores: list[float] = field(default_factory=list)  # after each stage; higher is better
    fold_scores: list[float] = field(default_factory=list)  # after the latest stage
    step: int = 0
    seconds: float = 0.0  # of training
    parameters: int = 0
    final: float | None = None  # score at the end of training
    error: str = ""
    fitted: bool = False  # complete at once: it takes part in no stage, and is compared at the end
    later: bool = False  # the plan has no time for it; it is trained if some is left at the end

    def ended(self, outcome: Outcome) -> None:
        """Take the figures of a run that was trained to the end."""
        self.final, self.step, self.seconds = outcome.score, outcome.step, outcome.seconds
        self.parameters = outcome.parameters

    @property
    def score(self) -> float:
        """The score that ranks the trial; the later the stage, the more it counts."""
        return -math.inf if self.error or not self.scores else self.scores[-1]

    @property
    def rank(self) -> tuple[float, float, float]:
        """Sorting key, best first: trained to the end, then by stage, then by score."""
        done = -math.inf if self.final is None or self.error else self.final
        return (-done, -len(self.scores), -self.score)


@dataclass
class SearchState:
    """Everything that a search needs to go on after it was killed."""

    metric: str
    seconds: float | None  # the time that was asked for
    ensemble: int
    folds: int
    workers: int
    threads: int
    sizes: list[int]  # trials of each stage
    trials: list[Trial]
    planned: bool = False
    stage: int = 0
    members: list[str] = field(default_factory=list)  # names of the runs that are trained to the end, best first
    networks: int = 0  # of an ensemble: as many as there is time to train; 0: all
    weights: list[float] = field(default_factory=list)  # of their votes, where they are an ensemble that votes
    done: bool = False
    decoded: int = 0  # validation inputs that are decoded to score a trial
    note: str = ""  # why the winner is not the one with the best score; of an ensemble its score
    spent: float = 0.0  # seconds of the time that the search has taken so far
    best: str = ""  # the run of the best trial that can predict already, as a path in the folder of the search
    format: int = FORMAT

    def surviving(self) -> list[Trial]:
        """The trials of the current stage: the best of the stage before, and the default model, the first trial."""
        chosen = [trial for trial in self.trials if not trial.fitted and not trial.later]
        for stage in range(1, self.stage + 1):
            usable = [trial for trial in chosen if len(trial.scores) >= stage and trial.scores[stage - 1] > -math.inf]
            usable.sort(key=lambda trial: -trial.scores[stage - 1])
            chosen = usable[: self.sizes[stage]]
            chosen += [trial for trial in self.trials[:1] if trial in usable and trial not in chosen]
        return chosen

    def ranking(self) -> list[Trial]:
        """All trials that were trained, best first; at the end the one whose run was placed is first."""
        placed = self.members[0] if self.done else ""
        trained = [trial for trial in self.trials if not trial.later or trial.final is not None]
        return sorted(trained, key=lambda trial: (not is_member(placed, trial), trial.rank))

    def winners(self) -> list[Trial]:
        """The trials that did not fail, best first. The default model, which is the first trial, is ahead of one that
        is better by no more than the standard error over the folds."""
        best = [trial for trial in self.ranking() if not trial.error]
        usual = self.trials[0]
        parts = (best[0].fold_scores, usual.fold_scores) if best else ((), ())
        if usual in best and len(usual.scores) == len(best[0].scores) and min(map(len, parts)) > 1:
            noise = math.sqrt(sum(variance(part) / len(part) for part in parts))
            if best[0].score - usual.score <= noise:
                best.sort(key=lambda trial: trial is not usual)
        return best

    def save(self, folder: Path) -> None:
        """Write search.json and leaderboard.md."""
        ranked = [trial.name for trial in self.ranking() if not trial.error]
        runs = [f"{TRIALS}/{name}{'-1' if self.folds > 1 else ''}" for name in ranked]
        self.best = next((run for run in runs if (folder / run / "weights.safetensors").is_file()), "")
        write_text(folder / SEARCH, json.dumps(asdict(self), indent=1))
        head = leaderboard_head(self)
        rows = [head, ("---",) * len(head), *leaderboard_rows(self)]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        write_text(folder / TABLE_FILE, f"{table}\n{self.note}\n" if self.note else table)


def cost(trial: Trial) -> Cost:
    return Cost(**trial.cost)


def validation_seconds(trial: Trial) -> float:
    """The time that a job needs after it was told to pause: it validates, and its process returns the outcome."""
    if not trial.cost:
        return 0.0
    return PAUSING + (0.0 if is_timed(trial) else 2 * cost(trial).validation)


def is_timed(trial: Trial) -> bool:
    """Whether a trial ends by train.minutes, which leaves time for the last validation."""
    return any(setting.startswith("train.minutes=") for setting in trial.settings)


def seconds_left(state: SearchState, deadline: float) -> float:
    """Of the time that was asked for; a tenth of it at least, so that there is a plan however long measuring took."""
    assert state.seconds is not None
    return max(state.seconds / 10, deadline - time.time())


def resources(state: SearchState, seconds: float) -> Resources:
    return Resources(seconds, state.workers, state.folds, state.ensemble)


def is_member(name: str, trial: Trial) -> bool:
    """Whether a run of a trial has this name; runs with further seeds are called trial-seed1 and so on."""
    return name == trial.name or name.rpartition("-seed")[0] == trial.name


def standard_error(score: float, metric: str, outputs: int, exact: float) -> float:
    """About how much a score varies with the choice of the validation pairs, by the share of exact outputs.

    The number of wrong outputs varies as a binomial does. The error of a wrong output varies by about half its mean.
    """
    known = metrics_by_name().get(metric)
    best = 0.0 if known is None or not known.higher_is_better else 100.0 / known.scale
    wrong = outputs * (1 - exact)
    return max(0.0, best - score) * math.sqrt((exact + 0.25) / wrong) if wrong else 0.0


def is_within_error(best: Outcome, usual: Outcome, state: SearchState) -> bool:
    """Whether the best run is better than the default model by no more than the standard error."""
    noise = standard_error(usual.score, state.metric, state.decoded, usual.exact)
    return math.isfinite(noise) and best.score - usual.score <= noise


def has_search(folder: Path) -> bool:
    return (folder / SEARCH).is_file()


def load_search(folder: Path) -> SearchState:
    """Read search.json; RunError if it is damaged, or if a name or link in it leads out of the folder."""
    path = folder / SEARCH
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise RunError(f"{path}: found format {table['format']}, expected {FORMAT}; another version made it")
        trials = [Trial(**trial) for trial in table.pop("trials")]
        state = SearchState(trials=trials, **table)
        check_types(state)
        for trial in trials:
            check_types(trial)
        for cost in (trial.cost for trial in trials if trial.cost):
            if not all(is_of_type(value, float) for value in asdict(Cost(**cost)).values()):
                raise TypeError(f"cost: found {cost!r}, expected numbers")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    names = [trial.name for trial in trials]
    wrong = next((name for name in (*names, *state.members) if not NAME.fullmatch(name)), None)
    wrong = wrong or next((name for name in state.members if not any(is_member(name, trial) for trial in trials)), None)
    if wrong is not None or not names:
        raise RunError(f"{path}: damaged (found the trial {wrong!r}, expected the name of a folder in {TRIALS}/)")
    # A search trains in these folders and removes them, and the folder may come from anybody.
    refuse_links(folder / TRIALS, *((folder / TRIALS).iterdir() if (folder / TRIALS).is_dir() else ()))
    return state


def check_types(part: Trial | SearchState) -> None:
    """Raise TypeError if a field that was read from JSON has another type than its annotation."""
    for name, kind in typing.get_type_hints(type(part)).items():
        if not is_of_type(value := getattr(part, name), kind):
            raise TypeError(f"{name}: found {value!r}, expected {kind}")


def is_of_type(value: Any, kind: Any) -> bool:
    """Whether a value has a type; a whole number is a number, and true or false is none."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return isinstance(value, dict)
    if origin is list:
        return isinstance(value, list) and all(is_of_type(item, inner[0]) for item in value)
    if inner:
        return any(is_of_type(value, choice) for choice in inner)
    return type(value) is kind or (type(value) is int and kind is float)


def steps_per_second(speed: float) -> str:
    return f"{speed:,.0f} steps per second" if speed >= 10 else f"{speed:.2g} steps per second"


def shown_score(value: float | None, metric: str) -> str:
    """A score as people read it; stored scores are negative where lower is better."""
    if value is None or not math.isfinite(value):
        return "–"
    value = value if higher_is_better(metric) else -value + 0.0  # never -0.0
    known = metrics_by_name().get(metric)
    return f"{value:.4g}" if known is None else known.format(value).strip()


def leaderboard_rows(state: SearchState) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for rank, trial in enumerate(state.ranking(), 1):
        stage = "failed" if trial.error else "to the end" if trial.final is not None else str(len(trial.scores))
        score = shown_score(trial.final if trial.final is not None else trial.score, state.metric)
        cells = (str(rank), trial.name, stage, f"{trial.step:,}", f"{trial.seconds:.0f} s")
        size = f"{trial.parameters / 1e6:.1f} M" if trial.parameters >= 1e5 else f"{trial.parameters:,}"
        rows.append((*cells, size, score))
    return rows


def leaderboard_head(state: SearchState) -> tuple[str, ...]:
    return ("rank", "configuration", "stages", "steps", "trained", "parameters", f"valid {state.metric}")


def check_folder(folder: Path) -> None:
    """A search needs a new folder, or one with a search; a search killed while it began leaves configurations alone."""
    if has_search(folder):
        return
    begun = {"trials", "lock", f".{SEARCH}.part"}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - begun):
        raise RunError(f"{folder}: already exists, and holds no search; name another folder with --run")


def describe(state: SearchState) -> str:
    best = next(trial for trial in state.trials if is_member(state.members[0], trial))
    if len(state.members) > 1:
        return f"best: {state.note}"
    return f"best: {best.name}, {state.metric} {shown_score(best.final, state.metric)} at {best.step:,} steps"
