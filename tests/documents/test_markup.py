"""Sentences and markup, without a server."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.sentences import join_sentences, split_long, split_sentences
from dragoman.documents.html import parse_blocks, tokens_of
from dragoman.documents.markup import Aligned, Block, place_markup

PROSE = st.text(st.sampled_from("aBc .!?…\n\t\"')。3 Dr."), max_size=60)


@given(PROSE)
def test_sentences_join_to_the_text(text: str) -> None:
    sentences = split_sentences(text)
    assert join_sentences(sentences) == text
    assert all(one.text == one.text.strip() for one in sentences)


@given(PROSE, st.integers(1, 12))
def test_parts_of_a_long_sentence_fit(text: str, longest: int) -> None:
    parts = split_long(text, lambda part: len(part) <= longest)
    assert join_sentences(parts) == text
    assert all(len(part.text) <= longest for part in parts)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four…", 4),
        ("Dr. Smith met J. Doe at 3 p.m. today.", 1),
        ("Am 3. Oktober kommt z.B. Prof. Weiß. Danach gehen alle.", 2),
        ('He said "no." Then he left.', 2),
        ("你好。再见！好。", 3),
        ("A title\nA line. Another.", 3),
    ],
)
def test_where_sentences_end(text: str, count: int) -> None:
    assert len(split_sentences(text)) == count


TAGS = ["<b>", "</b>", "<i>", "</i>", "<br>", "<p>", "</p>", "<img src='a>b'>", "<a href='x'>", "</a>", "<!-- <b> -->"]
DOCUMENT = st.lists(
    st.sampled_from([*TAGS, "one ", "two", " ", "&amp;", "<", " three. ", "<code>x</code>"]), max_size=14
)


@given(DOCUMENT, st.lists(st.integers(-1, 6), max_size=8), st.lists(st.sampled_from(["un", "deux", "<"]), max_size=6))
def test_every_tag_is_kept_once(parts: list[str], sources: list[int], words: list[str]) -> None:
    """Whatever the alignment says, and however short the output is."""
    document = "".join(parts)
    assert "".join(token.raw for token in tokens_of(document)) == document
    rendered = ""
    for part in parse_blocks(document):
        if isinstance(part, Block):
            count = len(part.text.split())
            aligned = Aligned(" ".join(words), [min(one, count - 1) for one in sources][: len(words)])
            rendered += place_markup(part, aligned)
        else:
            rendered += part
    kept = [token.raw for token in tokens_of(document) if token.kind != "text"]
    found = [token.raw for token in tokens_of(rendered) if token.kind != "text"]
    assert sorted(found) == sorted(kept)
    if any(isinstance(part, Block) for part in parse_blocks(document)) and len(parse_blocks(document)) == 1:
        assert html.unescape(re.sub(r"<(?:[^<>']|'[^']*')*>", "", rendered)).split() in (words, [*words, "x"]) or kept


def test_tags_follow_their_words() -> None:
    (block,) = parse_blocks('Das <b>rote <i>Haus</i></b> ist <a href="x">schön</a>.')
    assert isinstance(block, Block)
    placed = place_markup(block, Aligned("Beautiful is the house red.", [4, 3, 0, 2, 1]))
    assert placed == '<a href="x">Beautiful</a> is the <b><i>house</i> red.</b>'
    placed = place_markup(block, Aligned("The red house is beautiful.", [0, 1, 2, 3, 4]))
    assert placed == 'The <b>red <i>house</i></b> is <a href="x">beautiful</a>.'
    # No output word comes from "schön.", but it leads to the last one.
    placed = place_markup(block, Aligned("The red house is pretty.", [0, 1, 2, 3, 3], [0, 1, 2, 3, 4]))
    assert placed.endswith('<a href="x">pretty</a>.')


HOSTILE = ('<a "', "<", "x<b>", "<!--", "<code>x", "<code>x</code> ", "<b>x</b> ", "x<img> ", "<style>", "<i>x</b>")


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_markup_takes_no_time(part: str) -> None:
    text = part * (40_000 // len(part))
    started = time.perf_counter()
    for one in parse_blocks(text):
        if isinstance(one, Block):
            count = len(one.text.split())
            place_markup(one, Aligned(one.text, list(reversed(range(count))), list(reversed(range(count)))))
    assert time.perf_counter() - started < 5  # 0.3 s on a quiet machine
