"""Word, OpenDocument and presentations: what is a character of a text, what stays, and that XML stays well-formed."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.registry import open_document
from dragoman.inference.segments.markup import Aligned, place_markup
from tests.documents.samples import outputs, package

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
P = "http://schemas.openxmlformats.org/presentationml/2006/main"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"


def zipped(**members: str) -> bytes:
    """A package; `__` in a name stands for a slash and `_` for a full stop."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/").replace("_", "."), content)
    return out.getvalue()


def word(body: str) -> bytes:
    """A .docx with these paragraphs."""
    return package(f'<w:document xmlns:w="{W}" xmlns:mc="{MC}" xmlns:m="math"><w:body>{body}</w:body></w:document>')


def slide(body: str) -> bytes:
    """A .pptx with one slide."""
    content = f'<p:sld xmlns:p="{P}" xmlns:a="{A}"><p:sp><p:txBody>{body}</p:txBody></p:sp></p:sld>'
    return zipped(ppt__presentation_xml="<a/>", ppt__slides__slide1_xml=content)


def text_document(body: str) -> bytes:
    """An .odt with these paragraphs."""
    names = f'xmlns:text="{TEXT}" xmlns:office="{OFFICE}"'
    return zipped(content_xml=f"<office:document-content {names}>{body}</office:document-content>")


MAIN = {".docx": "word/document.xml", ".pptx": "ppt/slides/slide1.xml", ".odt": "content.xml"}
MAKE: dict[str, Callable[[str], bytes]] = {".docx": word, ".pptx": slide, ".odt": text_document}


def texts(data: bytes, suffix: str) -> list[str]:
    """The units of a document."""
    return [unit.block.text for unit in open_document(f"a{suffix}", data).units]


def changed(body: str, suffix: str = ".docx", change: Callable[[str], str] = str.upper) -> str:
    """A document with its text changed: what was in its body."""
    document = open_document(f"a{suffix}", MAKE[suffix](body))
    return content_of(document.render(outputs(document, change)), suffix, body)


def assert_same(written: str, expected: str, suffix: str = ".docx") -> None:
    """Hold two bodies to the same characters and tags; neighbours with the same formatting may be one run."""
    assert characters(MAKE[suffix](written), suffix) == characters(MAKE[suffix](expected), suffix)


def content_of(data: bytes, suffix: str, body: str = "") -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        xml = file.read(MAIN[suffix]).decode()
    etree.fromstring(xml.encode())
    with zipfile.ZipFile(io.BytesIO(MAKE[suffix]("|"))) as file:
        before, after = file.read(MAIN[suffix]).decode().split("|")
    return xml.removeprefix(before).removesuffix(after)


def paragraph(*runs: str) -> str:
    return f"<w:p>{''.join(runs)}</w:p>"


def run(text: str, style: str = "") -> str:
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return f"<w:r>{style}<w:t{space}>{text}</w:t></w:r>"


BOLD = "<w:rPr><w:b/></w:rPr>"
LINK = '<w:hyperlink w:anchor="x">'


def field(code: str, *result: str) -> str:
    """A field in runs of its own."""
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    return f"{marks[0]}<w:r><w:instrText>{code}</w:instrText></w:r>{marks[1]}{''.join(result)}{marks[2]}"


# --- characters of the text


def test_hyphens_that_are_elements_belong_to_their_word() -> None:
    hyphen = "<w:r><w:t>the co</w:t><w:noBreakHyphen/><w:t>op is full</w:t><w:softHyphen/><w:t>y open</w:t></w:r>"
    assert texts(word(paragraph(hyphen)), ".docx") == ["the co\u2011op is full\u00ady open"]
    upper = hyphen.replace("the co", "THE CO").replace("op is full", "OP IS FULL").replace("y open", "Y OPEN")
    assert changed(paragraph(hyphen)) == paragraph(upper)
    literal = paragraph(run("co\u2011op"))  # a character stays a character
    assert changed(literal) == paragraph(run("CO\u2011OP"))


