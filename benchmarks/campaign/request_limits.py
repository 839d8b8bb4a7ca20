"""Every kind of request at its limits: meanwhile others are answered within two seconds, and SIGTERM ends the server.

A server has a tiny run of every task. For each kind two clients send the largest request that the limits allow; one of
them leaves after two seconds. Another client asks for a short word, for a translation and for the health of the server
all the time. Its slowest answer, the answers to the large requests and how soon the server is idle again are printed.

python benchmarks/campaign/request_limits.py [RUN...] [--kinds NAME...] [--slowest 2.0]
"""

from __future__ import annotations

import argparse
import io
import random
import re
import signal
import sys
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.serving_fuzz import runs_or_tiny_ones, server

REQUEST_TIME, GRACE, LEAVES_AFTER = 10.0, 13.0, 2.0
WORK, TOKENS, BEAM, CHARACTERS, ITEMS = 400_000, 1_024, 16, 50_000, 1_000  # the limits of a server
PICTURE_SIDE = 2_000


def text(length: int, seed: int = 1) -> str:
    """Words of random letters."""
    draw = random.Random(seed)
    words = ("".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(length // 2))
    return " ".join(words)[:length]


def texts(count: int, length: int) -> list[str]:
    """Different texts."""
    return [text(length, seed) for seed in range(count)]


def recording(size: int) -> bytes:
    """A WAV file of noise."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(4_000)
        file.writeframes(random.Random(1).randbytes(size))
    return out.getvalue()


def picture() -> bytes:
    """A large PNG."""
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("L", (PICTURE_SIDE, PICTURE_SIDE), random.Random(1).randbytes(PICTURE_SIDE**2)).save(out, "PNG")
    return out.getvalue()


def predict(**body: Any) -> dict[str, Any]:
    """The arguments of a request of /v1/predict."""
    return {"url": "/v1/predict", "json": body}


def kinds() -> dict[str, Callable[[], dict[str, Any]]]:
    """The largest requests, by name: the arguments of httpx's `post`."""
    longest = {"min_length": TOKENS, "max_length": TOKENS}
    fitting = WORK // (BEAM * (TOKENS + 1))
    sampling = {"kind": "sampling", "temperature": 2.0}
    phrases = [text(CHARACTERS // 100, seed) for seed in range(100)]
    terms = {f"{text(8, seed)}{seed}": text(20, seed) for seed in range(10_000)}
    completions = {"url": "/v1/completions"}
    return {
        "more work than allowed": lambda: predict(input=texts(32, 30), beam=BEAM, **longest),
        "beam": lambda: predict(input=texts(fitting, 30), beam=BEAM, **longest),
        "beam, one text": lambda: predict(input=text(30), beam=BEAM, **longest),
        "n-best": lambda: predict(input=texts(fitting, 30), n_best=BEAM, **longest),
        "greedy": lambda: predict(input=texts(WORK // (TOKENS + 1), 30), beam=1, **longest),
        "greedy, one text": lambda: predict(input=text(30), beam=1, **longest),
        "sampling": lambda: predict(input=texts(fitting, 30), n_best=BEAM, method=sampling, max_length=TOKENS),
        "risk": lambda: predict(input=texts(6, 30), method={"kind": "mbr", "samples": 64}, max_length=TOKENS),
        "groups": lambda: predict(input=texts(fitting, 30), beam=BEAM, beam_groups=8, **longest),
        "no repeated n-gram": lambda: predict(input=texts(fitting, 30), beam=BEAM, no_repeat_ngram=3, **longest),
        "many complete": lambda: predict(input=texts(fitting, 30), beam=BEAM, num_complete=BEAM, max_length=TOKENS),
        "coverage": lambda: predict(input=texts(fitting, 30), beam=BEAM, coverage_penalty=1.0, max_length=TOKENS),
        "texts": lambda: predict(input=texts(ITEMS, CHARACTERS // ITEMS)),
        "one long text": lambda: predict(input=text(CHARACTERS)),
        "split": lambda: predict(input=text(CHARACTERS), split=True),
        "split, aligned": lambda: predict(input=text(CHARACTERS // 2), split=True, alignment=True),
        "html": lambda: predict(input=f"<p>{text(CHARACTERS - 100)}</p>", format="html"),
        "html, many tags": lambda: predict(input="<b>ab</b> " * (CHARACTERS // 10), format="html"),
        "require": lambda: predict(input=text(30), require=phrases),
        "require, short": lambda: predict(input=texts(50, 30), require=[text(8, seed) for seed in range(100)]),
        "forbid": lambda: predict(input=texts(100, 30), forbid=phrases),
        "allow": lambda: predict(input=texts(20, 30), allow=texts(ITEMS, CHARACTERS // ITEMS)),
        "terminology": lambda: predict(input=texts(ITEMS, 40), terminology=terms),
        "placeholders": lambda: predict(input=["{a} %s <b> http://a.b/c "] * 500, placeholders=True),
        "score": lambda: {"url": "/v1/score", "json": {"pairs": pairs(ITEMS // 2, 50)}},
        "score, one long": lambda: {"url": "/v1/score", "json": {"pairs": pairs(1, CHARACTERS // 2)}},
        "stream": lambda: predict(input="abc", stream=True, **longest),
        "inspect": lambda: {"url": "/v1/inspect", "json": {"input": text(2_000), "beam": BEAM}},
        "continue": lambda: {"url": "/v1/inspect/continue", "json": {"input": text(200), "tokens": [5] * 900}},
        "label": lambda: predict(model="classify", input=text(CHARACTERS)),
        "labels": lambda: predict(model="classify", input=texts(ITEMS, 50)),
        "tags": lambda: predict(model="tag", input=text(CHARACTERS)),
        "masks": lambda: predict(model="mask", input="[MASK] " * (CHARACTERS // 7)),
        "prompts": lambda: predict(
            model="characters", input=texts(fitting, 30), max_length=TOKENS, n_best=BEAM, method=sampling
        ),
        "long prompt": lambda: predict(model="characters", input=text(CHARACTERS), max_length=TOKENS),
        "completions": lambda: completions
        | {"json": {"model": "characters", "prompt": text(1_000), "max_tokens": TOKENS, "n": BEAM}},
        "recording": lambda: {"url": "/v1/predict/file", "files": {"file": ("a.wav", recording(4_000 * 2 * 59))},
                              "data": {"model": "speech", "beam": str(BEAM)}},
        "picture": lambda: {"url": "/v1/predict/file", "files": {"file": ("a.png", picture())},
                            "data": {"model": "captions", "beam": str(BEAM)}},
        "LibreTranslate": lambda: {"url": "/translate",
                                   "json": {"q": text(CHARACTERS), "source": "ab", "target": "cd", "alternatives": 15}},
        "LibreTranslate file": lambda: {"url": "/translate_file",
                                        "files": {"file": ("a.txt", text(CHARACTERS).encode())},
                                        "data": {"source": "ab", "target": "cd"}},
        "DeepL": lambda: {"url": "/v2/translate",
                          "json": {"text": texts(50, CHARACTERS // 50), "source_lang": "AB", "target_lang": "CD"}},
        "detect": lambda: {"url": "/detect", "json": {"q": text(CHARACTERS)}},
        "large JSON": lambda: {"url": "/v1/predict", "content": b'{"input": [' + b'"a",' * 490_000 + b'"a"]}',
                               "headers": {"content-type": "application/json"}},
    }  # fmt: skip


def pairs(count: int, length: int) -> list[dict[str, str]]:
    """Sources and targets."""
    return [{"source": text(length, seed), "target": text(length, seed).upper()} for seed in range(count)]


@dataclass
class Watch:
    """What a client sees who asks short questions all the time."""

    slowest: float = 0.0
    count: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


@contextmanager
def asking(url: str) -> Iterator[Watch]:
    """Ask short questions until the block ends."""
    watch, stop = Watch(), threading.Event()
    questions = (
        ("/v1/predict", {"input": "abc"}),
        ("/translate", {"q": "abcd", "source": "ab", "target": "cd"}),
        ("/health", None),
    )

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                for path, body in questions:
                    begun = time.monotonic()
                    answer = client.get(path) if body is None else client.post(path, json=body)
                    watch.slowest = max(watch.slowest, time.monotonic() - begun)
                    watch.count += 1
                    if answer.status_code != 200:
                        watch.statuses[f"{path} {answer.status_code}"] += 1
                time.sleep(0.05)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


def send(url: str, arguments: dict[str, Any], leaves: bool) -> str:
    """The status of a large request, and its time; "left" for the client that does not wait."""
    begun = time.monotonic()
    limit = LEAVES_AFTER if leaves else 3 * REQUEST_TIME
    try:
        answer = httpx.post(**{**arguments, "url": url + arguments["url"]}, timeout=limit)
    except httpx.TimeoutException:
        return "left" if leaves else "no answer"
    except httpx.TransportError as error:
        return type(error).__name__
    text = answer.text.replace("\n", " ")
    return f"{answer.status_code} in {time.monotonic() - begun:.1f} s" + (f" {text[:90]}" if answer.is_error else "")


def try_kind(url: str, arguments: dict[str, Any]) -> tuple[Watch, list[str], float]:
    """Send a large request twice while others ask; returns also the seconds until nothing is computed any more."""
    answers = ["", ""]

    def work(number: int) -> None:
        answers[number] = send(url, arguments, leaves=number == 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    with asking(url) as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        begun = time.monotonic()
        while time.monotonic() - begun < 3 * REQUEST_TIME:
            metrics = httpx.get(f"{url}/metrics", timeout=60).text
            busy, waiting = (gauge(metrics, name) for name in ("busy_seconds", "queue_sentences"))
            if busy < 0.5 and not waiting:
                break
            time.sleep(0.05)
        return watch, answers, time.monotonic() - begun


def gauge(metrics: str, name: str) -> float:
    """A number among the metrics."""
    return float(re.search(rf"^dragoman_{name}\S* (\S+)$", metrics, re.MULTILINE)[1])  # type: ignore[index]


def stop_while_busy(config: str, arguments: dict[str, Any]) -> float:
    """Seconds from SIGTERM to the end of a server that computes a large request."""
    with server("--config", config) as (url, process):
        threading.Thread(target=lambda: suppress_errors(url, arguments), daemon=True).start()
        time.sleep(1.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        return time.monotonic() - begun


def suppress_errors(url: str, arguments: dict[str, Any]) -> None:
    """A client whose server ends."""
    with suppress(httpx.TransportError):
        httpx.post(**{**arguments, "url": url + arguments["url"]}, timeout=120)


def main() -> None:
    """Try all kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--slowest", type=float, default=2.0, help="seconds in which short questions must be answered")
    options = parser.parse_args()
    tried = {name: make for name, make in kinds().items() if not options.kinds or name in options.kinds}
    failures: list[str] = []
    asked, begun = 0, time.monotonic()
    with runs_or_tiny_ones(options.runs) as runs, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        models = "".join(f'[[models]]\nrun = "{run}"\n' for run in runs)
        config.write_text(f"threads = 1\n{models}[limits]\nrequest_time = {REQUEST_TIME}\ngrace = {GRACE}\n")
        with server("--config", str(config)) as (url, process):
            httpx.post(f"{url}/v1/predict", json={"input": "abc"}, timeout=60)
            for name, make in tried.items():
                watch, answers, idle = try_kind(url, make())
                asked += watch.count
                bad = [one for one in answers if one.startswith(("5", "no", "Re")) and not one.startswith("503")]
                late = watch.slowest > options.slowest or idle > options.slowest
                if late or bad or watch.statuses or process.poll() is not None:
                    failures.append(name)
                others = f", others {dict(watch.statuses)}" if watch.statuses else ""
                print(
                    f"{'FAIL' if name in failures else 'ok':4} {name}: slowest of {watch.count} short ones "
                    f"{watch.slowest:.2f} s{others}; idle after {idle:.2f} s; {' | '.join(answers)}",
                    flush=True,
                )
        for name in ("beam", "inspect", "stream", "recording"):
            if name in tried:
                seconds = stop_while_busy(str(config), tried[name]())
                failures += [f"stopping during {name}"] if seconds > GRACE + 1 else []
                print(f"SIGTERM during {name}: ended after {seconds:.1f} s (grace {GRACE:g} s)", flush=True)
    print(f"{len(tried)} kinds of requests at their limits, {asked:,} short ones beside them, "
          f"{time.monotonic() - begun:.0f} s, failures: {', '.join(failures) or 'none'}")  # fmt: skip
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
