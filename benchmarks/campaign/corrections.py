"""kill -9 at random moments while clients send corrections: afterwards every acknowledged one is there.

A server with two workers keeps corrections. Clients post to /suggest without a pause. Every so often one worker, or the
supervisor with all of them, is killed. Sometimes the first part of a line is added to the file, as a writer leaves it
that dies between two writes. After each kill the corrections in the file are compared with those that a client saw
acknowledged, word for word, and the decisions of a reviewer with those that were made.

python benchmarks/campaign/corrections.py KILLS [--clients 4] [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dragoman.data.correction_log import CorrectionLog
from dragoman.serving.system import listen
from tests.serving.tiny_runs import translation_run


class Clients:
    """Threads that send corrections as fast as they are answered, and note the acknowledged ones."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.sent = url, 0
        self.acknowledged: dict[str, str] = {}
        self.other: dict[str, int] = {}  # answers that are no acknowledgement, by status
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(count)]

    def work(self, number: int) -> None:
        draw = random.Random(number)
        while not self.stopped.is_set():
            with self.lock:
                self.sent += 1
                source = f"s{self.sent}"
            correction = "".join(draw.choices("abcäöü\n€𝄞", k=draw.choice((1, 40, 9_000))))
            body = {"q": source, "s": f"x{correction}", "source": "ab", "target": "cd", "output": "shown"}
            try:
                answer = httpx.post(f"{self.url}/suggest", json=body, timeout=20)
            except httpx.HTTPError:  # killed before it could answer
                time.sleep(0.02)
                continue
            with self.lock:
                if answer.status_code == 200 and answer.json() == {"success": True}:
                    self.acknowledged[source] = body["s"]
                else:
                    self.other[str(answer.status_code)] = self.other.get(str(answer.status_code), 0) + 1

    def wait_for(self, count: int, server: subprocess.Popen[bytes]) -> bool:
        """Wait until so many more are acknowledged: the next kill shall meet a server at work.

        False: the supervisor has ended, as it does after workers that die three times before they are ready.
        """
        enough, end = len(self.acknowledged) + count, time.monotonic() + 120
        while len(self.acknowledged) < enough:
            if server.poll() is not None:
                return False
            assert time.monotonic() < end, "nothing is acknowledged any more"
            time.sleep(0.005)
        return True


def start(run: Path, kept: Path, port: int) -> subprocess.Popen[bytes]:
    """A server with two workers that answers."""
    command = [sys.executable, "-m", "dragoman", "serve", str(run), "--port", str(port), "--workers", "2",
               "--corrections", str(kept), "--device", "cpu", "limits.corrections=10000000000"]  # fmt: skip
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200:
                return server
        except httpx.HTTPError:
            assert server.poll() is None, "the server did not start"
            time.sleep(0.2)
    raise AssertionError("the server is not ready after two minutes")


def workers_of(server: subprocess.Popen[bytes]) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [int(child) for child in children]


def kill(server: subprocess.Popen[bytes], everything: bool, draw: random.Random) -> None:
    """Kill one worker, or all processes; the supervisor last, so that it is not alone with dead workers."""
    workers = workers_of(server)
    for process in workers if everything else draw.sample(workers, min(1, len(workers))):
        os.kill(process, signal.SIGKILL)
    if everything:
        server.kill()
        server.wait()


def tear(log: CorrectionLog, draw: random.Random) -> None:
    """Add the first part of a line, as a process leaves it that dies between two writes."""
    line = b'{"source": "torn", "correction": "' + "ä€".encode() * 50 + b'"}'
    with log.path.open("ab") as file:
        file.write(line[: draw.randrange(1, len(line))])


def check(log: CorrectionLog, clients: Clients, accepted: set[str]) -> list[str]:
    """What is missing or different; everything that a client saw acknowledged must be there."""
    with clients.lock:
        expected = dict(clients.acknowledged)
    kept = {item.source: item for item in log.read()}
    problems = [f"{source}: lost" for source in expected.keys() - kept.keys()]
    found = expected.keys() & kept.keys()
    problems += [f"{source}: changed" for source in found if kept[source].correction != expected[source]]
    decided = {item.id for item in kept.values() if item.state == "accepted"}
    problems += [f"{name}: decision lost" for name in accepted - decided]
    return problems + (["a torn line counts as a correction"] if "torn" in kept else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        run, log = translation_run(Path(place)), CorrectionLog(Path(place) / "kept")
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        server = start(run, log.folder, port)
        clients = Clients(f"http://127.0.0.1:{port}", options.clients)
        for thread in clients.threads:
            thread.start()
        accepted: set[str] = set()
        problems: list[str] = []
        try:
            for number in range(options.kills):
                if not clients.wait_for(draw.randrange(1, 20), server):
                    server = start(run, log.folder, port)
                time.sleep(draw.uniform(0.0, 0.1))
                everything = draw.random() < 0.3
                kill(server, everything, draw)
                if everything and draw.random() < 0.7:
                    tear(log, draw)
                problems = check(log, clients, accepted)
                if problems:
                    break
                pending = [item.id for item in log.read("pending")]
                accepted |= {item.id for item in log.decide(draw.sample(pending, min(3, len(pending))), "accepted")}
                if everything:
                    server = start(run, log.folder, port)
                print(f"kill {number + 1}: {len(clients.acknowledged):,} acknowledged, none lost", flush=True)
        finally:
            clients.stopped.set()
            for thread in clients.threads:
                thread.join()
            server.terminate()
            server.wait()
        problems = problems or check(log, clients, accepted)
    for problem in problems[:20]:
        print(problem)
    print(f"{options.kills} kills, {clients.sent:,} sent, {len(clients.acknowledged):,} acknowledged, "
          f"{len(accepted)} reviewed, other answers {clients.other}, {len(problems)} problems")  # fmt: skip
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
