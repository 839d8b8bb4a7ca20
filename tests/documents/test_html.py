"""HTML: our tokenizer beside html5lib's, and what of a page is translated."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from html5lib._tokenizer import HTMLTokenizer
from html5lib.constants import tokenTypes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.documents.html import parse_blocks
from dragoman.documents.html_tokens import REFERABLE, attributes_of_tag, html_tokens, unescape_text
from dragoman.inference.segments.markup import Aligned, Block, place_markup, project

_STATES = {"script": "scriptDataState", "plaintext": "plaintextState"}
_STATES |= dict.fromkeys(("title", "textarea"), "rcdataState")
_STATES |= dict.fromkeys(("style", "xmp", "iframe", "noembed", "noframes"), "rawtextState")


def ours(page: str) -> list[Any]:
    """Tags with attributes, texts and comments, in the form of html5lib's test files."""
    found: list[Any] = []
    inside = ""
    for token in html_tokens(page):
        if token.kind in ("open", "void"):
            found.append(["StartTag", token.name, {one.name: one.value for one in attributes_of_tag(token.raw)}])
            inside = token.name
        elif token.kind == "close":
            found.append(["EndTag", token.name])
        elif token.kind == "text" or token.name:
            plain = token.name or (
                inside and found[-1][0] == "StartTag" and inside in _STATES and inside not in REFERABLE
            )
            found.append(["Character", token.raw if plain else unescape_text(token.raw)])
        elif not token.raw.startswith("</>") and not is_cut_tag(token.raw):
            found.append(["Comment"])
    return merged(found)


def is_cut_tag(raw: str) -> bool:
    """Whether a page ends inside this tag, which a browser drops."""
    return re.match("</?[A-Za-z]", raw) is not None


def theirs(page: str) -> list[Any]:
    """The same by html5lib."""
    tokenizer = HTMLTokenizer(page)
    found: list[Any] = []
    for token in tokenizer:
        kind = token["type"]
        if kind in (tokenTypes["StartTag"], tokenTypes["EmptyTag"]):
            found.append(["StartTag", token["name"], dict(token["data"])])
            if token["name"] in _STATES:
                tokenizer.state = getattr(tokenizer, _STATES[token["name"]])
        elif kind == tokenTypes["EndTag"]:
            found.append(["EndTag", token["name"]])
        elif kind in (tokenTypes["Characters"], tokenTypes["SpaceCharacters"]):
            found.append(["Character", token["data"]])
        elif kind in (tokenTypes["Comment"], tokenTypes["Doctype"]):
            found.append(["Comment"])
    return merged(found)


def merged(tokens: list[Any]) -> list[Any]:
    found: list[Any] = []
    for token in tokens:
        if token[0] == "Character" and found and found[-1][0] == "Character":
            found[-1] = ["Character", found[-1][1] + token[1]]
        else:
            found.append(token)
    return found


PIECES = [
    "<", ">", "/", "</", "<!", "<!--", "-->", "--", "--!>", "<?", "?>", "=", '"', "'", " ", "\n", "\f", "!",
    "-", "a", "B",
    "<b", "<A", "</b>",
    "<br/>", "<p ", "x=y", 'x="y>z"', "x='<'", "href=foo\"bar", "&amp;", "&lt", "&copy=", "&notit;",
    "<script>", "</script>", "<script", "</script ", "<style>", "</style>", "<title>", "</title>", "<textarea>",
    "</TEXTAREA>", "<!DOCTYPE html>", "<![CDATA[", "]]>", "İ", "ſ", "K", "一", "</>", "</1>", "<1>", "<xmp>", "</xmp>",
]  # fmt: skip


@settings(max_examples=200)
@example(["<script>", "<!--", "<script", ">", "</script ", ">", "-->", "</script>"])
@example(["<script>", "<!--", ">", "</script>"])
@example(["İ", "<script>", "<b", ">", "</script>"])
@example(["<A", " ", 'href=foo"bar', ">"])
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_tokens_are_those_of_html5lib(pieces: list[str]) -> None:
    page = "".join(pieces)
    assert "".join(token.raw for token in html_tokens(page)) == page
    assert ours(page) == theirs(page)


SUITE = (
    Path(os.environ.get("HTML5LIB_TESTS", "nowhere")) / "tokenizer"
)  # a checkout of github.com/html5lib/html5lib-tests
_INSIDE = {"Data state": "", "PLAINTEXT state": "plaintext", "Script data state": "script"}
_INSIDE |= {"RCDATA state": "title", "RAWTEXT state": "style"}


