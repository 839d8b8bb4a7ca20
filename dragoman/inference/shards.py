"""Prediction of any amount of text: a file is cut into shards, which any number of workers predict.

The folder of a job has a manifest that all workers must agree on and, for every shard that is done, part-00007.txt (or
.jsonl), part-00007.json with its counts and hashes, and part-00007.rejected.jsonl if rows failed. A shard is done when
its .json exists, which is written last: no death of a worker loses or doubles a row.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple
from uuid import uuid4

from dragoman.base import (
    ConfigError,
    DataError,
    DragomanError,
    MissingExtraError,
    RunError,
    check_no_pipes,
    create_empty,
    digest,
    lock,
    move,
    open_handle,
    plugins,
    remove_file,
    sync,
    write_text,
)
from dragoman.data.readers import READERS, check_file, compression_of, sentence_layout
from dragoman.decoding import NAME as SHORTLIST
from dragoman.decoding import DecodingOptions
from dragoman.decoding.constraints import ConstrainedInput, Terminology
from dragoman.inference.confidence import CALIBRATION
from dragoman.inference.inputs import WINDOW, StreamOptions, common_constraints
from dragoman.inference.labeler import Labeler
from dragoman.inference.load import load_run
from dragoman.inference.opened_inputs import SHOWN, FaultyInput, has_sentences, read_inputs, reads_files
from dragoman.inference.predictor import Predictor
from dragoman.runs import MEMBERS_FILE, Run, member_folders

Progress = Callable[[int], None]
MOST_UNSEEN = 10  # characters or words that training did not have in the record of a shard
FORMAT = 2
MANIFEST = "manifest.json"
WITHOUT_EFFECT = ("batch_size",)  # options that do not change outputs
# The files of a run folder that outputs depend on, beside its weights and tokenizers.
OUTPUT_FILES = ("config.toml", "data.json", MEMBERS_FILE, CALIBRATION, SHORTLIST)


class Shard(NamedTuple):
    """Lines that begin in the bytes start … end−1 of a text file, or row groups start … end−1 of a Parquet file."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Job:
    """A sharded prediction; it can be sent to another process or machine that sees the same files."""

    run: str
    file: str
    folder: str
    options: DecodingOptions
    columns: tuple[str, ...] = ()  # of the input: see DataConfig
    header: bool = False
    named_columns: bool = False  # the lines of the input are rows of columns, whatever its suffix
    as_json: bool = False
    device: str = "auto"
    shard_bytes: int = 8 << 20

    @cached_property
    def shards(self) -> list[Shard]:
        path = Path(self.file)
        return [Shard(number, *ends) for number, ends in enumerate(READERS.of(path).cut(path, self.shard_bytes))]

    def inputs(self, shard: Shard, run: Run) -> Iterator[ConstrainedInput | FaultyInput]:
        """The inputs of a shard; the place of one is its first byte, or the number of its row."""
        data = replace(run.config.data, columns=self.columns, header=self.header)
        return read_inputs(run, Path(self.file), data, self.named_columns, (shard.start, shard.end))

    @cached_property
    def stamp(self) -> tuple[int, ...]:
        """Size and times of the input before its content was hashed."""
        return file_stamp(Path(self.file))

    def check_unchanged(self) -> None:
        """Raise DataError if the input was edited since the manifest was made: shards would be of different texts."""
        if file_stamp(Path(self.file)) != self.stamp and digest(Path(self.file)) != self.manifest["input"]["hash"]:
            raise DataError(
                f"{self.file}: changed while its shards were predicted; name another folder and start again"
            )

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "input": {"name": Path(self.file).name, "bytes": self.stamp[0], "hash": digest(Path(self.file))},
            "run": run_digest(Path(self.run)),
            "options": described(self.options) | {"json": self.as_json},
            "reading": {"columns": self.columns, "header": self.header, "named_columns": self.named_columns},
            "shards": [[shard.start, shard.end] for shard in self.shards],
        }

    @cached_property
    def key(self) -> str:
        return hashlib.blake2b(json.dumps(self.manifest, sort_keys=True).encode(), digest_size=16).hexdigest()

    def part(self, shard: Shard, suffix: str) -> Path:
        width = max(5, len(str(len(self.shards))))
        return Path(self.folder) / f"part-{shard.number:0{width}}{suffix}"

    def output(self, shard: Shard) -> Path:
        return self.part(shard, ".jsonl" if self.as_json else ".txt")

    def record(self, shard: Shard) -> dict[str, Any] | None:
        """What the worker wrote down that did a shard; None: it is not done."""
        try:
            record: dict[str, Any] = json.loads(self.part(shard, ".json").read_text(encoding="utf-8"))
            size = self.output(shard).stat().st_size
        except (OSError, ValueError):
            return None
        return record if record.get("job") == self.key and record.get("bytes") == size else None

    def open(self) -> None:
        """Check the input and write the manifest, or compare it with the one that is there."""
        path, folder = Path(self.file), Path(self.folder)
        check_input(path)
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder}: found a file, expected a folder for the shards")
        folder.mkdir(parents=True, exist_ok=True)
        check_no_pipes(folder)
        manifest = folder / MANIFEST
        if not manifest.exists():
            if any(folder.glob("part-*")) and not manifest.exists():  # another worker may have begun just now
                raise DataError(
                    f"{folder}: found parts without {MANIFEST}, expected a new folder or one of the same job"
                )
            own = folder / f".{MANIFEST}.{uuid4().hex}"  # other workers may write it at the same moment
            write_text(own, json.dumps(self.manifest, indent=1) + "\n")
            move(own, manifest)
        try:
            existing = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{manifest}: cannot be read ({error}); remove the folder to begin again") from None
        wanted = json.loads(json.dumps(self.manifest))
        if existing != wanted:
            names = [name for name in wanted if not isinstance(existing, dict) or existing.get(name) != wanted[name]]
            differ = f"{', '.join(names)} differ{'s' if len(names) == 1 else ''}"
            raise ConfigError(
                f"{folder}: found shards of another job ({differ}), expected those of {self.run} and {self.file}; "
                "name another folder"
            )


