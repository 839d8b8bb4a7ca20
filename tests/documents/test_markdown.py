"""Markdown: what CommonMark reads as text is translated, what it reads as markup stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dragoman.documents.markdown import escape_markdown, inline_markdown, unescape_markdown
from dragoman.documents.registry import open_document
from dragoman.inference.segments.markup import Aligned, project
from tests.documents.equivalence import markdown_page
from tests.documents.model import translated


def units(text: str) -> list[str]:
    """The texts of a Markdown file."""
    return [unit.block.text for unit in open_document("a.md", text.encode()).units]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("> one\n> two\n>\n> three *four*\n", ["one two", "three four"]),
        ("> one\n>> two\n", ["one", "two"]),
        ("a\n\n<!-- x\n\ny *z* -->\nb\n\nc\n", ["a", "b", "c"]),
        ("<script>\n\nx *y*\n\n</script>\n\nb\n", ["b"]),
        ("the formula $x*y*z$ and $a_b_c$ for $5 and $6\n", ["the formula and for $5 and $6"]),
        ("$$\nx*y*z\n$$\n\nb\n", ["b"]),
        ("1. one\n\n       code\n\n   two\n", ["one", "two"]),
        ("<b>one</b> and *two*\n", ["one and two"]),
        ("`code *x*` \\*one\\* &amp; [two](u)\n", [" *one* & two"]),
        ("[one][Ref] [ref] [none]\n\n[ref]: /x\n", ["one ref [none]"]),
    ],
)
def test_texts(text: str, expected: list[str]) -> None:
    assert units(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        'see "`code`" and (`x`), `y`. use `a` here\n',
        '***x** y* **a*b*c** foo_bar_ __init__ ~~del~~ [a *b*](c) ![i](j "t") [r] [r][] [t][r]\n\n[r]: /x\n',
        "2 * 3 * 4 a*b \\*x\\* &amp; <x &lt;b> a ]( b\n",
        'un*believ*able **Haus**tür. (*x*), "**y**"!\n',
    ],
)
def test_only_letters_change(text: str) -> None:
    changed = translated(open_document("a.md", text.encode()), str.swapcase)
    assert markdown_page(changed).lower() == markdown_page(text.encode()).lower()


@pytest.mark.parametrize("start", ["- x", "1. x", "# x", "> x", "+ x", "* x", "=== x", "``` x", "~~~ x"])
def test_a_translation_begins_no_other_block(start: str) -> None:
    document = open_document("a.md", b"some text\n")
    page = markdown_page(translated(document, lambda text: start))
    assert page.startswith("<p>")
    assert "x" in page


PARSER = MarkdownIt("commonmark").enable("strikethrough")
MARKS = st.text(st.sampled_from('*_ab `[]()!<>~\\& ."$'), max_size=16)


@settings(max_examples=120)
@example("*a **b*")
@example("***a** b*")
@example("[a [b](c)](d)")
@example("**a`**`")
@given(MARKS)
def test_marks_are_those_of_commonmark(text: str) -> None:
    """Emphasis, links and code are where markdown-it finds them; formulas are ours alone."""
    body = " ".join(f"x{text}x".replace("$", "").split())
    (token,) = [one for one in PARSER.parse(body) if one.type == "inline"]
    theirs = [one.type for one in token.children or [] if one.type in ("em_open", "strong_open", "link_open", "s_open")]
    names = {"*": "em_open", "_": "em_open", "**": "strong_open", "__": "strong_open", "[": "link_open", "~~": "s_open"}
    found: list[str] = []
    waiting = list(inline_markdown(body).elements)
    while waiting:
        element = waiting.pop(0)
        waiting = element.children + waiting
        found += [names[element.opening]] if element.closing and element.opening in names else []
    assert found == theirs


@settings(max_examples=120)
@given(MARKS)
def test_escaped_text_is_text(text: str) -> None:
    body = " ".join(f"x {text} x".replace("$", "").split())
    escaped = escape_markdown(body)
    assert unescape_markdown(escaped) == body
    assert PARSER.renderInline(escaped).count("<") == 0


@pytest.mark.parametrize(
    "part",
    ["[", "]", "![", "[a](", "](", "`", "` ``", "*", "*a ", "**a*", "_", "~~", "<", "<a ", '<a x="', "<!--", "$", "$a ",
     "> ",
     ">", "- ", "\n", "> a\n", "- a\n", "| a ", "|", "&", "\\", "[a]: b\n", "***a", "*a_", "[[a]"],
)  # fmt: skip
def test_time_is_linear(part: str) -> None:
    def seconds(count: int) -> float:
        started = time.process_time()
        for unit in open_document("a.md", (part * count).encode()).units:
            project(unit.block, Aligned(unit.block.text.upper(), []))
        return time.process_time() - started

    count = 3_000 // len(part)
    once = max(seconds(count) for _ in range(2))
    assert min(seconds(2 * count) for _ in range(2)) < 3 * once + 0.05
