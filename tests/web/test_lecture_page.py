"""The page of a lecture in a browser: its questions are checked, by keyboard, at both widths and in both themes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dragoman.web
from dragoman.lecture.page import write_page
from dragoman.lecture.table import Answer, DrawnFigure
from dragoman.lecture.topics import TOPICS
from tests.web.test_browser import HOSTILE, Opened, browser, contrast, playwright, pytestmark  # noqa: F401

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="3000" height="40"><rect width="3000" height="40"/></svg>'


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """All figures of three topics, with made-up pictures."""
    answers = {
        "viterbi.svg": Answer(125, "5^3."),
        "kalman.html": Answer(1234.56, HOSTILE, digits=1),
        "ctc.html": Answer("b", "because", ("a", HOSTILE)),
    }
    drawn = {}
    for topic in ("hmm", "ctc", "bias"):
        for figure in TOPICS[topic].figures:
            if figure.file:
                (tmp_path / figure.file).write_text(SVG if figure.file.endswith(".svg") else "<h1>page</h1>")
            answer = answers.get(figure.name, Answer(-0.5, "half.", digits=2))
            text = "" if figure.file else "printed " * 40
            drawn[figure.name] = DrawnFigure(figure.title, figure.command, figure.file, text, figure.question, answer)
    return write_page(tmp_path, drawn, "hmm")


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)], ids=["laptop", "phone"]
)
def test_questions_are_checked_by_keyboard(browser: Any, page: Path, width: int, scheme: str) -> None:  # noqa: F811
    opened = Opened(browser, page, "", width, scheme)
    shown = opened.page
    keyboard = shown.keyboard
    assert shown.locator("main h2").inner_text() == TOPICS["hmm"].title
    number = shown.locator("input[name=answer-hmm-0]")
    said = shown.locator("form [role=status]")
    for typed, expected in (
        ("", "Type a number first."), ("x", "Type a number first."), ("124", "Wrong."), ("125.4", "Wrong."),
        (" 125 ", "Right. 5^3."),
    ):  # fmt: skip
        number.focus()
        number.fill(typed)
        keyboard.press("Enter")
        assert said.nth(0).inner_text().startswith(expected), typed
    other = shown.locator("input[name=answer-hmm-1]")
    for typed, good in (("1234.5", True), ("1,234.6", True), ("1234,56", True), ("1235", False), ("-1234.56", False)):
        other.fill(typed)
        keyboard.press("Enter")
        assert said.nth(1).inner_text().startswith("Right." if good else "Wrong."), typed
    assert shown.locator("text=2 of 2 questions answered right").count() == 1
    shown.locator("[role=tab][aria-selected=true]").focus()
    for _ in range(4):  # to CTC
        keyboard.press("ArrowRight")
    keyboard.press("Enter")
    assert shown.locator("main h2").inner_text() == TOPICS["ctc"].title
    assert shown.url.endswith("#topic=ctc")
    choices = shown.locator("input[name=answer-ctc-0]")
    assert choices.count() == 3
    choices.nth(0).focus()
    keyboard.press("Space")
    for expected in ("Wrong.", "Wrong.", "Right. because"):
        keyboard.press("Enter")
        text = said.nth(0).inner_text()
        if text.startswith("Right."):
            break
        assert text.startswith("Wrong."), expected
        keyboard.press("ArrowDown")
    assert said.nth(0).inner_text() == "Right. because"
    assert shown.locator("iframe").count() == 2
    row, tab = (shown.locator(f"[role={role}]").first.bounding_box() for role in ("tablist", "tab][aria-selected=true"))
    assert row["x"] <= tab["x"] + 1
    assert tab["x"] + tab["width"] <= row["x"] + row["width"] + 1
    shown.go_back()
    shown.wait_for_selector(f"h2:text-is('{TOPICS['hmm'].title}')")
    for name in ("bias", "transformer"):
        shown.locator(f"#tab-{name}").click()
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        least, where, count = contrast(shown)
        assert count > 20
        assert least >= 4.5, (name, where)
    missing = shown.locator(".notice").all_inner_texts()
    assert len(missing) == len(TOPICS["transformer"].figures)
    assert sum("--slow" in text for text in missing) == sum(figure.slow for figure in TOPICS["transformer"].figures)
    assert not shown.evaluate("window.bad")
    assert not opened.complaints
    assert all(re.match("file:|data:", url) for url in opened.requests), opened.requests


def test_the_picture_of_a_figure_is_shown(browser: Any, page: Path) -> None:  # noqa: F811
    """The security policy allows files of the folder, and nothing else."""
    opened = Opened(browser, page)
    picture = opened.page.locator("img.slide")
    opened.page.wait_for_function("document.querySelector('img.slide').complete")
    assert picture.evaluate("one => one.naturalWidth") == 3000
    assert picture.evaluate("one => one.getBoundingClientRect().right <= window.innerWidth")
    opened.page.locator("iframe").scroll_into_view_if_needed()
    frame = opened.page.frame_locator("iframe")
    assert frame.locator("h1").inner_text() == "page"
    assert not opened.complaints


def test_no_page_scrolls_the_page_around_it() -> None:
    """A page in a frame of a lecture that called `scrollIntoView` moved the reader to its figure."""
    for path in Path(dragoman.web.__file__).parent.rglob("*.js"):
        assert ".scrollIntoView(" not in path.read_text(encoding="utf-8"), path