def check_run(run: Run, path: Path) -> None:
    """Raise an error unless the inputs of a run are single lines or rows of a file."""
    if run.task.is_language_model:
        raise RunError(f"{run.folder}: this run is a language model; use `dragoman complete`")
    if reads_files(run):
        raise DataError(f"--shards: {run.folder} reads recordings or pictures, expected a run that reads text")
    if run.config.data.context:
        raise DataError(f"--shards: {run.folder} reads the sentences before each source, which a shard may not have")
    if has_sentences(run, path) and sentence_layout(path) != "lines":
        raise DataError(f"--shards: {path} has a word on each line, expected a sentence on each line")


def check_input(path: Path) -> None:
    """Raise DataError unless a file can be cut into shards."""
    check_file(path)
    if compression_of(path):
        raise DataError(f"{path}: found a compressed file, which cannot be cut into shards; decompress it first")
    READERS.of(path).cut(path, 1 << 40)


def file_stamp(path: Path) -> tuple[int, ...]:
    """Size and times of a file. The time of the last change of its data or times cannot be set back."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def run_digest(folder: Path) -> str:
    """A hash of all files of a run that outputs depend on, also those of its members, wherever the run lies."""
    run = Run(folder)
    files = [run.weights_path(), *(folder / name for name in OUTPUT_FILES), *sorted((folder / "tokenizer").rglob("*"))]
    hashes = [(path.name, digest(path)) for path in files if path.is_file()]
    hashes += [("member", run_digest(member)) for member in member_folders(folder)]
    return hashlib.blake2b(json.dumps(hashes).encode(), digest_size=16).hexdigest()


def described(value: Any) -> Any:
    """Options as JSON; files and runs that they name by their content."""
    if isinstance(value, DecodingOptions):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in WITHOUT_EFFECT}
        return {name: described(item) for name, item in own.items() if item not in (None, (), False)}
    if isinstance(value, Terminology):
        return described(value.terms)
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {
            field.name: described(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, str | Path) and 0 < len(str(value)) < 4096 and "\0" not in str(value):
        if os.path.isfile(value):  # noqa: PTH113  (it may be any text)
            return digest(Path(value))
        if os.path.isfile(os.path.join(value, "config.toml")):  # noqa: PTH113, PTH118
            return run_digest(Path(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [described(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


# --- one worker


class RowPredictor:
    """An open run that turns rows into lines of output."""

    def __init__(self, job: Job) -> None:
        self.job = job
        engine = load_run(job.run, job.device, job.options)
        if not isinstance(engine, Predictor | Labeler):
            raise DataError(f"{job.run}: this run is a language model; shards need one that answers lines")
        self.engine = engine
        self.constraints = common_constraints(job.options)
        self.unseen: dict[int, list[str]] = {}  # what training did not have, by the number of the row in the window

    def lines(self, rows: Sequence[ConstrainedInput | FaultyInput]) -> list[tuple[str, str]]:
        """(output line, fault) of every row; a row that failed has an empty output."""
        self.unseen = {}
        faults = {number: row.reason for number, row in enumerate(rows, 1) if isinstance(row, FaultyInput)}
        inputs = [
            ConstrainedInput("") if isinstance(row, FaultyInput) else row.with_defaults(self.constraints)
            for row in rows
        ]

        def fail(number: int, error: DragomanError) -> None:
            faults[number] = str(error).removeprefix(f"{rows[number - 1].place}: ")  # the side file has the place

        stream = StreamOptions(
            on_warning=lambda line: None,  # a long row is read in parts; among millions nobody reads a line about it
            on_unknown=self.unseen.__setitem__,
            on_failed=fail,
        )
        outputs = list(self.engine.stream(inputs, stream=stream, batch_size=self.job.options.batch_size))
        return [
            (self._line(output, faults.get(number)), faults.get(number, "")) for number, output in enumerate(outputs, 1)
        ]

    def _line(self, output: Any, fault: str | None) -> str:
        if self.job.as_json:
            return (
                str(output.as_json()) if fault is None else json.dumps({"text": "", "fault": fault}, ensure_ascii=False)
            )
        return "" if fault is not None else str(output.text).replace("\n", " ").replace("\r", " ")


def predict_shard(
    job: Job, shard: Shard, predictor: RowPredictor, progress: Progress = lambda count: None
) -> dict[str, Any]:
    """Predict one shard and put its files in place; returns its counts."""
    folder = Path(job.folder)
    temporary = folder / f".{job.output(shard).name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    rejected = temporary.with_name(temporary.name + ".rejected")
    rows, failed, hashed = 0, 0, hashlib.blake2b(digest_size=16)
    unseen_rows, unseen = 0, Counter[str]()
    try:
        with create_empty(temporary).open("wb") as out, contextlib.ExitStack() as stack:
            others: IO[str] | None = None
            inputs = job.inputs(shard, predictor.engine.run)
            while window := list(islice(inputs, WINDOW)):
                for row, (line, fault) in zip(window, predictor.lines(window), strict=True):
                    data = line.encode("utf-8", "replace") + b"\n"
                    out.write(data)
                    hashed.update(data)
                    rows += 1
                    if fault:
                        failed += 1
                        others = others or stack.enter_context(create_empty(rejected).open("w", encoding="utf-8"))
                        refused = {"row": rows, "place": int(row.place), "reason": fault}
                        others.write(json.dumps(refused | {"text": row.text[:SHOWN]}, ensure_ascii=False) + "\n")
                unseen_rows += len(predictor.unseen)
                unseen.update(surface for surfaces in predictor.unseen.values() for surface in surfaces)
                progress(len(window))
        job.check_unchanged()
        record: dict[str, Any] = {"job": job.key, "rows": rows, "failed": failed, "bytes": temporary.stat().st_size}
        record |= {
            "hash": hashed.hexdigest(),
            "unseen": unseen_rows,
            "unseen_texts": dict(unseen.most_common(MOST_UNSEEN)),
        }
        sync(temporary)
        final = job.part(shard, ".rejected.jsonl")
        if failed:
            sync(rejected)
            move(rejected, final)
        else:
            remove_file(final)
        move(temporary, job.output(shard))
        write_text(job.part(shard, ".json"), json.dumps(record) + "\n")
    finally:
        for path in (temporary, rejected):
            remove_file(path)
    return record


@contextlib.contextmanager
def claim(job: Job, shard: Shard) -> Iterator[bool]:
    """Yields whether no other process of this machine or file system works on a shard.

    The lock ends with its process, however that dies. Where a file system has no locks, two workers may do one shard
    twice; the results are the same and each replaces the file as a whole.
    """
    path = job.part(shard, ".lock")
    handle = open_handle(path, os.O_RDWR | os.O_CREAT)
    try:
        locked = lock(handle)
        if locked is not True:
            yield locked is None  # a file system without locks
            return
        for left in path.parent.glob(f".{job.output(shard).name}.*"):  # of a worker that was killed
            remove_file(left)
        yield True
        if job.record(shard) is not None:
            with contextlib.suppress(PermissionError):  # Windows: it is open
                remove_file(path)
    finally:
        os.close(handle)


def work(job: Job, part: tuple[int, int] = (0, 1), progress: Progress = lambda count: None) -> int:
    """Predict all shards that are not done and that no other worker has; returns how many this one did.

    `part` (i, n) restricts a worker to every n-th shard from the i-th on, for machines that cannot see each other's
    locks.
    """
    job.open()
    mine = job.shards[part[0] :: part[1]]
    first = (os.getpid() * 2_654_435_761) % max(1, len(mine)) if part == (0, 1) else 0  # workers begin apart
    done, predictor = 0, None
    for shard in (*mine[first:], *mine[:first]):
        if job.record(shard) is not None:
            continue
        with claim(job, shard) as free:
            if not free or job.record(shard) is not None:
                continue
            predictor = predictor or RowPredictor(job)
            predict_shard(job, shard, predictor, progress)
            done += 1
    return done


_LOCK = Lock()
_OPENED: dict[str, RowPredictor] = {}  # the runs of a process of a cluster, by job


def predict_on_cluster(named: list[str], job: Job, number: int) -> dict[str, Any]:
    """One shard, in a process that keeps the run open: for a cluster, whose scheduler gets counts alone.

    The process has not inherited the environment: it imports the plug-ins that the environment `named`.
    """
    plugins.use(named)
    shard = job.shards[number]
    with _LOCK, claim(job, shard):  # a run is used by one thread at a time
        if (record := job.record(shard)) is not None:
            return record
        if job.key not in _OPENED:
            _OPENED.clear()
            _OPENED[job.key] = RowPredictor(job)
        return predict_shard(job, shard, _OPENED[job.key])


# --- Workers: processes on this machine, or a Dask cluster


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
        with plugins.without_script():
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
                            f"{worker.exitcode}); lower --batch-size or shards.processes"
                        )
                    workers.append(start())
        progress(finished(job))
    finally:
        for worker in workers:
            worker.terminate()


RETRIES = 20  # of a shard whose worker died


def work_on_cluster(job: Job, address: str, progress: Callable[[int], None] = lambda done: None) -> None:
    """Predict all shards that are not done; the paths of the job must be the same on all machines."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError("shards.cluster", "distributed", "cluster") from None
    job.open()
    waiting = [shard.number for shard in job.shards if job.record(shard) is None]
    try:
        client = distributed.Client(address, timeout="30s")
    except (OSError, ValueError) as error:
        raise RunError(f"shards.cluster {address}: found no scheduler ({error})") from None
    done = len(job.shards) - len(waiting)
    named = plugins.names_in_environment()
    with client:
        futures = [
            client.submit(predict_on_cluster, named, job, number, key=f"dragoman-{job.key}-{number}", retries=RETRIES)
            for number in waiting
        ]
        try:
            for future in distributed.as_completed(futures):
                future.result()
                done += 1
                progress(done)
        except (OSError, RuntimeError) as error:  # a worker died too often, or the scheduler is gone
            raise RunError(
                f"shards.cluster {address}: {error}; the same command goes on with the shards left"
            ) from None
