"""Fuzz a server over its OpenAPI description, and send it hostile bodies; watch its answers and its memory.

    python benchmarks/serving_fuzz.py [RUN...] [--cases 10000] [--hostile 1000]

Without RUN it trains a tiny run of every task. schemathesis makes requests that fit the description and requests that
do not, in ten rounds. No answer may be 5xx but 503, and the memory of the server may grow by less than 50 MB after the
first round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
ROUNDS = 10


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own: its address, and the process."""
    command = [sys.executable, "-m", "dragoman", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"serving on (http://\S+)", line):
            break
    else:
        raise SystemExit(f"the server did not start:\n{said}")
    threading.Thread(target=lambda: sys.stderr.writelines(process.stderr or ()), daemon=True).start()
    try:
        yield found[1], process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def runs_or_tiny_ones(runs: list[str], every_task: bool = True) -> Iterator[list[str]]:
    """The runs that are named; if none is, tiny ones: one that translates, and of every other task."""
    if runs:
        yield runs
        return
    from tests.serving.tiny_runs import tiny_runs, translation_run

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        others = tiny_runs(place).values() if every_task else ()
        yield [str(one) for one in (translation_run(place), *others)]


def memory(url: str) -> float:
    """Megabytes of the server."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return int(re.search(r"dragoman_resident_bytes\S* (\d+)", text)[1]) / 1e6  # type: ignore[index]


def fuzz(url: str, cases: int, seed: int = 1) -> Counter[int]:
    """Send generated requests of every operation; the statuses of the answers. A 5xx other than 503 is an error."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings
    from hypothesis import seed as seeded

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.config.generation.update(modes=list(schemathesis.GenerationMode))
    statuses: Counter[int] = Counter()
    operations = [one.ok() for one in schema.get_all_operations()]
    posts = [one for one in operations if one.method.upper() == "POST"]

    def check(operation: Any, count: int) -> None:
        quiet = settings(
            max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet, phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip

        @quiet
        @seeded(seed)
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            response = case.call(base_url=url, timeout=60)
            statuses[response.status_code] += 1
            if response.status_code >= 500 and response.status_code != 503:
                raise AssertionError(f"{case.as_curl_command()}\n{response.status_code} {response.text[:300]}")

        one()

    for operation in operations:
        check(operation, max(1, cases // len(posts) if operation in posts else cases // 200))
    return statuses


def hostile_bodies(count: int, seed: int = 1) -> Iterator[tuple[bytes, bool]]:
    """Requests as no client sends them, and whether less comes than they say."""
    draw = random.Random(seed)
    paths = ("/v1/predict", "/translate", "/v1/score", "/v1/inspect", "/v1/completions", "/detect", "/v1/predict/file")
    paths += ("/v2/translate", "/v2/glossaries", "/v1/inspect/continue", "/v1/chat/completions", "/v3/glossaries")
    paths += ("/v2/document", "/v1/audio/transcriptions")

    def deep() -> bytes:
        opening = draw.choice([b"[", b'{"input":', b'{"q":['])
        return opening * draw.randint(1_000, 60_000)

    def numbers() -> bytes:
        big = draw.choice(["9" * draw.randint(20, 6_000), "1e999", "-1e999", "NaN", "Infinity", "1e-400", "-0"])
        name = draw.choice(["beam", "n_best", "length_penalty", "max_length", "max_tokens", "alternatives", "seed"])
        return f'{{"input": "a", "q": "a", "prompt": "a", "target": "en", "{name}": {big}}}'.encode()

    def encodings() -> bytes:
        text = '{"input": "äöü 你好 \U0001f600", "q": "ä", "target": "en"}'
        return text.encode(draw.choice(["utf-16", "utf-32", "latin-1", "utf-7", "cp1252"]), "replace")

    def broken() -> bytes:
        body = bytearray(b'{"input": "Guten Morgen", "q": "Guten Tag", "target": "en", "beam": 3}')
        for _ in range(draw.randint(1, 6)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        return bytes(body)

    def strange() -> bytes:
        pieces = [
            "\u0000",
            "\u202e",
            "\ufeff",
            "\\ud800",
            "\u200b",
            "<b>",
            "%s",
            "{x}",
            "\n",
            "a" * 300,
            "<2xx> ",
            "::",
        ]
        text = "".join(draw.choices(pieces, k=draw.randint(1, 30)))
        escaped = json.dumps(text).replace("\\\\ud800", "\\ud800")
        form = draw.choice(["text", "html"])
        return f'{{"input": {escaped}, "q": {escaped}, "target": "en", "format": "{form}"}}'.encode()

    def multipart() -> bytes:
        return b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../a.wav"\r\n\r\n' + draw.randbytes(
            200
        )

    makers = (deep, numbers, encodings, broken, strange, multipart)
    for _ in range(count):
        maker = draw.choice(makers)
        body = maker()
        kind = (
            b"multipart/form-data; boundary=x"
            if maker is multipart
            else draw.choice(
                [b"application/json", b"application/json", b"application/json; charset=utf-16", b"text/plain", b""]
            )
        )
        length = len(body) + draw.choice([0, 0, 0, 0, 0, 50])  # sometimes less comes than was said
        path = draw.choice(paths).encode()
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" % path
        yield head + b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, length, body), length > len(body)


def send_hostile(url: str, count: int, seed: int = 1) -> Counter[str]:
    """Send hostile bodies and close the sending half; the statuses of the answers."""
    host, port = url.removeprefix("http://").split(":")
    statuses: Counter[str] = Counter()
    for data, half in hostile_bodies(count, seed):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            answer = b""
            try:
                connection.sendall(data)
                if half:  # less came than was said: no more will
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65536):
                    answer += part
            except (ConnectionResetError, BrokenPipeError):
                pass
        status = answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/") else "closed"
        statuses[status] += 1
        assert not status.startswith("5") or status == "503", (data[:300], answer[:300])
    return statuses


def slow_clients(url: str, count: int = 100) -> float:
    """Clients that send a byte a second, half of them of the head and half of the body; how long until all are cut off.

    Other requests are answered meanwhile.
    """
    host, port = url.removeprefix("http://").split(":")
    begun, open_ = time.monotonic(), list[socket.socket]()
    for number in range(count):
        connection = socket.create_connection((host, int(port)), timeout=10)
        head = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
        connection.sendall(head + b"\r\n" if number % 2 else head)
        connection.setblocking(False)
        open_.append(connection)
    while open_:
        assert httpx.post(f"{url}/v1/predict", json={"input": "a"}, timeout=10).status_code == 200
        time.sleep(1)
        for connection in list(open_):
            try:
                connection.send(b" ")
                ended = connection.recv(65536) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                connection.close()
                open_.remove(connection)
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--hostile", type=int, default=1_000)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with runs_or_tiny_ones(options.runs) as runs, server(*runs) as (url, _):
        statuses, sizes, begun = Counter[int](), list[float](), time.monotonic()
        for number in range(ROUNDS):
            statuses += fuzz(url, options.cases // ROUNDS, seed=number)
            sizes.append(memory(url))
            print(f"round {number + 1}: {sizes[-1]:.0f} MB, {time.monotonic() - begun:.0f} s", flush=True)
        hostile = send_hostile(url, options.hostile)
        print(f"100 slow clients were cut off after {slow_clients(url):.0f} s; others were answered meanwhile")
        sizes.append(memory(url))
        print(f"generated requests: {sum(statuses.values()):,} {dict(sorted(statuses.items()))}")
        print(f"hostile bodies: {sum(hostile.values()):,} {dict(sorted(hostile.items()))}")
        grown = sizes[-1] - sizes[0]
        print(f"memory: {sizes[0]:.0f} MB after the first round, grown by {grown:.1f} MB")
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        assert grown < 50, "the memory of the server grew by more than 50 MB"


if __name__ == "__main__":
    main()
