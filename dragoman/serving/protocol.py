"""One HTTP connection: uvicorn's protocol with time limits, and refusals that cost next to nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.serving.answers import WORK, busy_message, error_body
from dragoman.serving.batcher import Busy
from dragoman.serving.state import CALL, ClientLeft, ServerCall, ServerState

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_WORK = frozenset(path.encode() for path in WORK)


class GuardedProtocol(H11Protocol):
    """Closes connections whose request does not arrive in time, and knows when a connection is idle.

    While the queue is full, whole requests for computation are answered 503 from their bytes, before they are parsed:
    refusing costs a tenth of parsing, so a flood of requests leaves time for those that were admitted.
    """

    state: ServerState

    def connection_made(self, transport: Any) -> None:
        """Give the client some time for its first request."""
        super().connection_made(transport)
        self.state.connections += 1
        self.last_active = self.loop.time()
        self.reading = False  # whether a part of a request head has come
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connections -= 1
        self._head_came()
        if not self.idle and self.scope is not None and isinstance(call := self.scope.get(CALL), ServerCall):
            call.end(ClientLeft)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is read or answered."""
        return not self.reading and (self.cycle is None or self.cycle.response_complete)

    def idle_for(self) -> float:
        """Seconds since the last request or answer of an idle connection; 0: it is not idle."""
        return self.loop.time() - self.last_active if self.idle else 0.0

    def data_received(self, data: bytes) -> None:
        """Pass data on, unless it is a request that the server has no room for."""
        self.last_active = self.loop.time()
        if self.idle and self.state.batcher.full and self._refuse(data):
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_came()
        elif self.idle and not self.transport.is_closing():
            self.reading = True
            if self._head_limit is None:
                self._await_head()

    def on_response_complete(self) -> None:
        self.last_active = self.loop.time()
        super().on_response_complete()

    def _await_head(self) -> None:
        """Close the connection unless the head of a request comes in time."""
        self._head_limit: asyncio.TimerHandle | None = self.loop.call_later(
            self.state.limits.read_time, lambda: self.transport.close()
        )

    def _head_came(self) -> None:
        self.reading = False
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _refuse(self, data: bytes) -> bool:
        """Answer 503 if the data are one whole request for computation."""
        end = data.find(b"\r\n\r\n")
        first = data.find(b" ", 5)
        path = data[5:first].partition(b"?")[0]  # what follows may be any bytes
        if end < 0 or not data.startswith(b"POST ") or path not in _WORK:
            return False
        length = _LENGTH.search(data, 0, end + 2)
        if length is None or end + 4 + int(length[1]) != len(data) or self.state.config.cors:
            return False
        self._unset_keepalive_if_required()
        self._head_came()
        closing = self.state.draining or _CLOSE.search(data, 0, end + 2) is not None
        busy = Busy(self.state.batcher.estimate())
        body = error_body(path.decode("ascii"), 503, busy_message(busy))
        head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += f"retry-after: {busy.retry_after}\r\n" + ("connection: close\r\n" if closing else "")
        self.transport.write(head.encode() + b"\r\n" + body)
        self.state.metrics.request("refused", 503, 0.0)
        if closing:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True
