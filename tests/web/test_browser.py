"""Pages in a browser: no error, no request, whole keyboard path, hostile text inert, large pictures fast."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.inference.load import load_run
from dragoman.inspect.measure.comparison import View, compare_texts
from dragoman.inspect.options import InspectOptions
from dragoman.inspect.views import subject
from dragoman.inspect.views.attention_layers import attention_layers, merge_words
from dragoman.inspect.views.inspection import Inspection, inspect
from dragoman.inspect.views.next_tokens import next_tokens
from dragoman.inspect.views.view import packed
from dragoman.scoring.registry import select_metrics
from dragoman.web.page import build_page
from tests.conftest import TrainedFolder, quiet_machine
from tests.inspect.tempering import tempered

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = (
    "<script>window.bad=1</script><img src=x onerror='window.bad=1'> \u202e שלום 👩‍👩‍👧 &amp; \" ' `${window.bad=1}`"
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: tests of pages need one")


# The contrast of every text against the background behind it (WCAG 2.1), of those that one can see.
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((one) => linear(one / 255))
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())) continue;
    if (node.matches("script, noscript, noscript *, style") || !node.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.tagName + " " + node.textContent.slice(0, 30)]);
  }
  return found.sort((x, y) => x[0] - y[0])[0].concat(found.length);
}"""


def contrast(page: Any) -> Any:
    """The least contrast of a text, the text, and the number of texts, after colours have changed."""
    page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => true)")
    return page.evaluate(CONTRAST)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        yield found
        found.close()


@pytest.fixture(scope="module")
def inspection(trained_folder: TrainedFolder) -> Inspection:
    with quiet_machine(trained_folder.folder / "cache"):
        return inspect(load_run(trained_folder.run, "cpu"), "abcd", InspectOptions("ABCE", training_pairs=50))


