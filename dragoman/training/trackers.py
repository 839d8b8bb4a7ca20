"""Trackers record the metrics of trainings: `train.track` names them.

A tracker imports its package when a training begins that it follows. One that fails later gives a warning, and training
goes on without it.
"""

from __future__ import annotations

import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from dragoman.base import (
    ConfigError,
    DragomanError,
    MissingExtraError,
    brief,
    hint,
    lock,
    make_folder,
    open_handle,
)
from dragoman.base.config import Table

OnMetrics = Callable[[int, Mapping[str, float]], None]  # called with a step and its metrics by name
TRACKING = "tracking"  # the file of a run folder with the name by which trackers find the run again
PROJECT = "dragoman"  # where a tracker wants the name of a project and its own variable names none


class TrackedRun(NamedTuple):
    """What a tracker is told about a training."""

    folder: Path
    settings: Mapping[str, Any]  # by their places, such as train.steps
    step: int = 0  # that is done: a run resumes
    search: Path | None = None  # the folder of the search that this run is a trial of

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def id(self) -> str:
        """The same whenever this run is trained; it is kept in the run folder."""
        with identified(self.folder) as name:
            return name

    @property
    def group(self) -> str:
        """The name of the search; empty for a run of its own."""
        return "" if self.search is None else self.search.name


@contextmanager
def identified(folder: Path) -> Iterator[str]:
    """The name of a folder for trackers, made when it is first asked for; one process at a time is inside the block."""
    handle = open_handle(folder / TRACKING, os.O_RDWR | os.O_CREAT)
    try:
        lock(handle, wait=True)
        if not (name := os.read(handle, 100).decode().strip()):
            name = uuid.uuid4().hex
            os.write(handle, f"{name}\n".encode())
        yield name
    finally:
        os.close(handle)


class Tracker(ABC):
    """A program that records trainings, as `dragoman.register` takes it."""

    name: ClassVar[str]  # in train.track
    package: ClassVar[str] = ""  # that it needs

    @abstractmethod
    def follow(self, run: TrackedRun) -> AbstractContextManager[OnMetrics]:
        """Record one training inside the block; it yields what is called with each step and its metrics.

        An exception that ends the block says how training ended: KeyboardInterrupt, or an error.
        """


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the run."""

    name, package = "tensorboard", "tensorboard"

    @contextmanager
    def follow(self, run: TrackedRun) -> Iterator[OnMetrics]:
        writer = import_module("torch.utils.tensorboard").SummaryWriter(
            str(make_folder(run.folder / "tensorboard")), purge_step=run.step + 1
        )

        def log(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        with writer:
            yield log


class MLflow(Tracker):
    """A run of MLflow, where MLFLOW_TRACKING_URI says; trials are children of their search."""

    name, package = "mlflow", "mlflow"
    most = 100  # settings that the server takes at once

    @contextmanager
    def follow(self, run: TrackedRun) -> Iterator[OnMetrics]:
        entities = import_module("mlflow.entities")
        client = import_module("mlflow").MlflowClient()
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        tags: dict[str, str] = {}
        parent = ""
        with identified(run.folder if run.search is None else run.search) as group:  # one process makes the parent
            known = client.get_experiment_by_name(project)
            experiment = client.create_experiment(project) if known is None else known.experiment_id
            if run.search is not None:
                parent = self._run(client, experiment, group, run.group, {})
                tags = {"mlflow.parentRunId": parent}
        own = self._run(client, experiment, run.id, run.name, tags)
        parameters = [entities.Param(place, str(value)[:500]) for place, value in run.settings.items()]
        for first in range(0, len(parameters) if not run.step else 0, self.most):
            client.log_batch(own, params=parameters[first : first + self.most])

        def log(step: int, metrics: Mapping[str, float]) -> None:
            now = int(1000 * time.time())
            client.log_batch(own, [entities.Metric(name, value, now, step) for name, value in metrics.items()])

        status = "FAILED"
        try:
            yield log
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            client.set_terminated(own, status)
            if parent:
                client.set_terminated(parent)  # until the next trial begins

    def _run(self, client: Any, experiment: str, name: str, shown: str, tags: dict[str, str]) -> str:
        """The run with our name for it, running."""
        found = client.search_runs([experiment], f"tags.dragoman = '{name}'", max_results=1)
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        made = client.create_run(experiment, tags={"dragoman": name, **tags}, run_name=shown)
        return str(made.info.run_id)


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; WANDB_MODE=offline writes to the run folder alone."""

    name, package = "wandb", "wandb"

    @contextmanager
    def follow(self, run: TrackedRun) -> Iterator[OnMetrics]:
        own = import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            id=run.id,
            name=run.name,
            group=run.group or None,
            config=dict(run.settings),
            resume="allow",
            reinit="create_new",
        )
        with own:  # it finishes with the exit code of an exception
            yield lambda step, metrics: own.log(dict(metrics), step=step)


class Trackio(Tracker):
    """A run of trackio, in its own folder (TRACKIO_DIR)."""

    name, package = "trackio", "trackio"

    @contextmanager
    def follow(self, run: TrackedRun) -> Iterator[OnMetrics]:
        own = import_module("trackio").init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{run.name}-{run.id[:8]}",
            group=run.group or None,
            config=dict(run.settings),
            resume="allow",
        )
        try:
            yield lambda step, metrics: own.log(dict(metrics), step=step)
        finally:
            own.finish()


TRACKERS: Table[str, Tracker] = Table(
    "tracker", lambda tracker: [tracker.name], [TensorBoard(), MLflow(), WeightsAndBiases(), Trackio()]
)


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that do not exist, or whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"train.track: found {name!r}, no such tracker. {hint(name, TRACKERS)}")
        package = TRACKERS[name].package
        if package and not is_installed(package):
            raise MissingExtraError(f"train.track = {name}", package)


def is_installed(package: str) -> bool:
    with suppress(ImportError, ValueError):  # ValueError: somebody has put None in its place
        return find_spec(package) is not None
    return False


class Followed:
    """One training and one tracker: what the tracker raises once training runs is a warning, given once."""

    def __init__(self, tracker: Tracker, run: TrackedRun, warn: Callable[[str], None]) -> None:
        self.tracker, self.run, self.warn = tracker, run, warn
        self.log: OnMetrics | None = None

    def __enter__(self) -> Followed:
        def begin() -> None:
            self.context = self.tracker.follow(self.run)
            self.log = self.context.__enter__()

        self._guard(begin)
        return self

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if (log := self.log) is not None:
            self._guard(lambda: log(step, metrics))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.log is not None:
            self._guard(lambda: self.context.__exit__(kind, error, trace), error)

    def _guard(self, action: Callable[[], object], own: BaseException | None = None) -> None:
        try:
            action()
        except DragomanError:
            raise
        except Exception as error:
            if error is not own:  # which the tracker has let through
                self.log = None
                self.warn(f"train.track: {self.tracker.name} failed and records no more of this run ({brief(error)})")


@contextmanager
def followed(
    names: Iterable[str], run: TrackedRun, on_metrics: OnMetrics | None, warn: Callable[[str], None]
) -> Iterator[OnMetrics]:
    """Hand the metrics of a training to trackers, then to the caller's function, whose errors end training."""
    with ExitStack() as stack:
        trackers = [stack.enter_context(Followed(TRACKERS[name], run, warn)) for name in names]

        def log(step: int, metrics: Mapping[str, float]) -> None:
            for tracker in trackers:
                tracker(step, metrics)
            if on_metrics is not None:
                on_metrics(step, metrics)

        yield log
