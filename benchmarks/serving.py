"""Load on loopback: throughput and latency of `dragoman serve`, overload, stopping, a killed worker, memory.

    python benchmarks/serving.py [RUN] [--seconds 5] [--rounds 3] [--tries 20] [--requests 100000] [--part throughput]

Throughput is measured for 1, 8 and 64 clients with dynamic batching, without it (--batch-size 1), and for a server
built as LibreTranslate is: one request at a time through CTranslate2 under a lock. The systems take turns, so that
other work on the machine slows down all of them. Sentences come from the data of the run; without RUN a tiny one is
trained. The load comes from another process than the server's. The part `engine` compares greedy servers in float32
and int8 with CTranslate2 called directly, in turns; its RUN is a Transformer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from serving_fuzz import memory, runs_or_tiny_ones, server


def sentences(run: str, count: int = 500) -> list[str]:
    """Source sentences of the run's own data."""
    from dragoman.runs import Run

    data = Run(run).config.data
    lines = Path(str(data.train)).read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:: max(1, len(lines) // count)]][:count]


def translating(run: str, *arguments: str) -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """A server of a run, which translates from German to English as far as requests know."""
    return server(run, "--languages", "de:en", *arguments)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> tuple[int, bool]:
    """Send a request; the status of the answer, and whether the connection stays open. Costs less than a library."""
    writer.write(body)
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

    async def run(self, url: str, texts: list[str], clients: int, seconds: float) -> None:
        """Ask without pause for some seconds.

        Every second client opens a new connection for each request.
        """
        end = time.monotonic() + seconds
        host, port = url.removeprefix("http://").split(":")

        async def client(number: int) -> None:
            index, connection = number, None
            while time.monotonic() < end:
                body = request_bytes(texts[index % len(texts)])
                begun = time.monotonic()
                try:
                    connection = connection or await asyncio.open_connection(host, int(port))
                except OSError:
                    return  # refused: nothing was accepted
                try:
                    status, keep = await exchange(*connection, body)
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


class Flood:
    """Requests at a fixed rate over plain sockets: a light generator, so that it measures the server and not itself.

    Half of the requests come on connections that stay open, half on new ones.
    """

    def __init__(self, url: str, texts: list[str], load: Load) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.address, self.load = (host, int(port)), load
        self.bodies = [request_bytes(text) for text in texts]
        self.poll = select.epoll()
        self.asked: dict[int, tuple[socket.socket, float, bytearray]] = {}  # by number of the socket
        self.spare: list[socket.socket] = []

    def run(self, rate: float, seconds: float) -> None:
        """Ask, then wait for the last answers."""
        start = time.monotonic()
        count = int(rate * seconds)
        for number in range(count):
            while (left := start + number / rate - time.monotonic()) > 0:
                self.receive(left)
            self.receive(0.0)
            self.ask(number)
        deadline = time.monotonic() + 10
        while self.asked and time.monotonic() < deadline:
            self.receive(0.1)
        self.load.lost += ["no answer"] * len(self.asked)
        for connection in (*self.spare, *(one for one, _, _ in self.asked.values())):
            connection.close()

    def ask(self, number: int) -> None:
        """Send a request."""
        begun = time.monotonic()
        if number % 2 or not self.spare:
            connection = socket.create_connection(self.address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.poll.register(connection, select.EPOLLIN)
        else:
            connection = self.spare.pop()
        connection.sendall(self.bodies[number % len(self.bodies)])
        self.asked[connection.fileno()] = connection, begun, bytearray()

    def receive(self, wait: float) -> None:
        """Read the answers that have come."""
        for number, _ in self.poll.poll(wait):
            if number not in self.asked:
                continue
            connection, begun, data = self.asked[number]
            part = connection.recv(65536)
            data += part
            end = data.find(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", data)
            whole = end >= 0 and length is not None and len(data) >= end + 4 + int(length[1])
            if not whole and part:
                continue
            del self.asked[number]
            if whole:
                self.load.latencies.setdefault(int(data[9:12]), []).append(time.monotonic() - begun)
            else:
                self.load.lost.append("closed")
            if whole and len(self.spare) < 50 and b"connection: close" not in data:
                self.spare.append(connection)
            else:
                self.poll.unregister(connection)
                connection.close()


def request_bytes(text: str) -> bytes:
    """A whole request for a translation."""
    body = json.dumps({"q": text, "source": "de", "target": "en"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def measure(url: str, texts: list[str], clients: int, seconds: float) -> Load:
    """A short warm-up, then the measurement."""
    warm, load = Load(), Load()
    asyncio.run(warm.run(url, texts, clients, min(1.0, seconds / 4)))
    asyncio.run(load.run(url, texts, clients, seconds))
    load.asked = sum(len(one) for each in (warm, load) for one in each.latencies.values())
    return load


def serve_one_at_a_time(run: str) -> None:
    """LibreTranslate's design, in a process of its own: threads that take turns at one CTranslate2 translator."""
    import dragoman

    predictor, lock = dragoman.load(run, device="cpu"), threading.Lock()
    predictor.predict(["a"], scores=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

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

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024

    served = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{served.server_port}", flush=True)
    served.serve_forever()


@contextmanager
def one_at_a_time(run: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and its process."""
    command = [sys.executable, __file__, run, "--part", "one-at-a-time"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.terminate()
        process.wait(60)


def throughput(run: str, texts: list[str], seconds: float, rounds: int) -> None:
    """Clients × designs."""
    loads: dict[tuple[str, int], Load] = defaultdict(Load)
    used: Counter[tuple[str, int]] = Counter()
    with translating(run) as batched, translating(run, "--batch-size", "1") as unbatched, one_at_a_time(run) as one:
        systems = {"batched": batched, "unbatched": unbatched, "one at a time": one}
        for _ in range(rounds):
            for clients in (1, 8, 64):
                for name, (url, process) in systems.items():
                    asyncio.run(Load().run(url, texts, clients, 0.5))
                    before = cpu_seconds(process.pid)
                    asyncio.run(loads[name, clients].run(url, texts, clients, seconds))
                    used[name, clients] += cpu_seconds(process.pid) - before
    for clients in (1, 8, 64):
        for name in systems:
            load = loads[name, clients]
            ratio = len(loads["batched", clients].latencies[200]) / len(load.latencies[200])
            each = 1000 * used[name, clients] / len(load.latencies[200])
            print(
                f"{clients:>3} clients  {name:<14}{load.line(rounds * seconds)}   {each:5.1f} ms CPU each   "
                f"batched is {ratio:.2f} times as fast, {len(load.lost)} lost",
                flush=True,
            )


def engine(run: str, texts: list[str], seconds: float, rounds: int) -> None:
    """Greedy search by servers of 1, 8 and 32 clients, and by CTranslate2 called directly on tokens that are ready."""
    from cpu_decoding import plain

    import dragoman

    precisions, texts = ("float32", "int8"), texts[:128]
    predictor = dragoman.load(run, device="cpu", engine="torch")
    assert isinstance(predictor, dragoman.inference.Predictor)
    direct = {precision: plain(predictor, texts, precision) for precision in precisions}
    loads: dict[tuple[str, int], Load] = defaultdict(Load)
    rates: dict[str, list[float]] = defaultdict(list)
    options = ("search.beam=1", "engine=ctranslate2")
    with (
        translating(run, *options) as plain_server,
        translating(run, *options, "precision=int8") as int8_server,
    ):
        servers = dict(zip(precisions, (plain_server, int8_server), strict=True))
        for _ in range(rounds):
            for precision, (url, _) in servers.items():
                begun = time.perf_counter()
                direct[precision](1)
                rates[precision].append(len(texts) / (time.perf_counter() - begun))
                for clients in (1, 8, 32):
                    asyncio.run(Load().run(url, texts, clients, 0.5))
                    asyncio.run(loads[precision, clients].run(url, texts, clients, seconds))
    for (precision, clients), load in loads.items():
        rate, engine_rate = len(load.latencies[200]) / (rounds * seconds), statistics.median(rates[precision])
        single = len(loads["float32", clients].latencies[200]) / (rounds * seconds)
        print(
            f"{precision:<8}{clients:>3} clients {load.line(rounds * seconds)}   {rate / engine_rate:.2f} of "
            f"CTranslate2 alone   {rate / single:.2f} times float32",
            flush=True,
        )


def overload(run: str, texts: list[str], seconds: float, rounds: int) -> None:
    """Ten times as many requests as the server can answer, in turns with few; a short queue bounds the waiting."""
    usual, busy, much = Load(), Load(), Load()
    with translating(run, "limits.queue=2", "--batch-size", "2") as (url, _):
        most = measure(url, texts, 2, seconds)
        capacity = len(most.latencies[200]) / seconds
        print(f"capacity     {capacity:6.0f}/s, then {10 * capacity:.0f}/s are asked for")
        for _ in range(rounds):
            asyncio.run(usual.run(url, texts, 1, seconds))
            asyncio.run(busy.run(url, texts, 2, seconds))
            Flood(url, texts, much).run(10 * capacity, seconds)
    print(f"one client             {usual.line(rounds * seconds)}")
    print(f"two clients            {busy.line(rounds * seconds)}")
    print(f"overload: answered     {much.line(rounds * seconds)}")
    print(f"overload: refused      {much.line(rounds * seconds, 503)}")
    for name, load in (("one client", usual), ("two clients", busy)):
        print(f"p99 of the answered: {much.p99() / load.p99():.2f} times that of {name}; {len(much.lost)} lost")


def stopping(run: str, texts: list[str], tries: int) -> None:
    """SIGTERM while clients ask, of one process and of two workers in turns: requests without an answer."""
    lost, answered = list[str](), Counter[int]()
    for number in range(tries):
        with translating(run, "--workers", str(1 + number % 2)) as (url, process):
            load = Load()
            worker = threading.Thread(target=lambda: asyncio.run(load.run(url, texts, 16, 60)))  # noqa: B023
            worker.start()
            time.sleep(0.7)
            process.send_signal(signal.SIGTERM)
            worker.join()
            lost += load.lost
            answered.update({status: len(all_) for status, all_ in load.latencies.items()})
    print(f"SIGTERM {tries} times: {dict(answered)} answered, {len(lost)} lost {lost[:3]}", flush=True)
    assert not lost


def killing(run: str, texts: list[str]) -> None:
    """kill -9 of one of two workers under load."""
    with translating(run, "--workers", "2") as (url, process):
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
    """The memory of the server after every tenth of the requests; it may grow by 20 MB after the first tenth."""
    with translating(run) as (url, _):
        sizes, load = list[float](), Load()
        while len(sizes) < 10:
            while len(load.latencies.get(200, [])) < (len(sizes) + 1) * requests / 10:
                asyncio.run(load.run(url, texts, 32, 2.0))
            sizes.append(memory(url))
            print(f"memory after {len(load.latencies[200]):,} requests: {sizes[-1]:.1f} MB", flush=True)
    assert sizes[-1] - sizes[0] < 20, "the memory of the server grew by more than 20 MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100_000)
    names = ["throughput", "engine", "overload", "stopping", "killing", "flat"]
    parser.add_argument("--part", choices=[*names, "one-at-a-time"])
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with runs_or_tiny_ones([options.run] if options.run else [], every_task=False) as (run,):
        if options.part == "one-at-a-time":
            serve_one_at_a_time(run)
        texts = sentences(run)
        parts: dict[str, Callable[[], None]] = {
            "throughput": lambda: throughput(run, texts, options.seconds, options.rounds),
            "engine": lambda: engine(run, texts, options.seconds, options.rounds),
            "overload": lambda: overload(run, texts, options.seconds, options.rounds),
            "stopping": lambda: stopping(run, texts, options.tries),
            "killing": lambda: killing(run, texts),
            "flat": lambda: flat(run, texts, options.requests),
        }
        for name in [options.part] if options.part else names:
            parts[name]()


if __name__ == "__main__":
    main()
