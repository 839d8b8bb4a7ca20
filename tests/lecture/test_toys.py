"""The page of toys: its numbers are those of Python, and what a reader types moves them or is one clear line."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.lecture.toys import TOYS, write_toys
from dragoman.lecture.worked_numbers import calculation_of, worked
from dragoman.web.page import page_data
from tests.conftest import call
from tests.lecture.test_worked import random_beam
from tests.web.javascript import ARGUMENTS, CHROMIUM, run_javascript


def shares(draw: random.Random, count: int) -> str:
    weights = [draw.random() + 0.01 for _ in range(count)]
    return ",".join(f"{weight / sum(weights):.7f}" for weight in weights)


def table(draw: random.Random, rows: int, columns: int) -> str:
    return ";".join(shares(draw, columns) for _ in range(rows))


def cases() -> list[tuple[str, list[str]]]:
    """Every toy with the textbook's numbers and with others."""
    draw = random.Random(7)
    found: list[tuple[str, list[str]]] = [(name, []) for name in TOYS if name not in ("attention", "ctc")]
    rows = [
        ";".join(",".join(f"{draw.gauss(0, 2):.3f}" for _ in range(3)) for _ in range(count)) for count in (2, 4, 4)
    ]
    found.append(("attention", [f"queries={rows[0]}", f"keys={rows[1]}", f"values={rows[2]}", "depth=3"]))
    found.append(("attention", [f"queries={rows[0]}", f"keys={rows[1]}", f"values={rows[2]}", "depth=1"]))
    for _ in range(3):
        seen = ",".join(draw.choices("xyz", k=6))
        found.append(("viterbi", ["states=a,b,c,d", "symbols=x,y,z", f"start={shares(draw, 4)}", f"seen={seen}",
                                  f"transitions={table(draw, 4, 4)}", f"emissions={table(draw, 4, 3)}"]))  # fmt: skip
        for text in ("ab", "aa", "abba"):
            found.append(("ctc-frames", ["symbols=-ab", f"frames={table(draw, 6, 3)}", f"text={text}"]))
        for penalty in (0, 1):
            found.append(("beam", [*random_beam(draw), f"length={draw.randint(1, 5)}", f"length_penalty={penalty}",
                                   f"width={draw.randint(1, 4)}"]))  # fmt: skip
    for left, right in (("Hello", "Hella"), ("flaw", "lawn"), ("", "ab"), ("kitten sits", "sitting kit")):
        for cost in (1, 2):
            found.append(("edit-distance", [f'left="{left}"', f'right="{right}"', f"substitution={cost}"]))
    found.append(("edit-distance", ['left="a b c"', 'right="b c d"', "units=words"]))
    for hypothesis, references in (
        ("the the the the the the the", ["The cat is on the mat", "There is a cat on the mat"]),
        ("It's 3.5 km, or 2,000 m (about)!", ["It is 3.5 km, or 2,000 m -- about."]),
        ("the cat sat on the mat today", ["the cat sat on the mat"]),
        ("我喜歡貓和狗。", ["我喜歡狗和貓。"]),
        ("no match", ["other words here"]),
        ("Smith &amp; Sons well-known 5-10", ["Smith & Sons, well-known: 5-10"]),
    ):
        found.append(("bleu", [f'hypothesis="{hypothesis}"', f"reference={references!r}"]))
    return found


# What the page reads of the settings of Python, as its forms would give it.
COMPUTE = """async (cases) => {
  const toys = module_toy_numbers;
  const asked = {
    attention: toys.attention, viterbi: toys.viterbi, beam: toys.beam, "edit-distance": toys.editDistance,
    "ctc-frames": (one) => toys.ctcFrames({ ...one, symbols: [...one.symbols] }),
    bleu: (one) => toys.bleu({ hypothesis: one.hypothesis, references: [one.reference].flat() }),
  };
  const found = [];
  for (const [name, settings] of cases) found.push(await asked[name](settings));
  return found;
}"""


