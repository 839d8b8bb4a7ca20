"""Several processes prepare one corpus: each reads and tokenises some of its shards.

The results of finished jobs are files, so a process that is killed loses only the shards in work. The processes are
plain commands that read jobs from their standard input and answer on standard output, one JSON object on a line: a
script that prepares a corpus needs no `if __name__ == "__main__"` for them.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, DataError, DragomanError, sync, usable_cores, write_text
from dragoman.base import config as settings
from dragoman.data.config import DataConfig, paths_of
from dragoman.data.examples import Example
from dragoman.data.formats.base import ExampleFormat, TokenizerPair
from dragoman.data.formats.pairs import COPY_FORMAT, PAIR_FORMAT
from dragoman.data.shards import Shard, cut_shards
from dragoman.data.split import ValidPart, scan_shard, shard_examples, texts_of
from dragoman.data.tokenise import write_store
from dragoman.data.tokenizers.load import load_tokenizers

LARGE = 1 << 26  # bytes of all training files; fewer are prepared before the processes have started
WORK = "work"  # subfolder of a corpus that is being prepared
FORMATS = {each.name: each for each in (PAIR_FORMAT, COPY_FORMAT)}
ERRORS: dict[str, type[Exception]] = {each.__name__: each for each in (DataError, ConfigError, OSError)}


def part_folder(folder: Path, number: int) -> Path:
    """Where a worker writes the store of a shard."""
    return folder / WORK / f"part-{number:05d}"


def finished_job(folder: Path, kind: str, number: int) -> Path:
    """The result of a job; a process that is killed leaves it to the next one."""
    return folder / WORK / f"{kind}-{number:05d}.json"


def remove_shard(folder: Path, number: int) -> None:
    """Remove what a worker wrote of a shard. A process that is killed meanwhile leaves a shard that is not done."""
    finished_job(folder, "write", number).unlink()
    shutil.rmtree(part_folder(folder, number))


class WorkerLostError(DataError):
    """A worker died."""


class Jobs:
    """The jobs on the shards of a corpus that is prepared in a folder."""

    def __init__(self, config: DataConfig, example_format: ExampleFormat, folder: Path, shards: list[Shard]) -> None:
        self.config, self.format, self.folder, self.shards = config, example_format, folder, shards

    def answer(self, line: str) -> str:
        """Do the job that a line describes; returns its result, or what is wrong with the data or the disk."""
        kind, arguments = json.loads(line)
        job: Callable[..., Any] = getattr(self, kind)
        try:
            return json.dumps({"result": job(**arguments)})
        except DragomanError as error:
            return json.dumps({"error": type(error).__name__, "arguments": [str(error)]})
        except OSError as error:  # such as a full disk
            return json.dumps({"error": OSError.__name__, "arguments": [error.errno, error.strerror or str(error)]})

    def scan(self, number: int) -> dict[str, Any]:
        """The first pass: counts, and the examples that may become validation data."""
        return scan_shard(self.config, self.format, self.shards[number], lambda count: None).to_json()

    def sample(
        self, number: int, start: int, part: Sequence[Any], columns: Sequence[str], numbers: Sequence[int]
    ) -> list[str]:
        """The texts of these numbers, in ascending order, among those of the training examples of a shard."""
        wanted: dict[int, list[str]] = {}  # the columns of each example of which a text is wanted
        for wanted_number in numbers:
            index, column = divmod(wanted_number, len(columns))
            wanted.setdefault(index, []).append(columns[column])
        examples = enumerate(islice(self._train(number, start, part), max(wanted, default=-1) + 1))
        return [text for index, example in examples if index in wanted for text in texts_of(example, wanted[index])]

    def write(self, number: int, start: int, part: Sequence[Any]) -> dict[str, Any]:
        """Tokenise the training examples of a shard into a store of their own."""
        final = part_folder(self.folder, number)
        folder = final.with_name(f"{final.name}.{os.getpid()}")
        examples = self._train(number, start, part)
        counts = write_store(
            folder, examples, self._tokenizers, self.config.max_length, self.format, self.config.weights
        )
        for path in folder.iterdir():
            sync(path)
        shutil.rmtree(final, ignore_errors=True)  # of a process that was killed just then
        folder.rename(final)
        return vars(counts)

    @cached_property
    def _tokenizers(self) -> TokenizerPair:
        return load_tokenizers(self.folder / "tokenizer")

    def _train(self, number: int, start: int, part: Sequence[Any]) -> Iterator[Example]:
        threshold, first, kept = part
        valid = ValidPart(threshold, first, None if kept is None else frozenset(kept))
        shard = shard_examples(self.config, self.format, self.shards[number], start)
        return (example for index, example in shard if not valid.has(index, example))


class WorkerPool:
    """Processes that do the jobs on the shards of a corpus; `with` ends them."""

    def __init__(self, jobs: Jobs, processes: int) -> None:
        self.jobs, self.shards = jobs, jobs.shards
        self._setup = {
            "config": settings.as_table(jobs.config),
            "format": jobs.format.name,
            "folder": str(jobs.folder),
            "shards": jobs.shards,
        }
        self._mine = threading.local()
        self._workers: list[subprocess.Popen[str]] = []
        self._threads = ThreadPoolExecutor(processes, initializer=self._start)
        (jobs.folder / WORK).mkdir(exist_ok=True)

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        with suppress(OSError):  # a worker that did not start or died is noticed when it does not answer
            worker = subprocess.Popen(
                [sys.executable, "-c", "from dragoman.data.workers import serve; serve()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            self._mine.worker = worker
            self._workers.append(worker)
            print(json.dumps(self._setup), file=worker.stdin, flush=True)

    def run(self, kind: str, jobs: Sequence[dict[str, Any]]) -> Iterator[Any]:
        """Do the same kind of job on every shard; those that a killed process has finished are not done again."""
        return self._threads.map(lambda number: self._do(kind, number, jobs[number]), range(len(jobs)))

    def _do(self, kind: str, number: int, arguments: dict[str, Any]) -> Any:
        done = finished_job(self.jobs.folder, kind, number)
        if done.exists():
            return json.loads(done.read_text(encoding="utf-8"))
        answer = self._ask(json.dumps([kind, {"number": number, **arguments}]))
        if not answer:
            raise WorkerLostError(
                "a process that tokenises was lost, perhaps for lack of memory; run the same command again: it goes on "
                "where this one stopped"
            )
        content = json.loads(answer)
        if "error" in content:
            raise ERRORS.get(content["error"], DragomanError)(*content["arguments"])
        write_text(done, json.dumps(content["result"]))
        return content["result"]

    def _ask(self, job: str) -> str:
        """The answer of this thread's worker; empty if it died or never started."""
        worker: subprocess.Popen[str] | None = getattr(self._mine, "worker", None)
        if worker is None:
            return ""
        assert worker.stdout is not None
        with suppress(OSError):
            print(job, file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
            return answer if answer.endswith("\n") else ""  # part of an answer: it was killed while it wrote
        return ""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.communicate()


def end_with_parent() -> None:
    """End this process soon after the one that started it, also in the middle of a long job."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def serve() -> None:
    """Do jobs until the process that asks for them ends."""
    end_with_parent()
    gc.disable()  # millions of small objects and no cycles: the collector would take a third of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends the others
    answers, sys.stdout = sys.stdout, sys.stderr
    setup = json.loads(sys.stdin.readline())
    config = settings.build(DataConfig, setup["config"])
    shards = [Shard.from_json(content) for content in setup["shards"]]
    jobs = Jobs(config, FORMATS[setup["format"]], Path(setup["folder"]), shards)
    for line in sys.stdin:
        try:
            print(jobs.answer(line), file=answers, flush=True)
        except BrokenPipeError:  # the process that asked was killed
            os._exit(1)
        gc.collect()


def pool_for(config: DataConfig, example_format: ExampleFormat, folder: Path) -> WorkerPool | None:
    """Processes for a large corpus, one for each core; None if this process had better prepare it alone."""
    if config.context or config.memory or config.hallucinate or FORMATS.get(example_format.name) is not example_format:
        return None
    paths = [Path(path) for path in paths_of(config.train)]
    if sum(path.stat().st_size for path in paths if path.is_file()) < LARGE:
        return None
    shards = cut_shards(config, example_format)
    return WorkerPool(Jobs(config, example_format, folder, shards), min(usable_cores(), len(shards)))
