"""Run a server: one process, or a supervisor with several workers that share the listening socket."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.errors import ConfigError, DragomanError, RunError
from dragoman.serving.app import create_app
from dragoman.serving.config import ServeConfig, config_as_json, config_from_json
from dragoman.serving.models import Models
from dragoman.serving.spool import Spool
from dragoman.serving.state import ServerState

LOG = logging.getLogger("dragoman.serving")
CONFIG_VARIABLE = "DRAGOMAN_SERVE_CONFIG"
LINGER = 1.0  # seconds: a stopping server still answers 503, so that no connection is cut before its answer
BACKLOG = 1024
QUICK_DEATH = 10.0  # seconds: a worker that dies sooner was not well from the start
MAX_QUICK_DEATHS = 3


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP protocol that closes connections which never send a whole request head."""

    read_time = 15.0

    def connection_made(self, transport: Any) -> None:
        """Give the client some time for its first request."""
        super().connection_made(transport)
        self.loop.call_later(self.read_time, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class DrainingServer(uvicorn.Server):
    """On SIGTERM it answers what it has accepted, refuses the rest with 503, and then stops."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.state, self.on_ready = state, on_ready
        self._stopping: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain; a second signal stops at once."""
        if self.state.draining:
            self.should_exit = self.force_exit = True
            return
        self.state.draining = True
        # A signal handler runs between two instructions of the loop: only wake it up here.
        self._loop.call_soon_threadsafe(self._drain_soon)

    def _drain_soon(self) -> None:
        self._stopping = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < LINGER:
            if self.state.active:
                quiet_since = time.monotonic()
            await asyncio.sleep(0.02)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, then say that the server is ready."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.on_ready()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"host, port: cannot listen on {host}:{port} ({error.strerror or error}); choose another --port"
        ) from None
    found.set_inheritable(True)
    return found


def address_of(listening: socket.socket) -> str:
    """The address of a listening socket, for people."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_worker(
    config: ServeConfig, listening: socket.socket, spool: str, on_ready: Callable[[ServerState, DrainingServer], None]
) -> None:
    """Open the models and answer requests until a signal comes."""
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // config.workers)
    torch.set_num_threads(threads)
    models = Models(config)
    for model in models:
        model.warm_up()
    state = ServerState(config, models, Spool(spool))
    limits = config.limits
    protocol: Any = type("Protocol", (GuardedProtocol,), {"read_time": limits.read_time})
    settings = uvicorn.Config(
        create_app(state), http=protocol, ws="none", lifespan="off", log_level="warning", access_log=False,
        backlog=BACKLOG, limit_concurrency=limits.connections, server_header=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.request_time) + 5, loop="asyncio",
    )  # fmt: skip
    server = DrainingServer(settings, state, lambda: on_ready(state, server))
    try:
        server.run(sockets=[listening])
    finally:
        state.close()


def serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `say` prints what a person wants to know."""
    listening = listen(config.host, config.port)
    address = address_of(listening)
    spool = tempfile.mkdtemp(prefix="dragoman-serve-")
    try:
        if config.workers == 1:
            run_worker(config, listening, spool, lambda state, _: announce(state.models, address, say))
        else:
            Supervisor(config, listening, spool, say).run(address)
    finally:
        listening.close()
        shutil.rmtree(spool, ignore_errors=True)


def announce(models: Models, address: str, say: Callable[[str], None]) -> None:
    """Say what is served where."""
    for model in models:
        languages = f", {model.source} → {', '.join(model.targets)}" if model.translates else ""
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
        """Start a worker."""
        environment = os.environ | {CONFIG_VARIABLE: config_as_json(self.config)}
        command = [sys.executable, "-m", "dragoman.serving.worker", str(self.listening.fileno()), self.spool]
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=[self.listening.fileno()],
        )  # fmt: skip
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
            self.listening.close()  # the workers have their own handles: the last one to close it refuses connections
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
        """Let all workers finish what they have accepted; kill those that take too long."""
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.config.limits.request_time + 15
        for worker in self.workers.values():
            try:
                worker.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def worker_main(arguments: list[str]) -> int:
    """A worker process: the number of the listening socket and the spool folder are its arguments."""
    config = config_from_json(os.environ.pop(CONFIG_VARIABLE))
    listening = socket.socket(fileno=int(arguments[0]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        run_worker(config, listening, arguments[1], lambda *_: print("ready", flush=True))
    except DragomanError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    return 0


def _end_with_parent() -> None:
    """Stop when the supervisor is gone: its end of the pipe closes."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
