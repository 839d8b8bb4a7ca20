"""What every request passes before its route: limits of size and time, the token, draining, counting."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serving.answers import WORK, busy_message, error_body, key_status
from dragoman.serving.batcher import Busy
from dragoman.serving.state import CALL, ServerCall, ServerState

OPEN_PATHS = (
    "/health", "/ready", "/", "/inspect", "/corrections", "/favicon.ico", "/frontend/settings", "/openapi.json",
)  # fmt: skip
OPEN_FOLDERS = ("/static/", "/web/", "/download_file/")  # the name of a file that waits there is a secret itself
# Their routes look for the token in a field, too.
KEY_IN_FIELDS = ("/translate", "/detect", "/languages", "/translate_file", "/suggest")
OPUS_CAT = ("/MTRestService/", "/MtRestService/")
WATCHED = ("/health", "/ready", "/metrics")  # answered however many connections there are
RETRY = 2  # seconds


class BodyProblem(Exception):  # noqa: N818
    """A body that is too large or comes too slowly."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_token(sent: bytes, token: str) -> bool:
    """Whether bytes of a header or a field are the token, however long the comparison takes for a wrong one.

    Clients write a token that is not ASCII in UTF-8 or, in headers, in Latin-1.
    """
    spellings = {token.encode("utf-8", "surrogateescape")}
    with suppress(UnicodeEncodeError):
        spellings.add(token.encode("latin-1"))
    return any(hmac.compare_digest(sent, spelling) for spelling in spellings)


def network_of(client: tuple[str, int] | None) -> str:
    """The address of a client; of IPv6 the network, of which every client has millions of addresses."""
    with suppress(ValueError):
        address = ipaddress.ip_address(client[0] if client else "")
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
        return str(getattr(address, "ipv4_mapped", None) or address)
    return ""


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(self.state, scope, receive, send)
        scope[CALL] = exchange
        self.state.calls.add(exchange)
        try:
            try:
                if refusal := exchange.refusal():
                    if refusal[0] != 413 and not exchange.ambiguous:
                        await exchange.read_body()
                    await exchange.answer(*refusal)
                    return
                if exchange.is_work:
                    exchange.enter()
                await self.app(scope, exchange.receive, exchange.send)
            except BodyProblem as problem:
                await exchange.answer(problem.status, str(problem))
        finally:
            exchange.entered()
            self.state.calls.discard(exchange)
            exchange.count()


class Exchange(ServerCall):
    """One request and its answer."""

    def __init__(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(state)
        self.scope, self._receive, self._send = scope, receive, send
        self.client = network_of(scope["client"])
        self.headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        self.started = time.monotonic()
        self.status = 0
        self.received = 0
        chunked = "transfer-encoding" in self.headers
        has_body = self.headers.get("content-length", b"0") != b"0" or chunked
        # A proxy in front may see another end of the body than this server does, and so another next request.
        self.ambiguous = chunked and ("content-length" in self.headers or scope["http_version"] == "1.0")
        self.complete = not has_body  # whether the whole body was read
        self.problem: BodyProblem | None = None
        self.is_work = scope["method"] == "POST" and scope["path"] in WORK  # asks for computation
        # Files may be larger than JSON, which is parsed at once while all other requests wait.
        uploads = self.headers.get("content-type", b"").lower().startswith(b"multipart/")
        self.most = state.limits.body if uploads else min(state.limits.body, state.limits.json)
        self.too_large = 413, f"body: found more than {self.most:,} bytes, the limit of this server"

    def refusal(self) -> tuple[int, str] | tuple[int, str, int] | None:
        """Status, message and seconds to wait for a request that goes no further; nothing of it is parsed.

        Under overload refusing must cost next to nothing.
        """
        path, version = self.scope["path"], self.scope["http_version"]
        if not version.startswith("1."):
            return 505, f"HTTP version: found {version}, expected 1.0 or 1.1"
        if self.ambiguous:
            beside = "HTTP/1.0" if version == "1.0" else "Content-Length"
            return 400, f"Transfer-Encoding: found it together with {beside}, expected only one length of the body"
        if self.crowded and path not in WATCHED:
            return 503, f"found more than {self.state.limits.connections:,} open connections; try again later"
        length = self.headers.get("content-length", b"0")
        if length.isdigit() and int(length) > self.most:
            return self.too_large
        if not self.authorised(path):
            message = "token: found none or a wrong one; send 'Authorization: Bearer TOKEN' (or api_key=TOKEN)"
            return key_status(path), message
        if self.is_work and self.state.batcher.full:
            busy = Busy(self.state.batcher.estimate())
            return 503, busy_message(busy), busy.retry_after
        return None

    def authorised(self, path: str) -> bool:
        """Whether a path is open to all or the request brings the token.

        A browser that asks if a page of another site may call the server (a preflight) sends no token. /translate and
        its kin also look for api_key in the body.
        """
        config = self.state.config
        asks = "access-control-request-method" in self.headers and "origin" in self.headers
        preflight = self.scope["method"] == "OPTIONS" and asks and bool(config.cors)
        if not config.token or preflight or path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
            return True
        sent = self.headers.get("authorization", b"").split(b" ", 1)[-1].strip()
        return is_token(sent, config.token) or path in KEY_IN_FIELDS or path.startswith(OPUS_CAT)

    @property
    def crowded(self) -> bool:
        """Whether there are more connections than the server allows."""
        return self.state.connections > self.state.limits.connections

    async def receive(self) -> Message:
        """The next part of the request, within the limits of size and time."""
        if self.complete:
            return await self._receive()
        left = self.started + self.state.limits.read_time - time.monotonic()
        try:
            async with asyncio.timeout(max(0.001, left)):
                message = await self._receive()
        except TimeoutError:
            self.raise_problem(408, f"body: took longer than {self.state.limits.read_time:g} seconds to arrive")
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if self.received > self.most:
                self.raise_problem(*self.too_large)
        return message

    def raise_problem(self, status: int, message: str) -> Any:
        """Stop reading; FastAPI turns exceptions while reading into 400, so `send` puts the true answer in place."""
        self.problem = BodyProblem(status, message)
        raise self.problem

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on; while the server stops, connections close after it."""
        if message["type"] == "http.response.start":
            if self.problem is not None:
                await self.answer(self.problem.status, str(self.problem))
                return
            self.status = message["status"]
            if self.state.draining or not self.complete:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif self.problem is not None:
            return
        await self._send(message)

    async def read_body(self) -> None:
        """Read and forget the body: closing a connection with unread bytes would cut off the answer."""
        while not self.complete and (await self.receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, message: str, retry: int = RETRY) -> None:
        """A whole answer without a route; the connection closes if the body is not read or the server stops."""
        self.status = status
        body = error_body(self.scope["path"], status, message)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if self.state.draining or not self.complete or status in (408, 413) or self.crowded:
            headers.append((b"connection", b"close"))
        origin = self.headers.get("origin", b"")
        if origin and {origin.decode("latin-1"), "*"} & {*self.state.config.cors}:
            headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if status == 503:
            headers.append((b"retry-after", str(retry).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def count(self) -> None:
        """Add the request to the metrics, under the path of its route."""
        route = self.scope.get("route")
        path = getattr(route, "path", "other") if self.status != 404 else "other"
        self.state.metrics.request(path, self.status or 499, time.monotonic() - self.started)
