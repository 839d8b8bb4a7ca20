"""Commands in processes of their own, forked from one that has imported torch: importing it takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.processes", "dragoman.runs", "dragoman.cli", "dragoman.commands.train"])
STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))


def run_command(arguments: list[str], environment: Mapping[str, str], streams: Mapping[int, Any]) -> None:
    """What the child does: `python -m dragoman` with these arguments, variables and standard streams."""
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
    from dragoman.cli import main

    sys.argv = ["dragoman", *arguments]
    main()


class Command:
    """`python -m dragoman …` as `subprocess.Popen` has it; `streams` are file descriptors by their number."""

    def __init__(
        self, arguments: Iterable[str | Path], environment: Mapping[str, str] = {}, streams: Mapping[int, int] = {}
    ) -> None:
        self.stderr: IO[str] | None = None
        streams, ours = dict(streams), -1
        if 2 not in streams:
            ours, streams[2] = os.pipe()
            self.stderr = os.fdopen(ours, encoding="utf-8")
        given = {number: DupFd(stream) for number, stream in streams.items()}
        variables = {**os.environ, **environment}
        self.process = CONTEXT.Process(target=run_command, args=([*map(str, arguments)], variables, given))
        self.process.start()
        if ours >= 0:
            os.close(streams[2])
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.send_signal = lambda number: os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self.process.exitcode

    def wait(self, seconds: float = 120) -> int:
        """The exit code; a process that still runs after so long is killed."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired("dragoman", seconds)
        return self.process.exitcode

    def finish(self) -> tuple[int, str]:
        """The exit code and what was said on standard error."""
        assert self.stderr is not None
        with self.stderr:
            said = self.stderr.read()
        return self.wait(), said


def two_processes(arguments: Iterable[str | Path], environment: Mapping[str, str]) -> list[tuple[int, str]]:
    """Exit codes and standard error of two processes that train together, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments, both = list(arguments), {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [Command(arguments, {**environment, **both, **rank}) for rank in ranks]
    return [one.finish() for one in started]