def test_white_space_of_open_document() -> None:
    spaces = '<text:s text:c="2"/>'
    body = f"<text:p>one\n   two  <text:span>three {spaces}four</text:span><text:s/> five</text:p>"
    assert texts(text_document(body), ".odt") == ["one two three   four  five"]
    expected = f"<text:p>ONE TWO <text:span>THREE {spaces}FOUR</text:span> <text:s/>FIVE</text:p>"
    assert changed(body, ".odt") == expected


@pytest.mark.parametrize("mark", ["\x00", "\x0b", "\ud800", "\ufffe"])
def test_characters_that_xml_lacks_are_left_out(mark: str) -> None:
    for suffix, body in ((".docx", paragraph(run("a"))), (".odt", "<text:p>a</text:p>")):
        assert changed(body, suffix, lambda text: f"b{mark}c") == body.replace(">a<", ">bc<")


# --- breaks and containers


@pytest.mark.parametrize(
    "mark", ["<w:tab/>", "<w:br/>", '<w:br w:type="page"/>', "<w:cr/>", '<w:ptab w:alignment="center"/>']
)
@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        (LINK, "</w:hyperlink>"),
        ('<w:ins w:id="1">', "</w:ins>"),
        ('<w:moveTo w:id="1">', "</w:moveTo>"),
        ("<w:smartTag><w:smartTagPr/>", "</w:smartTag>"),
        ("<w:sdt><w:sdtPr/><w:sdtContent>", "</w:sdtContent></w:sdt>"),
        ('<w:fldSimple w:instr=" HYPERLINK x ">', "</w:fldSimple>"),
        tuple(field("HYPERLINK x", "|").split("|")),
    ],
)
def test_breaks_inside_containers_stay(opening: str, closing: str, mark: str) -> None:
    inner = f"<w:r>{BOLD}<w:t>left</w:t>{mark}<w:t>right</w:t></w:r>"
    body = paragraph(run("before "), opening, inner, closing, run(" after"))
    assert texts(word(body), ".docx") == ["before", "left", "right", "after"]
    expected = body
    for each in ("before", "left", "right", "after"):
        expected = expected.replace(each, each.upper())
    assert_same(changed(body), expected)


def test_a_container_moves_with_its_words() -> None:
    body = paragraph(run("see "), LINK, run("this page", BOLD), "</w:hyperlink>", run(" now"))
    document = open_document("a.docx", word(body))
    (unit,) = document.units
    assert unit.block.text == "see this page now"
    output = UnitTranslation(place_markup(unit.block, Aligned("nun diese Seite sehen", [3, 1, 2, 0], [3, 1, 2, 0])), "")
    expected = paragraph(run("nun "), LINK, run("diese Seite", BOLD), "</w:hyperlink>", run(" sehen"))
    assert content_of(document.render([output]), ".docx") == expected


def test_what_stands_around_all_text_is_no_mark() -> None:
    start, end = '<w:bookmarkStart w:id="1" w:name="a"/>', '<w:bookmarkEnd w:id="1"/>'
    note = "<w:r><w:footnoteRef/></w:r>"
    body = paragraph("<w:pPr><w:jc/></w:pPr>", note, start, LINK, run(" all of it ", BOLD), "</w:hyperlink>", end)
    document = open_document("a.docx", word(body))
    assert [(unit.block.text, unit.block.elements) for unit in document.units] == [("all of it", [])]
    assert changed(body) == body.replace("all of it", "ALL OF IT")


# --- what stays

