"""Worker processes on this machine: spawned, each with a run of its own, and started again when they die."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from dragoman.errors import DragomanError, RunError
from dragoman.inference.shards.plan import Job
from dragoman.inference.shards.work import work

POLL = 0.2  # seconds
MAX_DEATHS = 20  # in a row, without a shard done in between


def _work(job: Job, threads: int) -> None:
    """The work of one process; engines and their threads are made inside it."""
    import sys

    import torch

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        work(job)
    except DragomanError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        sys.exit(2)


def finished(job: Job) -> int:
    return sum(job.record(shard) is not None for shard in job.shards)


def work_in_processes(job: Job, processes: int, progress: Callable[[int], None] = lambda done: None) -> None:
    """Predict all shards with several processes; `progress` gets the number of shards that are done.

    A process that is killed leaves its shard unfinished, and another one begins it again.
    """
    job.open()
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // processes)

    def start() -> BaseProcess:
        process = context.Process(target=_work, args=(job, threads), daemon=True)
        process.start()
        return process

    workers = [start() for _ in range(processes)]
    deaths, done = 0, finished(job)
    try:
        while workers:
            time.sleep(POLL)
            now = finished(job)
            if now > done:
                deaths, done = 0, now
                progress(done)
            for worker in [process for process in workers if not process.is_alive()]:
                workers.remove(worker)
                if worker.exitcode == 2:
                    raise RunError(f"{job.folder}: a worker could not go on (see above)")
                if worker.exitcode and done < len(job.shards):
                    deaths += 1
                    if deaths > MAX_DEATHS:
                        raise RunError(
                            f"{job.folder}: workers died {deaths} times without finishing a shard (exit code "
                            f"{worker.exitcode}); lower --batch-size or --processes"
                        )
                    workers.append(start())
        progress(finished(job))
    finally:
        for worker in workers:
            worker.terminate()
