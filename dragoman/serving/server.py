"""Run a server: its connections, one process, or a supervisor with several workers that share the listening socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.base import Abandoned, ConfigError, DragomanError, RunError, usable_cores
from dragoman.base.config import as_table, build
from dragoman.serving import system
from dragoman.serving.answers import WORK, busy_message, error_body
from dragoman.serving.app import create_app
from dragoman.serving.batcher import Busy
from dragoman.serving.config import ServeConfig
from dragoman.serving.models import Models
from dragoman.serving.state import CALL, ClientLeft, ServerCall, ServerState

_LENGTHS = re.compile(
    rb"\r\n(?:content-length:[ \t]*(\d{1,9})(?=[ \t]*\r\n)|content-length|transfer-encoding)", re.IGNORECASE
)
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
        lengths = _LENGTHS.findall(data, 0, end + 2)
        if len(lengths) != 1 or end + 4 + int(lengths[0] or len(data)) != len(data) or self.state.config.cors:
            return False  # a wrong or second length is for the parser, as is Transfer-Encoding
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


CONFIG_VARIABLE = "DRAGOMAN_SERVE_CONFIG"
ANSWERING = 1.0  # seconds, see `answering_time`
LINGER = 2.0  # seconds: a client that got an answer may be about to send its next request on the same connection
HANDSHAKE = 0.25  # seconds: a client that has begun to connect when the server stops gets through
SAME_SIGNAL = 1.0  # seconds: Ctrl+C and a supervisor may send one signal each
SWITCH_INTERVAL = 0.00005  # seconds, see `run_worker`
ACCEPTED_TOGETHER = 8  # connections in one turn of the event loop: a flood of them must not hold up the others
QUICK_DEATH = 10.0  # seconds: a worker that dies sooner was not well from the start
MAX_QUICK_DEATHS = 3


class DrainingServer(uvicorn.Server):
    """After SIGTERM it accepts no further connection, answers every request of those it has, and then stops.

    It stops before `limits.grace` seconds are over, whatever is still computed. A worker of several leaves it to the
    supervisor to ignore new connections: if it stops alone, the others go on.
    """

    shared = False  # whether other workers listen on the same socket
    on_late: Callable[[], None] | None = None  # ends the process, called in a thread of its own after the grace period

    def __init__(
        self, config: uvicorn.Config, state: ServerState, listening: socket.socket, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.state, self.listening, self.on_ready = state, listening, on_ready
        self._signalled = 0.0
        self._running: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain; a second signal stops at once, unless it comes with the first."""
        now = time.monotonic()
        if self.state.draining or self._running is None:
            self.should_exit = self.force_exit = now - self._signalled > SAME_SIGNAL
            return
        self.state.draining, self._signalled = True, now
        if self.on_late is not None:
            # Not even an event loop that is held up, or a thread inside a library, may keep the process alive.
            grace = self.state.limits.grace
            watchdog = threading.Timer(grace - answering_time(grace) / 2, self.on_late)
            watchdog.daemon = True
            watchdog.start()
        # A signal handler runs between two instructions of the loop: only wake it up here.
        self._running.call_soon_threadsafe(self._drain_soon)

    def _drain_soon(self) -> None:
        self._stopping = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Close the listening socket, then every connection once it has been idle for a while."""
        empties = self.shared or system.ignore_new_connections(self.listening)
        await asyncio.sleep(HANDSHAKE)
        limits = self.state.limits
        deadline = time.monotonic() + (min(limits.request_time, limits.grace / 2) if empties else LINGER)
        while system.has_waiting(self.listening) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for server in self.servers:
            server.close()
        for _ in range(5):  # turns of the loop: the connections just accepted get their protocols
            await asyncio.sleep(0)
        answering = answering_time(limits.grace)
        end = self._signalled + limits.grace - 2 * answering
        while self.server_state.connections and time.monotonic() < end:
            for connection in list(self.server_state.connections):
                if isinstance(connection, GuardedProtocol) and connection.idle_for() > LINGER:
                    connection.shutdown()
            await asyncio.sleep(0.02)
        for call in tuple(self.state.calls):
            call.end(Abandoned)
        end += answering / 2
        while self.server_state.connections and self.state.calls and time.monotonic() < end:
            await asyncio.sleep(0.02)
        for connection in list(self.server_state.connections):  # the last words are said
            connection.transport.abort()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, then say that the server is ready."""
        self._running = asyncio.get_running_loop()
        await super().startup(sockets)
        self.listening.listen(system.BACKLOG)
        system.freeze_garbage_collector()
        self.on_ready()


def answering_time(grace: float) -> float:
    """Seconds that requests without a result are given for their last answer."""
    return min(ANSWERING, grace / 5)