STAYS = {
    "deleted": '<w:del w:id="1"><w:r><w:delText>lost</w:delText></w:r></w:del>',
    "moved away": '<w:moveFrom w:id="1"><w:r><w:t>lost</w:t></w:r></w:moveFrom>',
    "footnote": '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:footnoteReference w:id="2"/></w:r>',
    "symbol": '<w:r><w:sym w:font="Wingdings" w:char="F04A"/></w:r>',
    "formula": "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>",
    "comment": '<w:commentRangeStart w:id="0"/><w:commentRangeEnd w:id="0"/><w:r><w:commentReference w:id="0"/></w:r>',
    "simple field": '<w:fldSimple w:instr=" DATE "><w:r><w:t>today</w:t></w:r></w:fldSimple>',
    "field": field(" PAGE ", run("seven")),
    "nested field": field(" IF ", field(" PAGE ", run("seven")), run("eight")),
    "field in a field's code": '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    + field("X", run("no"))
    + "<w:r><w:t>no</w:t>"
    '<w:fldChar w:fldCharType="end"/></w:r>',
    "choice": f"<w:sdt><w:sdtPr><w:dropDownList/></w:sdtPr><w:sdtContent>{run('red')}</w:sdtContent></w:sdt>",
    "hidden": "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>",
    "rendered page break": "<w:r><w:lastRenderedPageBreak/></w:r>",
    "no paragraph of its own": "<w:r><w:drawing><t>inner</t></w:drawing></w:r>",
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_text_of_the_author_stays(name: str) -> None:
    for body in (
        paragraph(run("one "), STAYS[name], run("two")),
        paragraph(run("one "), STAYS[name], run("two", BOLD)),
        paragraph(LINK, run("one"), STAYS[name], "</w:hyperlink>", run(" two")),
    ):
        assert [text.split() for text in texts(word(body), ".docx")] in ([["one", "two"]], [["onetwo"]])
        assert_same(changed(body), body.replace("one", "ONE").replace(">two", ">TWO").replace("> two", "> TWO"))


def test_text_that_is_shown_is_translated() -> None:
    shown = '<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>shown</w:t></w:r>'
    base = f"<w:rubyBase>{run('base')}</w:rubyBase>"
    ruby = f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('kana')}</w:rt>{base}</w:ruby></w:r>"
    prompt = "<w:sdt><w:sdtPr><w:text/></w:sdtPr><w:sdtContent><w:r><w:t>prompt</w:t></w:r></w:sdtContent></w:sdt>"
    body = paragraph(run("a "), shown, run(" "), ruby, run(" "), prompt, run(" z"))
    assert texts(word(body), ".docx") == ["a shown base prompt z"]
    expected = body
    for each in ("a ", "shown", "base", "prompt", " z"):
        expected = expected.replace(f">{each}<", f">{each.upper()}<")
    assert changed(body) == expected
    assert ">kana<" in expected


def test_a_field_over_several_paragraphs_has_text_in_its_result_only() -> None:
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    entry = [LINK, run("chapter"), "<w:r><w:tab/></w:r>", field("PAGEREF x", run("seven")), "</w:hyperlink>"]
    body = (
        paragraph(marks[0], run("code"), "<w:r><w:instrText>TOC</w:instrText></w:r>")
        + paragraph(run("more code"), marks[1], *entry)
        + paragraph(*entry)
        + paragraph(marks[2])
        + paragraph(run("after"))
    )
    assert texts(word(body), ".docx") == ["chapter", "chapter", "after"]
    assert_same(changed(body), body.replace("chapter", "CHAPTER").replace("after", "AFTER"))


def test_both_forms_of_a_text_box_agree() -> None:
    box = paragraph(run("in the "), run("box", BOLD))
    choice = f'<mc:Choice Requires="wps"><w:txbxContent>{box}</w:txbxContent></mc:Choice>'
    fallback = f"<mc:Fallback><w:txbxContent>{box}</w:txbxContent></mc:Fallback>"
    body = paragraph(
        run("outer"), f"<w:r><mc:AlternateContent>{choice}{fallback}</mc:AlternateContent></w:r>", run(" end")
    )
    document = open_document("a.docx", word(body))
    assert [unit.block.text for unit in document.units] == ["outer end", "in the box"]
    count = itertools.count()
    written = content_of(document.render(outputs(document, lambda text: text.upper() + f" {next(count)}")), ".docx")
    assert written.count("IN THE ") == written.count(">BOX") == 2
    assert written.count(" 1<") == 2
    alone = document.render([None, *outputs(document, str.upper)[1:]])  # the paragraph around the box as it was
    assert content_of(alone, ".docx") == body.replace("in the ", "IN THE ").replace("box<", "BOX<")


