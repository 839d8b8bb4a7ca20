"""Exported pages in Chromium: the texts of `dragoman predict`, no request to other hosts, visible errors."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import DragomanError
from dragoman.base.files import cache_home
from dragoman.exchange import web_runtime
from dragoman.exchange.web_page import inline_runtime, single_page
from dragoman.exchange.web_runtime import BINARY, MODULE, find_runtime, has_files
from tests.conftest import TrainedFolder, call, quiet_machine
from tests.web.javascript import ARGUMENTS, CHROMIUM

WORDS = ["abcdefg", "jihgfed", "aa", "bca cab", "a\u00e4\u2603z", "", "abcde. fgh! " * 50]
RUNTIMES = [os.environ.get("DRAGOMAN_ONNXRUNTIME_WEB"), cache_home() / f"onnxruntime-web-{web_runtime.VERSION}"]
RUNTIME = next((Path(place) for place in RUNTIMES if place and has_files(Path(place))), None)
in_browser = pytest.mark.skipif(
    RUNTIME is None or CHROMIUM is None,
    reason="needs Chromium, and onnxruntime-web in the cache (dragoman export --to web puts it there) or in the folder "
    "$DRAGOMAN_ONNXRUNTIME_WEB",
)


# --- without a browser


def test_a_folder_without_the_runtime_is_refused(inside: TrainedFolder, tmp_path: Path) -> None:
    result = call("export", inside.run, "--to", "web", "--output", tmp_path / "site", "--runtime", tmp_path)
    assert result.code == 2
    assert f"found no dist/{MODULE}" in result.err
    assert "npm pack onnxruntime-web@" in result.err
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("place", [".", "dist", "node_modules/onnxruntime-web/dist"])
def test_the_runtime_is_found_in_every_layout(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for name in (MODULE, BINARY):
        (tmp_path / place / name).write_bytes(b"x")
    assert find_runtime(str(tmp_path)).resolve() == (tmp_path / place).resolve()


def test_without_npm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DragomanError, match=r"neither runtime=… nor the program npm.*https://nodejs.org.*npm pack"):
        find_runtime(None)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    with pytest.raises(DragomanError, match=r"npm could not fetch onnxruntime-web.*no network"):
        find_runtime(None)
    assert not list(tmp_path.glob("onnxruntime-web*"))


def test_all_reasons_are_said_at_once(inside: TrainedFolder, tmp_path: Path) -> None:
    run = tmp_path / "other"
    shutil.copytree(inside.run, run)
    config = (run / "config.toml").read_text(encoding="utf-8")
    config = config.replace("coverage_penalty = 0.0", "coverage_penalty = 0.2").replace(
        "min_length = 0", "min_length = 2"
    )
    (run / "config.toml").write_text(config, encoding="utf-8")
    result = call("export", run, "--to", "web", "--output", tmp_path / "site")
    assert result.code == 2
    assert "search.coverage_penalty: found 0.2, expected 0.0; search.min_length: found 2, expected 0" in result.err


def test_the_runtime_becomes_a_value() -> None:
    source = "var a=1;var b=2;export{a as InferenceSession,b as env};\n//# sourceMappingURL=x.map\n"
    script = inline_runtime(source)
    assert "return { InferenceSession: a, env: b };" in script
    assert "export" not in script


# --- in Chromium


class Site:
    """An exported folder behind a static server, and the same model as one file."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.folder, self.run = folder, run
        handler = functools.partial(QuietHandler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Without lines on standard error."""


@pytest.fixture(scope="module")
def site(trained_folder: TrainedFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("web")
    with quiet_machine(trained_folder.folder / "cache"):
        result = call(
            "export", trained_folder.run, "--to", "web", "--output", folder / "site", "--precision", "float32",
            "--runtime", str(RUNTIME),
        )  # fmt: skip
    assert result.code == 0, result.err
    assert "texts are equal; " in result.err
    page = single_page("one file", folder / "site" / "model", Path(str(RUNTIME)))
    (folder / "single.html").write_text(page, encoding="utf-8")
    shutil.copytree(folder / "site" / "model", folder / "site" / "second")
    made = Site(folder / "site", trained_folder.run)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        yield opened
        opened.close()


class Opened:
    """A page with its complaints and the addresses that it asked for."""

    def __init__(self, browser: Any, url: str, width: int = 1200, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(url)
        self.page.wait_for_selector("#source, [role=alert]")


def predicted(run: Path, texts: list[str], beam: int) -> list[str]:
    stdin = "".join(f"{text}\n" for text in texts).encode()
    return call("predict", run, "--beam", str(beam), stdin=stdin).lines


TRANSLATE = "async ([texts, options]) => (await window.dragoman.translateAll(texts, options))"


@pytest.mark.slow  # the export takes ten seconds
@in_browser
@pytest.mark.parametrize("form", ["folder", "single"])
def test_pages_write_what_predict_writes(site: Site, browser: Any, form: str, inside: TrainedFolder) -> None:
    url = site.url if form == "folder" else (site.folder.parent / "single.html").as_uri()
    opened = Opened(browser, url)
    for beam in (1, 5):
        outputs = opened.page.evaluate(TRANSLATE, [WORDS, {"beam": beam, "nBest": min(beam, 3)}])
        assert [output["text"] for output in outputs] == predicted(site.run, WORDS, beam)
        assert len(outputs[0]["alternatives"]) == min(beam, 3) - 1
    assert len(outputs[0]["tokens"]) + 1 == len(outputs[0]["tokenScores"])
    assert [target for _, target in outputs[0]["alignment"]] == list(range(len(outputs[0]["targetWords"])))
    assert outputs[4]["unknown"] == ["ä", "☃", "z"]
    assert outputs[6]["parts"] > 1  # it is longer than what training had
    opened.page.fill("#source", "abcd")
    opened.page.wait_for_selector(".output .w")
    assert opened.page.inner_text(".output").strip() == predicted(site.run, ["abcd"], 5)[0]
    opened.page.hover(".output .w >> nth=1")
    assert opened.page.locator(".mirror mark").count() == 1
    own = (site.url, "file:", "data:", "blob:")
    assert not [address for address in opened.requests if not address.startswith(own)]
    assert not opened.complaints
    error = opened.page.evaluate("window.dragoman.translate('a', { beam: 0 }).catch((error) => error.message)")
    assert error == "beam: found 0, expected a whole number from 1 to 64"


@pytest.mark.slow
@in_browser
def test_two_models_share_a_page_and_work_without_a_network(site: Site, browser: Any, inside: TrainedFolder) -> None:
    opened = Opened(browser, site.url)
    script = """async () => {
      const { load } = await import("./dragoman.js");
      const models = await Promise.all([load("./model/"), load("./second/")]);
      const outputs = await Promise.all(models.map((model) => model.translate("abc")));
      await navigator.serviceWorker.ready;
      return outputs.map((output) => output.text);
    }"""
    first, second = opened.page.evaluate(script)
    assert first == second == predicted(site.run, ["abc"], 5)[0]
    opened.context.set_offline(True)
    opened.page.reload()
    opened.page.wait_for_selector("#source")
    assert opened.page.evaluate(TRANSLATE, [["abc"], {}])[0]["text"] == first


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.json", b"{", "model.json: damaged"),
        ("model.json", json.dumps({"format": 9}).encode(), "found format 9, expected 1"),
        ("model.json", None, "model.json: found status 404, expected the file"),
        ("decoder.onnx", b"not a graph", "the model cannot be opened"),
    ],
)
def test_bad_files_give_a_visible_message(
    site: Site, browser: Any, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    shutil.copytree(site.folder, tmp_path / "site")
    path = tmp_path / "site" / "model" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with contextlib.closing(Site(tmp_path / "site", site.run)) as other:
        opened = Opened(browser, other.url)
        assert message in opened.page.inner_text("[role=alert]")


@pytest.mark.slow
@in_browser
def test_pages_fit_a_phone_and_translate_files(site: Site, browser: Any, inside: TrainedFolder, tmp_path: Path) -> None:
    opened = Opened(browser, site.url, 380, "dark")
    page = opened.page
    page.fill("#source", "abcd " * 40)
    page.wait_for_selector(".output .w")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    (tmp_path / "names.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nabcd\n", encoding="utf-8")
    with page.expect_download() as download:
        page.set_input_files("input[type=file]", tmp_path / "names.srt")
    expected = predicted(site.run, ["abcd"], 5)[0]
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert text == f"1\n00:00:01,000 --> 00:00:02,000\n{expected}\n"
    assert download.value.suggested_filename == "names.translated.srt"
    page.set_input_files("input[type=file]", files=[{"name": "a.pdf", "mimeType": "x", "buffer": b"x"}])
    page.wait_for_selector("#toast.wrong")
    assert "a.pdf: found a file of another kind, expected one of .txt" in page.inner_text("#toast")
