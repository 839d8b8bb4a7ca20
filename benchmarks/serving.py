"""Load on loopback: throughput and latency of `dragoman serve`, overload, stopping, a killed worker, memory.

    python benchmarks/serving.py RUN [--seconds 5] [--tries 20] [--requests 2000] [--part throughput]

Throughput is measured for 1, 8 and 64 clients with dynamic batching, without it (--batch-size 1), and for a server
built as LibreTranslate is: one request at a time through CTranslate2 under a lock. Sentences come from the data.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from serving_fuzz import memory, server


def sentences(run: str, count: int = 500) -> list[str]:
    """Source sentences of the run's own data."""
    from dragoman.runs import Run

    data = Run(run).config.data
    lines = Path(str(data.train)).read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:: max(1, len(lines) // count)]][:count]


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> tuple[int, bool]:
    """Send a request; the status of the answer, and whether the connection stays open. Costs less than a library."""
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers.get("connection") != "close"


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """Requests of several clients at once, each on its own connection."""

    def __init__(self) -> None:
        self.latencies: dict[int, list[float]] = {}
        self.lost: list[str] = []
        self.asked = 0  # requests, the warm-up included

    async def run(self, url: str, texts: list[str], clients: int, seconds: float, rate: float = 0.0) -> None:
        """Ask for some seconds, without pause or with so many requests a second over all clients.

        Every second client opens a new connection for each request.
        """
        start = time.monotonic()
        end = start + seconds
        host, port = url.removeprefix("http://").split(":")

        async def client(number: int) -> None:
            index, connection, due = number, None, start + number / rate if rate else 0.0
            while time.monotonic() < end:
                if rate:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    due = max(due + clients / rate, time.monotonic())
                body = {"q": texts[index % len(texts)], "source": "de", "target": "en"}
                begun = time.monotonic()
                try:
                    connection = connection or await asyncio.open_connection(host, int(port))
                except OSError:
                    return  # refused: nothing was accepted
                try:
                    status, keep = await exchange(*connection, json.dumps(body).encode())
                except (OSError, asyncio.IncompleteReadError) as error:
                    self.lost.append(repr(error))
                    return
                self.latencies.setdefault(status, []).append(time.monotonic() - begun)
                if not keep or number % 2:
                    connection[1].close()
                    connection = None
                index += clients
            if connection is not None:
                connection[1].close()

        await asyncio.gather(*(client(number) for number in range(clients)))

    def line(self, seconds: float, status: int = 200) -> str:
        """Requests per second and percentiles."""
        found = sorted(self.latencies.get(status, [0.0]))
        median, p99 = 1000 * statistics.median(found), 1000 * self.p99(status)
        return f"{len(found) / seconds:8.1f}/s   p50 {median:7.1f} ms   p99 {p99:7.1f} ms"

    def p99(self, status: int = 200) -> float:
        """The 99th percentile of the latencies."""
        found = sorted(self.latencies.get(status, [0.0]))
        return found[min(len(found) - 1, int(0.99 * len(found)))]


def measure(url: str, texts: list[str], clients: int, seconds: float) -> Load:
    """A short warm-up, then the measurement."""
    warm, load = Load(), Load()
    asyncio.run(warm.run(url, texts, clients, min(1.0, seconds / 4)))
    asyncio.run(load.run(url, texts, clients, seconds))
    load.asked = sum(len(one) for each in (warm, load) for one in each.latencies.values())
    return load


@contextmanager
def one_at_a_time(run: str) -> Iterator[str]:
    """LibreTranslate's design: threads that take turns at one CTranslate2 translator."""
    import dragoman

    predictor, lock = dragoman.load(run, device="cpu"), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            table = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                text = predictor.predict([table["q"]], scores=False)[0].text
            body = json.dumps({"translatedText": text}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{served.server_port}"
    finally:
        served.shutdown()


def throughput(run: str, texts: list[str], seconds: float) -> None:
    """Clients × designs."""
    for name, arguments in (("batched", []), ("unbatched", ["--batch-size", "1"])):
        with server(run, *arguments) as (url, process):
            for clients in (1, 8, 64):
                before, begun = cpu_seconds(process.pid), time.monotonic()
                load = measure(url, texts, clients, seconds)
                used, passed = cpu_seconds(process.pid) - before, time.monotonic() - begun
                share = f"{1000 * used / max(1, load.asked):.1f} ms CPU each, {used / passed:.0%} of a core"
                print(
                    f"{name:<14}{clients:>3} clients {load.line(seconds)}   {share}, {len(load.lost)} lost", flush=True
                )
    with one_at_a_time(run) as url:
        for clients in (1, 8, 64):
            load = measure(url, texts, clients, seconds)
            print(f"{'one by one':<14}{clients:>3} clients {load.line(seconds)}", flush=True)


def overload(run: str, texts: list[str], seconds: float, rounds: int = 4) -> None:
    """Ten times as many requests as the server can answer, in turns with few; `--wait` bounds the waiting."""
    usual, much = Load(), Load()
    with server(run, "--queue", "2", "--batch-size", "2") as (url, _):
        most = measure(url, texts, 8, seconds)
        capacity = len(most.latencies[200]) / seconds
        print(f"capacity     {capacity:6.0f}/s, then {10 * capacity:.0f}/s are asked for")
        for _ in range(rounds):
            asyncio.run(usual.run(url, texts, 1, seconds))
            asyncio.run(much.run(url, texts, 100, seconds, rate=10 * capacity))
    print(f"one client             {usual.line(rounds * seconds)}")
    print(f"overload: answered     {much.line(rounds * seconds)}")
    print(f"overload: refused      {much.line(rounds * seconds, 503)}")
    print(f"p99 of the answered: {much.p99() / usual.p99():.2f} times that of one client; {len(much.lost)} lost")


def stopping(run: str, texts: list[str], tries: int) -> None:
    """SIGTERM while clients ask: requests without an answer."""
    lost, answered = 0, Counter[int]()
    for _ in range(tries):
        with server(run) as (url, process):
            load = Load()
            worker = threading.Thread(target=lambda: asyncio.run(load.run(url, texts, 16, 20)))  # noqa: B023
            worker.start()
            time.sleep(0.7)
            process.send_signal(signal.SIGTERM)
            worker.join()
            lost += len(load.lost)
            answered.update({status: len(all_) for status, all_ in load.latencies.items()})
    print(f"SIGTERM {tries} times: {dict(answered)} answered, {lost} lost")


def killing(run: str, texts: list[str]) -> None:
    """kill -9 of one of two workers under load."""
    with server(run, "--workers", "2") as (url, process):
        load = Load()
        thread = threading.Thread(target=lambda: asyncio.run(load.run(url, texts, 16, 12)))
        thread.start()
        time.sleep(1)
        listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(int(listed.stdout.split()[0]), signal.SIGKILL)
        thread.join()
        time.sleep(1)
        answer = httpx.get(f"{url}/health", timeout=30).status_code
        counts = {status: len(all_) for status, all_ in load.latencies.items()}
        print(
            f"kill -9 of one of two workers: {counts} answered, {len(load.lost)} of 16 connections lost, then {answer}"
        )


def flat(run: str, texts: list[str], requests: int) -> None:
    """The memory of the server after a tenth and after all requests."""
    with server(run) as (url, _):
        load = Load()
        done: Callable[[], int] = lambda: sum(map(len, load.latencies.values()))  # noqa: E731
        sizes = []
        for share in (0.1, 0.4, 0.7, 1.0):
            while done() < share * requests:
                asyncio.run(load.run(url, texts, 16, 1.0))
            sizes.append(memory(url))
        print(f"memory after 10, 40, 70, 100 % of {done():,} requests: {', '.join(f'{one:.1f}' for one in sizes)} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--part", choices=["throughput", "overload", "stopping", "killing", "flat"])
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    texts = sentences(options.run)
    parts: dict[str, Callable[[], None]] = {
        "throughput": lambda: throughput(options.run, texts, options.seconds),
        "overload": lambda: overload(options.run, texts, options.seconds),
        "stopping": lambda: stopping(options.run, texts, options.tries),
        "killing": lambda: killing(options.run, texts),
        "flat": lambda: flat(options.run, texts, options.requests),
    }
    for name, part in parts.items():
        if options.part in (None, name):
            part()


if __name__ == "__main__":
    main()
