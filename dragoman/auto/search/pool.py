"""The processes of a search."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from dragoman.auto.search.worker import Job, Outcome, end_with_parent, run_job


class Pool:
    """Processes that run jobs, and end with this one; new ones replace them after one died."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.restart()

    def restart(self) -> None:
        """Start new processes; those before must have died."""
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(self.workers, mp_context=context, initializer=end_with_parent)

    def kill(self) -> None:
        """End the running jobs at once and start new processes. Checkpoints are atomic, so no run is damaged."""
        for process in list((self.executor._processes or {}).values()):
            process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.restart()

    def submit(self, job: Job) -> Future[Outcome]:
        """Run a job; a process that died while it waited is replaced."""
        try:
            return self.executor.submit(run_job, job)
        except BrokenProcessPool:
            self.restart()
            return self.executor.submit(run_job, job)


def is_broken(future: Future[Outcome]) -> bool:
    """Whether a process died, and with it the job of this future or one beside it."""
    return isinstance(future.exception(), BrokenProcessPool)


@contextmanager
def worker_pool(workers: int) -> Iterator[Pool]:
    """Processes that end with this one."""
    pool = Pool(workers)
    try:
        yield pool
    except BaseException:
        for process in list((pool.executor._processes or {}).values()):
            process.terminate()  # each saves a checkpoint
        raise
    finally:
        pool.executor.shutdown(wait=True, cancel_futures=True)
