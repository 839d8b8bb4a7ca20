"""Pages are one file that asks for nothing and runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dragoman.web import page as pages
from tests.web.javascript import run_javascript

MODULES = sorted(path.stem for path in (Path(pages.__file__).parent / "modules").glob("*.js"))
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202eabc\u2028"&\ud800 👩‍👩‍👧'


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.append((self.inside, data))


def parsed(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    return parser


def test_hostile_text_stays_data() -> None:
    built = pages.build_page(HOSTILE, "core", {"text": HOSTILE, "not finite": float("nan"), "third": 1 / 3})
    elements = parsed(built)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert not {"img", "iframe", "object"} & {tag for tag, _ in elements.found}
    inside = re.search(r'id="data">(.*?)</script>', built, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1]) == {"text": HOSTILE, "not finite": None, "third": 0.3333333}


def test_the_policy_allows_exactly_the_inline_script_and_style() -> None:
    elements = parsed(pages.build_page("t", "core", {}))
    policy = next(attrs["content"] for tag, attrs in elements.found if attrs.get("http-equiv"))
    assert policy is not None
    directives = dict(part.split(" ", 1) for part in html.unescape(policy).split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["connect-src"] == "'none'"
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        text = [text for own, text in elements.texts if own == tag][-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[directive] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_inlined(name: str) -> None:
    script = pages.bundle(name)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.count(f"const module_{name.replace('-', '_')} =") == 1


@pytest.mark.parametrize("path", [f"modules/{name}.js" for name in MODULES] + ["style.css"])
def test_nothing_comes_from_the_network(path: str) -> None:
    text = re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", pages.asset(path))
    assert not re.search(r"https?:|//\w+\.|@import|url\(", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_a_page_is_the_same_in_every_process() -> None:
    code = "from dragoman.web.page import bundle; print(hash_of(bundle('inspect-page')))"
    code = "import hashlib; hash_of = lambda text: hashlib.sha256(text.encode()).hexdigest(); " + code
    seen = {
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_repeated_words_are_told_from_shared_ones(tmp_path: Path) -> None:
    """A set of words took the second "seven" for the first."""
    cases = [
        ("seven thousand forty-one", "seven thousand seven hundred", [True, True, False, False]),
        ("Zwei Hunde rennen", "Zwei Hunde Hunde rennen", [True, True, False, True]),
        ("a b c", "b a c", [True, False, True]),
        ("a b", "c d e", [False, False, False]),
        ("", "a", [False]),
    ]
    data = [[text.split(), other.split()] for text, other, _ in cases]
    function = "async (data) => data.map(([text, other]) => module_panels.sharedWords(other, text))"
    assert run_javascript("panels", function, data, tmp_path) == [expected for *_, expected in cases]
