"""The documentation site: every page is in the navigation, and the reference has all that the code has."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.auto.search.state import TABLE_FILE
from dragoman.base.config.dumper import describe
from dragoman.cli import cli
from dragoman.data.readers.base import READERS
from dragoman.decoding.shortlist import NAME as SHORTLIST
from dragoman.inference.confidence import CALIBRATION
from dragoman.inference.prediction import Prediction
from dragoman.inference.shards import MANIFEST
from dragoman.runs.folder import IMPORTED, MEMBERS_FILE, RUN_FORMAT, SEARCH
from dragoman.runs.tasks.table import TASKS
from dragoman.runs.versions import LIST
from dragoman.training.trained_weights import BASE
from dragoman.training.trainer import WEIGHTS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import build_docs  # noqa: E402
import reference_pages  # noqa: E402


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return build_docs.page_texts(build_docs.sources())


def entries(nav: Any) -> Iterator[str]:
    for row in nav:
        for inner in row.values():
            yield from [inner] if isinstance(inner, str) else entries(inner)


def test_every_page_is_in_the_navigation_once(texts: dict[str, str]) -> None:
    listed = list(entries(build_docs.navigation(texts)))
    assert sorted(listed) == sorted(texts)
    assert {"index.md", "tutorials/quickstart.md", "reference/commands/train.md", "research/log.md"} <= set(listed)
    for title in ("Tutorials", "How-to", "Reference", "Explanation"):
        assert any(title in row for row in build_docs.navigation(texts))


def test_links_lead_to_pages_of_the_site_or_files_of_the_repository(texts: dict[str, str], tmp_path: Path) -> None:
    """Those that leave docs/ are rewritten; a wrong one is an error."""
    for name, text in texts.items():
        prose = "".join(part for part in build_docs.CODE.split(text) if not build_docs.CODE.fullmatch(part))
        for target in build_docs.LINK.findall(prose):
            address = target[1].partition("#")[0]
            if address.endswith(".md") and ":" not in address and not address.startswith("gallery/"):
                there = (Path("/") / name).parent / address
                assert str(there.resolve()).lstrip("/") in texts, (name, address)
    page = ROOT / "docs" / "explanation" / "new.md"  # need not exist: only its folder counts
    broken = tmp_path / "new.md"
    broken.write_text("# New\n\n[nothing](nothing.md)\n", encoding="utf-8")
    with pytest.raises(build_docs.BrokenDocs, match=r"nothing\.md"):
        build_docs.linked("explanation/new.md", broken, {"explanation/new.md": page})


def test_the_reference_names_all_commands_options_settings_routes_and_names(texts: dict[str, str]) -> None:
    commands = "".join(text for name, text in texts.items() if name.startswith("reference/commands/"))
    for name, command in cli.commands.items():
        assert f"\n## {name}\n" in commands
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.opts[0].startswith("-"):
                assert parameter.opts[-1] in commands
    settings = "".join(text for name, text in texts.items() if name.startswith("reference/settings/"))
    for task in TASKS.values():
        for row in describe(task.config):
            last = row.place.rpartition(".")[2]
            assert last in ("kind", "task") or f"\n`{last}`\n" in settings, row.place
    assert "*a whole number, at least 1; default `10000`*" in texts["reference/settings/train.md"]
    routes = "".join(text for name, text in texts.items() if name.startswith("reference/http/"))
    for path, methods in reference_pages.openapi()["paths"].items():
        for method in methods:
            assert f"\n## {method.upper()} {path}\n" in routes
    for public in dragoman.__all__:
        assert public == "__version__" or re.search(rf"^::: dragoman\S*\.{public}$", texts["reference/python.md"], re.M)


def test_the_page_of_formats_names_the_files_and_fields() -> None:
    page = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    files = (CALIBRATION, IMPORTED, MEMBERS_FILE, SHORTLIST, SEARCH, TABLE_FILE, WEIGHTS, BASE, LIST, MANIFEST)
    for name in (
        *files,
        *(own.name for own in dataclasses.fields(Prediction) if own.name != "origin"),
        *filter(None, READERS),
    ):
        assert f"`{name}`" in page, name
    assert f"`format` ({RUN_FORMAT})" in page


def test_the_check_of_a_built_site_finds_faults(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#there">b</a><img src="c.png">')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html#nowhere">a</a><script src="https://cdn.x/y.js">')
    (tmp_path / "c.css").write_text("@import url(https://fonts.x/f.css);")
    problems = sorted(build_docs.check_site(tmp_path))
    assert len(problems) == 4
    for problem, word in zip(problems, ("c.png", "nowhere", "cdn.x", "fonts.x"), strict=True):
        assert word in problem


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere() -> None:
    """Opened in a browser, on a wide and a narrow screen, in both colour schemes."""
    pytest.importorskip("zensical")
    playwright = pytest.importorskip("playwright.sync_api")
    from tests.web.test_browser import ARGUMENTS, CHROMIUM

    done = subprocess.run(
        [sys.executable, "tools/build_docs.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(ROOT / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        own = f"http://127.0.0.1:{server.server_port}/"
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
            for width, scheme in ((1280, "light"), (390, "dark")):
                page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
                page.set_default_timeout(120_000)
                asked: list[str] = []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                for name in ("index.html", "how-to/serving.html", "reference/settings/train.html"):
                    page.goto(own + name)
                    page.wait_for_load_state("networkidle")
                    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"), (name, width)
                assert [url for url in asked if not url.startswith((own, "data:", "blob:"))] == []
            browser.close()
        server.shutdown()
