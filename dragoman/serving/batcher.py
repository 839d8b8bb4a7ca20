"""Dynamic batching: sentences of different requests are computed together in one thread.

While a batch is computed, new requests wait in a bounded queue. The next batch takes whatever waits and fits together,
so batches grow with the load and a lone request never waits for others. Requests take turns: a request with a
thousand sentences does not hold up a request with one. No batch takes more than it can compute in about
`batch_time` seconds, and a batch that nobody waits for any more ends between two steps of its search.

A server has two batchers. An input that alone would take longer than `batch_time` goes to the second one, so that it
never holds up the others: see `Speeds.lasts`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.base import Abandoned, DragomanError, interruptible
from dragoman.serving.system import release_free_memory

MAX_RETRY = 60  # seconds: many clients leave before the end
IDLE = 2.0  # seconds without work after which free memory is given back
STEP_ROWS = 16  # a step of a small model costs as much without any row as so many rows
FIRST_SPEED = 1e-4  # seconds per unit of cost, before anything was measured: a small model on a slow CPU
FORGET = 0.9  # of the highest seconds per unit, after every further batch
Run = Callable[[Any, list[Any]], list[Any]]  # key of a batch and its inputs → an output for each input


class Busy(Exception):  # noqa: N818  (a state, not a mistake)
    """The queue is full; try again after some seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = min(MAX_RETRY, max(1, math.ceil(retry_after)))


class SearchCost(NamedTuple):
    """An upper bound of what an input costs: steps of a search, and rows that each step computes."""

    steps: int = 1
    rows: int = 1


def batch_cost(steps: int, rows: int) -> int:
    """What a batch costs whose longest input takes so many steps, with so many rows of all inputs together."""
    return steps * (STEP_ROWS + rows)


class Speeds:
    """Seconds per unit of cost for every kind of work, the highest seen lately: a batch must not take too long."""

    def __init__(self, kind_of: Callable[[Any], Hashable] = lambda key: key) -> None:
        self._seconds: dict[Hashable, float] = {}
        self.kind_of = kind_of  # keys of batches are many, kinds are few

    def seconds(self, key: Any, cost: int) -> float:
        """How long work takes at most, as far as it is known."""
        return self._seconds.get(self.kind_of(key), FIRST_SPEED) * cost

    def note(self, key: Any, cost: int, seconds: float) -> None:
        kind = self.kind_of(key)
        self._seconds[kind] = max(seconds / cost, FORGET * self._seconds.get(kind, 0.0))

    def lasts(self, key: Any, cost: SearchCost, batch_time: float) -> bool:
        """Whether an input alone takes longer than a batch should."""
        return self.seconds(key, batch_cost(*cost)) > batch_time


