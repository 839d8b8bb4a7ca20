"""The gallery of the documentation: its index, the kept ladder, what is trained again, and every page in a browser."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.web.page import page_data
from tests.web import test_offline_page as offline
from tests.web.test_browser import CHROMIUM, Opened, browser, playwright  # noqa: F401

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gallery  # noqa: E402


def links(text: str) -> set[str]:
    return set(re.findall(r"\]\(([^)]+)\)", text))


def test_the_kept_ladder_is_drawn_with_the_present_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    gallery.draw_ladder(tmp_path)
    data = page_data((tmp_path / "ladder.html").read_text(encoding="utf-8"))
    assert data["title"] == "The ladder: Multi30k German → English"
    rows = next(view["data"]["rows"] for view in data["views"] if view["kind"] == "scores")
    picture = (tmp_path / "ladder.svg").read_text(encoding="utf-8")
    assert len(rows) == 6
    assert all(row["name"] in picture for row in rows)
    table = (ROOT / "docs" / "reference" / "ladder-measured.md").read_text(encoding="utf-8")
    for row in rows:  # the page about it has the same figures
        score = row["scores"]["bleu"]
        assert f"| {row['name']} | {score['score']:.1f} ({score['low']:.1f} to {score['high']:.1f}) |" in table


def test_the_index_names_every_page_and_the_commands_that_made_it() -> None:
    text = gallery.index(exported=True, steps=None)
    pages = {
        f"{name}.html"
        for name in ("attention", "transformer", "hard", "ngrams", "lines", "stress", "compare", "ladder")
    }
    pictures = {f"{page.removesuffix('.html')}.svg" for page in pages} - {"lines.svg"} | {"lines.png"}
    assert links(text) == pages | pictures | {"web/index.html"}
    assert "\ndragoman inspect runs/hard 7,041 --output hard.html\n" in text
    assert "web" not in gallery.index(exported=False, steps=None)


def test_only_what_changed_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, ...]] = []

    def call(*words: str) -> None:
        trained.append(words)
        if len(trained) == 1:
            raise SystemExit(130)  # a build that was stopped

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gallery, "call", call)
    model = gallery.MODELS[2]
    with pytest.raises(SystemExit):
        gallery.train(model, None)
    (tmp_path / "runs" / model.name).mkdir()
    for steps in (None, None, 4):
        gallery.train(model, steps)
        assert (tmp_path / "runs" / model.name).exists() == (steps is None)  # other settings begin anew
    assert trained == [model.training(None), model.training(None), model.training(4)]
    assert (tmp_path / "numbers.tsv").stat().st_size > 100_000
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(SystemExit, match="no gallery"):
        gallery.main([str(tmp_path / "mine")])
    with pytest.raises(SystemExit, match=r"found no dist/.* or --without-web"):
        gallery.main([str(tmp_path / "new"), "--runtime", str(tmp_path), "--runs", str(tmp_path / "unused")])
    assert not (tmp_path / "unused").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: tests of pages need one")
def test_every_page_works_in_a_browser(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The whole gallery after four training steps; every tab is clicked."""
    from tests.web.test_every_task import CLICK_ALL

    monkeypatch.chdir(tmp_path)  # main changes it
    output = tmp_path / "gallery"
    gallery.main([str(output), "--runs", str(tmp_path / "runs"), "--steps", "4"])
    named = links((output / "index.md").read_text(encoding="utf-8"))
    assert all((output / name).is_file() for name in named)
    assert {path.relative_to(output).as_posix() for path in output.glob("*.*")} == named - {"web/index.html"} | {
        "index.md"
    }
    for name in sorted(named):
        if name.endswith(".html") and not name.startswith("web/"):
            opened = Opened(browser, output / name)
            for title, shown in opened.page.evaluate(CLICK_ALL):
                assert not re.search(r"undefined|NaN|\[object", shown), (name, title)
            opened.check()
    if "web/index.html" in named:
        site = offline.Site(output / "web", tmp_path / "runs" / "runs" / "attention")
        page = offline.Opened(browser, site.url)
        page.page.fill("#source", "dragoman")
        page.page.wait_for_selector(".output .w")
        assert not page.complaints
        assert not [url for url in page.requests if not url.startswith((site.url, "data:", "blob:"))]
        site.close()
