"""Zip packages: limits before memory is taken, members without text as they were, and books."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from lxml import etree

from dragoman.base.errors import DataError
from dragoman.documents.package import MAX_NODES
from dragoman.documents.registry import open_document
from tests.conftest import TrainedFolder, call
from tests.documents.samples import WORD, outputs, package

DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
OPEN = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
REAL = sorted((Path(__file__).parents[3] / "shared" / "data" / "documents").glob("*.docx"))


def translated(name: str, data: bytes) -> zipfile.ZipFile:
    """A document in capitals."""
    document = open_document(name, data)
    return zipfile.ZipFile(io.BytesIO(document.render(outputs(document, str.upper))))


# --- limits


@pytest.mark.parametrize("repeated", ["<w:p/>", "<w:p><w:r><w:t>a</w:t></w:r></w:p>", '<a b="" c="" d=""/>'])
def test_small_packages_that_expand_to_many_nodes_take_no_memory(repeated: str) -> None:
    xml = f'<w:document xmlns:w="{W}">{repeated * (14_000_000 // len(repeated))}</w:document>'
    data = package(xml)
    del xml
    assert len(data) < 80_000
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"a\.docx, word/document\.xml: found more than {MAX_NODES:,} tags"):
        open_document("a.docx", data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_paragraph_has_a_limit_of_its_own() -> None:
    runs = "<w:r><w:t>a</w:t></w:r>" * 20_001
    with pytest.raises(DataError, match="found a paragraph of"):
        open_document("a.docx", package(f'<w:document xmlns:w="{W}"><w:p>{runs}</w:p></w:document>'))


def test_fields_that_never_end_take_no_memory_of_their_own() -> None:
    begin = '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r></w:p>'
    data = package(f'<w:document xmlns:w="{W}">{begin * 4_000}</w:document>')
    tracemalloc.start()
    open_document("a.docx", data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000  # 8 MB more if each paragraph lists all fields before it


def test_memory_of_a_large_document_follows_its_text() -> None:
    """Less than 2 kB for each paragraph."""
    data = package(f'<w:document xmlns:w="{W}">{"<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 1_000}</w:document>')
    tracemalloc.start()
    document = open_document("a.docx", data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(document.units) == 1_000
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), "without a password"),
        (package(**{"word/a:b.xml": b""}), None),
        (package(**{"c:/b.xml": b""}), "expected one inside"),
        (package(**{"a/../../b.xml": b""}), "expected one inside"),
        (package(WORD[:-30]), r"a\.docx, word/document\.xml:\d+:\d+: found no well-formed XML"),
        (package().replace(b"\x08\x00", b"\x63\x00"), "compression method"),
    ],
)
def test_packages_of_strangers(data: bytes, message: str | None) -> None:
    if message is None:
        assert open_document("a.docx", data).units
    else:
        with pytest.raises(DataError, match=message) as caught:
            open_document("a.docx", data)
        assert "\n" not in str(caught.value)


def test_a_damaged_picture_is_found_before_any_work() -> None:
    data = package(**{"word/media/a.png": bytes(range(256)) * 40})
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        place = file.getinfo("word/media/a.png").header_offset + 60
    with pytest.raises(DataError, match="damaged package"):
        open_document("a.docx", data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])


@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".odt", ".epub"])
def test_other_packages_are_refused(suffix: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.txt", "x")
    with pytest.raises(DataError, match=rf"^a\{suffix}: found no .* expected \{suffix}"):
        open_document(f"a{suffix}", out.getvalue())


def test_encrypted_text_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("content.xml", bytes(range(256)))
        file.writestr("META-INF/manifest.xml", "<manifest><encryption-data/></manifest>")
    with pytest.raises(DataError, match="encrypted package"):
        open_document("a.odt", out.getvalue())


# --- members that stay


def test_members_without_text_keep_their_bytes_order_and_names() -> None:
    out = io.BytesIO()

    class Unseekable(io.RawIOBase):  # makes zipfile write data descriptors after each member
        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            return out.write(data)

    with zipfile.ZipFile(Unseekable(), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.comment = b"archive"
        file.writestr("word/media/größe.png", bytes(range(256)) * 9)
        for name, content in (("word/document.xml", WORD), ("[Content_Types].xml", "<Types/>"), ("empty/", "")):
            info = zipfile.ZipInfo(name, (1999, 12, 31, 23, 59, 58))
            info.compress_type, info.external_attr, info.comment = zipfile.ZIP_DEFLATED, 0o644 << 16, b"note"
            with file.open(info, "w", force_zip64=True) as member:
                member.write(content.encode())
    data = re.sub(
        rb"(PK(?:\x01\x02..|\x03\x04)...)\x08", rb"\g<1>\0", out.getvalue(), flags=re.DOTALL
    )  # no longer UTF-8
    before, after = zipfile.ZipFile(io.BytesIO(data)), translated("a.docx", data)
    assert after.testzip() is None
    assert after.comment == b"archive"
    assert [info.filename for info in after.infolist()] == [info.filename for info in before.infolist()]
    for old, new in zip(before.infolist(), after.infolist(), strict=True):
        assert (old.date_time, old.external_attr, old.comment) == (new.date_time, new.external_attr, new.comment)
        assert not new.flag_bits & 8
        if old.filename != "word/document.xml":
            assert after.read(new) == before.read(old)
            assert (old.compress_size, old.CRC) == (new.compress_size, new.CRC)
    assert b"BOLD &amp; BRAVE" in after.read("word/document.xml")
    again = open_document("a.docx", data)
    assert again.render(outputs(again, str.upper)) == after.fp.getvalue()  # type: ignore[union-attr]


@pytest.mark.skipif(not REAL, reason="needs shared/data/documents")
def test_real_documents_keep_all_but_their_letters() -> None:
    for path in REAL:
        data = path.read_bytes()
        before, after = zipfile.ZipFile(io.BytesIO(data)), translated("a.docx", data)
        assert before.namelist() == after.namelist()
        for name in before.namelist():
            if not re.fullmatch(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml", name):
                assert after.read(name) == before.read(name)
            else:
                assert content(after.read(name)) == content(before.read(name)), (path.name, name)


def content(xml: bytes) -> tuple[list[str], list[str]]:
    """All elements but runs in order; and the text of each paragraph, of which case does not count."""
    names = ("r", "rPr", "t", "proofErr")
    elements = [one for one in etree.fromstring(xml).iter("{*}*") if not in_run_properties(one)]
    tags = [
        f"{one.tag} {sorted((key, value) for key, value in one.attrib.items() if 'rsid' not in key)}"
        for one in elements
        if etree.QName(one).localname not in names
    ]
    texts = [
        " ".join("".join(text.text or "" for text in one.iter(f"{{{W}}}t")).lower().split())
        for one in elements
        if one.tag == f"{{{W}}}p"
    ]
    return tags, texts


def in_run_properties(element: etree._Element) -> bool:
    return any(etree.QName(one).localname == "rPr" for one in element.iterancestors())


# --- books

XHTML = 'media-type="application/xhtml+xml"'
OPF = f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>the title</dc:title></metadata><manifest>
<item id="n" href="toc.ncx" media-type="application/x-dtbncx+xml"/><item id="nav" href="nav.xhtml" {XHTML}/>
<item id="two" href="text/two%20b.xhtml" {XHTML}/><item id="one" href="text/../text/one.xhtml" {XHTML}/>
<item id="s" href="a.css" media-type="text/css"/><item id="x" href="missing.xhtml" {XHTML}/>
</manifest><spine toc="n"><itemref idref="one"/><itemref idref="two"/></spine></package>"""
PAGE = """<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><script src="x.js"/></head><body>{}</body></html>"""
NCX = """<ncx><docTitle><text>the title</text></docTitle><docAuthor><text>ann author</text></docAuthor><navMap>
<navPoint id="a"><navLabel><text>first &amp; last</text></navLabel><content src="text/one.xhtml"/></navPoint>
</navMap></ncx>"""