def set_num_threads(threads: int) -> None:
    """Let torch compute with so many threads; one that is not imported yet reads the environment."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def run_worker(
    config: ServeConfig,
    listening: socket.socket,
    spool: str,
    on_ready: Callable[[ServerState, DrainingServer], None],
    on_late: Callable[[], None] | None = None,
) -> None:
    """Open the models and answer requests until a signal comes; `on_late` ends a process that does not end itself."""
    threads = config.threads or max(1, usable_cores() // config.workers)
    set_num_threads(threads)
    # A thread that computes gives up the interpreter only when asked, by default after 5 ms. The event loop asks after
    # every system call, so a refusal would wait 15 ms for its turns, and 80 clients for a second.
    sys.setswitchinterval(SWITCH_INTERVAL)
    system.limit_arenas()
    models = Models(config)
    models.warm_up()
    state = ServerState(config, models, spool)
    limits = config.limits
    protocol: Any = type("Protocol", (GuardedProtocol,), {"state": state})
    settings = uvicorn.Config(
        create_app(state), http=protocol, ws="none", lifespan="off", log_level="warning", access_log=False,
        backlog=ACCEPTED_TOGETHER, server_header=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, int(limits.grace)), loop="asyncio",
    )  # fmt: skip
    server = DrainingServer(settings, state, listening, lambda: on_ready(state, server))
    server.shared, server.on_late = config.workers > 1, on_late
    try:
        server.run(sockets=[listening])
    finally:
        state.close(timeout=ANSWERING / 2)


def serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `say` prints what a person wants to know."""
    if config.workers > 1 and not system.SHARES_SOCKETS:
        raise ConfigError(f"workers: found {config.workers}, but only Linux and macOS share a socket; expected 1")
    listening = system.listen(config.host, config.port)
    address = system.address_of(listening)
    spool = tempfile.mkdtemp(prefix="dragoman-serve-")
    try:
        if config.workers == 1:
            run_worker(
                config, listening, spool, lambda state, _: announce(state.models, address, say),
                lambda: end_process(spool, config.limits.grace, say),
            )  # fmt: skip
        else:
            Supervisor(config, listening, spool, say).run(address)
    finally:
        listening.close()
        shutil.rmtree(spool, ignore_errors=True)


def end_process(spool: str | None, grace: float, say: Callable[[str], None]) -> None:
    """End the process at once: a thread still computes after the grace period."""
    if spool is not None:
        shutil.rmtree(spool, ignore_errors=True)
    say(f"stopped because the grace period of {grace:g} seconds (limits.grace) is over; a computation had not ended")
    os._exit(1)


def announce(models: Models, address: str, say: Callable[[str], None]) -> None:
    for model in models:
        languages = f", {model.source} → {', '.join(model.targets)}" if model.translates else ""
        if model.translates and not model.has_languages:
            languages = ", languages unknown: only requests that name the model get it (or give --languages)"
        say(f"model {model.name}: {model.task}{languages}")
    say(f"serving on {address}  (stop with Ctrl+C)")


class Supervisor:
    """Starts the workers, replaces those that die, and passes on the signal to stop."""

    def __init__(self, config: ServeConfig, listening: socket.socket, spool: str, say: Callable[[str], None]) -> None:
        self.config, self.listening, self.spool, self.say = config, listening, spool, say
        self.workers: dict[int, subprocess.Popen[str]] = {}  # by number
        self.started: dict[int, float] = {}
        self.ready: set[int] = set()
        self.quick_deaths = 0
        self.stopping = threading.Event()

    def start(self, number: int) -> None:
        environment = os.environ | {CONFIG_VARIABLE: json.dumps(as_table(self.config))}
        command = [sys.executable, "-m", "dragoman.serving.server", str(self.listening.fileno()), self.spool]
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=[self.listening.fileno()], start_new_session=True,
        )  # fmt: skip  # a session of its own: Ctrl+C reaches the supervisor alone
        self.workers[number], self.started[number] = worker, time.monotonic()
        threading.Thread(target=self._listen_to, args=(number, worker), daemon=True).start()

    def _listen_to(self, number: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.strip() == "ready":
                self.ready.add(number)

    def run(self, address: str) -> None:
        """Watch the workers until a signal comes, then wait for them to finish."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: self.stopping.set())
        for number in range(1, self.config.workers + 1):
            self.start(number)
        announced = False
        try:
            while not self.stopping.wait(0.1):
                if not announced and len(self.ready) == self.config.workers:
                    announced = True
                    self.say(f"serving on {address} with {self.config.workers} workers  (stop with Ctrl+C)")
                self.replace_dead()
        finally:
            self.stop()

    def replace_dead(self) -> None:
        """Start a new worker in place of each that ended."""
        for number, worker in list(self.workers.items()):
            if (code := worker.poll()) is None:
                continue
            quick = time.monotonic() - self.started[number] < QUICK_DEATH
            self.quick_deaths = self.quick_deaths + 1 if quick and number not in self.ready else 0
            if self.quick_deaths >= MAX_QUICK_DEATHS or (code == 2 and number not in self.ready):
                raise RunError(f"worker {number} ended with exit code {code} before it was ready")
            self.ready.discard(number)
            self.say(f"worker {number} ended with exit code {code}; starting another one")
            self.start(number)

    def stop(self) -> None:
        """Let all workers finish what they have accepted; kill those that take too long, or after a second signal."""
        self.stopping.clear()
        system.ignore_new_connections(self.listening)
        self.listening.close()  # the workers have their own handles; the last one to close it refuses connections
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.config.limits.grace + 2  # a worker ends itself before that
        while any(worker.poll() is None for worker in self.workers.values()):
            if time.monotonic() > deadline or self.stopping.wait(0.05):
                for worker in self.workers.values():
                    worker.kill()


def worker_main(arguments: list[str]) -> int:
    """A worker process: the number of the listening socket and the spool folder are its arguments."""
    config = build(ServeConfig, json.loads(os.environ.pop(CONFIG_VARIABLE)))
    listening = socket.socket(fileno=int(arguments[0]))
    threading.Thread(target=_end_with_parent, args=(listening,), daemon=True).start()
    try:
        run_worker(
            config, listening, arguments[1], lambda *_: print("ready", flush=True),
            lambda: end_process(None, config.limits.grace, lambda line: print(line, file=sys.stderr, flush=True)),
        )  # fmt: skip
    except DragomanError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    return 0


def _end_with_parent(listening: socket.socket) -> None:
    """Stop when the supervisor is gone: its end of the pipe closes."""
    sys.stdin.read()
    with suppress(OSError):  # closed already
        system.ignore_new_connections(listening)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(worker_main(sys.argv[1:]))
