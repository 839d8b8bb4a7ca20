"""Dynamic batching: sentences of different requests are computed together in one thread.

While a batch is computed, new requests wait in a bounded queue. The next batch takes whatever waits and fits together,
so batches grow with the load and a lone request never waits for others. Requests take turns: a request with a
thousand sentences does not hold up a request with one.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import DragomanError
from dragoman.serving.memory import release_free_memory

IDLE = 2.0  # seconds without work after which free memory is given back
Run = Callable[[Any, list[Any]], list[Any]]  # key of a batch and its inputs → an output for each input


class Busy(Exception):  # noqa: N818  (a state, not a mistake)
    """The queue is full; try again after some seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = max(1, math.ceil(retry_after))


@dataclass(eq=False)
class Request:
    """The inputs of one request that still wait, each with its number."""

    key: Hashable  # requests with equal keys may share a batch
    inputs: deque[tuple[int, Any]]
    outputs: list[Any]
    done: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    missing: int
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """A queue of requests and the thread that computes them.

    `run(key, inputs)` returns one output for each input. If it raises a DragomanError, the inputs of the batch are
    computed one by one, so that the mistake of one request is no other's error.
    """

    def __init__(
        self,
        run: Run,
        batch_size: int,
        queue: int,
        wait: float = 0.0,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.run, self.batch_size, self.queue, self.wait, self.observe = run, batch_size, queue, wait, observe
        self._requests: deque[Request] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._waiting = 0  # inputs in the queue
        self._computing = 0  # inputs in the present batch
        self._begun = 0.0  # when the present batch began
        self.entering = 0  # requests that were let in and have not submitted their inputs yet
        self._seconds_per_input = 0.0  # moving average over batches
        self._thread = threading.Thread(target=self._work, name="dragoman-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Inputs in the queue."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether not even one more input would be admitted."""
        return self._waiting + self.entering >= self.queue or self._late(1)

    @property
    def alive(self) -> bool:
        """Whether the thread still computes."""
        return self._thread.is_alive()

    def estimate(self, inputs: int = 1) -> float:
        """Seconds until a new request with so many inputs would begin its last batch.

        Requests take turns, so a request with one input waits for one input of each of the others.
        """
        ahead = self.entering + sum(min(len(request.inputs), inputs) for request in tuple(self._requests))
        present = self._computing * self._seconds_per_input - (time.monotonic() - self._begun)
        own = max(0, inputs - self.batch_size)
        return max(0.0, present) + (ahead + own) * self._seconds_per_input

    def _late(self, inputs: int) -> bool:
        """Whether a request would wait too long; when nothing waits it may try, for the estimate may be wrong."""
        return self.wait > 0 and self._waiting + self.entering > 0 and self.estimate(inputs) > self.wait

    def submit(self, key: Hashable, inputs: Sequence[Any]) -> asyncio.Future[list[Any]]:
        """The outputs of some inputs, later; raises Busy if they do not fit into the queue.

        An output is an exception where computing it failed. Cancelling the future takes the inputs out of the queue.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Any]] = loop.create_future()
        if not inputs:
            done.set_result([])
            return done
        with self._changed:
            # A request larger than the queue is admitted when nothing waits: it could never be otherwise.
            full = self._waiting > 0 and self._waiting + len(inputs) > self.queue
            if full or self._late(len(inputs)) or self._stopped:
                raise Busy(self.estimate(len(inputs)))
            request = Request(key, deque(enumerate(inputs)), [None] * len(inputs), done, loop, len(inputs))
            self._requests.append(request)
            self._waiting += len(inputs)
            self._changed.notify()
        done.add_done_callback(lambda _: self._remove(request))
        return done

    def _remove(self, request: Request) -> None:
        """Take what still waits of a request out of the queue."""
        with self._changed:
            request.cancelled = True
            if request.inputs:
                self._waiting -= len(request.inputs)
                request.inputs.clear()
                self._requests.remove(request)

    def stop(self) -> None:
        """End the thread after all that waits is computed."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _take(self) -> tuple[Hashable, list[tuple[Request, int, Any]]]:
        """The next batch: inputs of the oldest request and of others with its key, in turns."""
        key = self._requests[0].key
        sharing = [request for request in self._requests if request.key == key]
        taken: list[tuple[Request, int, Any]] = []
        while sharing and len(taken) < self.batch_size:
            for request in sharing[: self.batch_size - len(taken)]:
                taken.append((request, *request.inputs.popleft()))
            sharing = [request for request in sharing if request.inputs]
        served = {request: None for request, _, _ in taken}
        # Requests that have more go behind those that wait, so that other keys get their turn.
        others = [request for request in self._requests if request not in served]
        self._requests = deque([*others, *(request for request in served if request.inputs)])
        self._waiting -= len(taken)
        self._computing, self._begun = len(taken), time.monotonic()
        return key, taken

    def _work(self) -> None:
        tidy = False  # whether free memory was given back since the last batch
        while True:
            with self._changed:
                while not self._requests:
                    if self._stopped:
                        return
                    if not self._changed.wait(timeout=None if tidy else IDLE):
                        tidy = True
                        release_free_memory()
                key, batch = self._take()
            outputs = self._compute(key, [one for _, _, one in batch])
            seconds = time.monotonic() - self._begun
            each = seconds / len(batch)
            self._seconds_per_input = (
                each if not self._seconds_per_input else 0.8 * self._seconds_per_input + 0.2 * each
            )
            self._computing, tidy = 0, False
            self.observe(len(batch), seconds)
            for (request, number, _), output in zip(batch, outputs, strict=True):
                request.outputs[number] = output
                request.missing -= 1
                if not request.missing:
                    self._finish(request)

    def _compute(self, key: Hashable, inputs: list[Any]) -> list[Any]:
        """The output or the exception of every input."""
        try:
            return self.run(key, inputs)
        except Exception as error:
            if len(inputs) == 1 or not isinstance(error, DragomanError):
                return [error] * len(inputs)
            return [output for one in inputs for output in self._compute(key, [one])]

    @staticmethod
    def _finish(request: Request) -> None:
        def resolve() -> None:
            if not request.done.done():
                request.done.set_result(request.outputs)

        if not request.cancelled and not request.loop.is_closed():
            request.loop.call_soon_threadsafe(resolve)