def zipped(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(name, text)
    return out.getvalue()


def book(**others: str) -> bytes:
    members = {
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/a.opf"/></rootfiles></container>',
        "OEBPS/a.opf": OPF,
        "OEBPS/toc.ncx": NCX,
        "OEBPS/nav.xhtml": PAGE.format("<nav><ol><li><a href='text/one.xhtml'>first</a></li></ol></nav>"),
        "OEBPS/text/two b.xhtml": PAGE.format("<p>page <b>two</b>&#160;end</p>"),
        "OEBPS/text/one.xhtml": PAGE.format('<p><a id="p1"/>page <i>one</i>.</p>'),
        "OEBPS/a.css": "p { color: red }",
        **others,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip", zipfile.ZIP_STORED)
        for name, text in members.items():
            file.writestr(name, text)
    return out.getvalue()


def test_books() -> None:
    data = book()
    document = open_document("a.epub", data)
    assert [unit.block.text for unit in document.units] == [
        "page one.", "page two\xa0end", "first", "the title", "first & last",
    ]  # fmt: skip
    assert document.units[1].location == "OEBPS/text/two b.xhtml, line 2"
    assert document.render([None] * len(document.units)) == data
    after = translated("a.epub", data)
    assert after.fp.getvalue()[30:58] == b"mimetypeapplication/epub+zip"  # type: ignore[union-attr]
    before = zipfile.ZipFile(io.BytesIO(data))
    for name in before.namelist():
        old, new = before.read(name), after.read(name)
        etree.fromstring(new) if name.endswith(("ml", "opf", "ncx")) else None
        if name.endswith((".xhtml", ".ncx")):
            assert new.lower().replace(b"&#160;", b"\xc2\xa0") == old.lower().replace(b"&#160;", b"\xc2\xa0")
            assert new != old
        else:
            assert new == old
    assert b'<a id="p1"/>PAGE <i>ONE</i>.' in after.read("OEBPS/text/one.xhtml")
    assert b"ann author" in after.read("OEBPS/toc.ncx")


def test_books_of_strangers() -> None:
    page = "OEBPS/text/one.xhtml"
    locked = f'<encryption><CipherReference URI="{page}"/></encryption>'
    for others, message in (
        ({"META-INF/encryption.xml": locked}, "found the page 'OEBPS/text/one.xhtml' encrypted"),
        ({"OEBPS/a.opf": "<package"}, r"a\.epub, OEBPS/a\.opf:\d+:\d+: found no well-formed XML"),
        ({"OEBPS/toc.ncx": "<ncx>"}, r"a\.epub, OEBPS/toc\.ncx:\d+:\d+: found no well-formed XML"),
        ({"META-INF/container.xml": "<container/>"}, "found no package file"),
    ):
        with pytest.raises(DataError, match=message):
            open_document("a.epub", book(**others))
    fonts = '<encryption><CipherReference URI="OEBPS/font.otf"/></encryption>'
    assert open_document("a.epub", book(**{"META-INF/encryption.xml": fonts})).units


def test_fields_of_a_header_fit() -> None:
    """The layout of what `Package.write` writes, read by hand rather than by zipfile."""
    data = translated("a.docx", package()).fp.getvalue()  # type: ignore[union-attr]
    *_, count, size, start, comment = struct.unpack("<4sHHHHLLH", data[-22:])
    assert (count, comment, start + size) == (2, 0, len(data) - 22)
    assert data[start : start + 4] == b"PK\1\2"
    assert data[:4] == b"PK\3\4"


def test_the_command_reads_every_package(inside: TrainedFolder) -> None:
    slide = f'<a:p xmlns:a="{DRAWING}"><a:r><a:t>abc</a:t></a:r></a:p>'
    page = f'<text:p xmlns:text="{OPEN}">abc</text:p>'
    files = {
        "a.epub": book(),
        "a.pptx": zipped({"ppt/presentation.xml": "<a/>", "ppt/slides/slide1.xml": slide}),
        "a.odt": zipped({"content.xml": page}),
        "a.odp": zipped({"content.xml": page}),
    }
    paths = [inside.write(name, data) for name, data in files.items()]
    result = call("translate", inside.run, *paths, "-o", inside.folder / "packages/", "--beam", "1")
    assert result.code == 0, result.err
    for name, data in files.items():
        with zipfile.ZipFile(inside.folder / "packages" / name) as file:
            assert file.testzip() is None
            assert file.namelist() == zipfile.ZipFile(io.BytesIO(data)).namelist()
