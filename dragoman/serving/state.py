"""What the routes of a server share (`ServerState`), and one request while it is in the server (`Call`)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request

from dragoman.base import ConfigError, hint, interruptible
from dragoman.data import CorrectionLog
from dragoman.serving.batcher import Batcher, Busy, SearchCost, Speeds
from dragoman.serving.config import ServeConfig
from dragoman.serving.metrics import Metrics
from dragoman.serving.models import BatchWork, Models, ServedModel
from dragoman.serving.store import Store

T = TypeVar("T")
CALL = "dragoman.call"  # key of a request's scope
LONG = 4_000  # characters
MAX_INSPECTIONS = 4  # at work or waiting


class TooLate(Exception):  # noqa: N818  (a state, not a mistake)
    """A request took longer than the server allows."""


class ClientLeft(Exception):  # noqa: N818
    """The client closed the connection."""


class NotFound(Exception):  # noqa: N818
    """A request names a model or a file that does not exist."""


class ServerState:
    """Everything that lives as long as a worker."""

    def __init__(self, config: ServeConfig, models: Models, folder: str) -> None:
        self.config, self.limits, self.models = config, config.limits, models
        self.store = Store(config.folder or folder, config.limits.files, config.limits.file_bytes)
        self.corrections = CorrectionLog(config.corrections, config.limits.corrections) if config.corrections else None
        if self.corrections is not None:
            self.corrections.create()
        self.metrics = Metrics()
        self.speeds = Speeds(lambda work: work.kind)
        limits = config.limits
        self.batchers = self.batcher, self.long_batcher = [
            Batcher(
                lambda work, inputs: models[work.model].run(work, inputs), config.batch_size, limits.queue,
                limits.wait, self.metrics.batch, speeds=self.speeds, batch_time=limits.batch_time,
            )
            for _ in range(2)
        ]  # fmt: skip
        self.streams = ThreadPoolExecutor(config.limits.streams, "dragoman-stream")
        self.inspections = ThreadPoolExecutor(1, "dragoman-inspect")
        self.readers = ThreadPoolExecutor(4, "dragoman-read")  # of documents and long texts
        self.inspecting = 0  # at work or waiting, also for clients that have left
        self.streaming = 0
        self.calls: set[ServerCall] = set()  # requests without a whole answer
        self.connections = 0
        self.draining = False

    def model(self, name: str | None) -> ServedModel:
        """The model that a request names; without a name the first."""
        if name is None:
            return next(iter(self.models))
        if name not in self.models.models:
            raise NotFound(f"model: found {name!r}. {hint(name, self.models.models)}")
        return self.models[name]

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise an error for more texts than a request may have."""
        if len(texts) > self.limits.items:
            raise ConfigError(f"input: found {len(texts):,} texts, expected at most {self.limits.items:,}")
        if (total := sum(map(len, texts))) > self.limits.characters:
            raise ConfigError(
                f"input: found {total:,} characters, expected at most {self.limits.characters:,} in a request"
            )

    def check_streams(self) -> None:
        """Raise Busy if there are as many token streams as the server allows."""
        if self.streaming >= self.limits.streams:
            raise Busy(1.0)

    @property
    def waiting(self) -> int:
        return sum(batcher.waiting for batcher in self.batchers)

    @property
    def busy_for(self) -> float:
        """Seconds that the oldest batch at work has been computed; 0: nothing is."""
        return max(batcher.busy_for for batcher in self.batchers)

    @property
    def alive(self) -> bool:
        return all(batcher.alive for batcher in self.batchers)

    def close(self, timeout: float) -> None:
        """End the threads; all requests have their answers, so what is still computed is for nobody."""
        deadline = time.monotonic() + timeout
        for batcher in self.batchers:
            batcher.stop(max(0.0, deadline - time.monotonic()))
        self.streams.shutdown(wait=False, cancel_futures=True)
        self.inspections.shutdown(wait=False, cancel_futures=True)
        self.readers.shutdown(wait=False, cancel_futures=True)
        self.store.close()


