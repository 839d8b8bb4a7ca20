"""The processes of a search: each trains one trial up to a step."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.auto.trial import Outcome, outcome_of, state_of, train_trial
from dragoman.base import DragomanError, Interrupted, RunError, brief, is_out_of_memory, plugins
from dragoman.training import signals_wait

if TYPE_CHECKING:
    from dragoman.training import TrainingState

OVERDUE = "the time was over"
RETRIES = 2  # further attempts at a job whose process was killed
SAVING = 6.0  # seconds in which workers save a checkpoint when a search is stopped
PAUSE = 20.0  # seconds of waiting for an outcome after which a search saves how long it has run


class Job(NamedTuple):
    """Train the run of a configuration file up to a step; the metric compares it with others."""

    config: str
    folder: str
    until: int  # step
    threads: int
    metric: str
    overrides: tuple[str, ...] = ()
    seconds: float = math.inf  # of training after which it pauses earlier
    deadline: float = math.inf  # time.time() at which it pauses earlier; it validates after that

    def is_over(self, state: TrainingState) -> bool:
        late = state.step > 0 and time.time() >= self.deadline  # a run without a step has no weights
        return state.step >= self.until or state.seconds >= self.seconds or late


def end_with_parent() -> None:
    """End this process at once when the search that started it is gone, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the search ends this one
    search = multiprocessing.parent_process()
    assert search is not None

    def watch() -> None:
        search.join()  # returns at once if the search was killed before this process got so far
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_job(job: Job) -> Outcome:
    """Train; a failure such as a diverged loss or too little memory becomes part of the outcome."""
    import torch

    from dragoman.runs.tasks import load

    torch.set_num_threads(job.threads)
    try:
        config = load(job.config, job.overrides)
        return retry_while_locked(partial(train_trial, config, Path(job.folder), None, job.metric, job.is_over))
    except DragomanError as error:
        return failure(f"{error}")
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return failure(f"not enough memory ({brief(error)})")
    finally:
        gc.collect()  # a trainer and its parts refer to each other
        with suppress(RuntimeError):
            torch.cuda.empty_cache()  # the other processes of the search share the GPU


def failure(message: str) -> Outcome:
    return Outcome(-math.inf, 0, 0.0, 0.0, 0.0, 0.0, 0, error=message)


def outcome_of_killed(job: Job) -> Outcome:
    """Where the run of a job stands that was killed for lack of time: the best of its validations counts."""
    try:
        state = state_of(Path(job.folder))
        if state and state.best:
            return outcome_of(Path(job.folder), job.metric, state)._replace(complete=False)
        return failure(OVERDUE)
    except DragomanError:
        return failure(OVERDUE)


def retry_while_locked(action: Callable[[], Outcome], seconds: float = 10.0) -> Outcome:
    """Try again while a process of a killed search still holds the lock of the run; it ends within a second."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except RunError as error:
            if "another process" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


class Worker(NamedTuple):
    """A process and this end of its pipe."""

    process: BaseProcess
    pipe: Connection[Any, Any]


def serve(pipe: Connection[Any, Any], run: Callable[[Any], Any]) -> None:
    """Do the jobs that come through a pipe, until the search closes it, or until somebody ends this process alone."""
    end_with_parent()
    with suppress(EOFError, OSError, Interrupted):
        while True:
            job = pipe.recv()
            try:
                answer = run(job)
            except Interrupted:  # no failure of the trial: it is saved, and the search gives it to another process
                raise
            except Exception:
                answer = RuntimeError(traceback.format_exc())
            pipe.send(answer)


class TrialPool:
    """Processes that run jobs, each with a pipe of its own; `with` ends them, and they end with this process.

    They share no queue: its lock is held by the worker that waits for the next job, and if that worker is ended, the
    others wait for the lock for ever.
    """

    def __init__(self, workers: int, run: Callable[[Any], Any] = run_job) -> None:
        self.workers, self.run = workers, run
        self.idle: list[Worker] = []
        self.busy: dict[Any, tuple[Worker, Any]] = {}  # by pipe, with the job

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End all workers; after an error those that train save a checkpoint first."""
        workers = [*self.idle, *(worker for worker, _ in self.busy.values())]
        with signals_wait():
            for worker in workers:
                if kind is not None:
                    worker.process.terminate()
                worker.pipe.close()
            deadline = time.monotonic() + SAVING
            for worker in workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
                worker.process.kill()
                worker.process.join()

    def submit(self, job: Any) -> None:
        """Begin a job. No signal interrupts the start of a process: nobody would end one that is not listed yet."""
        with signals_wait():
            self.idle = [worker for worker in self.idle if worker.process.is_alive()]
            worker = self.idle.pop() if self.idle else self._start()
            with suppress(OSError):  # it has just been killed: `wait` finds the end of its pipe
                worker.pipe.send(job)
            self.busy[worker.pipe] = worker, job

    def _start(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, self.run))
        with plugins.without_script():
            process.start()
        there.close()
        return Worker(process, here)

    def wait(self, seconds: float = math.inf) -> list[tuple[Any, Any]]:
        """Jobs that have ended, each with its outcome; None: its process died."""
        ended = []
        for pipe in connection.wait(list(self.busy), None if math.isinf(seconds) else max(0.0, seconds)):
            worker, job = self.busy.pop(pipe)
            try:
                outcome = worker.pipe.recv()
                self.idle.append(worker)
            except (EOFError, OSError):
                outcome = None
            if isinstance(outcome, Exception):
                raise outcome
            ended.append((job, outcome))
        return ended

    def kill(self) -> list[Any]:
        """End the running jobs at once, and return them. Checkpoints are atomic, so no run is damaged."""
        with signals_wait():
            running, self.busy = list(self.busy.values()), {}
            for worker, _ in running:
                worker.process.kill()
                worker.process.join()
            return [job for _, job in running]

    def outcomes(
        self,
        jobs: Iterable[Job],
        enough: Callable[[], bool] = lambda: False,
        overdue: float = math.inf,
        waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Job, Outcome]]:
        """Outcomes as they come; their order does not change any result. Once `enough`, no further job begins.

        A job whose process dies runs again when the others are done, alone: it may have had too little memory beside
        them. It goes on from its last checkpoint, and fails if its process has died too often. From the time `overdue`
        on, jobs that still run are killed, once one has an outcome: fitting, loading and validating cannot pause. Their
        outcome is the error OVERDUE. `waiting` is called now and then.
        """
        queue, again, deaths = list(jobs)[::-1], list[Job](), Counter[Job]()
        succeeded = alone = False
        while queue or again or self.busy:
            if not queue and not self.busy:
                queue, again, alone = again, [], True
            while queue and len(self.busy) < (1 if alone else self.workers):
                self.submit(queue.pop())
            limit = overdue - time.time() if succeeded else math.inf
            ended = self.wait(min(limit, PAUSE))
            if not ended and limit <= PAUSE:
                yield from ((job, failure(OVERDUE)) for job in (*self.kill(), *queue, *again))
                return
            for job, outcome in ended:
                if outcome is None:
                    deaths[job] += 1
                    if deaths[job] <= RETRIES:
                        again.append(job)
                        continue
                    outcome = failure(f"its process was killed {deaths[job]} times, perhaps for lack of memory")
                succeeded = succeeded or not outcome.error
                yield job, outcome
            if not ended:
                waiting()
            elif enough():
                queue, again = [], []
