"""Commands in processes of their own, forked from one that has imported torch: importing it takes seconds."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.processes", "dragoman.runs", "dragoman.cli", "dragoman.commands.train"])
STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))


def sleep_then(seconds: float, result: Any) -> Any:
    """A job of so many seconds, for a process that imports this module alone."""
    time.sleep(seconds)
    return result


class Streams(dict[int, int]):
    """File descriptors by the number that they get in the child; the child has copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ([(number, DupFd(stream)) for number, stream in self.items()],)


@atexit.register
def kill_children() -> None:
    """Children of tests that failed would keep pytest from exiting."""
    for child in multiprocessing.active_children():
        child.kill()


def run_command(
    arguments: list[str], environment: Mapping[str, str], streams: Mapping[int, Any], script: Path | None
) -> None:
    """What the child does: `python -m dragoman`, or a script, with these arguments, variables and standard streams."""
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests ignore it
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in streams.items():
        given = stream.detach()
        os.dup2(given, number)
        os.close(given)
    for number, (name, mode, errors) in enumerate(STREAMS):
        buffering = 1 if name == "stderr" or os.isatty(number) else -1
        setattr(sys, name, os.fdopen(number, mode, buffering, "utf-8", errors, closefd=False))
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))  # torch was imported with other variables
    sys.argv = [str(script or "dragoman"), *arguments]
    if script is not None:
        runpy.run_path(str(script), run_name="__main__")
        return
    from dragoman.cli import main

    main()


class Command:
    """`python -m dragoman …` or `python SCRIPT …` as `subprocess.Popen` has it; `streams` are file descriptors."""

    def __init__(
        self, arguments: Iterable[str | Path], environment: Mapping[str, str] = {}, streams: Mapping[int, int] = {},
        script: Path | None = None,
    ) -> None:  # fmt: skip
        self.stderr: IO[str] | None = None
        given = Streams(streams)
        if 2 not in given:
            ours, given[2] = os.pipe()
            self.stderr = os.fdopen(ours, encoding="utf-8")
        variables = {**os.environ, **environment}
        self.process = CONTEXT.Process(target=run_command, args=([*map(str, arguments)], variables, given, script))
        self.process.start()
        if self.stderr is not None:
            os.close(given[2])

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended."""
        assert self.process.pid is not None
        if self.poll() is None:
            os.kill(self.process.pid, number)

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self.process.exitcode

    def wait(self, seconds: float = 240) -> int:
        """The exit code; a process that still runs after so long is killed."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired("dragoman", seconds)
        return self.process.exitcode

    def finish(self, seconds: float = 240) -> tuple[int, str]:
        """The exit code and what was said on standard error; a process that runs longer is killed."""
        assert self.stderr is not None
        limit = threading.Timer(seconds, self.process.kill)
        limit.start()
        with self.stderr:
            said = self.stderr.read()
        limit.cancel()
        return self.wait(), said


def free_port() -> int:
    """A port below those that the system gives to connections: none of these takes it before it is used."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def two_processes(arguments: Iterable[str | Path], environment: Mapping[str, str]) -> list[tuple[int, str]]:
    """Exit codes and standard error of two processes that train together, as torchrun would start them."""
    port = str(free_port())
    arguments, both = list(arguments), {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [Command(arguments, {**environment, **both, **rank}) for rank in ranks]
    with ThreadPoolExecutor() as threads:
        return list(threads.map(Command.finish, started))