def test_tables_in_tables_and_content_controls_around_paragraphs() -> None:
    cell = "<w:tbl><w:tr><w:tc>{}</w:tc></w:tr></w:tbl>"
    inner = cell.format(paragraph(run("inner")))
    control = f"<w:sdt><w:sdtPr/><w:sdtContent>{paragraph(run('control'))}</w:sdtContent></w:sdt>"
    body = cell.format(paragraph(run("outer")) + inner + paragraph()) + control
    assert texts(word(body), ".docx") == ["outer", "inner", "control"]
    assert changed(body) == body.replace("outer", "OUTER").replace("inner", "INNER").replace(">control<", ">CONTROL<")


def test_ranges_stay_around_their_words_and_never_end_before_they_begin() -> None:
    def bookmark(number: int, kind: str) -> str:
        return f'<w:bookmark{kind} w:id="{number}"/>'

    body = paragraph(
        run("a "), bookmark(1, "Start"), run("b "), bookmark(2, "Start"), run("c"), bookmark(1, "End"),
        run(" d"), bookmark(2, "End"), run(" e f"),
    )  # fmt: skip
    document = open_document("a.docx", word(body))
    (unit,) = document.units
    for order in itertools.permutations(range(6)):
        words = " ".join("ABCDEF"[index] for index in order)
        output = UnitTranslation(
            place_markup(unit.block, Aligned(words, list(order), [order.index(n) for n in range(6)])), words
        )
        written = content_of(document.render([output]), ".docx")
        assert "".join(etree.fromstring(f'<a xmlns:w="{W}">{written}</a>').itertext()) == words
        for number in (1, 2):
            assert 0 < written.find(bookmark(number, "Start")) < written.find(bookmark(number, "End"))


def test_prefixes_and_names_of_parts_are_those_of_the_file() -> None:
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    types = f'<Types><Override PartName="/word/document2.xml" ContentType="{main}"/></Types>'
    for prefix, declared in (
        ("ns0:", f'xmlns:ns0="{W}"'),
        ("", f'xmlns="{W}"'),
        ("w:", 'xmlns:w="http://purl.oclc.org/ooxml/wordprocessingml/main"'),
    ):
        inner = "<p><r><t>co</t><noBreakHyphen/><t>op</t></r></p>".replace("</", "</" + prefix).replace(
            "<", "<" + prefix
        )
        inner = inner.replace(f"<{prefix}/", "</")
        xml = f"<{prefix}document {declared}><{prefix}body>{inner}</{prefix}body></{prefix}document>"
        data = zipped(word__document2_xml=xml)
        out = io.BytesIO(data)
        with zipfile.ZipFile(out, "a") as file:
            file.writestr("[Content_Types].xml", types)
        document = open_document("a.docx", out.getvalue())
        assert [unit.block.text for unit in document.units] == ["co\u2011op"]
        with zipfile.ZipFile(io.BytesIO(document.render(outputs(document, str.upper)))) as file:
            assert file.read("word/document2.xml").decode() == xml.replace(">co<", ">CO<").replace(">op<", ">OP<")


# --- OpenDocument and presentations


