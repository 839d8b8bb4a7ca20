"""Requests at their limits: bounded, given up, cancelled between steps, and never in the way of others."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.base.long_work import check_interrupted
from dragoman.serving.batcher import Batcher, SearchCost, Speeds, batch_cost
from dragoman.serving.config import LimitsConfig, ServeConfig
from dragoman.serving.routes import operations
from tests.serving.conftest import Live, serving
from tests.serving.test_load import JSON, request

LONGEST = {"beam": 16, "min_length": 1_024, "max_length": 1_024}
HELD = {"input": [f"abc{letter}" for letter in "abcdefghijklmnopqrst"], **LONGEST}  # minutes of work, within all limits


def idle_within(live: Live, seconds: float) -> bool:
    """Whether nothing is computed any more soon."""
    deadline = time.monotonic() + seconds
    while live.state.busy_for or live.state.waiting:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def patient(config: ServeConfig, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that gives a request up after three seconds."""
    limits = LimitsConfig(request_time=3.0)
    with serving(
        replace(config, models=config.models[:1], limits=limits), tmp_path_factory.mktemp("long") / "s"
    ) as live:
        live.post("/v1/predict", {"input": "abc"})
        yield live


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            {"input": ["abc"] * 32, **LONGEST},
            "524,800 tokens to search (32 texts × 16 hypotheses × up to 1,025 tokens)",
        ),
        ({"input": ["abc"] * 32, "n_best": 16, "max_length": 1_024}, "524,800 tokens"),
        ({"input": ["abc"] * 7, "method": {"kind": "mbr", "samples": 64}, "max_length": 1_024}, "× 64 hypotheses"),
    ],
)
def test_the_work_of_a_request_is_bounded(patient: Live, body: dict[str, Any], found: str) -> None:
    """Before anything is computed: what is computed for three seconds is answered 503."""
    body["input"] = [f"{text}{number}" for number, text in enumerate(body["input"])]  # equal texts are computed once
    response = patient.client.post("/v1/predict", json=body)
    assert response.status_code == 400
    assert found in response.json()["error"]
    assert "expected at most 400,000 (limits.work" in response.json()["error"]


def test_a_long_request_holds_up_no_other(patient: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "BUSY", 1.0)
    answered, healths = 0, set()
    assert patient.client.get("/health").json()["status"] == "ok"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(patient.client.post, "/v1/predict", json=HELD)
        with httpx.Client(base_url=patient.url, timeout=60) as client:
            while not held.done():
                assert client.post("/v1/predict", json={"input": "abcdef"}).status_code == 200
                answered += not held.done()
                health = client.get("/health")
                assert health.status_code == 200
                healths.add(health.json()["status"])
    assert answered
    assert "busy" in healths
    answer = held.result()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "longer than 3 seconds (limits.request_time" in answer.json()["error"]
    assert idle_within(patient, 60)


def test_the_computation_for_a_client_that_left_ends(patient: Live) -> None:
    import json

    with socket.create_connection(patient.listening.getsockname()) as connection:
        connection.sendall(request(json.dumps(HELD).encode(), JSON))
        deadline = time.monotonic() + 60
        while not patient.state.busy_for and time.monotonic() < deadline:
            time.sleep(0.01)
        assert patient.state.busy_for
    assert idle_within(patient, 60)


def test_a_stuck_batch_shows_in_the_health(patient: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient.state.batcher, "_computing", 1)
    monkeypatch.setattr(patient.state.batcher, "_begun", time.monotonic() - 100)
    response = patient.client.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "stuck")
    assert response.json()["busy_seconds"] >= 100


# --- the batcher


class Stepwise:
    """A computation in steps, which notes how far it came."""

    def __init__(self) -> None:
        self.begun, self.steps, self.batches = threading.Event(), 0, list[list[Any]]()

    def __call__(self, key: Any, inputs: list[Any]) -> list[Any]:
        self.batches.append(inputs)
        self.begun.set()
        if key == "long":
            for _ in range(1_000):
                check_interrupted()
                self.steps += 1
                time.sleep(0.01)
        return inputs


def test_a_batch_goes_on_as_long_as_one_request_needs_it() -> None:
    work, gate, shares = Stepwise(), threading.Event(), threading.Event()

    def run(key: Any, inputs: list[Any]) -> list[Any]:
        if key == "gate":
            assert gate.wait(60)
        if inputs == ["a", "b"]:
            shares.set()
        return work(key, inputs)

    batcher = Batcher(run, batch_size=4, queue=8)

    async def check() -> None:
        before = batcher.submit("gate", ["x"])
        first, other = batcher.submit("long", ["a"]), batcher.submit("long", ["b"])
        gate.set()
        await before
        assert await asyncio.to_thread(shares.wait, 60)
        first.cancel()
        await asyncio.sleep(0.1)
        goes_on = work.steps + 2
        while work.steps < goes_on:  # for the other one; the test's limit ends an endless wait
            await asyncio.sleep(0.01)
        other.cancel()
        after = await batcher.submit("short", ["c"])
        assert after == ["c"]

    asyncio.run(check())
    batcher.stop()
    assert work.steps < 900


def test_batches_take_no_longer_than_they_should() -> None:
    """Inputs of known cost are cut into batches by the measured speed; one that is too long goes alone."""
    speeds = Speeds()
    speeds.note("k", batch_cost(10, 1), 0.17)  # 1 ms per unit
    work = Stepwise()
    batcher = Batcher(work, batch_size=8, queue=64, speeds=speeds, batch_time=0.5)

    async def check() -> None:
        gate = batcher.submit("long", ["gate"])
        await asyncio.to_thread(work.begun.wait, 60)
        small = batcher.submit("k", list(range(12)), [SearchCost(10, 8)] * 12)  # 10 · (16 + 8 · 4) ms = 0.48 s
        gate.cancel()
        assert await small == list(range(12))

    asyncio.run(check())
    batcher.stop()
    assert len(work.batches[1]) == 4
    assert speeds.lasts("k", SearchCost(100, 16), 0.5)
    assert not Speeds().lasts("k", SearchCost(40, 5), 0.5)


# --- stopping

STUCK = """
import sys, threading, time
from dragoman.serving import models
from dragoman.serving.config import LimitsConfig, ModelConfig, ServeConfig
from dragoman.serving.server import serve

def stuck(self, work, inputs):
    print("computing", flush=True)
    time.sleep(600)  # a library that knows no steps

def say(line):
    if "serving on" in line:
        models.ServedModel.run = stuck
    print(line, flush=True)

model = ModelConfig(sys.argv[1], name="ab-cd")
serve(ServeConfig(models=(model,), port=0, device="cpu", limits=LimitsConfig(request_time=300.0, grace=5.0)), say)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_ends_a_server_that_cannot_stop_computing(runs: dict[str, Path], tmp_path: Path) -> None:
    """After the grace period, with an answer to the request, whatever the thread does."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DRAGOMAN_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", STUCK, str(runs["ab-cd"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            if "serving on" in line:
                url = line.split()[2]
                break
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx.post, f"{url}/v1/predict", json={"input": "abc"}, timeout=240)
            assert process.stdout.readline() == "computing\n"
            process.send_signal(signal.SIGTERM)
            answer = asked.result()
    assert (answer.status_code, "stopping" in answer.json()["error"]) == (503, True)