class ServerCall:
    """A request while it is in the server: whether it still has to enter the queue, and what is computed for it."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.client = ""  # whose files and glossaries it may have
        self.entering = False
        self.ended: type[Exception] | None = None  # why nobody needs the answer any more
        self.work: asyncio.Future[Any] | None = None
        self.searched = 0  # tokens that the request had searched at most, so far
        self.deadline = 0.0  # when the request is given up; set when it begins to compute

    def enter(self) -> None:
        """Count the request among those that wait while it is still parsed: many may come between two batches."""
        self.entering = True
        self.state.batcher.entering += 1

    def entered(self) -> None:
        """The request submits its inputs, or has ended."""
        if self.entering:
            self.entering = False
            self.state.batcher.entering -= 1

    def end(self, reason: type[Exception]) -> None:
        """Stop computing: the client has closed the connection (ClientLeft), or the server ends (Abandoned)."""
        self.ended = self.ended or reason
        if self.work is not None:
            self.work.cancel()

    async def compute(self, work: BatchWork, inputs: Sequence[Any]) -> list[Any]:
        """One output for each input; raises the exception of the first that fails, Busy, TooLate or ClientLeft."""
        outputs = await self.compute_each(work, inputs)
        for output in outputs:
            if isinstance(output, Exception):
                raise output
        return outputs

    async def compute_each(self, work: BatchWork, inputs: Sequence[Any]) -> list[Any]:
        """One output for each input, or an exception in its place; raises Busy, TooLate or ClientLeft."""
        self.entered()
        state = self.state
        costs = state.models[work.model].costs(work, inputs)
        self.check_work(work, costs)
        lanes: tuple[list[int], list[int]] = ([], [])
        for index, cost in enumerate(costs):
            long = work.operation == "files" or state.speeds.lasts(work, cost, state.limits.batch_time)
            lanes[long].append(index)
        if not lanes[1]:
            return await self.finish(state.batcher.submit(work, inputs, costs))
        submitted: list[asyncio.Future[list[Any]]] = []
        try:
            for batcher, lane in zip(state.batchers, lanes, strict=True):
                lane_inputs = [inputs[index] for index in lane]
                submitted.append(batcher.submit(work, lane_inputs, [costs[index] for index in lane]))
        except Busy:
            for future in submitted:
                future.cancel()
            raise
        outputs: list[Any] = [None] * len(inputs)
        both: list[list[Any]] = await self.finish(asyncio.gather(*submitted))
        for lane, computed in zip(lanes, both, strict=True):
            for index, output in zip(lane, computed, strict=True):
                outputs[index] = output
        return outputs

    def check_work(self, work: BatchWork, costs: Sequence[SearchCost]) -> None:
        """Raise an error for more work than a request may ask for."""
        if work.operation not in ("predict", "complete") or not costs:
            return
        self.searched += (total := sum(steps * rows for steps, rows in costs))
        if self.searched > (most := self.state.limits.work):
            longest, widest = max(steps for steps, _ in costs), max(rows for _, rows in costs)
            found = f"{total:,} tokens to search ({len(costs):,} texts × {widest} hypotheses × up to {longest:,} tokens"
            found += ")" if self.searched == total else f", after {self.searched - total:,} in the same request)"
            raise ConfigError(
                f"request: found {found}, expected at most {most:,} (limits.work of this server); send "
                "fewer or shorter texts, or ask for a smaller beam, n_best, samples or max_length"
            )

    async def finish(self, work: asyncio.Future[T]) -> T:
        """The result of some work, which is cancelled when the client leaves or the time of the request is up.

        Without a task of its own: under load every turn of the event loop costs an admitted request milliseconds.
        """
        self.work = work
        try:
            if self.ended is not None:
                raise self.ended
            self.deadline = self.deadline or asyncio.get_running_loop().time() + self.state.limits.request_time
            async with asyncio.timeout_at(self.deadline):
                return await work
        except TimeoutError:
            raise TooLate from None
        except asyncio.CancelledError:
            if self.ended is not None:
                raise self.ended from None
            raise
        finally:
            self.work = None
            work.cancel()

    async def inspect(self, look: Callable[[], T]) -> T:
        """The result of a look inside a model, one at a time and apart from the other requests."""
        state = self.state
        if state.inspecting >= MAX_INSPECTIONS:
            raise Busy(5.0)
        state.inspecting += 1

        def inspected() -> None:
            state.inspecting -= 1

        return await self.in_thread(look, state.inspections, inspected)

    async def prepare(self, work: Callable[[], T], texts: Sequence[str] | None) -> T:
        """The result of work on texts, or on a file (None); in a thread if they are long, while others are answered."""
        return await self.in_thread(work) if texts is None or sum(map(len, texts)) > LONG else work()

    async def in_thread(
        self, work: Callable[[], T], pool: ThreadPoolExecutor | None = None, ended: Callable[[], None] = lambda: None
    ) -> T:
        """The result of some work in a thread, which stops at its next step once nobody needs it any more."""
        given_up = threading.Event()

        def watched() -> T:
            with interruptible(given_up.is_set):
                return work()

        task = (pool or self.state.readers).submit(watched)
        loop = asyncio.get_running_loop()
        task.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(ended))
        try:
            return await self.finish(asyncio.wrap_future(task))
        finally:
            given_up.set()


def call_of(request: Request) -> ServerCall:
    """The call that a request is. Routes that must answer fast ask for it: a dependency costs FastAPI 25 µs."""
    call: ServerCall = request.scope[CALL]
    return call


async def _current(request: Request) -> ServerCall:
    return call_of(request)


CurrentCall = Annotated[ServerCall, Depends(_current)]
