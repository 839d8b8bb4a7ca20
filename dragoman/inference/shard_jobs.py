"""Do the shards of a job in this process, in several, or on a cluster. Nothing heavy is imported before that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from dragoman.base import ConfigError, DataError, progress
from dragoman.base.config import Range, setting

if TYPE_CHECKING:
    from dragoman.data import ReadingOptions
    from dragoman.decoding import DecodingOptions
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


class ShardState(NamedTuple):
    """How far a job is, by whatever worker."""

    done: int
    shards: int
    rows: int
    failed: int
    unseen: int  # rows with characters or words that training did not have
    unseen_texts: list[str]  # the most frequent of these

    @property
    def finished(self) -> bool:
        return self.done == self.shards

    def line(self, folder: str, as_json: bool) -> str:
        """How far the job in a folder is, and what to do next."""
        line = f"{self.done:,} of {self.shards:,} shards done, {self.rows:,} rows"
        if self.failed:
            line += f", {self.failed:,} failed (reasons in {folder}/part-*.rejected.jsonl)"
        if self.finished:
            return f"{line}; all outputs in order: cat {folder}/part-*.{'jsonl' if as_json else 'txt'}"
        return f"{line}; others work on the rest, or the same command goes on with it"


def do_shards(job: Job, options: ShardSettings) -> ShardState:
    """Do the shards that are not done and that no other worker does, and say how far the job is."""
    if options.cluster is None and (options.processes or 1) == 1:
        from dragoman.inference.shards import work

        with progress("rows") as done:
            work(job, worker_part(options.part), done)
    else:
        from dragoman.inference.shards import work_in_processes, work_on_cluster

        with progress("shards", len(job.shards)) as advance:
            if options.cluster is not None:
                work_on_cluster(job, options.cluster, counted(advance))
            else:
                work_in_processes(job, options.processes or 1, counted(advance))
    records = [record for shard in job.shards if (record := job.record(shard)) is not None]
    rows, failed, unseen = (sum(record[name] for record in records) for name in ("rows", "failed", "unseen"))
    texts = sum((Counter(record["unseen_texts"]) for record in records), Counter[str]())
    return ShardState(len(records), len(job.shards), rows, failed, unseen, [text for text, _ in texts.most_common(10)])


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


def predict_shards(
    run: Run,
    file: str | None,
    options: ShardSettings,
    decoding: DecodingOptions,
    reading: ReadingOptions,
    *,
    as_json: bool = False,
    device: str = "auto",
    warn: Callable[[str], None] = lambda line: None,
) -> ShardState:
    """Predict the inputs of a file in shards, one file each in `options.folder`: those that are not done yet."""
    from dragoman.inference.opened_inputs import check_reading
    from dragoman.inference.shards import Job, check_input, check_run

    if file is None or file == "-":
        raise DataError("--shards needs a FILE: standard input cannot be cut into shards")
    assert options.folder is not None
    check_reading(run, reading)
    check_input(Path(file))
    check_run(run, Path(file))
    data = reading.applied(run.config.data, file, warn)
    job = Job(
        str(run.folder.resolve()), str(Path(file).resolve()), str(Path(options.folder).resolve()), decoding,
        data.columns, data.header, reading.table, as_json,
        device_of_worker(device), options.size << 20,
    )  # fmt: skip
    job.open()
    state = do_shards(job, options)
    if state.unseen:
        shown = ", ".join(repr(text)[:40] for text in state.unseen_texts)
        warn(f"{state.unseen:,} rows have characters or words that training did not have, such as {shown}")
    return state
