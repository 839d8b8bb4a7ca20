"""One table over several tasks, as in GLUE: a row for each configuration, a column for each task, and the average."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.auto.protocol import file_name
from dragoman.auto.trial import train_trial
from dragoman.base import ConfigError, DataError
from dragoman.base import config as settings
from dragoman.runs.tasks import build
from dragoman.scoring import metrics_by_name
from dragoman.training import Display

TASK_FILE = "task.toml"


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
    }


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """The table as text: means of the seeds ± their standard deviation."""
    rows = [["", *(one["name"] for one in table["tasks"]), "average"]]
    rows.append(["", *(one["metric"] for one in table["tasks"]), ""])
    rows += [[row["name"], *map(shown, row["scores"]), f"{row['average']:.1f}"] for row in table["rows"]]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]


def shown(score: Mapping[str, Any]) -> str:
    deviation = "" if score["deviation"] is None else f" ± {score['deviation']:.1f}"
    return f"{score['mean']:.1f}{deviation}"
