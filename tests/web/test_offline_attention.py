"""The attention view of exported pages: weights of the graph itself, of the text that a reader typed.

The page runs as exported; in place of onnxruntime-web it has a module that hands every step to onnxruntime in Python.
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.exchange.web_runtime import BINARY, MODULE
from dragoman.inference.load import load_run
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views.attention_layers import attention_layers
from dragoman.inspect.views.inspection import inspect
from tests.conftest import TrainedFolder, call
from tests.web.javascript import ARGUMENTS, CHROMIUM
from tests.web.test_offline_page import QuietHandler

RUNTIME = """
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const arrays = { float32: Float32Array, bool: Uint8Array, int64: BigInt64Array };
const InferenceSession = { create: async (bytes) => {
  const names = await window.graphNames(bytes.length);
  const run = async (feeds) => {
    const given = Object.entries(feeds).map(([name, one]) => [name, one.type, Array.from(one.data, Number), one.dims]);
    const found = await window.runGraph(bytes.length, given);
    return Object.fromEntries(found.map(([name, type, data, dims]) => {
      const Kind = arrays[type];
      return [name, new Tensor(type, Kind === BigInt64Array ? Kind.from(data, BigInt) : Kind.from(data), dims)];
    }));
  };
  return { ...names, run };
} };
const env = { wasm: {} };
export{InferenceSession,Tensor,env};
"""
TYPES = {"float32": np.float32, "bool": np.bool_, "int64": np.int64}


class Graphs:
    """The graphs of an exported folder, found by the sizes of their files."""

    def __init__(self, folder: Path) -> None:
        from onnxruntime import InferenceSession

        files = sorted(folder.glob("*.onnx"))
        self.sessions = {path.stat().st_size: InferenceSession(str(path)) for path in files}
        assert len(self.sessions) == len(files)

    def names(self, size: int) -> dict[str, list[str]]:
        found = self.sessions[size]
        return {
            "inputNames": [one.name for one in found.get_inputs()],
            "outputNames": [one.name for one in found.get_outputs()],
        }

    def run(self, size: int, given: list[tuple[str, str, list[float], list[int]]]) -> list[Any]:
        feeds = {name: np.array(data, TYPES[kind]).reshape(dims) for name, kind, data, dims in given}
        outputs = self.sessions[size].run(None, feeds)
        names = self.names(size)["outputNames"]
        return [
            (name, str(value.dtype), value.ravel().tolist(), list(value.shape))
            for name, value in zip(names, outputs, strict=True)
        ]


@pytest.fixture
def exported(inside: TrainedFolder, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    (runtime / MODULE).write_text(RUNTIME, encoding="utf-8")
    (runtime / BINARY).write_bytes(b"x")
    made = tmp_path / "site"
    result = call("export", inside.run, "--to", "web", "--output", made, "--precision", "float32", "--runtime", runtime)
    assert result.code == 0, result.err
    handler = functools.partial(QuietHandler, directory=str(made))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.slow  # the export takes ten seconds
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: tests of pages need one")
def test_the_page_shows_the_attention_that_inspect_shows(
    exported: tuple[Path, str], inside: TrainedFolder, tmp_path: Path
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    folder, url = exported
    graphs = Graphs(folder / "model")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda line: complaints.append(line.text) if line.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.expose_function("graphNames", graphs.names)
        page.expose_function("runGraph", graphs.run)
        page.goto(url)
        page.fill("#source", "abcd")
        page.wait_for_selector(".output .w")
        summary = page.locator("summary", has_text="Attention")
        summary.click()
        page.locator(".fold button:text-is('JSON')").first.wait_for()
        with page.expect_download() as saved:
            page.locator(".fold button:text-is('JSON')").first.click()
        shown = json.loads(Path(saved.value.path()).read_text(encoding="utf-8"))
        text = page.inner_text(".output").strip()
        page.fill("#source", "ba")  # the view follows what is typed
        playwright.expect(page.locator("details[open] svg").first).to_contain_text("b")
        playwright.expect(page.locator("details[open] svg").first).not_to_contain_text("c")
        page.screenshot(path=str(tmp_path / "attention.png"), full_page=True)
        page.fill("#source", "")
        playwright.expect(summary).to_be_hidden()
        browser.close()
    assert not complaints
    found = inspect(load_run(inside.run, "cpu"), "abcd", InspectOptions(text))
    layers = [layer for layer in attention_layers(found.subject) if layer.kind == "cross"]
    own = torch.tensor(shown["weights"])
    torch.testing.assert_close(own, layers[-1].weights, atol=1e-5, rtol=1e-4)
    assert shown["rows"]["tokens"] == list(layers[-1].rows.tokens)
    assert shown["columns"]["tokens"] == list(layers[-1].columns.tokens)
