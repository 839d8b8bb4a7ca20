"""Train several configurations under one protocol: same data, tokenizer, batches and budget, several seeds.

Or each on several tasks, as in GLUE: a row for each configuration, a column for each task, and the average.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.auto.glue import TASKS as GLUE
from dragoman.auto.glue import published_rows
from dragoman.auto.trial import is_fitted, train_trial
from dragoman.base import ConfigError, DataError, remove_folder
from dragoman.base import config as settings
from dragoman.runs import Run, is_run
from dragoman.runs.tasks import Config, build
from dragoman.scoring import metrics_by_name
from dragoman.training import Display

TASK_FILE = "task.toml"
PILOT_STEPS, MAX_PILOT = 40, 1000  # steps that measure the time of a step


class Budget(NamedTuple):
    """How long every configuration trains: exactly one of these is above 0."""

    steps: int = 0
    tokens: int = 0  # target tokens, padding left out
    minutes: float = 0.0


def under_protocol(config: Config, base: Config, steps: int, seed: int, own_tokenizer: bool = False) -> Config:
    """A configuration with its own model and optimizer, and the data, tokenizer, batches and budget of `base`.

    With `own_tokenizer` it keeps its tokenizer and the length that goes with it: characters need a larger one.
    """
    if type(config) is not type(base):
        raise ConfigError(f'task: found "{config.task}" beside "{base.task}", expected one task to compare')
    every = max(1, min(base.train.validate_every, steps // 10))
    return replace(
        config,
        data=replace(base.data, max_length=config.data.max_length) if own_tokenizer else base.data,
        tokenizer=config.tokenizer if own_tokenizer else base.tokenizer,
        search=base.search,
        train=replace(
            config.train,
            steps=steps,
            epochs=0.0,
            seed=seed,
            batch_tokens=base.train.batch_tokens,
            accumulate=base.train.accumulate,
            metric=base.train.metric,
            decode=base.train.decode,
            device=base.train.device,
            precision=base.train.precision,
            validate_every=every,
            save_every=max(every, steps // 2),
            log_every=max(1, min(50, steps // 20)),
            patience=0,
            optimizer=replace(
                config.train.optimizer, schedule=base.train.optimizer.schedule, warmup=max(1, steps // 10)
            ),
        ),
    )


def train_all(
    configs: Mapping[str, Config],
    folder: Path,
    budget: Budget,
    seeds: int,
    say: Callable[[str], None],
    own_tokenizers: bool = False,
) -> Iterator[tuple[str, list[Path]]]:
    """Train every configuration with the seeds 1 … `seeds` in folder/NAME-SEED; what is trained already is kept.

    The first configuration gives the data, the batches and, without `own_tokenizers`, the tokenizer of all. Yields each
    name with its run folders.
    """
    base = next(iter(configs.values()))
    for name, config in configs.items():
        folders = []
        for seed in range(1, seeds + 1):
            own = folder / f"{file_name(name)}-{seed}"
            fitted = is_fitted(config)  # no steps, and every seed gives the same model
            pilot = under_protocol(config, base, PILOT_STEPS, seed, own_tokenizers)
            steps = 1 if fitted else _steps(pilot, own, budget, say)
            trial = under_protocol(config, base, steps, seed, own_tokenizers)
            train_trial(trial, own, Display(quiet=False), name=f"{name}, seed {seed}", say=say)
            folders.append(own)
            if fitted:
                break
        yield name, folders


def file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-") or "system"


def _steps(pilot: Config, folder: Path, budget: Budget, say: Callable[[str], None]) -> int:
    """The steps of a budget; minutes and tokens are measured by a short pilot run, once for a folder."""
    if budget.steps:
        return budget.steps
    if folder.exists() and is_run(folder):  # resume with the steps that were chosen then
        return int(Run(folder).config.train.steps)
    beside = folder.with_name(f".{folder.name}.pilot")
    steps, fitting = PILOT_STEPS, 0.0
    try:
        while steps <= MAX_PILOT:  # a GPU is slow at first: measure longer as long as that is cheap
            train_trial(replace(pilot, train=replace(pilot.train, steps=steps)), beside)
            fitting = _fitting_steps(Run(beside).metrics(), budget)
            if fitting < 8 * steps:
                break
            steps *= 5
    finally:
        remove_folder(beside)
    chosen = max(10, int(fitting))
    say(f"{folder.name}: the budget is about {chosen:,} steps")
    return chosen


def _fitting_steps(rows: list[dict[str, Any]], budget: Budget) -> float:
    """How many steps fit into a budget, by the last quarter of a pilot's logged steps."""
    rows = [row for row in rows if "tokens" in row]
    first, last = rows[len(rows) * 3 // 4 - 1], rows[-1]
    steps = max(1, last["step"] - first["step"])
    if budget.tokens:
        return float(budget.tokens * steps / max(1, last["tokens"] - first["tokens"]))
    return float(budget.minutes * 60 * steps / max(1e-9, last["seconds"] - first["seconds"]))


# --- a table over several tasks


def read_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of every task: folders with a TASK_FILE, which names files beside it and `train.metric`."""
    paths = sorted(folder.glob(f"*/{TASK_FILE}"))
    if not paths:
        raise DataError(f"{folder}: found no task, expected folders that each have a {TASK_FILE} with data and metric")
    tasks = {}
    for path in paths:
        table: dict[str, Any] = dict(settings.read_toml(path))
        data = table.get("data", {})
        for part in ("train", "valid") if isinstance(data, dict) else ():
            if part not in data:
                raise DataError(f"{path}: data.{part}: missing; the table has the scores of data.valid")
            data[part] = beside(path.parent, data[part])
        tasks[path.parent.name] = table
    return tasks


def beside(folder: Path, value: Any) -> Any:
    """File names as paths, at any depth of lists and tables."""
    if isinstance(value, str):
        return str((folder / value).absolute())
    if isinstance(value, list):
        return [beside(folder, one) for one in value]
    return {key: beside(folder, one) for key, one in value.items()} if isinstance(value, dict) else value


def task_table(
    configs: Mapping[str, Path],
    tasks: Mapping[str, dict[str, Any]],
    folder: Path,
    overrides: Sequence[str],
    seeds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train every configuration on every task with the seeds 1 … `seeds`; the scores of the weights that it keeps.

    A configuration gives model and training, a task its data and metric. The same call resumes after a stop.
    """
    columns: dict[str, str] = {}  # task → metric
    plans = {}
    for name, path in configs.items():  # all settings are checked before the first training
        for task, table in tasks.items():
            with settings.errors_in(path, overrides):
                config = build(settings.merge(settings.read_toml(path), table), overrides)
            metric = columns.setdefault(task, config.train.metric)
            if not metrics_by_name()[metric].higher_is_better or config.train.metric != metric:
                raise ConfigError(
                    f"{task}/{TASK_FILE}: train.metric: found {config.train.metric!r}, expected one metric of which "
                    "more is better, since the table has an average"
                )
            plans[name, task] = config
    rows = []
    for name in configs:
        scores: list[dict[str, Any]] = []
        for task, metric in columns.items():
            found = []
            for seed in range(1, seeds + 1):
                own = folder / f"{file_name(name)}-{file_name(task)}-{seed}"
                config = plans[name, task]
                config = replace(config, train=replace(config.train, seed=seed))
                outcome = train_trial(config, own, Display(quiet=False), name=f"{name}, {task}, seed {seed}", say=say)
                found.append(outcome.score * metrics_by_name()[metric].points)
            spread = statistics.stdev(found) if seeds > 1 else None
            scores.append({"task": task, "mean": statistics.mean(found), "deviation": spread, "seeds": found})
        rows.append({"name": name, "scores": scores, "average": statistics.mean(one["mean"] for one in scores)})
    return {
        "tasks": [{"name": task, "metric": metrics_by_name()[metric].label} for task, metric in columns.items()],
        "rows": rows,
        "published": published_rows(columns),
    }


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """The table as text: means of the seeds ± their standard deviation; for tasks of GLUE the published table too."""
    rows = [["", *(one["name"] for one in table["tasks"]), "average"]]
    rows.append(["", *(one["metric"] for one in table["tasks"]), ""])
    rows += [[row["name"], *map(shown, row["scores"]), f"{row['average']:.1f}"] for row in table["rows"]]
    if not table["published"]:
        return columns_of(rows)
    others = [["", *GLUE, "average"]]
    others += [[row["name"], *map(str, row["scores"].values()), str(row["average"])] for row in table["published"]]
    return [*columns_of(rows), "", "GLUE as published (test server; Devlin et al. 2019, table 1)", *columns_of(others)]


def columns_of(rows: list[list[str]]) -> list[str]:
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]


def shown(score: Mapping[str, Any]) -> str:
    deviation = "" if score["deviation"] is None else f" ± {score['deviation']:.1f}"
    return f"{score['mean']:.1f}{deviation}"
