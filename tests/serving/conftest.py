"""A live server on loopback in a thread of this process, with one tiny run of every task."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.serving.config import LimitsConfig, ModelConfig, ServeConfig
from dragoman.serving.server import run_worker
from dragoman.serving.state import ServerState
from dragoman.serving.system import listen
from tests.conftest import TrainedFolder, own_copy, quiet_machine
from tests.serving.tiny_runs import tiny_runs


@dataclass
class Live:
    """A running server."""

    url: str
    state: ServerState
    client: httpx.Client
    listening: socket.socket

    def post(self, path: str, body: Any) -> Any:
        """The answer to a JSON body, which must be a good one."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def stop(self) -> None:
        """As a signal would."""
        self.server.handle_exit(15, None)

    server: Any = None


@contextmanager
def serving(config: ServeConfig, spool: Path) -> Iterator[Live]:
    """A server in a thread, until the block ends."""
    spool.mkdir(exist_ok=True)
    listening = listen("127.0.0.1", 0)
    ready = threading.Event()
    found: list[Any] = []

    def on_ready(state: ServerState, server: Any) -> None:
        found.extend((state, server))
        ready.set()

    def work() -> None:
        with quiet_machine(spool.parent / "cache"):
            run_worker(config, listening, str(spool), on_ready)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(240), "the server did not start"
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=240) as client:
        live = Live(url, found[0], client, listening, found[1])
        try:
            yield live
        finally:  # or a test that fails would never end
            if not live.state.draining:
                live.stop()
    thread.join(240)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, trained_folder: TrainedFolder) -> dict[str, Path]:
    """A run of every task."""
    place = own_copy(tmp_path_factory, "served", tiny_runs)
    return {"ab-cd": trained_folder.run, **{path.name: path for path in sorted((place / "runs").iterdir())}}


@pytest.fixture(scope="session")
def config(runs: dict[str, Path]) -> ServeConfig:
    models = [ModelConfig(str(path), name=name) for name, path in runs.items()]
    limits = LimitsConfig(characters=20_000, pattern=20, queue=64, wait=0.0, read_time=3.0, body=1_000_000)
    return ServeConfig(models=tuple(models), threads=1, device="cpu", limits=limits)


@pytest.fixture(scope="session")
def live(config: ServeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(config, tmp_path_factory.mktemp("live") / "spool") as server:
        yield server
