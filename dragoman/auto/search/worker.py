"""The processes of a search: each trains one trial up to a step."""

from __future__ import annotations

import gc
import io
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.errors import DragomanError, RunError, brief, is_out_of_memory
from dragoman.training.signals import signals_wait

if TYPE_CHECKING:
    from dragoman.training.checkpoints import TrainingState

OVERDUE = "the time was over"


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


class Outcome(NamedTuple):
    """Where a run stands after a job."""

    score: float  # of the best weights, higher is better
    step: int
    seconds: float  # of training
    loading: float  # seconds of this job before its first step
    overhead: float  # seconds after that besides training: validations, checkpoints
    speed: float  # steps per second, without those in which CUDA graphs were captured
    parameters: int
    exact: float = 0.0  # share of exact outputs in the best validation
    error: str = ""


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

    from dragoman.training.signals import Stopped

    try:
        return train_up_to(job)
    except (DragomanError, Stopped) as error:
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


def train_up_to(job: Job) -> Outcome:
    import torch

    from dragoman.runs import train
    from dragoman.tasks.config import load
    from dragoman.training.display import Display

    class Stopwatch(Display):
        """Shows nothing; notes when the first step begins."""

        loaded: float | None = None

        def start(self, step: int, steps: int) -> None:
            self.loaded = self.loaded or time.perf_counter()

    def pause(state: TrainingState) -> bool:
        late = state.step > 0 and time.time() >= job.deadline  # a run without a step has no weights
        return state.step >= job.until or state.seconds >= job.seconds or late

    torch.set_num_threads(job.threads)
    folder = Path(job.folder)
    config = load(job.config, job.overrides)
    started = time.perf_counter()
    before = state_of(folder)
    display = Stopwatch(io.StringIO(), quiet=True)
    state = with_patience_for_locks(lambda: train(config, folder, display, pause=pause))
    wall = time.perf_counter() - started
    loading = (display.loaded or started) - started
    trained = state.seconds - (before.seconds if before else 0.0)
    return outcome_of(folder, job.metric, state, loading, max(0.0, wall - loading - trained))


def outcome_of(folder: Path, metric: str, state: TrainingState, loading: float = 0.0, overhead: float = 0.0) -> Outcome:
    """Where a run stands, by its state and its log."""
    from dragoman.runs import Run
    from dragoman.training.checkpoints import read_tensors

    rows = Run(folder).metrics()
    rates = [row["tokens_per_second"] for row in rows if "loss" in row]
    speed = warm_rate(rates) * state.step / max(1, state.tokens)
    parameters = sum(tensor.numel() for tensor in read_tensors(Run(folder).weights_path()).values())
    validations = {row["step"]: row["valid"] for row in rows if "valid" in row}
    step = state.best[0][1] if state.best else max(validations, default=0)  # best by the metric of the run itself
    best = validations.get(step, {})
    fitting = max((row["seconds"] for row in rows), default=0.0)  # where a model was fitted by an earlier job
    times = (max(state.seconds, fitting), loading, overhead)
    return Outcome(
        score_of(best, metric), max(step, state.step), *times, speed, parameters, best.get("exact_match", 0.0)
    )


def outcome_of_killed(job: Job) -> Outcome:
    """Where the run of a job stands that was killed for lack of time: the best of its validations counts."""
    try:
        state = state_of(Path(job.folder))
        return outcome_of(Path(job.folder), job.metric, state) if state and state.best else failure(OVERDUE)
    except DragomanError:
        return failure(OVERDUE)


def warm_rate(rates: list[float]) -> float:
    """The upper quartile of tokens per second: steps that capture a CUDA graph for a new shape are much slower."""
    ordered = sorted(rates[1:] or rates)  # the first has the start in it
    return ordered[3 * (len(ordered) - 1) // 4] if ordered else 0.0


def score_of(validation: Mapping[str, float], metric: str) -> float:
    """A metric of a validation, with the sign that makes higher better."""
    from dragoman.scoring.registry import higher_is_better

    value = validation.get(metric, math.nan)
    return -math.inf if math.isnan(value) else value if higher_is_better(metric) else -value


def state_of(folder: Path) -> TrainingState | None:
    """The newest state of a run; None: it has not begun."""
    from dragoman.runs.resume import newest_state

    return newest_state(folder) if (folder / "config.toml").is_file() else None


def with_patience_for_locks(action: Any, seconds: float = 10.0) -> Any:
    """Try again while a process of a killed search still holds the lock of the run; it ends within a second."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except RunError as error:
            if "another process" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


class Pool:
    """Processes that run jobs, and end with this one; new ones replace them after one died.

    No signal interrupts a start: nobody would end a process that its executor does not know yet, and Python waits for
    all of them before it exits.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.restart()

    def restart(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(self.workers, mp_context=context, initializer=end_with_parent)

    def kill(self) -> None:
        """End the running jobs at once and start new processes. Checkpoints are atomic, so no run is damaged."""
        with signals_wait():
            for process in list((self.executor._processes or {}).values()):
                process.kill()
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.restart()

    def submit(self, job: Job) -> Future[Outcome]:
        """Run a job; a process that died while it waited is replaced."""
        with signals_wait():
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
    pool = Pool(workers)
    try:
        yield pool
    except BaseException:
        for process in list((pool.executor._processes or {}).values()):
            process.terminate()  # each saves a checkpoint
        raise
    finally:
        pool.executor.shutdown(wait=True, cancel_futures=True)
