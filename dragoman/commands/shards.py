"""`dragoman predict --shards`: any amount of text, by any number of workers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.commands.printing import print_message, print_warning
from dragoman.commands.settings import Settings
from dragoman.config.settings import Range, setting
from dragoman.errors import ConfigError, DataError
from dragoman.progress import progress

if TYPE_CHECKING:
    from dragoman.decoding.options import DecodingOptions
    from dragoman.inference.shards import Job
    from dragoman.runs import Run


@dataclass(frozen=True)
class ShardSettings:
    """Any amount of text, cut into shards."""

    folder: str | None = setting(None, help="predict FILE in shards, one file each in this folder", flag="--shards")
    size: Annotated[int, Range(1, 1 << 20)] = setting(
        8, help="megabytes of a text file in a shard; of a .parquet file a row group is one"
    )
    processes: Annotated[int, Range(1, 1024)] | None = setting(None, help="processes on this machine; none: one")
    part: str | None = setting(
        None, help="I/N: do the shards of worker I of N alone, from 0; none: by torchrun or a SLURM array"
    )
    cluster: str | None = setting(None, help="let a Dask cluster do the shards, as tcp://host:8786")

    def problems(self) -> Iterator[str]:
        named = [name for name in ("processes", "part", "cluster") if getattr(self, name) is not None]
        if self.folder is None and named:
            yield f"{named[0]}: needs --shards FOLDER"
        elif len(named) > 1:
            yield f"{named[0]}: found {named[1]} with it, expected one of them"


def worker_part(part: str | None) -> tuple[int, int]:
    """Which worker this process is of how many: by `part`, torchrun or a SLURM array; (0, 1): shards are claimed."""
    if part is not None:
        words = part.split("/")
        if len(words) != 2 or not all(map(str.isdigit, words)) or int(words[0]) >= int(words[1]):
            raise ConfigError(f"shards.part: found {part!r}, expected I/N with I from 0 to N−1, such as 0/4")
        return int(words[0]), int(words[1])
    environment = os.environ
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if "SLURM_ARRAY_TASK_ID" in environment:
        number, least, count, step = (
            int(environment.get(f"SLURM_ARRAY_TASK_{name}", usual))
            for name, usual in (("ID", "0"), ("MIN", "0"), ("COUNT", "1"), ("STEP", "1"))
        )
        return (number - least) // max(1, step), count
    return 0, 1


def predict_shards(
    run: Run, settings: Settings, file: str | None, as_json: bool, decoding: DecodingOptions, device: str
) -> None:
    """Do the shards that are not done, and say how far the job is."""
    from dragoman.inference.shards import Job, check_input, check_run

    reading, shards = settings.data, settings.shards
    if file is None or file == "-":
        raise DataError("--shards needs a FILE: standard input cannot be cut into shards")
    assert shards.folder is not None
    check_input(Path(file))
    check_run(run, Path(file))
    data = reading.applied(run.config.data, file, print_warning)
    job = Job(
        str(run.folder.resolve()), str(Path(file).resolve()), str(Path(shards.folder).resolve()), decoding,
        data.columns, data.header, reading.table, as_json,
        device_of_worker(device), shards.size << 20,
    )  # fmt: skip
    job.open()
    do_shards(job, shards)
    print_state(job, shards.folder)


def do_shards(job: Job, shards: ShardSettings) -> None:
    if shards.cluster is None and (shards.processes or 1) == 1:
        from dragoman.inference.shards import work

        with progress("rows") as done:
            work(job, worker_part(shards.part), done)
        return
    from dragoman.inference.shards import work_in_processes, work_on_cluster

    with progress("shards", len(job.shards)) as advance:
        if shards.cluster is not None:
            work_on_cluster(job, shards.cluster, counted(advance))
        else:
            work_in_processes(job, shards.processes or 1, counted(advance))


def counted(advance: Callable[[int], None]) -> Callable[[int], None]:
    """A function that takes how many are done in all, and tells `advance` how many more."""
    shown = 0

    def report(done: int) -> None:
        nonlocal shown
        advance(done - shown)
        shown = done

    return report


def device_of_worker(device: str) -> str:
    """The GPU of this process under torchrun, where nobody names a device."""
    import torch

    if device == "auto" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return device


def print_state(job: Job, folder: str) -> None:
    records = [record for shard in job.shards if (record := job.record(shard)) is not None]
    rows, failed = sum(record["rows"] for record in records), sum(record["failed"] for record in records)
    suffix = "jsonl" if job.as_json else "txt"
    if unseen := sum(record["unseen"] for record in records):
        texts = sum((Counter(record["unseen_texts"]) for record in records), Counter[str]())
        shown = ", ".join(repr(text)[:40] for text, _ in texts.most_common(10))
        print_warning(f"{unseen:,} rows have characters or words that training did not have, such as {shown}")
    state = f"{len(records):,} of {len(job.shards):,} shards done, {rows:,} rows"
    if failed:
        state += f", {failed:,} failed (reasons in {folder}/part-*.rejected.jsonl)"
    if len(records) < len(job.shards):
        print_message(f"{state}; others work on the rest, or the same command goes on with it")
    else:
        print_message(f"{state}; all outputs in order: cat {folder}/part-*.{suffix}")
