"""Shards on a Dask cluster: workers read and write the shared files, the scheduler sees counts alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dragoman import plugins
from dragoman.errors import MissingExtraError, RunError
from dragoman.inference.shards.plan import Job
from dragoman.inference.shards.work import predict_shard_of

RETRIES = 20  # of a shard whose worker died


def work_on_cluster(job: Job, address: str, progress: Callable[[int], None] = lambda done: None) -> None:
    """Predict all shards that are not done; the paths of the job must be the same on all machines."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError("--cluster", "distributed", "cluster") from None
    job.open()
    waiting = [shard.number for shard in job.shards if job.record(shard) is None]
    try:
        client = distributed.Client(address, timeout="30s")
    except (OSError, ValueError) as error:
        raise RunError(f"--cluster {address}: found no scheduler ({error})") from None
    done = len(job.shards) - len(waiting)
    named = plugins.names_in_environment()
    with client:
        futures = [
            client.submit(predict_elsewhere, named, job, number, key=f"dragoman-{job.key}-{number}", retries=RETRIES)
            for number in waiting
        ]
        try:
            for future in distributed.as_completed(futures):
                future.result()
                done += 1
                progress(done)
        except (OSError, RuntimeError) as error:  # a worker died too often, or the scheduler is gone
            raise RunError(f"--cluster {address}: {error}; the same command goes on with the shards left") from None


def predict_elsewhere(named: list[str], job: Job, number: int) -> Any:
    """Predict a shard in a process that has not inherited the environment, with the plug-ins that it named."""
    plugins.use(named)
    return predict_shard_of(job, number)