@pytest.mark.skipif(not SUITE.is_dir(), reason="needs HTML5LIB_TESTS")
def test_the_tokenizer_tests_of_html5lib() -> None:
    """All of them but those that begin inside a CDATA section; comments count without their text."""
    counts: Counter[str] = Counter()
    for path in sorted(SUITE.glob("*.test")):
        for case in json.loads(path.read_text(encoding="utf-8")).get("tests", []):
            page, expected = case["input"], case["output"]
            if case.get("doubleEscaped"):
                page, expected = (json.loads(re.sub(r"\\\\u", r"\\u", json.dumps(one))) for one in (page, expected))
            wanted = merged([["Comment"] if one[0] in ("Comment", "DOCTYPE") else one[:3] for one in expected])
            for state in case.get("initialStates", ["Data state"]):
                name = _INSIDE.get(state)
                last = case.get("lastStartTag", name)
                if name is None or (name and not same_content(name, last)):
                    counts["left out"] += 1
                    continue
                before = f"<{last}>" if name else ""
                found = ours(before + page.replace("\r\n", "\n").replace("\r", "\n"))[1 if name else 0 :]
                text = json.dumps(found).replace("\\u0000", "\\ufffd")  # a reader's matter, not a tokenizer's
                same = text == json.dumps(wanted).replace("\\u0000", "\\ufffd")
                counts["the same" if same else "different"] += 1
                if not same:
                    print(path.name, case["description"], repr(page), found, wanted)
    print(counts)
    assert counts["the same"] > 6000
    assert not counts["different"]


def same_content(name: str, last: str) -> bool:
    return _STATES.get(name) == _STATES.get(last)


@pytest.mark.parametrize("reference", ["&#" + "1" * 5000 + ";", "&#x" + "f" * 5000, "&#0;", "&#" + "0" * 5000 + "65;"])
def test_a_reference_with_a_huge_number_is_a_character(reference: str) -> None:
    assert unescape_text(reference) == ("A" if reference.endswith("65;") else "\ufffd")
    assert [one.value for one in attributes_of_tag(f'<a x="{reference}">')] == [unescape_text(reference)]


def texts(page: str) -> list[str]:
    """The texts of a page that are translated."""
    return [part.text for part in parse_blocks(page) if isinstance(part, Block)]


def test_a_picture_in_an_attribute_stays_part_of_its_tag() -> None:
    picture = "data:image/png;base64," + "iVBOR" * 20_000
    assert texts(f'<p>a <img src="{picture}"> b</p>') == ["a b"]


def test_letters_that_grow_in_lower_case_shift_nothing() -> None:
    page = "<p>İİİ</p>" + "İ" * 50 + "<script>if (a < b) alert('<p>no</p>')</script><p>text</p>"
    assert texts(page) == ["İİİ", "İ" * 50, "text"]
    assert texts("<\u212abd>x</\u212abd><linK rel=x>") == ["<\u212abd>x"]  # a Kelvin sign is no letter of a tag


def test_an_attribute_may_hold_quotes() -> None:
    assert texts("<p><a href=foo\"bar>one</a> two</p><p title='a\"b>c'>three</p>") == ["one two", "three"]


def test_raw_text_ends_where_browsers_end_it() -> None:
    assert texts("<title>a <b> c</title><script><!--<script>x</script>y--></script>z") == ["a <b> c", "z"]
    assert texts("<svg><title>no</title><style>a</style></svg><p>yes</p><style>no") == ["yes"]
    assert texts("<svg><![CDATA[</svg>]]></svg><p>yes") == ["yes"]
    assert texts("a<!--x--!>b<!-->c</>d") == ["abcd"]
    assert texts("one <b") == ["one "]  # a browser drops a tag that the page ends in


def test_only_the_attribute_says_what_stays() -> None:
    assert texts('<p data-translate="no" title="translate=no">one</p><p translate=NO>no</p>') == ["one"]
    assert texts('<p class="x notranslate">no</p><p class="notranslated">two</p>') == ["two"]


def test_ruby_stays_with_its_letters() -> None:
    (block,) = (
        one
        for one in parse_blocks("私は<ruby>漢<rt>かん</rt>字<rt>じ</rt></ruby>が<b>好き</b>です。")
        if isinstance(one, Block)
    )
    assert block.text == "私は漢字が好きです。"
    output = Aligned("我很喜歡漢字。", [0, 8, 5, 6, 2, 3, 9])
    assert place_markup(block, output) == "我很<b>喜歡</b><ruby>漢<rt>かん</rt>字<rt>じ</rt></ruby>。"


@pytest.mark.parametrize(
    "part",
    ["<", "</", "<!", "<!--", "<a ", "<a x=", '<a x="', "<a x='", "<script>", "<script></script>", "<script><!--", "&",
     "&#1",
     "<style></style>", "<title>", "<svg>", "<svg><p>", "<b>", "<code>", "<ruby>", "a=", "<p translate=no>",
     "İ<script>"],
)  # fmt: skip
def test_time_is_linear(part: str) -> None:
    def seconds(count: int) -> float:
        page = part * count
        started = time.process_time()
        for block in parse_blocks(page):
            if isinstance(block, Block):
                project(block, Aligned(block.text, list(reversed(range(len(block.text.split()))))))
        return time.process_time() - started

    count = 12_000 // len(part)
    once = max(seconds(count) for _ in range(2))
    assert min(seconds(2 * count) for _ in range(2)) < 3 * once + 0.05