def compare(theirs: Any, ours: Any, place: str) -> None:
    if isinstance(ours, dict):
        for key in ours:
            compare(theirs[key], ours[key], f"{place}.{key}")
    elif isinstance(ours, list | tuple) and not all(isinstance(one, float) for one in ours):
        assert len(theirs) == len(ours), place
        for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            compare(left, right, f"{place}[{number}]")
    elif isinstance(ours, str | bool):
        assert theirs == ours, place
    else:
        assert theirs == pytest.approx(ours, rel=2e-6, abs=1e-7), place


def test_the_numbers_of_the_page_are_those_of_python(tmp_path: Path) -> None:
    given = cases()
    found = [worked(name, values) for name, values in given]
    theirs = run_javascript("toy-numbers", COMPUTE, [(one.name, one.settings) for one in found], tmp_path)
    for (name, values), one, other in zip(given, found, theirs, strict=True):
        ours = {
            key: value
            for key, value in one.results.items()
            if key not in ("best", "alignments", "wrong", "best_path_probability")
        }
        for node in ours.get("nodes", []):
            del node["token"]  # Python counts special tokens first
        if name == "ctc-frames":
            other["paths"] = int(other["paths"])
        if name == "edit-distance":
            other["path"] = other["cells"]
        compare(other, ours, f"{name} {values}")


def test_the_page_holds_the_textbooks_numbers_or_the_readers(tmp_path: Path) -> None:
    path = tmp_path / "toys.html"
    write_toys(path)
    data = page_data(path.read_text(encoding="utf-8"))
    assert [toy["kind"] for toy in data["toys"]] == [*TOYS]
    assert data["first"] is None
    write_toys(path, calculation_of("attention", ["scores=3,1,2"]))
    data = page_data(path.read_text(encoding="utf-8"))
    settings = data["toys"][0]["settings"]
    assert (data["first"], settings["queries"], settings["keys"], settings["depth"]) == (
        "attention",
        [[1]],
        [[3], [1], [2]],
        64,
    )
    assert len(settings["values"]) == 3


playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium found: tests of pages need one")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        yield found
        found.close()