class Opened:
    """A page with all that it logged and asked for."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", width: int = 1200, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(120_000)
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(f"{path.as_uri()}{fragment}")

    def check(self) -> None:
        assert not self.complaints
        outside = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert not outside
        assert len([url for url in self.requests if url.startswith("file:")]) == 1


def written(path: Path, entry: str, data: dict[str, Any]) -> Path:
    path.write_text(build_page("page", entry, packed(data)), encoding="utf-8")
    return path


def compared(path: Path, views: list[View], title: str = "") -> Path:
    """The page of a comparison."""
    shown = [view.as_dict() for view in views]
    return written(path, "compare-page", {"format": 1, "title": title, "about": "", "views": shown, "notes": []})


@pytest.mark.parametrize(
    ("width", "scheme"), [(1200, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)], ids=["wide", "phone"]
)
def test_every_view_draws_without_a_complaint(
    browser: Any, inspection: Inspection, tmp_path: Path, width: int, scheme: str
) -> None:
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", inspection._data()), "", width, scheme)
    page = opened.page
    tabs = page.locator("[role=tab]")
    assert tabs.count() == len(inspection.views) > 6
    for number in range(tabs.count()):
        tabs.nth(number).click()
        assert page.locator("main h2").inner_text() == inspection.views[number].title
        assert page.locator("main svg").count() + page.locator("main table").count() > 0
        for button in page.locator("button:text-is('Data table')").all():
            button.click()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), inspection.views[number].kind
        if inspection.views[number].kind == "equations":
            least, where, count = contrast(page)
            assert count > 20
            assert least >= 4.5, where
        if inspection.views[number].kind in ("whatif", "next", "labels"):  # bars: whole in their columns
            for place in page.locator(".drawing").all():
                assert place.evaluate("one => one.scrollWidth <= one.clientWidth + 1"), inspection.views[number].kind
        for place in page.locator("figure table").all():
            assert place.locator("tbody tr").count() > 0
    opened.check()


def test_a_view_without_a_drawing_shows_its_numbers(browser: Any, inspection: Inspection, tmp_path: Path) -> None:
    """So that a new view has a tab before anybody writes JavaScript for it."""
    toy = View("toy", "Toy", "about toys", {"numbers": torch.tensor([[1.5, 2.0]])})
    found = replace(inspection, views=(*inspection.views, toy))
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", found._data()), "#view=toy")
    assert opened.page.locator("main h2").inner_text() == "Toy"
    assert json.loads(opened.page.locator("main pre").inner_text()) == {"numbers": [[1.5, 2]]}
    opened.check()


def test_single_words_are_shown_by_letter(browser: Any, inspection: Inspection, tmp_path: Path) -> None:
    """The overview had one box for the input and one for the output, and comparisons struck whole words."""
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", inspection._data()))
    boxes = opened.page.locator("main svg g[role=button]")
    assert [box.text_content() for box in boxes.all()] == [*"ABCE", "<eos>"]
    assert "output letter" in opened.page.locator("main").inner_text()
    assert inspection.subject.source is not None
    assert (inspection.subject.source.words, inspection.subject.source.unit) == ((*"abcd", "<eos>"), "letter")
    left_out = [one["name"] for one in inspection.view("whatif").data["changes"] if one["kind"] == "word"]
    assert left_out == [*"abcd"]
    references = [["naročiti"], ["on"], ["ukazano"]]
    outputs = {"one": ["naročit", "on", "ukazano"], "two": ["naroditi", "in", "kazano"]}
    metrics = select_metrics(("bleu", "cer", "exact_match"), "words")
    views = compare_texts(outputs, references, metrics, 20, 1, ["narozhiti", "on", "vkasano"])
    opened = Opened(browser, compared(tmp_path / "c.html", views), "#view=outputs")
    cells = opened.page.locator("section").first.locator("td:nth-child(3)")
    assert [cell.inner_html() for cell in cells.locator("del, ins").all()] == ["i", "č", "d"]
    by_length = next(view.data for view in views if view.kind == "lengths")
    assert (by_length["metric"], by_length["unit"]) == ("CER", "letters")
    assert by_length["buckets"] == ["2", "7", "9"]
    opened.check()


def test_keyboard_and_hash(browser: Any, inspection: Inspection, tmp_path: Path) -> None:
    path = written(tmp_path / "p.html", "inspect-page", inspection._data())
    opened = Opened(browser, path, "#view=attention&step=2")
    page = opened.page
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == inspection.view("attention").title
    assert "step 3 of" in page.locator(".stepper output").inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("step=3"))
    page.locator("[role=tab][aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    selected = playwright.expect(page.locator("[role=tab][aria-selected=true]"))
    selected.to_have_text(inspection.views[2].title)
    page.go_back()
    selected.to_have_text(inspection.view("attention").title)
    page.locator("main svg[tabindex='0']").first.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_url(re.compile("column=0"))
    with page.expect_download() as saved:
        page.locator("button:text-is('SVG')").first.click()
    assert Path(saved.value.path()).read_text(encoding="utf-8").startswith("<?xml")
    with page.expect_download() as saved:
        page.locator("button:text-is('JSON')").first.click()
    weights = json.loads(Path(saved.value.path()).read_text(encoding="utf-8"))["weights"]
    expected = [layer for layer in inspection.view("attention").data["layers"] if layer["kind"] == "cross"][-1][
        "weights"
    ]
    torch.testing.assert_close(torch.tensor(weights), expected, atol=1e-6, rtol=1e-6)
    opened.check()


def test_numbers_of_the_page_are_those_of_python(browser: Any, inspection: Inspection, tmp_path: Path) -> None:
    opened = Opened(
        browser, written(tmp_path / "p.html", "inspect-page", inspection._data()), "#view=next&temperature=0.5&step=1"
    )
    page = opened.page
    page.locator("button:text-is('Data table')").click()
    shown = [
        float(cell.replace("−", "-")) for cell in page.locator("figure table tbody td:nth-child(3)").all_inner_texts()
    ]
    found = next_tokens(inspection.subject)
    assert found is not None
    torch.testing.assert_close(torch.tensor(shown[:5]), tempered(found, 1, 0.5)[:5], atol=6e-5, rtol=1e-2)
    page.goto(page.url.partition("#")[0] + "#view=attention&level=words")
    page.locator("button:text-is('Data table')").first.click()
    cells = page.locator("figure").first.locator("tbody tr").first.locator("td").all_inner_texts()[1:]
    layer = [one for one in attention_layers(inspection.subject) if one.kind == "cross"][-1]
    merged = merge_words(layer.weights.mean(0), layer.rows.word_of, layer.columns.word_of)
    found_cells = torch.tensor([float(cell.replace("−", "-")) for cell in cells])
    torch.testing.assert_close(found_cells, merged[0], atol=6e-5, rtol=1e-2)


def test_hostile_text_is_inert_and_whole(
    browser: Any, trained_folder: TrainedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_TOKENS", 112)  # large pictures are drawn by another test
    text = HOSTILE + "abcdefghij " * 20  # more than the views show
    with quiet_machine(trained_folder.folder / "cache"):
        found = inspect(load_run(trained_folder.run, "cpu"), text, InspectOptions(HOSTILE))
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", found._data()))
    page = opened.page
    for tab in page.locator("[role=tab]").all():
        tab.click()
    assert page.evaluate("window.bad") is None
    assert page.locator("dd").all_text_contents() == [text, HOSTILE]
    long, unknown = page.locator(".notice").all_inner_texts()
    assert "the views show its first" in long
    assert "read as <unk>" in unknown
    opened.check()
    outputs = {"one": [HOSTILE, "", "x" * 10_000], "two": ["a", "b", "c"]}
    metrics = select_metrics(("chrf",), "words")
    views = compare_texts(outputs, [[HOSTILE], ["b"], ["c"]], metrics, 20, 1, [HOSTILE, "", "c"])
    opened = Opened(browser, compared(tmp_path / "c.html", views, HOSTILE))
    for tab in opened.page.locator("[role=tab]").all():
        tab.click()
    assert opened.page.evaluate("window.bad") is None
    opened.check()


def test_large_pictures_are_fast(browser: Any, tmp_path: Path) -> None:
    size = 512
    axis = {
        "tokens": [f"t{i}" for i in range(size)],
        "words": [f"t{i}" for i in range(size)],
        "word_of": list(range(size)),
    }
    layer = {
        "name": "layer", "kind": "cross", "about": "", "weights": torch.rand(1, size, size).softmax(-1), "rows": axis,
        "entropy": torch.ones(1), "max_entropy": 9.0, "columns": axis, "sums_to_one": True, "summaries": [""],
    }  # fmt: skip
    nodes = []
    for step in range(1, 65):  # beam 16 × length 64, twice as many candidates
        for place in range(32):
            parent = 0 if step == 1 else 32 * (step - 2) + 1 + place % 16
            fate = "kept" if place < 16 else "worse than the beam"
            fate = "complete" if step == 64 and place < 4 else fate
            nodes.append(
                {
                    "number": len(nodes) + 1, "parent": parent, "step": step, "token": 5, "piece": f"w{place}",
                    "group": 1, "log_probability": -1.0, "score": -1.0 * step - place, "normalised": -1.0, "fate": fate,
                }
            )  # fmt: skip
    attention = {
        "layers": [layer], "attribution": {}, "source": axis, "target": axis, "prefix": axis, "measure": "log p",
        "earlier": "earlier output",
    }  # fmt: skip
    data = {
        "title": "large", "run": {"task": "t", "model": "m", "parts": [], "parameters": 1}, "notes": [],
        "source": {"text": "", **axis}, "target": {"text": "", "given": False, **axis},
        "views": [
            {"kind": "attention", "title": "Attention", "about": "", "data": attention},
            {"kind": "beam", "title": "Beam", "about": "", "data": {"nodes": nodes, "continuations": {}, "beam": 16}},
        ],
    }  # fmt: skip
    opened = Opened(browser, written(tmp_path / "p.html", "inspect-page", data))
    page = opened.page
    drawing = """() => {
        const started = performance.now();
        history.replaceState(null, "", "#view=attention&step=%d");
        dispatchEvent(new Event("hashchange"));
        return performance.now() - started;
    }"""
    assert min(page.evaluate(drawing % step) for step in (3, 4, 5)) < 1000  # milliseconds, 512 × 512
    page.locator("[role=tab]").nth(1).click()
    assert 0 < page.locator("svg [data-node]").count() < 400  # folded
    page.locator("select").first.select_option("all")
    assert page.locator("svg [data-node]").count() == len(nodes)
    opened.check()
