"""Corrections that clients send: LibreTranslate's /suggest, the review, and the run that learns from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman.data.correction_log import CorrectionLog
from dragoman.runs import Run
from dragoman.serving.config import LimitsConfig, ModelConfig, ServeConfig
from tests.auto.test_adapt import FAST, longer_pairs
from tests.conftest import TrainedFolder, call
from tests.serving.conftest import Live, serving

TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def run(trained_folder: TrainedFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrected")
    shutil.copytree(trained_folder.run, folder / "ab-cd")
    return folder / "ab-cd"


@pytest.fixture(scope="module")
def correcting(run: Path) -> Iterator[Live]:
    config = ServeConfig(
        models=(ModelConfig(str(run)),), threads=1, device="cpu", token="secret",
        corrections=str(run.parent / "kept"), limits=LimitsConfig(characters=2_000, corrections=200_000),
    )  # fmt: skip
    with serving(config, run.parent / "spool") as live:
        yield live


@pytest.fixture(scope="module")
def log(correcting: Live) -> CorrectionLog:
    assert correcting.state.corrections is not None
    return correcting.state.corrections


def suggest(live: Live, **fields: Any) -> httpx.Response:
    body = {"q": "abc", "s": "XYZ", "source": "ab", "target": "cd"} | fields
    return live.client.post("/suggest", json=body, headers=TOKEN)


def test_a_suggestion_is_kept_with_all_that_is_known(correcting: Live, run: Path, log: CorrectionLog) -> None:
    form = {"q": "aab", "s": "JAAB", "source": "ab", "target": "cd", "api_key": "secret"}
    answer = correcting.client.post("/suggest", data=form)
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    (kept,) = log.read()
    assert (kept.source, kept.correction, kept.state) == ("aab", "JAAB", "pending")
    assert kept.output == str(dragoman.load(run, device="cpu").predict(["aab"])[0])
    assert (kept.source_language, kept.target_language, kept.model) == ("ab", "cd", "ab-cd")
    assert (kept.run, kept.weights, kept.version) == (str(run.resolve()), Run(run).weights_digest(), None)
    assert kept.time.endswith("Z")
    assert correcting.client.get("/frontend/settings").json()["suggestions"] is True
    assert suggest(correcting, output="shown", model="ab-cd").json() == {"success": True}
    assert log.read()[-1].output == "shown"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": ""}, "missing q parameter"), ({"s": " \n"}, "missing s parameter"), ({"source": None}, "missing source"),
        ({"target": "xx"}, "xx is not supported"), ({"source": "cd"}, "is not available"),
        ({"q": ["abc"]}, "q parameter"), ({"s": "x" * 3_000}, "at most 2,000"),
        ({"model": "none"}, "model: found 'none'"), ({"output": 3}, "output"),
    ],
)  # fmt: skip
def test_a_suggestion_that_cannot_be_used_is_refused(
    correcting: Live, log: CorrectionLog, fields: dict[str, Any], message: str
) -> None:
    before = log.path.read_bytes()
    answer = suggest(correcting, **fields)
    assert answer.status_code in (400, 404)
    assert message in answer.json()["error"]
    assert log.path.read_bytes() == before


def test_who_may_send_and_review(correcting: Live, live: Live, log: CorrectionLog) -> None:
    for path, body in (("/suggest", {"q": "a", "s": "b"}), ("/v1/corrections", {"ids": ["a"], "state": "accepted"})):
        assert correcting.client.post(path, json=body).status_code == 403
    assert correcting.client.get("/v1/corrections").status_code == 403
    # A server that was not asked to keep corrections, and has no token.
    refused = suggest(live)
    assert (refused.status_code, refused.json()["error"]) == (403, "Suggestions are disabled on this server.")
    assert live.client.get("/frontend/settings").json()["suggestions"] is False
    assert live.client.get("/v1/corrections").status_code == 404
    live.state.corrections = log
    try:
        assert "has no token" in live.client.get("/v1/corrections").json()["error"]
    finally:
        live.state.corrections = None


def test_a_full_log_refuses(correcting: Live, log: CorrectionLog) -> None:
    log.most_bytes, before = 10, log.most_bytes
    try:
        assert suggest(correcting).status_code == 503
    finally:
        log.most_bytes = before


def test_review_and_learn_from_accepted_ones_only(
    correcting: Live, run: Path, log: CorrectionLog, inside: TrainedFolder
) -> None:
    folder = str(log.folder)
    call("corrections", "reject", folder, "--all")
    for source, right in longer_pairs(60):
        suggest(correcting, q=source, s=right, output="shown")
    suggest(correcting, q="poison", s="NEVER", output="shown")
    refused = call("adapt", run, "--from-server", folder)
    assert (refused.code, "no accepted correction" in refused.err) == (2, True)
    listed = json.loads(call("corrections", "list", folder, "--json").out)
    assert [item["source"] for item in listed[-1:]] == ["poison"]
    assert "poison" in call("corrections", "list", folder).out
    assert call("corrections", "reject", folder, listed[-1]["id"][:8]).code == 0
    answer = correcting.client.get("/v1/corrections", params={"most": 1_000}, headers=TOKEN).json()
    assert answer["counts"]["pending"] == len(answer["corrections"]) == 60
    ids = [item["id"] for item in answer["corrections"]]
    decided = correcting.client.post("/v1/corrections", json={"ids": ids, "state": "accepted"}, headers=TOKEN)
    assert {item["state"] for item in decided.json()["corrections"]} == {"accepted"}
    moved = run.rename(run.with_name("moved"))  # known by its weights
    try:
        table = json.loads(call("adapt", moved, "--from-server", folder, *FAST, "--json").out)
    finally:
        moved.rename(run)
    assert table["corrections"] == 60
    result = dragoman.adapt(run, folder, *FAST, from_server=True, quiet=True)
    assert result.corrections == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "nowhere"), "not found"), (("list", ".", "abc"), "takes no ids"), (("accept", "."), "no id"),
        (("accept", ".", "abc", "--all"), "ids and --all"), (("forget", "."), "'forget' is not one of"),
    ],
)  # fmt: skip
def test_mistakes_at_the_command_line(arguments: tuple[str, ...], message: str) -> None:
    result = call("corrections", *arguments)
    assert result.code == 2
    assert message in result.err


def test_a_suggestion_goes_from_the_page_to_the_review(correcting: Live, log: CorrectionLog) -> None:
    """In a browser: translate, suggest a better text, then accept it on the page of the reviewer."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    known, wrong = {item.id for item in log.read()}, list[str]()
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"], timeout=120_000
        )
        context = browser.new_context(viewport={"width": 400, "height": 800})
        context.set_default_timeout(120_000)
        context.add_init_script("sessionStorage.setItem('dragoman-token', 'secret')")
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{correcting.url}/?model=ab-cd")
        page.fill("#source", "cab")
        page.wait_for_selector(".output .w")
        page.click("button:has-text('Suggest a better translation')")
        page.click("form.suggest button:has-text('Send')")  # nothing was changed yet
        page.wait_for_selector("#toast:has-text('Change the translation first')")
        page.fill("form.suggest textarea", "<i>BETTER</i>")
        page.click("form.suggest button:has-text('Send')")
        page.wait_for_selector("#toast:has-text('Thank you')")
        (sent,) = [item for item in log.read() if item.id not in known]
        assert (sent.source, sent.correction, sent.state, sent.model) == ("cab", "<i>BETTER</i>", "pending", "ab-cd")
        page.goto(f"{correcting.url}/corrections")
        entry = page.locator(f".correction:has-text('{sent.id}')")
        assert "<i>BETTER</i>" in entry.inner_text()  # as text
        assert page.locator(".correction dd i").count() == 0
        entry.locator("button:has-text('Accept')").click()
        page.wait_for_selector("#toast:has-text('accepted: 1')")
        page.click("button:has-text('accepted')")
        page.wait_for_selector(f".correction:has-text('{sent.id}')")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert not wrong
    assert next(item for item in log.read() if item.id == sent.id).state == "accepted"