# The least contrast of texts, as WCAG 2 defines it, and where it is.
CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const paper = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const found = channels(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  let least = [21, ""];
  const all = "h1, h2, p, legend, input[type=text], button, th, td, output, code, .readout, label, select";
  for (const node of document.querySelectorAll(all)) {
    if (!node.checkVisibility() || !(node.textContent.trim() || node.value)) continue;
    const [ink, ground] = [light(channels(getComputedStyle(node).color)), light(paper(node))];
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (ratio < least[0]) least = [ratio, node.outerHTML.slice(0, 120)];
  }
  return least;
}"""
UNNAMED = """() => [...document.querySelectorAll("main input, main select")]
  .filter((one) => !one.ariaLabel && !one.labels.length).length"""


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), pytest.param(390, "dark", marks=pytest.mark.page)])
def test_every_toy_fits_and_is_readable(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "toys.html"
    write_toys(path)
    page = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    ).new_page()
    complaints, requests = list[str](), list[str]()
    page.on("console", lambda line: complaints.append(line.text) if line.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: requests.append(asked.url))
    page.goto(path.as_uri())
    for tab in page.locator("[role=tab]").all():
        tab.click()
        name = tab.inner_text()
        page.wait_for_selector(".toy-head .readout")
        assert page.locator(".toy-output svg").count(), name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert "NaN" not in page.locator("main").inner_text(), name
        assert page.evaluate(UNNAMED) == 0, name
        ratio, where = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (name, ratio, where)
    assert not complaints
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)


def test_typing_moves_the_output_and_mistakes_are_told_in_place(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "toys.html"
    write_toys(path)
    page = browser.new_page()
    page.goto(f"{path.as_uri()}#view=viterbi")
    cell = page.get_by_label("p(state | state before): after Healthy, Healthy")
    other = page.get_by_label("p(state | state before): after Healthy, Fever")
    command = page.locator(".toy-command")
    before = page.locator(".toy-head").inner_text()
    cell.fill("0.2")
    playwright.expect(other).to_have_value("0.8")  # a row keeps the sum 1
    playwright.expect(page.locator(".toy-head")).not_to_have_text(before)
    playwright.expect(command).to_have_text("dragoman worked viterbi 'transitions=0.2,0.8;0.4,0.6'")
    # The command that the page shows gives the numbers that the page shows.
    found = worked("viterbi", ["transitions=0.2,0.8;0.4,0.6"]).results
    shown = call(*shlex.split(command.inner_text())[1:]).out
    assert f"p = {found['probability']:.4g}" in shown
    assert f"p = {found['probability']:.4g}" in page.locator(".toy-head").inner_text()
    cell.press("ArrowUp")
    playwright.expect(cell).to_have_value("0.25")
    kept = page.locator(".toy-head").inner_text()
    for wrong, line in (
        ("x", "transitions: after Healthy, Healthy: found “x”, expected a number, such as 0.25 or 1/4"),
        ("", "transitions: after Healthy, Healthy: found nothing, expected a number, such as 0.25 or 1/4"),
        ("7", "transitions, after Healthy: found 7, expected probabilities from 0 to 1"),
    ):
        cell.fill(wrong)
        alert = page.locator("fieldset", has=cell).locator("[role=alert]")
        playwright.expect(alert).to_have_text(line)
        assert cell.get_attribute("aria-invalid") == "true"
        assert page.locator(".toy-head").inner_text() == kept  # the last good output stays
    cell.fill("1/4")
    playwright.expect(page.locator("[role=alert]:not(:empty)")).to_have_count(0)
    page.get_by_label("states", exact=True).fill("Healthy Fever Flu")  # tables grow with their names
    playwright.expect(page.get_by_label("p(first state): start, Flu")).to_have_value("0")
    page.get_by_label("what was seen, in order").fill("dizzy hot")
    playwright.expect(page.locator("[role=alert]:not(:empty)")).to_have_text(
        "seen: found “hot”, expected names of normal, cold, dizzy"
    )
    assert "NaN" not in page.locator("main").inner_text()


@pytest.mark.page
def test_commands_of_the_page_are_those_of_the_command_line(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "toys.html"
    write_toys(path)
    page = browser.new_page()
    page.goto(path.as_uri())
    rows = "p(next token | last words); the longest words that fit count"
    changes = {  # what is typed, and the beginning of a line that both print
        "attention": ("queries: q1, 1", "9", "softmax"),
        "beam": (f"{rows}: else, a", "0.3", "greedy"),
        "ctc": ("path: one symbol for every frame", "a-a '\"b", "paths"),
        "ctc-frames": ("p(symbol) of every frame: t1, a", "0.7", "p(a)"),
        "edit-distance": ("text", "12; it's", "distance"),
        "bleu": ("output", 'Israeli officials, "5 are" responsible', "BLEU"),
    }
    for name, (label, value, line) in changes.items():
        page.evaluate("(name) => { location.hash = `view=${name}`; }", name)
        page.get_by_label(label, exact=True).fill(value)
        command = page.locator(".toy-command")
        playwright.expect(command).to_contain_text(f"dragoman worked {name} ")
        done = call(*shlex.split(command.inner_text())[1:])
        assert done.code == 0, (command.inner_text(), done.err)
        shown = page.locator(".toy-head").inner_text()
        if name == "ctc":
            assert f"= {shown.partition('paths   ')[2].split()[0]}\n" in done.out
            continue
        ours, theirs = (
            next(result_of(each) for each in text.splitlines() if each.startswith(line)) for text in (done.out, shown)
        )
        assert theirs
        assert ours[: len(theirs)] == pytest.approx(theirs, rel=6e-3), name


def result_of(line: str) -> list[float]:
    """The first number of a line that is no part of a name or a sum; the last one of BLEU's line."""
    found = [float(one) for one in re.findall(r"(?<![\w)(])\d+(?:\.\d+)?(?![\w%])", line.replace("p = ", " "))]
    return found[-1:] if line.startswith("BLEU") else found[:1]
