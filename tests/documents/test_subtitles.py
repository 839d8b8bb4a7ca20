"""Subtitles: which lines are text, what stays a tag, how lines are cut again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.registry import open_document
from tests.documents.samples import outputs

TIME = "00:00:01.000 --> 00:00:02.000"


def units(name: str, text: str) -> list[str]:
    return [unit.block.text for unit in open_document(name, text.encode()).units]


def changed(name: str, text: str, change: Callable[[str], str] = str.upper) -> str:
    document = open_document(name, text.encode())
    return document.render(outputs(document, change)).decode()


def written(document: Document, *texts: str) -> str:
    return document.render([UnitTranslation(text, text) for text in texts]).decode()


@pytest.mark.parametrize("name", ["a.srt", "a.vtt"])
def test_cues_without_a_blank_line_between_them(name: str) -> None:
    text = f"WEBVTT\n{TIME}\none\n2\n{TIME}\ntwo\nmore\n{TIME}\nthree\n\n4\n{TIME}\n"
    assert units(name, text) == ["one", "two more", "three"]
    assert changed(name, text) == text.replace("one", "ONE").replace("two\nmore", "TWO\nMORE").replace("three", "THREE")


def test_tags_of_webvtt_stay_tags() -> None:
    text = f"WEBVTT\n\n{TIME}\none <00:00:01.500>two <c.a.b>three</c> <v Bob Lee>four</v> <>five <x>six\n"
    (unit,) = open_document("a.vtt", text.encode()).units
    assert unit.block.text.split() == ["one", "two", "three", "four", "five", "six"]
    found = changed("a.vtt", text)
    for tag in ("<00:00:01.500>", "<c.a.b>THREE</c>", "<v Bob Lee>FOUR</v>", "<>", "<x>"):
        assert tag in found
    assert "&lt;" not in found


def test_references_of_webvtt() -> None:
    bodies = {
        "a&nbsp;b &lrm;c&rlm; &amp; &lt;d&gt; &#233;": "a\xa0b \u200ec\u200f & <d> é",
        "e > f & g < h": "e > f & g < h",
        "i & j &amp; k &#38; l": "i & j & k & l",
    }
    for body, meant in bodies.items():
        text = f"WEBVTT\n\n{TIME}\n{body}\n"
        assert units("a.vtt", text) == [meant]
        assert changed("a.vtt", text, lambda text: text) == text
    assert changed("a.vtt", f"WEBVTT\n\n{TIME}\nx\n", lambda text: "1 < 2 & 3 --> 4 <b>\xa0").endswith(
        "1 &lt; 2 &amp; 3 --&gt; 4 &lt;b&gt;\xa0\n"
    )
    text = f"WEBVTT\n\n{TIME}\ni & j &amp; k\n"
    assert changed("a.vtt", text, lambda text: "m & n").endswith("m &amp; n\n")
    assert "--&gt;" in changed("a.vtt", f"WEBVTT\n\n{TIME}\nx > y\n", lambda text: "x --> y")


def test_what_is_no_text_of_a_cue_stays() -> None:
    kept = (
        f"WEBVTT - title\nKind: captions\n\nNOTE one\ntwo\n\nSTYLE\n::cue {{ color: red }}\n\nid\n{TIME} align:start\n"
    )
    assert units("a.vtt", kept + "text") == ["text"]
    assert units("a.vtt", "WEBVTT\n\n1234567:00:00.000 --> 1234568:00:00.000\none\nsays --> two\nthree\n") == ["one"]
    assert units("a.vtt", f"WEBVTT\n\n{TIME}\none\n \ntwo\n\nthree\n") == ["one two"]  # white space ends no cue
    assert units("a.srt", f"1\n{TIME}\none\n \nstray\n") == ["one"]
    assert units("a.srt", "1\n0:00:01 --> 0:00:02\n{\\an8}<i>one</i> <3 &amp;\n") == ["one <3 &amp;"]
    assert changed("a.srt", f"1\n{TIME}\n{{\\an8}}<i>one</i> <3\n") == f"1\n{TIME}\n{{\\an8}}<i>ONE</i> <3\n"
    # U+2028, U+0085 and form feeds end no line
    assert units("a.vtt", f"WEBVTT\n\n{TIME}\none\u2028two\x85three\ffour\n") == ["one\u2028two\x85three\ffour"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "lines",
    [
        ("a short", "and a much much longer line"),
        (" indented  twice ", "  next"),
        ("- Who is it?", "- A friend.", "of yours"),
        ("<i>- One</i>", "<i>- two</i>"),
        ("日本語の長い", "文章"),
        ("a", "b", "c", "d"),
        ("word",),
    ],
)
def test_a_copy_has_the_same_lines(lines: tuple[str, ...], ending: str) -> None:
    for name in ("a.srt", "a.vtt"):
        text = ending.join(["WEBVTT", "", TIME, *lines, "", TIME, "end"])
        assert changed(name, text, lambda text: text) == text


def test_lines_are_cut_at_the_same_shares() -> None:
    document = open_document("a.srt", f"{TIME}\none two\nthree four five six\n\n{TIME}\n- yes\n- no\n".encode())
    assert [unit.block.text for unit in document.units] == ["one two three four five six", "- yes\n- no"]
    found = written(document, "eins zwei <b c>drei</b> vier fünf sechs", "- ja doch\n- nein")
    assert found == f"{TIME}\neins zwei\n<b c>drei</b> vier fünf sechs\n\n{TIME}\n- ja doch\n- nein\n"
    assert written(document, "einszweidrei", "ja nein") == f"{TIME}\neinszweidrei\n\n{TIME}\nja\nnein\n"
    assert written(document, "", "") == f"{TIME}\n\n\n{TIME}\n\n"
    assert written(document, "一二三四五六七八", "-") == f"{TIME}\n一二\n三四五六七八\n\n{TIME}\n-\n"


def test_a_reference_with_thousands_of_digits() -> None:
    assert units("a.vtt", f"WEBVTT\n\n{TIME}\na &#{'9' * 5000}; b\n") == ["a \ufffd b"]
