"""What the routes of a server share: open models, the batcher, limits, counters and running requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from dragoman.errors import ConfigError, hint
from dragoman.serving.batcher import Batcher, Busy
from dragoman.serving.config import ServeConfig
from dragoman.serving.metrics import Metrics
from dragoman.serving.models import Models, ServedModel, Work
from dragoman.serving.spool import Spool

T = TypeVar("T")
EXCHANGE = "dragoman.exchange"  # key of a request's scope
MAX_INSPECTIONS = 4  # at work or waiting


class TooLate(Exception):  # noqa: N818  (a state, not a mistake)
    """A request took longer than the server allows."""


class ClientLeft(Exception):  # noqa: N818
    """The client closed the connection."""


class NotFound(Exception):  # noqa: N818
    """A request names a model or a file that does not exist."""


class Visit:
    """A request while it is in the server: whether it still has to enter the queue, and what is computed for it."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.entering, self.left = False, False
        self.work: asyncio.Future[Any] | None = None

    def enter(self) -> None:
        """Count the request among those that wait while it is still parsed: many may come between two batches."""
        self.entering = True
        self.batcher.entering += 1

    def entered(self) -> None:
        """The request submits its inputs, or has ended."""
        if self.entering:
            self.entering = False
            self.batcher.entering -= 1

    def leave(self) -> None:
        """The client has closed the connection: nobody needs the answer."""
        self.left = True
        if self.work is not None:
            self.work.cancel()


class ServerState:
    """Everything that lives as long as a worker."""

    def __init__(self, config: ServeConfig, models: Models, spool: Spool) -> None:
        self.config, self.limits, self.models, self.spool = config, config.limits, models, spool
        self.glossaries = Spool(spool.folder / "glossaries", kept=math.inf)
        self.documents = Spool(spool.folder / "documents")  # what is known about documents, apart from their bytes
        self.metrics = Metrics()
        self.batcher = Batcher(
            models.run, config.batch_size, config.limits.queue, config.limits.wait, self.metrics.batch
        )
        self.streams = ThreadPoolExecutor(config.limits.streams, "dragoman-stream")
        self.inspections = ThreadPoolExecutor(1, "dragoman-inspect")
        self.inspecting = 0
        self.streaming = 0
        self.active = 0  # requests without a whole answer
        self.connections = 0
        self.draining = False

    def model(self, name: str | None) -> ServedModel:
        """The model that a request names; without a name the first."""
        if name is None:
            return next(iter(self.models))
        if name not in self.models.models:
            raise NotFound(f"model: found {name!r}. {hint(name, self.models.models)}")
        return self.models[name]

    async def compute(self, request: Request, work: Work, inputs: Sequence[Any]) -> list[Any]:
        """One output for each input, or an exception in its place; raises Busy, TooLate or ClientLeft."""
        visit_of(request).entered()
        return await self.finish(request, self.batcher.submit(work, inputs))

    async def finish(self, request: Request, work: asyncio.Future[T]) -> T:
        """The result of some work, which is cancelled when the client leaves or the time is up.

        Without a task of its own: under load every turn of the event loop costs an admitted request milliseconds.
        """
        visit = visit_of(request)
        visit.work = work
        try:
            if visit.left:
                raise ClientLeft
            async with asyncio.timeout(self.limits.request_time):
                return await work
        except TimeoutError:
            raise TooLate from None
        except asyncio.CancelledError:
            if visit.left:
                raise ClientLeft from None
            raise
        finally:
            visit.work = None
            work.cancel()

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

    async def inspect(self, request: Request, look: Callable[[], T]) -> T:
        """The result of a look inside a model, one at a time and apart from the other requests."""
        if self.inspecting >= MAX_INSPECTIONS:
            raise Busy(5.0)
        self.inspecting += 1
        try:
            return await self.finish(request, asyncio.get_running_loop().run_in_executor(self.inspections, look))
        finally:
            self.inspecting -= 1

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        self.batcher.stop()
        self.streams.shutdown(wait=False, cancel_futures=True)
        self.inspections.shutdown(wait=False, cancel_futures=True)


def state_of(request: Request) -> ServerState:
    """The state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state


def visit_of(request: Request) -> Visit:
    """The visit that a request is part of."""
    visit: Visit = request.scope[EXCHANGE]
    return visit
