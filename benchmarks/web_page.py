"""An exported web page in Chromium beside the run that it was made from: equal texts, speed, sizes.

    python benchmarks/web_page.py SITE SOURCES [--run RUN] [--lines 50] [--equal 1000] [--beam 5]

SITE is the folder of `dragoman export RUN --to web`, or the file of `--single`; SOURCES has one text per line. With
--run it counts on how many of the first `--equal` lines the page writes the text of `dragoman predict`, greedily and
with a beam. Speed is measured line by line with one thread on the first `--lines`: the page, and for a folder native
onnxruntime on the same graphs and, where it can express the run, CTranslate2. It prints one JSON object: seconds until
the page can translate, seconds of the first translation, tokens per second, and sizes in bytes.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.exchange.onnx_greedy import GreedyDecoder
from dragoman.inference.engine.ctranslate2 import names
from dragoman.inference.engine.ctranslate2_export import CTranslate2Exporter
from dragoman.inference.load import load_predictor
from dragoman.inference.unseen import ignore_unknown
from dragoman.runs import Run

TRANSLATE = """async ([lines, beam]) => {
  let tokens = 0;
  const started = performance.now();
  for (const line of lines) tokens += (await window.dragoman.translate(line, { beam })).tokenScores.length;
  return [tokens, (performance.now() - started) / 1000];
}"""
TEXTS = """async ([lines, beam]) =>
  (await window.dragoman.translateAll(lines, { beam })).map((output) => output.text)"""
ENCODE = """async (lines) => {
  const model = await window.dragoman.ready;
  return lines.map((line) => model.source.encode(line).map(([id]) => id));
}"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Without lines on standard error."""


def address(site: Path) -> str:
    """Where a browser finds the page: a folder behind a server, a single page as a file."""
    if site.is_file():
        return site.resolve().as_uri()
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def measure_page(page: Any, url: str, lines: list[str], beams: Sequence[int]) -> dict[str, Any]:
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#source", timeout=120_000)
    opened = time.perf_counter() - begin
    first = page.evaluate(TRANSLATE, [lines[:1], 1])[1]
    result = {"until the page opens, s": round(opened, 2), "first translation, s": round(first, 3)}
    for beam in beams:
        tokens, seconds = page.evaluate(TRANSLATE, [lines, beam])
        result[f"page, beam {beam}, tokens/s"] = round(tokens / seconds, 1)
    return result


def equal_texts(page: Any, run: Path, lines: list[str], beams: Sequence[int]) -> dict[str, str]:
    """On how many lines the page writes what the run writes, by its own engine."""
    result = {}
    for beam in beams:
        predictor = load_predictor(run, "cpu", engine="torch", beam=beam, scores=False)
        texts = [output.text for output in predictor.stream(lines, on_unknown=ignore_unknown)]
        found = page.evaluate(TEXTS, [lines, beam])
        equal = sum(mine == own for mine, own in zip(found, texts, strict=True))
        result[f"equal texts, beam {beam}"] = f"{equal} of {len(lines)}"
    return result


def rate(decode: Callable[[list[int]], int], rows: list[list[int]]) -> float:
    """Tokens per second, line by line; `decode` gives the number of tokens of a line."""
    decode(rows[0])
    begin = time.perf_counter()
    tokens = sum(map(decode, rows))
    return round(tokens / (time.perf_counter() - begin), 1)


def onnxruntime_rate(site: Path, rows: list[list[int]]) -> float:
    table = json.loads((site / "model" / "model.json").read_text(encoding="utf-8"))
    decoder = GreedyDecoder(site / "model", table)
    return rate(lambda row: len(decoder.decode([row])[0]) + 1, rows)


def ctranslate2_rates(run: Run, rows: list[list[int]]) -> dict[str, float]:
    exporter, result = CTranslate2Exporter(), {}
    if exporter.blockers(run):
        return {}
    import ctranslate2

    pieces = names(run.tokenizers()[0])
    for precision in ("float32", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            exporter.export(run, Path(folder, "model"), {"precision": precision})
            translator = ctranslate2.Translator(f"{folder}/model", intra_threads=1, compute_type=precision)

            def decode(row: list[int], translator: Any = translator) -> int:
                tokens = [[pieces[token] for token in row]]
                return len(translator.translate_batch(tokens, beam_size=1)[0].hypotheses[0]) + 1

            result[f"CTranslate2, {precision}, greedy, tokens/s"] = rate(decode, rows)
    return result


def sizes(site: Path) -> dict[str, int]:
    result = {}
    for name, files in (("model", "model/*"), ("runtime", "runtime/*"), ("page", "*.*")):
        contents = [path.read_bytes() for path in site.glob(files) if path.is_file()]
        result[f"{name}, bytes"] = sum(map(len, contents))
        result[f"{name}, bytes gzipped"] = sum(len(gzip.compress(content)) for content in contents)
    return result


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--lines", type=int, default=50)
    parser.add_argument("--equal", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    texts = options.sources.read_text(encoding="utf-8").splitlines()
    lines, beams = texts[: options.lines], (1, options.beam)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        result = measure_page(page, address(options.site), lines, beams)
        rows = page.evaluate(ENCODE, lines)
        if options.run and options.equal:
            result |= equal_texts(page, options.run, texts[: options.equal], beams)
        browser.close()
    if options.site.is_dir():
        result["onnxruntime, greedy, tokens/s"] = onnxruntime_rate(options.site, rows)
        if options.run:
            result |= ctranslate2_rates(Run(options.run), rows)
        result |= sizes(options.site)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
