"""Speed of an exported web page in Chromium, beside native onnxruntime on the same graphs, line by line.

    python benchmarks/web_page.py SITE SOURCES [--lines 50] [--beam 5]

SITE is the folder of `dragoman export RUN --to web`; SOURCES has one text per line. Both decode greedily and line by
line with one thread, the page also with a beam. It prints one JSON object: seconds until the page can translate,
seconds of the first translation, tokens per second, and sizes in bytes.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from dragoman.exchange.onnx_greedy import GreedyDecoder

TRANSLATE = """async ([lines, beam]) => {
  let tokens = 0;
  const started = performance.now();
  for (const line of lines) tokens += (await window.dragoman.translate(line, { beam })).tokenScores.length;
  return [tokens, (performance.now() - started) / 1000];
}"""
ENCODE = """async (lines) => {
  const model = await window.dragoman.ready;
  return lines.map((line) => model.source.encode(line).map(([id]) => id));
}"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Without lines on standard error."""


def in_browser(site: Path, lines: list[str], beam: int) -> tuple[dict[str, Any], list[list[int]]]:
    """What the page measures, and the token ids of the lines."""
    from playwright.sync_api import sync_playwright

    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        begin = time.perf_counter()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("#source", timeout=120_000)
        opened = time.perf_counter() - begin
        first = page.evaluate(TRANSLATE, [lines[:1], 1])[1]
        result = {"open_s": round(opened, 2), "first_s": round(first, 3)}
        for name, width in (("greedy", 1), (f"beam {beam}", beam)):
            tokens, seconds = page.evaluate(TRANSLATE, [lines, width])
            result[f"page, {name}, tokens/s"] = round(tokens / seconds, 1)
        rows = page.evaluate(ENCODE, lines)
        browser.close()
    server.shutdown()
    server.server_close()
    return result, rows


def native(site: Path, rows: list[list[int]]) -> float:
    """Tokens per second of greedy decoding by onnxruntime."""
    table = json.loads((site / "model" / "model.json").read_text(encoding="utf-8"))
    decoder = GreedyDecoder(site / "model", table)
    decoder.decode(rows[:1])
    begin = time.perf_counter()
    tokens = sum(len(decoder.decode([row])[0]) + 1 for row in rows)
    return tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--lines", type=int, default=50)
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    lines = options.sources.read_text(encoding="utf-8").splitlines()[: options.lines]
    result, rows = in_browser(options.site, lines, options.beam)
    result["onnxruntime, greedy, tokens/s"] = round(native(options.site, rows), 1)
    for name, files in (("model", "model/*"), ("runtime", "runtime/*"), ("page", "*.*")):
        contents = [path.read_bytes() for path in options.site.glob(files) if path.is_file()]
        result[f"{name}, bytes"] = sum(map(len, contents))
        result[f"{name}, bytes gzipped"] = sum(len(gzip.compress(content)) for content in contents)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