@dataclass(eq=False)
class QueuedRequest:
    """The inputs of one request that still wait, each with its number."""

    key: Hashable  # requests with equal keys may share a batch
    inputs: deque[tuple[int, Any, SearchCost]]
    outputs: list[Any]
    done: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    missing: int
    cancelled: bool = False


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
        *,
        speeds: Speeds | None = None,
        batch_time: float = math.inf,
    ) -> None:
        self.run, self.batch_size, self.queue, self.wait, self.observe = run, batch_size, queue, wait, observe
        self.speeds, self.batch_time = speeds or Speeds(), batch_time
        self._requests: deque[QueuedRequest] = deque()
        self._changed = threading.Condition()
        self._stopped = self._interrupted = False
        self._waiting = 0  # inputs in the queue
        self._computing = 0  # inputs in the present batch
        self._begun = 0.0  # when the present batch began
        self._expected = math.inf  # seconds that it takes at most: the mean of all kinds of inputs may be far off
        self.entering = 0  # requests that were let in and have not submitted their inputs yet
        self._seconds_per_input = 0.0  # moving average over batches
        self._thread = threading.Thread(target=self._work, name="dragoman-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether not even one more input would be admitted."""
        return self._load + self.entering >= self.queue or self._late(1)

    @property
    def _load(self) -> int:
        """Inputs that a new one shares its batch with, or waits for: requests take turns.

        So a request with a thousand inputs fills no queue for others.
        """
        return sum(min(len(request.inputs), self.batch_size) for request in tuple(self._requests))

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def busy_for(self) -> float:
        """Seconds that the present batch has been computed; 0: nothing is."""
        return time.monotonic() - self._begun if self._computing else 0.0

    def estimate(self, inputs: int = 1) -> float:
        """Seconds until a new request with so many inputs would begin its last batch.

        Requests take turns, so a request with one input waits for one input of each of the others.
        """
        ahead = self.entering + sum(min(len(request.inputs), inputs) for request in tuple(self._requests))
        present = min(self._computing * self._seconds_per_input, self._expected) - (time.monotonic() - self._begun)
        own = max(0, inputs - self.batch_size)
        return max(0.0, present) + (ahead + own) * self._seconds_per_input

    def _late(self, inputs: int) -> bool:
        """Whether a request would wait too long; when nothing waits it may try, for the estimate may be wrong."""
        return self.wait > 0 and self._waiting + self.entering > 0 and self.estimate(inputs) > self.wait

    def submit(
        self, key: Hashable, inputs: Sequence[Any], costs: Sequence[SearchCost] | None = None
    ) -> asyncio.Future[list[Any]]:
        """The outputs of some inputs, later; raises Busy if they do not fit into the queue.

        An output is an exception where computing it failed. Cancelling the future takes the inputs out of the queue,
        and ends their batch if no other request shares it.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Any]] = loop.create_future()
        if not inputs:
            done.set_result([])
            return done
        with self._changed:
            # A request larger than the queue is admitted when nothing waits: it could never be otherwise.
            full = self._load > 0 and self._load + min(len(inputs), self.batch_size) > self.queue
            if full or self._late(len(inputs)) or self._stopped:
                raise Busy(self.estimate(len(inputs)))
            each = zip(range(len(inputs)), inputs, costs or [SearchCost()] * len(inputs), strict=True)
            request = QueuedRequest(key, deque(each), [None] * len(inputs), done, loop, len(inputs))
            self._requests.append(request)
            self._waiting += len(inputs)
            self._changed.notify()
        done.add_done_callback(lambda _: self._remove(request))
        return done

    def _remove(self, request: QueuedRequest) -> None:
        """Take what still waits of a request out of the queue."""
        with self._changed:
            request.cancelled = True
            if request.inputs:
                self._waiting -= len(request.inputs)
                request.inputs.clear()
                self._requests.remove(request)

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after all that waits is computed; with a time limit the present batch ends at its next step.

        Work that has no steps, such as that of a library, may go on after the limit in its daemon thread.
        """
        with self._changed:
            self._stopped, self._interrupted = True, timeout is not None
            self._changed.notify()
        self._thread.join(timeout)

    def _take(self) -> tuple[Hashable, list[tuple[QueuedRequest, int, Any]], int]:
        """The next batch and its cost: inputs of the oldest request and of others with its key, in turns."""
        key = self._requests[0].key
        sharing = [request for request in self._requests if request.key == key]
        taken: list[tuple[QueuedRequest, int, Any]] = []
        steps = rows = 0
        full = False
        while sharing and not full:
            for request in sharing:
                more = request.inputs[0][2]
                cost = batch_cost(max(steps, more.steps), rows + more.rows)
                late = bool(taken) and self.speeds.seconds(key, cost) > self.batch_time
                full = late or len(taken) == self.batch_size
                if full:
                    break
                number, item, _ = request.inputs.popleft()
                taken.append((request, number, item))
                steps, rows = max(steps, more.steps), rows + more.rows
            sharing = [request for request in sharing if request.inputs]
        served = {request: None for request, _, _ in taken}
        # Requests that have more go behind those that wait, so that other keys get their turn.
        others = [request for request in self._requests if request not in served]
        self._requests = deque([*others, *(request for request in served if request.inputs)])
        self._waiting -= len(taken)
        self._computing, self._begun = len(taken), time.monotonic()
        cost = batch_cost(steps, rows)
        self._expected = max(self.batch_time, self.speeds.seconds(key, cost))
        return key, taken, cost

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
                key, batch, cost = self._take()
            requests = {request for request, _, _ in batch}
            with interruptible(lambda: self._interrupted or all(request.cancelled for request in requests)):  # noqa: B023
                outputs = self._compute(key, [item for _, _, item in batch])
            seconds = time.monotonic() - self._begun
            self.speeds.note(key, cost, seconds)
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
        except Abandoned as error:
            return [error] * len(inputs)
        except Exception as error:
            if len(inputs) == 1 or not isinstance(error, DragomanError):
                return [error] * len(inputs)
            return [output for item in inputs for output in self._compute(key, [item])]

    @staticmethod
    def _finish(request: QueuedRequest) -> None:
        def resolve() -> None:
            if not request.done.done():
                request.done.set_result(request.outputs)

        if not request.cancelled and not request.loop.is_closed():
            request.loop.call_soon_threadsafe(resolve)
