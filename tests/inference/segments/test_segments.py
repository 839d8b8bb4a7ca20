"""Tags, variables, formats, addresses and numbers survive any model: each is in the output exactly once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from dragoman.data import find_placeholders, icu_messages, protected_spans, tag_kind
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.segments import (
    Aligned,
    Parsing,
    Segment,
    Token,
    block_of,
    join_texts,
    parts_of_text,
    place_markup,
    sentence_links,
    unchanged,
    words_of,
)
from tests.clock import takes_at_most

SPANS = [
    "{name}", "%s", "%(place)s", "%1$@", "%ld", "%.2f", "%%", "%@", "&amp;", "&#39;", "${x}", "{{x}}", "mail@x.org",
    "https://a.org/b?c=d&e=1", "www.x.org/y.", "https://a.b/{id}", "<b>", "</b>", "<i>", "</i>", "<br/>", "</a>",
    "<1>", '<a href="https://x.org/a b">', "</1>", '<x id="1"/>',
    "{n, plural, one {# file in {d}} other {<b>#</b> files, %s}}",
    "{g, select, male {He said “hi”} female {She} other {They}}",
]  # fmt: skip
TEXTS = [
    "12", "7,5 km", "B12", "dogs", "cats", "The file", "is", "— ", "- ", "• ", "1. ", "(2) ", "a) ", "“", "”", "„", '"',
    "«", "»", "(", ")", ".", ",", "!", ":", "  ", "…", "100%", "50 %", "<", ">", "a < b", "{", "}", "&", "日本",
    "don’t",
]  # fmt: skip
Model = Callable[[str, random.Random], str]


def identity(text: str, draw: random.Random) -> str:
    return text


def reverse(text: str, draw: random.Random) -> str:
    return " ".join(reversed(text.split()))


def rubbish(text: str, draw: random.Random) -> str:
    return "".join(draw.choice(SPANS + TEXTS) + draw.choice([" ", ""]) for _ in range(draw.randint(0, 8)))


def random_alignment(source: str, output: str, draw: random.Random) -> WordAlignment | None:
    shape = len(words_of(output)), len(words_of(source))
    if draw.random() < 0.5 or not all(shape):
        return None
    weights = torch.tensor([[draw.random() for _ in range(shape[1])] for _ in range(shape[0])])
    return WordAlignment((), (), frozenset(), weights)


def translated(text: str, model: Model, parsing: Parsing, draw: random.Random) -> str:
    texts = []
    for part in parts_of_text(text, parsing):
        if part.copied:
            texts.append(part.text)
            continue
        segment = part.segment or Segment(part.text, (), parsing)
        output = segment.cleaned(model(part.text, draw), part.text)
        links = sentence_links(random_alignment(part.text, output, draw), part.text, output)
        texts.append(segment.restored(links, segment.block).text if part.segment else output)
    return join_texts(texts)


def kept(text: str) -> Counter[str]:
    """The protected texts and the frames of messages, and how often each occurs."""
    counts = Counter(dict(find_placeholders(text)))
    for message in icu_messages(text):
        place = message.start
        for first, last in (*message.leaves, (message.end, message.end)):
            counts[text[place:first]] += 1
            place = last
    return counts


def nests(text: str) -> bool:
    waiting: list[str] = []
    for span in protected_spans(text):
        if span.kind == "tag":
            kind, name = tag_kind(span.of(text))
            if kind == "open":
                waiting.append(name)
            elif kind == "close" and (not waiting or waiting.pop() != name):
                return False
    return not waiting


def random_segment(draw: random.Random) -> str:
    pieces = (
        draw.choice(draw.choice((SPANS, TEXTS))) + draw.choice([" ", " ", ""]) for _ in range(draw.randint(1, 10))
    )
    return "".join(pieces)


PARSINGS = [Parsing(True), Parsing(True, apart=True), Parsing(True, lambda number: True), Parsing(True, whole=True)]


def check_segment(seed: int) -> None:
    draw = random.Random(seed)
    text = random_segment(draw)
    for model in (identity, reverse, rubbish):
        for parsing in PARSINGS:
            output = translated(text, model, parsing, draw)
            about = f"{model.__name__}, {parsing}: {text!r} became {output!r}"
            assert kept(output) == kept(text), about
            assert nests(output) or not nests(text), about
            if model is identity:  # a space may keep parts from being a span together
                assert output.replace(" ", "") == text.replace(" ", "") if parsing.apart else output == text, about


@pytest.mark.parametrize("first", range(0, 600, 150))
def test_every_span_is_in_the_output_exactly_once(first: int) -> None:
    for seed in range(first, first + 150):
        check_segment(seed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('see <a href="https://x.org/?a=1">it</a>', ['<a href="https://x.org/?a=1">', "</a>"]),
        ("%@ %i %u %ld %.2f %x %% 50 % so", ["%@", "%i", "%u", "%ld", "%.2f", "%x", "%%"]),
        ("A &amp; B &nbsp; &#39; R&D;", ["&amp;", "&nbsp;", "&#39;"]),
        ("${x} {{y}} {0} %{z} #{a} %USER%", ["${x}", "{{y}}", "{0}", "%{z}", "#{a}", "%USER%"]),
        ("to a.b@c.de, or http://a.b/{id}. And (www.a.b)", ["a.b@c.de", "http://a.b/{id}", "www.a.b"]),
        ("nothing < to > keep, 50 % so, 3 < 4 > 2, 100%ig", []),
        ("<1>a</1> <br/> <!-- c > d -->", ["<1>", "</1>", "<br/>", "<!-- c > d -->"]),
        ("{n, plural, =0 {none} one {# file} other {# files}}", ["#"]),
    ],
)
def test_what_is_protected(text: str, expected: list[str]) -> None:
    assert [span for span, _ in find_placeholders(text)] == expected


@pytest.mark.parametrize(
    "tag",
    [
        "<b>", "</b >", "<br / >", "<1/>", "<file-name>", "<user@host.org>", "<https://x.org/a?b=c>", "<x:y z:w='1'/>",
        "<a href = \"a>b\" title='c'>", '<a href="x"title="y">', '<a href="x>', "<a title='it's'>", "<img\n src=x\n/>",
        '<input disabled value="5" CHECKED/>', "<details open>", "<p v-cloak>", "<div data-x aria-hidden>",
        '<x {{ a b }} c="d">', "<a {...props}>", '<a style={{color: "red"}}>', "<über a='1'>",
    ],
)  # fmt: skip
def test_what_is_a_tag(tag: str) -> None:
    text = f"say {tag} now"
    assert [span.of(text) for span in protected_spans(text)] == [tag]


@pytest.mark.parametrize(
    "text",
    [
        "<this hyperlink and another one here>", "if a <b and c> d", "<see page 5>", "<a - b>", "<this, that>",
        "</this is text>", '<John "Johnny" Smith>', "<see (the note)>", "List<String, Integer>", "<see note:>",
    ],
)  # fmt: skip
def test_words_between_signs_are_text(text: str) -> None:
    assert protected_spans(f"say {text} now") == []


def test_a_message_keeps_an_empty_leaf() -> None:
    text = "{n, plural, one {# file} other {}}"
    assert translated(text, identity, Parsing(True), random.Random(0)) == text


def test_a_number_that_another_one_contains_is_no_span() -> None:
    """Where 1 was looked for in 12, an output that says "ein" for 1 fell back to the source."""
    (part,) = parts_of_text("Room 12 has 1 bed", Parsing(False, lambda number: "2" in number))
    assert part.segment is not None
    links = sentence_links(None, part.text, "Raum hat ein Bett")
    assert part.segment.restored(links, part.segment.block) == ("Raum 12 hat ein Bett", True)


def test_a_broken_output_leaves_no_remains_of_spans() -> None:
    (part,) = parts_of_text("Dear {name}, you have {count} messages", Parsing(True))
    assert part.segment is not None
    output = "Liebe {name}, Sie haben Nachrichten"
    found = part.segment.restored(sentence_links(None, part.segment.tagless.text, output), part.segment.tagless)
    assert not found.exact
    assert Counter(dict(find_placeholders(found.text))) == {"{name}": 1, "{count}": 1}
    assert found.text.count("name") == 1


def test_a_tag_stays_around_the_span_that_it_stood_around() -> None:
    """The attention may link every word to the span."""
    block = block_of(
        [
            Token("text", "", "Hello "), Token("open", "b", "<b>"), Token("text", "", "{name}"),
            Token("close", "b", "</b>"), Token("text", "", " there"),
        ],
        unchanged, unchanged,
    )  # fmt: skip
    weights = torch.tensor([[0.1, 0.8, 0.1]] * 3)
    links = sentence_links(WordAlignment((), (), frozenset(), weights), block.text, "Da ist {name}")
    assert place_markup(block, links) == "Da ist <b>{name}</b>"


def test_no_tag_comes_into_a_span() -> None:
    """Models may write the parts of a word with a tag inside in another order."""
    block = block_of(
        [Token("text", "", "one"), Token("void", "x", "<x/>"), Token("text", "", "${x} two")], unchanged, unchanged
    )
    links = Aligned("two ${x}one", (1, 0), (), words_of(block.text), [(0, 3), (4, 11)])
    output = place_markup(block, links)
    assert "${x}" in output
    assert output.count("<x/>") == 1


def test_a_sign_that_a_model_moved_begins_no_tag_with_what_follows() -> None:
    segment = Segment("a <a < b", (), Parsing(True))
    assert segment.cleaned("b < <a a", segment.raw) == "b < a a"
    assert segment.cleaned(segment.raw, segment.raw) == segment.raw


def test_a_sign_that_a_model_writes_ends_nothing_that_stands_before_it() -> None:
    assert join_texts(['see {" ', "%1$@ all }, {x} > 2", " here"]) == 'see {"  %1$@ all , {x}  2 here'
    assert join_texts(["a < b ", "and c> {x}"]) == "a < b and c> {x}"  # these are no tag
    assert join_texts(["a <b", " c=d> {x}"]) == "a <b  c=d {x}"


@pytest.mark.parametrize("parsing", PARSINGS)
@pytest.mark.parametrize("text", ["%.2f%s12mail@x.org 100%", "</b>.www.x.org/y. „ </b></i>", "{x} .www.x.org/y it"])
def test_a_text_is_what_it_was_beside_the_span_before_it(text: str, parsing: Parsing) -> None:
    assert translated(text, identity, parsing, random.Random(1)) == text


def test_formats_that_touch_an_address() -> None:
    for text, spans in (("%shttps://x.org", ["%s", "https://x.org"]), ("%@www.x.org", ["%@", "www.x.org"])):
        assert [span.of(text) for span in protected_spans(text)] == spans
    assert not protected_spans("100 %strong")


def test_required_phrases_may_look_like_spans() -> None:
    segment = Segment("Visit our homepage", (), Parsing(True))
    output = "Besuchen Sie www.example.de jetzt"
    assert segment.cleaned(output, segment.raw, ["www.example.de"]) == output
    assert segment.has_all(output, ["www.example.de"])
    assert segment.cleaned(output, segment.raw) == "Besuchen Sie jetzt"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("– Hallo, {name}!", ["Hallo!"]),
        ("You have messages in {folder}.", ["You have messages in."]),
        ("{name}: not found", ["not found"]),
        ("1. Introduction", ["Introduction"]),
        ("“Come in”", ["Come in"]),
        ("“Come in,” he said", ["“Come in,” he said"]),
        ("(2) • item", ["• item"]),
        ("3 dogs", ["3 dogs"]),
        ("{n, plural, one {# file} other {# files}} deleted", ["file", "files", "deleted"]),
        ("<b>Save</b> the <i>file</i>", ["Save the file"]),
        ('"{name}" is not a file', ["is not a file"]),
    ],
)
def test_what_a_model_reads(text: str, read: list[str]) -> None:
    assert [part.text for part in parts_of_text(text, Parsing(True)) if not part.copied] == read


HOSTILE = {
    "letters": "a" * 40_000, "mails": "a@" * 20_000, "domain": "a@b." + "-" * 40_000, "dots": "http://" + "." * 40_000,
    "tags": "<a" * 20_000, "quotes": '<a "' * 10_000, "digits": "<" + "1" * 20_000 + " " * 20_000,
    "braces": "{" * 40_000, "open": "{{" + "a" * 40_000, "formats": "%(" * 20_000, "repeated": "{a} " * 10_000,
    "many": " ".join(f"{{{number}}}" for number in range(5_000)), "long": "http://" + "a" * 40_000,
    "messages": "{a, plural, b {" * 3_000, "nested": "{a, plural, b {c}} " * 2_000,
    "deep": "{n, plural, a {" * 600 + "x" + "}}" * 600,
    "attributes": "<a " + "b=c hidden {d} e-f " * 2_000, "unfinished": "<a hidden b=c {} " * 3_000,
    "blank": "<a" + " " * 40_000,
    "spaces": "a" + " " * 20_000 + "b {x} c", "stops": "http://a" + ".!" * 20_000,
}  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_text_takes_little_time(name: str) -> None:
    with takes_at_most(3):
        parts = parts_of_text(HOSTILE[name], Parsing(True))
    assert "".join(part.text if part.segment is None else part.segment.raw for part in parts) == HOSTILE[name]
