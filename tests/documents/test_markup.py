"""Sentences and markup, without a server."""

from __future__ import annotations

import html
import itertools
import random
import re
import time
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.campaign import documents
from dragoman.data.sentences import join_sentences, split_long, split_sentences
from dragoman.documents.html import parse_blocks, tokens_of
from dragoman.documents.registry import open_document
from dragoman.documents.translation import sentence_links
from dragoman.inference.align.alignment import word_spans
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.segments.markup import Aligned, Block, place_markup, words_of

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


@pytest.mark.parametrize("name", documents.FORMATS)
@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_other_programs_read_the_same_tags(name: str, draw: random.Random) -> None:
    """For random nested units, random outputs and random alignments; with the source as output the very same unit."""
    sample = documents.FORMATS[name](draw)
    assert documents.fault_of(sample, draw) == ""


def block_of_xliff(source: str) -> Block:
    text = f'<xliff version="1.2"><file><trans-unit id="1"><source>{source}</source></trans-unit></file></xliff>'
    return open_document("a.xlf", text.encode()).units[0].block


def test_tags_nest_when_punctuation_moves() -> None:
    block = block_of_xliff('<g id="1">alpha <mrk mtype="x">beta</mrk> gamma</g>.')
    placed = place_markup(block, Aligned("gamma delta.", [2, 1]))
    assert placed == '<g id="1">gamma <mrk mtype="x">delta</mrk></g>.'
    block = block_of_xliff('<g id="1">alpha</g> <mrk mtype="x"><g id="2">beta</g>.</mrk>')
    assert place_markup(block, Aligned("delta.", [1])) == '<g id="1"></g><mrk mtype="x"><g id="2">delta</g>.</mrk>'


def test_a_code_begins_before_it_ends() -> None:
    """Codes in two parts that enclose text are placed as elements; those that cross elements keep their order."""
    block = block_of_xliff('one <bpt id="1">b</bpt>two<ept id="1">e</ept> three')
    placed = place_markup(block, Aligned("drei zwei eins", [2, 1, 0]))
    assert placed == 'drei <bpt id="1">b</bpt>zwei<ept id="1">e</ept> eins'
    block = block_of_xliff('<g id="1">one <bx id="2"/>two</g> three<ex id="2"/> four')
    for order in itertools.permutations(range(4)):
        placed = place_markup(block, Aligned("a b c d", order))
        assert placed.index("<g") < placed.index("<bx") < placed.index("</g") < placed.index("<ex"), placed


def test_tags_of_other_blocks_keep_their_order() -> None:
    (block,) = parse_blocks("</i></b> one <u>two</u> <b>three <i>four")
    assert isinstance(block, Block)
    for order in itertools.permutations(range(4)):
        tags = re.findall(r"</?[bi]>", place_markup(block, Aligned("a b c d", order)))
        assert tags == ["</i>", "</b>", "<b>", "<i>"]


def test_elements_deeper_than_the_limit_stay_well_formed() -> None:
    block = block_of_xliff("".join(f'<g id="{n}">a ' for n in range(200)) + "b" + "</g>" * 200)
    placed = place_markup(block, Aligned("z y x", [150, 2, 80]))
    tree = ElementTree.fromstring(f"<x>{placed}</x>")
    assert [one.get("id") for one in tree.iter("g")] == [str(n) for n in range(200)]


def test_tags_inside_words_without_spaces() -> None:
    (block,) = parse_blocks("平成<b>20</b>年<i>4月</i>に")
    assert isinstance(block, Block)
    assert place_markup(block, Aligned("平成20年4月に。", [0, 1, 2, 3, 4, 5, 6, 6])) == "平成<b>20</b>年<i>4月</i>に。"
    assert [block.text[start:end] for start, end in words_of(block.text)] == ["平", "成", "20", "年", "4", "月", "に"]
    assert [start for start, _ in words_of("ก่อนที่ x")] == [0, 2, 3, 4, 8]


def test_letters_of_an_alignment_between_spaces_are_linked_in_order() -> None:
    alignment = WordAlignment(("漢字です",), ("these", "letters"), frozenset(), torch.ones(2, 1))
    assert sentence_links(alignment, "漢字です", "these letters").sources == [0, 0]
    alignment = WordAlignment(("these", "letters"), ("漢字です",), frozenset(), torch.tensor([[0.2, 0.8]]))
    links = sentence_links(alignment, "these letters", "漢字です")
    assert (links.sources, links.targets) == ([1, 1, 1, 1], [0, 0])


def test_words_of_an_alignment_are_those_of_documents() -> None:
    assert word_spans("<2de> 漢字 x", ("de",), segment=words_of) == [(6, 7), (7, 8), (9, 10)]


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
