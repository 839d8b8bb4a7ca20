"""Queues, limits, hostile clients and stopping."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.base.errors import DataError
from dragoman.serving.batcher import Batcher, Busy
from dragoman.serving.config import ServeConfig
from dragoman.serving.system import has_waiting, ignore_new_connections, listen
from tests.processes import Command
from tests.serving.conftest import Live, serving

# --- the batcher


class Recorder:
    """A computation that waits for a gate and notes its batches."""

    def __init__(self) -> None:
        self.gate, self.batches = threading.Event(), list[list[Any]]()
        self.begun = threading.Event()

    def __call__(self, key: Any, inputs: list[Any]) -> list[Any]:
        self.begun.set()
        assert self.gate.wait(60)
        self.batches.append(list(inputs))
        if "bad" in inputs:
            raise DataError("bad input")
        return [f"{key}:{one}" for one in inputs]


async def started(recorder: Recorder, batcher: Batcher) -> asyncio.Future[list[Any]]:
    """The first request, whose computation has begun."""
    task = batcher.submit("k", ["first"])
    await asyncio.to_thread(recorder.begun.wait, 60)
    return task


def run(test: Callable[[Recorder, Batcher], Any], **options: Any) -> None:
    recorder = Recorder()
    batcher = Batcher(recorder, **({"batch_size": 4, "queue": 6} | options))
    try:
        asyncio.run(test(recorder, batcher))
    finally:
        recorder.gate.set()
        batcher.stop()


def test_requests_share_batches_and_take_turns() -> None:
    async def check(recorder: Recorder, batcher: Batcher) -> None:
        first = await started(recorder, batcher)
        large = batcher.submit("k", list("abcd"))
        await asyncio.sleep(0)
        small = batcher.submit("k", ["z"])
        other = batcher.submit("other", ["y"])
        await asyncio.sleep(0)
        recorder.gate.set()
        assert await small == ["k:z"]
        assert await large == ["k:a", "k:b", "k:c", "k:d"]
        assert await other == ["other:y"]
        assert await first == ["k:first"]
        assert recorder.batches == [["first"], ["a", "z", "b", "c"], ["y"], ["d"]]

    run(check)


def test_a_full_queue_refuses_and_a_cancelled_request_frees_its_place() -> None:
    async def check(recorder: Recorder, batcher: Batcher) -> None:
        first = await started(recorder, batcher)
        waiting = asyncio.gather(batcher.submit("k", list("abc")), batcher.submit("k", list("de")))
        await asyncio.sleep(0)
        assert batcher.waiting == 5
        with pytest.raises(Busy) as refused:
            await batcher.submit("k", ["x", "y"])
        assert refused.value.retry_after >= 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert batcher.waiting == 0
        recorder.gate.set()
        assert await batcher.submit("k", ["x", "y"]) == ["k:x", "k:y"]
        assert await first == ["k:first"]
        assert recorder.batches == [["first"], ["x", "y"]]  # nothing of the cancelled request was computed

    run(check)


def test_a_mistake_spoils_no_other_request() -> None:
    async def check(recorder: Recorder, batcher: Batcher) -> None:
        first = await started(recorder, batcher)
        tasks = [batcher.submit("k", [one]) for one in ("a", "bad", "b")]
        await asyncio.sleep(0)
        recorder.gate.set()
        (good,), (bad,), (other,) = await asyncio.gather(*tasks)
        assert (good, other) == ("k:a", "k:b")
        assert isinstance(bad, DataError)
        await first

    run(check)


def test_expected_waiting_refuses() -> None:
    async def check(recorder: Recorder, batcher: Batcher) -> None:
        batcher._seconds_per_input = 1.0
        first = await started(recorder, batcher)
        one = batcher.submit("k", ["a"])
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await batcher.submit("k", ["b"])
        recorder.gate.set()
        await asyncio.gather(first, one)

    run(check, wait=1.5)


# --- hostile clients


def raw(live: Live, data: bytes, wait: float = 60.0, half_close: bool = False) -> bytes:
    """What the server answers to bytes; b"" if it only closes the connection."""
    with socket.create_connection(live.listening.getsockname(), timeout=wait) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def request(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    size = str(len(body) if length is None else length).encode()
    lines = [b"POST /v1/predict HTTP/1.1", b"Host: a", b"Content-Length: " + size, b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


JSON = b"Content-Type: application/json"


@pytest.mark.parametrize(
    "data",
    [
        request(b"[" * 100_000, JSON),
        request(b'{"input":' * 10_000, JSON),
        request(b'{"input": ' + b"9" * 5_000 + b"}", JSON),
        request(b'{"input": "a", "beam": 1e400}', JSON),
        request(b'{"input": "a", "length_penalty": NaN}', JSON),
        request(b'{"input": "\\ud800"}', JSON),
        request(b'{"input": "\xff\xfe"}', JSON),
        request('{"input": "ä"}'.encode("utf-16"), JSON),
        request(b"input=a", b"Content-Type: text/plain"),
        request(b"", JSON),
        request(b"--x\r\n", b"Content-Type: multipart/form-data; boundary=x"),
        request(b"{}", JSON, b"Content-Encoding: gzip"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        request(b"{}", JSON, length=2_000_000),
    ],
    ids=range(16),
)
def test_hostile_bodies_are_answered_4xx(live: Live, data: bytes) -> None:
    answer = raw(live, data, half_close=True)
    assert not answer or answer.split(b" ", 2)[1].startswith(b"4"), answer[:200]
    assert live.client.get("/health").status_code == 200


def test_an_unknown_version_of_http_is_refused(live: Live) -> None:
    answer = raw(live, b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 505 "), answer[:200]
    assert b"HTTP version: found 9.9" in answer


@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_with_two_lengths_is_refused_with_the_connection(
    live: Live, monkeypatch: pytest.MonkeyPatch, version: str, full: bool
) -> None:
    """A proxy that counts the other way would take the rest for a request of its own, or not."""
    monkeypatch.setattr(type(live.state.batcher), "full", full)
    length = "" if version == "1.0" else "Content-Length: 5\r\n"
    smuggled = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for head in (f"Transfer-Encoding: chunked\r\n{length}", f"{length}Transfer-Encoding: chunked\r\n"):
        for rest in ("", smuggled):
            data = f"POST /v1/predict HTTP/{version}\r\nHost: a\r\nConnection: keep-alive\r\n{head}\r\n0\r\n\r\n{rest}"
            answer = raw(live, data.encode())
            assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
            assert answer.count(b"HTTP/1.1") == 1
            assert b"connection: close" in answer.lower()
            assert b"Transfer-Encoding: found it together with" in answer


def test_the_answer_under_load_leaves_doubtful_lengths_to_the_parser(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(live.state.batcher), "full", True)
    assert raw(live, request(b"{}")).startswith(b"HTTP/1.1 503 ")
    for second in (b"Content-Length: 3", b"Content-Length : 2", b"Content-Length: x"):
        assert raw(live, request(b"{}", second)).startswith(b"HTTP/1.1 400 ")


def half_a_second_head(live: Live) -> bytes:
    """What a client that stops in the middle of its second request still gets."""
    with socket.create_connection(live.listening.getsockname(), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        while b"}" not in connection.recv(65536):
            pass
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHo")
        return connection.recv(65536)


def test_slow_clients_are_cut_off(live: Live) -> None:
    """Half a head, half a body, half a second head: all end after read_time, 3 seconds here."""
    with ThreadPoolExecutor(3) as pool:
        head = pool.submit(raw, live, b"POST /v1/predict HTTP/1.1\r\nHost: a\r\n")
        second = pool.submit(half_a_second_head, live)
        body = pool.submit(raw, live, request(b'{"input"', JSON, length=100))
        assert head.result() == b""  # the sockets' limits end an endless wait
        assert b" 408 " in body.result()
        assert second.result() == b""


def test_clients_that_leave_free_their_place(live: Live) -> None:
    for _ in range(5):
        with socket.create_connection(live.listening.getsockname()) as connection:
            connection.sendall(request(b'{"input": "abc"}', JSON))
    deadline = time.monotonic() + 60
    while live.state.calls or live.state.batcher.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_full_queue_is_answered_from_bytes(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with Retry-After before anything is parsed, on a connection that goes on."""
    monkeypatch.setattr(live.state.batcher, "queue", 0)
    with httpx.Client(base_url=live.url) as client:
        for path in ("/v1/predict", "/translate"):
            answer = client.post(path, content=b"no JSON", headers={"content-type": "application/json"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "busy" in answer.json()["error"]
        assert client.post("/v1/completions", json={}).json()["error"]["type"] == "server_error"
        assert "busy" in client.post("/v2/translate", json={}).json()["message"]
        chunked = client.post("/v1/predict", content=iter([b"{}"]))  # not whole in one packet: refused by the gate
        assert (chunked.status_code, chunked.headers["retry-after"]) == (503, "1")
        assert client.get("/health").status_code == 200
        monkeypatch.undo()
        assert client.post("/v1/predict", json={"input": "abc"}).status_code == 200
    assert live.state.batcher.entering == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="socket filters are Linux's")
def test_new_connections_wait_while_accepted_ones_are_kept() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as first:
        first.sendall(b"hello")
        assert ignore_new_connections(listening)
        with pytest.raises(TimeoutError):
            socket.create_connection(listening.getsockname(), timeout=0.2)
        assert has_waiting(listening)
        with listening.accept()[0] as accepted:
            assert accepted.recv(5) == b"hello"
        assert not has_waiting(listening)


# --- tokens, limits, stopping


@pytest.fixture
def one_model(config: ServeConfig, tmp_path: Path) -> tuple[ServeConfig, Path]:
    return replace(config, models=config.models[:1]), tmp_path / "spool"


def test_tokens_and_origins(one_model: tuple[ServeConfig, Path]) -> None:
    config, spool = one_model
    config = replace(config, token="geheim", cors=("https://example.org",), page=False)
    with serving(config, spool) as live:
        assert live.client.post("/v1/predict", json={"input": "a"}).status_code == 403
        wrong = {"Authorization": "Bearer falsch"}
        assert live.client.post("/v1/predict", json={"input": "a"}, headers=wrong).status_code == 403
        right = {"Authorization": "Bearer geheim", "Origin": "https://example.org"}
        answer = live.client.post("/v1/predict", json={"input": "a"}, headers=right)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        body = {"q": "abc", "source": "ab", "target": "cd"}
        assert live.client.post("/translate", json=body).status_code == 403
        assert live.client.post("/translate", json=body | {"api_key": "geheim"}).status_code == 200
        assert live.client.get("/health").status_code == 200
        assert live.client.get("/").status_code == 404


def test_workers_share_a_socket(one_model: tuple[ServeConfig, Path]) -> None:
    (model,) = one_model[0].models
    server = Command(["serve", model.run, "--port", "0", "--workers", "2", "--device", "cpu"])
    assert server.stderr is not None
    said = next(line for line in server.stderr if "serving on" in line)
    assert "with 2 workers" in said
    answer = httpx.post(f"{said.split()[2]}/v1/predict", json={"input": "abc"}, timeout=60)
    assert answer.status_code == 200
    server.send_signal(signal.SIGTERM)
    assert server.finish(60)[0] == 0


def test_stopping_loses_no_accepted_request(one_model: tuple[ServeConfig, Path]) -> None:
    """Clients ask without pause while the server stops: every request has an answer, or its connection is refused."""
    config, spool = one_model
    statuses: list[int] = []
    lost: list[str] = []
    with serving(config, spool) as live:

        def ask() -> None:
            with httpx.Client(base_url=live.url, timeout=30) as client:
                while True:
                    try:
                        statuses.append(client.post("/v1/predict", json={"input": "abcdef"}).status_code)
                    except httpx.ConnectError:
                        return
                    except httpx.TransportError as error:
                        lost.append(repr(error))
                        return

        with ThreadPoolExecutor(6) as pool:
            tasks = [pool.submit(ask) for _ in range(6)]
            while len(statuses) < 20:
                time.sleep(0.01)
            live.stop()
            for task in tasks:
                task.result(60)
    assert not lost
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 20