def test_open_document_notes_comments_and_changes() -> None:
    note = "<text:note-body><text:p>the note</text:p></text:note-body>"
    note = f"<text:note><text:note-citation>1</text:note-citation>{note}</text:note>"
    comment = '<office:annotation office:name="c"><text:p>remark</text:p></office:annotation>'
    gone = "<text:tracked-changes><text:deletion><text:p>gone</text:p></text:deletion></text:tracked-changes>"
    date = "<text:date>today</text:date>"
    body = (
        f'{gone}<text:h>title</text:h><text:p>one {note}{comment}two<office:annotation-end office:name="c"/> {date}'
        '<text:tab/><text:a href="A"><text:span text:style-name="T">three</text:span></text:a>'
        "<text:line-break/>four</text:p>"
    )
    assert texts(text_document(body), ".odt") == ["title", "one two", "three", "four", "the note", "remark"]
    expected = body
    for each in ("title", "one", "two", "three", "four", "the note", "remark"):
        expected = expected.replace(f">{each}", f">{each.upper()}")
    assert changed(body, ".odt") == expected


def test_slides() -> None:
    link = '<a:rPr><a:hlinkClick r:id="1" xmlns:r="r"/></a:rPr>'
    body = (
        f'<a:p><a:pPr lvl="1"/><a:r><a:t>see </a:t></a:r><a:r>{link}<a:t>this</a:t></a:r><a:br><a:rPr/></a:br>'
        '<a:r><a:t>page </a:t></a:r><a:fld id="1" type="slidenum"><a:t>7</a:t></a:fld><a:endParaRPr/></a:p>'
    )
    assert texts(slide(body), ".pptx") == ["see this", "page"]
    assert changed(body, ".pptx") == body.replace("see", "SEE").replace("this<", "THIS<").replace(">page", ">PAGE")


def test_masters_give_the_text_that_every_slide_shows() -> None:
    prompt = "<p:txBody><a:p><a:r><a:t>click</a:t></a:r></a:p></p:txBody>"
    prompt = f"<p:sp><p:nvSpPr><p:nvPr><p:ph/></p:nvPr></p:nvSpPr>{prompt}</p:sp>"
    shown = "<p:sp><p:txBody><a:p><a:r><a:t>slogan</a:t></a:r></a:p></p:txBody></p:sp>"
    master = f'<p:sldMaster xmlns:p="{P}" xmlns:a="{A}">{prompt}{shown}</p:sldMaster>'
    members = {f"ppt__slides__slide{n}_xml": slide_of(str(n)) for n in (10, 2)}
    data = zipped(ppt__presentation_xml="<a/>", ppt__slideMasters__slideMaster1_xml=master, **members)
    assert texts(data, ".pptx") == ["slogan", "2", "10"]


def slide_of(text: str) -> str:
    return f'<p:sld xmlns:p="{P}" xmlns:a="{A}"><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>'


# --- any document, any output, any alignment


