"""The page in a real browser. Skipped where no Chromium is found; `.ci/run` installs one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.inference.load import load_run
from dragoman.inspect.views.beam_tree import continue_prefixes, prefix_of
from dragoman.serving.config import ServeConfig
from tests.serving.conftest import Live, serving

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium is installed (apt-get install chromium)", allow_module_level=True)
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        yield found
        with suppress(Error):
            found.close()


@pytest.fixture
def page(browser: Any, live: Live) -> Iterator[Any]:
    """A new page that notes errors and requests to anywhere else."""
    context = browser.new_context(viewport={"width": 400, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(120_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on(
        "request",
        lambda request: None if request.url.startswith((live.url, "data:", "blob:")) else wrong.append(request.url),
    )
    yield opened
    assert not wrong
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than a phone"
    context.close()


def test_translate_as_you_type(page: Any, live: Live) -> None:
    page.goto(f"{live.url}/?model=ab-cd")
    page.fill("#source", "abc def")
    page.wait_for_selector(".output .w")
    expected = live.post("/v1/predict", {"input": "abc def"})["outputs"][0]["text"]
    page.wait_for_function("text => document.querySelector('.output').innerText.trim() === text", arg=expected)
    page.focus(".output .w")  # as a keyboard does
    page.wait_for_selector(".mirror mark")
    assert page.locator(".others .entry").count() > 0
    assert all(len(letter) == 1 for letter in page.locator(".output .w").all_inner_texts())
    assert "a letter" in page.inner_text(".hint") or "←" in page.inner_text(".hint")
    assert "read as unknown" in page.inner_text(".unknown")
    page.click("summary:has-text('Code')")
    page.wait_for_selector(".code:has-text('/v1/predict')")  # drawn by an event after the click
    page.click("summary:has-text('History')")
    assert page.locator(".folds .entry").first.inner_text().startswith("abc def")


def test_terminology(page: Any, live: Live) -> None:
    page.goto(f"{live.url}/?model=ab-cd")
    page.fill("#source", "abc")
    page.click("summary:has-text('Terminology')")
    page.fill("[aria-label='source term'] >> nth=0", "abc")
    page.fill("[aria-label='translation'] >> nth=0", "HIJ")
    page.wait_for_function("() => document.querySelector('.output').innerText.includes('HIJ')")


@pytest.mark.parametrize(
    ("name", "text", "shown"), [("classify", "the film is good", ".bars"), ("regress", "a", ".big")]
)
def test_labels(page: Any, live: Live, name: str, text: str, shown: str) -> None:
    page.goto(f"{live.url}/?model={name}")
    page.fill("textarea", text)
    page.wait_for_selector(f".output {shown}")


def test_complete(page: Any, live: Live) -> None:
    page.goto(f"{live.url}/?model=characters")
    page.fill("textarea", "anna")
    page.fill("input[type=number] >> nth=0", "5")
    page.click("button:has-text('Continue')")
    page.wait_for_function("() => document.querySelector('.output').innerText.length > 6")


def test_upload_and_inspect(page: Any, live: Live, runs: Any) -> None:
    import tarfile

    with tarfile.open(runs["captions"].parents[1] / "pictures.tar") as tar:
        file = tar.extractfile(tar.getmembers()[0])
        assert file is not None
        data = file.read()
    page.goto(f"{live.url}/?model=captions")
    page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": data})
    page.wait_for_selector(".output .big")
    page.click("button:has-text('Where it looked')")
    page.wait_for_selector("[role=tab]")


def test_look_inside(page: Any, live: Live) -> None:
    page.goto(f"{live.url}/inspect?model=ab-cd&q=abc")
    page.wait_for_selector("[role=tab]")
    assert "Beam" in page.inner_text("[role=tablist]")


def test_the_open_view_follows_the_text_and_another_run(page: Any, live: Live) -> None:
    page.goto(f"{live.url}/inspect?model=ab-cd&q=abc#view=whatif")
    page.wait_for_selector("[role=tab]")

    def input_is(text: str) -> None:
        page.wait_for_function("text => document.querySelector('.text-pair dd')?.textContent === text", arg=text)
        assert page.inner_text("main h2") == "What if"  # the view stays open

    page.fill("#live textarea", "abcd")
    input_is("abcd")
    page.click("#live .word >> nth=1")
    page.click("button:text('Swap ▶')")
    input_is("acbd")
    page.click("button:text('Delete')")
    input_is("acd")
    page.select_option("#live select", "before training")
    page.wait_for_selector(".pair")
    assert page.locator(".run-name").all_inner_texts() == ["ab-cd", "ab-cd (before training)"]
    page.click("#tab-next")  # not computed yet
    page.wait_for_function("() => document.querySelector('main h2')?.textContent === 'Next token'")
    shown = live.post("/v1/inspect", {"input": "acd", "untrained": True, "views": ["next"]})
    assert [view["kind"] for view in shown["views"]] == ["overview", "next"]
    assert page.locator(".text-pair dd >> nth=2").inner_text() == (shown["target"]["text"] or "(empty)")
    page.select_option("#live select", "classify")
    page.wait_for_function("() => document.querySelectorAll('.run-name')[1]?.textContent === 'classify'")
    assert "no such view" in page.inner_text("main")
    page.click("button:text('Original')")
    page.wait_for_function("() => document.querySelector('.text-pair dd')?.textContent === 'abc'")


def test_a_click_on_a_pruned_branch_goes_on_with_the_search(
    page: Any, live: Live, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.inspect.views.beam_tree.MAX_CONTINUED", 0)  # none is computed before the click
    page.goto(f"{live.url}/inspect?model=ab-cd&q=abcd&view=beam")
    page.wait_for_selector("[role=tab]")
    page.click("[role=tab]:has-text('Beam')")
    pruned = page.locator("g[data-node][aria-label*='pruned']").first
    number = int(pruned.get_attribute("data-node"))
    pruned.click()
    page.wait_for_selector(".readout .continued")
    predictor = load_run(runs["ab-cd"], "cpu")
    nodes = list(predictor.trace("abcd"))
    (expected,) = continue_prefixes(predictor, "abcd", [prefix_of(nodes, number)])
    assert expected.text in page.inner_text(".readout .continued")


def test_the_request_that_lacked_the_token_is_sent_again_with_it(
    browser: Any, config: ServeConfig, tmp_path: Path
) -> None:
    typed = iter(["wrong", "schlüssel"])
    guarded = replace(config, models=config.models[:1], token="schlüssel")
    with serving(guarded, tmp_path / "spool") as server, browser.new_context() as context:
        opened = context.new_page()
        opened.on("dialog", lambda dialog: dialog.accept(next(typed)))
        opened.goto(f"{server.url}/")
        opened.wait_for_selector("#source")
        opened.fill("#source", "abc")
        opened.wait_for_selector(".output .w")  # the next request has it at once
        opened.reload()
        opened.wait_for_selector("#source")
    assert next(typed, None) is None
