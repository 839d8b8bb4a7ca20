"""Counters of the server in the text format of Prometheus."""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """Cumulative counts of values up to some bounds, with their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        comma, total = "," if labels else "", 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


class Metrics:
    """What a worker has done since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: dict[tuple[str, int], int] = defaultdict(int)  # by path and status
        self.latency: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCIES))
        self.batch_size, self.batch_seconds = Histogram(SIZES), Histogram(LATENCIES)
        self.started = time.time()

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request; `path` is a route, never a text that a client chose."""
        with self._lock:
            self.requests[path, status] += 1
            self.latency[path].add(seconds)

    def batch(self, size: int, seconds: float) -> None:
        with self._lock:
            self.batch_size.add(size)
            self.batch_seconds.add(seconds)

    def text(self, waiting: int, active: int, busy: float) -> str:
        """All metrics; `waiting` sentences are in the queues, `active` requests have no answer yet.

        `busy` is for how many seconds the oldest batch at work has been computed.
        """
        with self._lock:
            return "\n".join(self._lines(waiting, active, busy)) + "\n"

    def _lines(self, waiting: int, active: int, busy: float) -> Iterator[str]:
        worker = f'worker="{os.getpid()}"'
        yield "# HELP dragoman_requests_total Answered requests.\n# TYPE dragoman_requests_total counter"
        for (path, status), count in sorted(self.requests.items()):
            yield f'dragoman_requests_total{{{worker},path="{path}",status="{status}"}} {count}'
        yield "# HELP dragoman_request_seconds Time to answer.\n# TYPE dragoman_request_seconds histogram"
        for path, histogram in sorted(self.latency.items()):
            yield from histogram.lines("dragoman_request_seconds", f'{worker},path="{path}"')
        yield "# HELP dragoman_batch_size Sentences computed together.\n# TYPE dragoman_batch_size histogram"
        yield from self.batch_size.lines("dragoman_batch_size", worker)
        yield "# HELP dragoman_batch_seconds Time to compute a batch.\n# TYPE dragoman_batch_seconds histogram"
        yield from self.batch_seconds.lines("dragoman_batch_seconds", worker)
        for name, about, value in (
            ("queue_sentences", "Sentences that wait.", waiting),
            ("active_requests", "Requests without an answer yet.", active),
            ("busy_seconds", "Time that the oldest batch at work has taken so far.", round(busy, 3)),
            ("resident_bytes", "Memory of the process.", resident_bytes()),
            ("uptime_seconds", "Time since the start.", round(time.time() - self.started, 3)),
        ):
            yield f"# HELP dragoman_{name} {about}\n# TYPE dragoman_{name} gauge\ndragoman_{name}{{{worker}}} {value}"


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