class Maker:
    """Draws random paragraphs; every element that must stay has an attribute of its own."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.numbers = draw, itertools.count()
        self.ranges: list[str] = []

    def pick(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def id(self) -> str:
        return f'n="{next(self.numbers)}"'

    def text(self) -> str:
        return self.draw(st.text("ab .,(\u6f22", min_size=1, max_size=8))

    def several(self, make: Callable[[int], str], depth: int) -> str:
        return "".join(make(depth + 1) for _ in range(self.draw(st.integers(0, 4))))

    def word_run(self, depth: int) -> str:
        style = self.pick("", "", "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/></w:rPr>")
        kinds = ["text"] * 5 + [
            "w:tab",
            "w:noBreakHyphen",
            "w:sym",
            "w:footnoteReference",
            *(["box"] if depth < 3 else []),
        ]
        parts = []
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.pick(*kinds)
            if kind == "text":
                parts.append(f'<w:t xml:space="preserve">{self.text()}</w:t>')
            elif kind == "box":
                parts.append(f"<w:pict {self.id()}>{self.word_paragraph(depth + 2)}</w:pict>")
            else:
                parts.append(f"<{kind}/>" if kind == "w:noBreakHyphen" else f"<{kind} {self.id()}/>")
        return f"<w:r>{style}{''.join(parts)}</w:r>"

    def word_piece(self, depth: int) -> str:
        kind = self.pick(*["run"] * 6, "range", "range", "field", "del", *(["link", "ins", "sdt"] if depth < 4 else []))
        if kind == "run":
            return self.word_run(depth)
        if kind == "range":
            return self.range('<w:bookmarkStart w:id="{}" {}/>', '<w:bookmarkEnd w:id="{}" {}/>')
        if kind == "del":
            return f"<w:del {self.id()}><w:r><w:delText>gone</w:delText></w:r></w:del>"
        if kind == "field":
            marks = [
                f'<w:r><w:fldChar w:fldCharType="{one}" {self.id()}/></w:r>' for one in ("begin", "separate", "end")
            ]
            result = self.several(self.word_piece, depth + 1)
            code = self.pick("PAGE", " HYPERLINK x")
            return f"{marks[0]}<w:r><w:instrText>{code}</w:instrText></w:r>{marks[1]}{result}{marks[2]}"
        inner = self.several(self.word_piece, depth)
        if kind == "sdt":
            return f"<w:sdt {self.id()}><w:sdtPr/><w:sdtContent {self.id()}>{inner}</w:sdtContent></w:sdt>"
        name = {"link": "w:hyperlink", "ins": "w:ins"}[kind]
        return f"<{name} {self.id()}>{inner}</{name}>"

    def word_paragraph(self, depth: int = 0) -> str:
        return f"<w:p {self.id()}><w:pPr {self.id()}/>{self.several(self.word_piece, depth)}</w:p>"

    def range(self, start: str, end: str) -> str:
        if self.ranges and self.draw(st.booleans()):
            return end.format(self.ranges.pop(), self.id())
        self.ranges.append(str(next(self.numbers)))
        return start.format(self.ranges[-1], self.id())

    def odt_piece(self, depth: int) -> str:
        kind = self.pick(
            *["text"] * 5, "text:s", "text:tab", "text:date", "range", "note", *(["text:span", "text:a"] * (depth < 4))
        )
        if kind == "text":
            return self.text()
        if kind == "range":
            return self.range('<text:bookmark-start text:name="{}" {}/>', '<text:bookmark-end text:name="{}" {}/>')
        if kind == "note":
            return f"<text:note {self.id()}>{self.odt_paragraph(depth + 2)}</text:note>" if depth < 3 else ""
        if kind in ("text:span", "text:a"):
            return f"<{kind} {self.id()}>{self.several(self.odt_piece, depth)}</{kind}>"
        return f"<{kind}/>" if kind == "text:s" else f"<{kind} {self.id()}/>"

    def odt_paragraph(self, depth: int = 0) -> str:
        return f"<text:p {self.id()}>{self.several(self.odt_piece, depth)}</text:p>"

    def slide_paragraph(self, depth: int = 0) -> str:
        def piece(depth: int) -> str:
            kind = self.pick("run", "run", "run", "a:br", "a:fld")
            style = self.pick("", '<a:rPr b="1"/>', '<a:rPr i="1"/>')
            return f"<a:r>{style}<a:t>{self.text()}</a:t></a:r>" if kind == "run" else f"<{kind} {self.id()}/>"

        return f"<a:p {self.id()}><a:pPr {self.id()}/>{self.several(piece, 0)}<a:endParaRPr {self.id()}/></a:p>"


@st.composite
def bodies(draw: st.DrawFn, suffix: str) -> str:
    """A body of one or two random paragraphs."""
    maker = Maker(draw)
    make = {".docx": maker.word_paragraph, ".odt": maker.odt_paragraph, ".pptx": maker.slide_paragraph}[suffix]
    return "".join(make() for _ in range(draw(st.integers(1, 2))))


def random_outputs(document: Document, draw: Callable[[st.SearchStrategy[int]], int]) -> list[UnitTranslation | None]:
    """For each unit none, or numbered words with any alignment."""
    found: list[UnitTranslation | None] = []
    numbers = itertools.count()
    for unit in document.units:
        size = draw(st.integers(-1, 6))
        words = [f"w{next(numbers)}w" for _ in range(size)]
        sources = [draw(st.integers(-1, 6)) for _ in words]
        targets = [draw(st.integers(-1, 6)) for _ in unit.block.text.split()]
        output = Aligned(" ".join(words), sources, targets)
        found.append(None if size < 0 else UnitTranslation(place_markup(unit.block, output), output.text))
    return found


def kept(root: etree._Element) -> list[tuple[str, ...]]:
    """Everything that must stay: each element with a number, and the container that it is in or that holds it."""
    found = []
    for element in root.iter("{*}*"):
        if "n" in element.attrib:
            above: list[str] = []
            if etree.QName(element).localname in ("tab", "br", "pPr", "endParaRPr"):  # stay in their containers
                for one in element.iterancestors():
                    above.append(one.get("n", ""))
                    if etree.QName(one).localname == "p":
                        break
            found.append((element.tag, *map(str, sorted(element.attrib.items())), *filter(None, above)))
        elif etree.QName(element).localname in ("instrText", "delText"):
            found.append((element.tag, element.text or ""))
    return sorted(found)


@pytest.mark.parametrize("suffix", MAIN)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_output_leaves_xml_well_formed_and_all_markup_once(suffix: str, data: st.DataObject) -> None:
    body = data.draw(bodies(suffix))
    document = open_document(f"a{suffix}", MAKE[suffix](body))
    translated = random_outputs(document, data.draw)
    with zipfile.ZipFile(io.BytesIO(document.render(translated))) as file:
        after = etree.fromstring(file.read(MAIN[suffix]))
    with zipfile.ZipFile(io.BytesIO(MAKE[suffix](body))) as file:
        before = etree.fromstring(file.read(MAIN[suffix]))
    assert kept(after) == kept(before)
    written = "".join(after.itertext())
    for output in filter(None, translated):
        assert all(written.count(one) == 1 for one in output.text.split())
    order = [one.tag for one in after.iter("{*}pPr")]  # properties come first in their paragraph, or Word refuses it
    assert all(one.getprevious() is None for one in after.iter("{*}pPr")), order


@pytest.mark.parametrize("suffix", MAIN)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_what_a_model_copies_comes_back(suffix: str, data: st.DataObject) -> None:
    """Every character with the elements that it is in and its formatting, for one translated unit after the other."""
    body = data.draw(bodies(suffix))
    document = open_document(f"a{suffix}", MAKE[suffix](body))
    same: list[UnitTranslation | None] = [UnitTranslation(unit.block.raw, unit.block.text) for unit in document.units]
    before = characters(MAKE[suffix](body), suffix)
    for index in range(len(same)):
        assert (
            characters(document.render([*[None] * index, same[index], *[None] * (len(same) - index - 1)]), suffix)
            == before
        )
    assert characters(document.render(same), suffix) == before


def characters(data: bytes, suffix: str) -> list[str]:
    """Characters and tags in order; where a run ends does not count, nor how spaces are written."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        root = etree.fromstring(file.read(MAIN[suffix]))
    found: list[str] = []

    def walk(element: etree._Element, style: str) -> None:
        name = etree.QName(element).localname
        if name == "rPr":
            return
        if name in ("r", "t", "s"):
            properties = element.find("{*}rPr")
            style = style if properties is None else etree.tostring(properties).decode()
            found.extend([" "] * (name == "s") * int(element.get(f"{{{TEXT}}}c", "1")))
        else:
            found.append(f"<{name} {sorted(element.attrib.items())}")
        found.extend(f"{letter} {style}" if style else letter for letter in element.text or "")
        for child in element:
            walk(child, style)
            found.extend(child.tail or "")
        if name not in ("r", "t", "s"):
            found.append(f"</{name}")

    walk(root, "")
    return [one for one in found if one != " " or suffix != ".odt"]
