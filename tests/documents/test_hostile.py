"""Hostile documents: each ends in one clear error or a document, within a second, and writes nothing elsewhere."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import pytest

from dragoman.base.errors import DragomanError
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import read_pairs
from dragoman.documents.base import Reading
from dragoman.documents.registry import open_document
from tests.clock import takes_at_most
from tests.conftest import TrainedFolder, call
from tests.documents.samples import SAMPLES, WORD, XLIFF1, outputs, package

ENTITIES = "".join('<!ENTITY {} "{}">'.format(chr(98 + n), f"&{chr(97 + n)};" * 10) for n in range(9))
BOMB = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "lol">{ENTITIES}]>'
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
PARAMETER = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY % a SYSTEM "http://127.0.0.1:1/a.dtd"> %a;]>'
QUADRATIC = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "{"x" * 50_000}">]>'
UNIT = '<xliff version="1.2"><file><trans-unit id="1"><source>%s</source></trans-unit></file></xliff>'
MEMORY = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>%s</seg></tuv></tu></body></tmx>'

ATTRIBUTES = " ".join(f'a{n}="1"' for n in range(20_000))


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def zip_bomb() -> bytes:
    """Eight gigabytes by its own word, a few megabytes in truth."""
    data = bytearray(zipped(("word/document.xml", b"0" * 1000)))
    central = data.rfind(b"PK\x01\x02")
    data[central + 24 : central + 28] = (0xFFFF_FFF0).to_bytes(4, "little")
    return bytes(data)


# A message, or None where the document may also be read.
HOSTILE: dict[str, tuple[bytes, str | None]] = {
    "bomb.xlf": (BOMB.encode() + (UNIT % "&j;").encode(), "entity"),
    "bomb.tmx": (BOMB.encode() + (MEMORY % "&j;").encode(), "entity"),
    "outside.xlf": (OUTSIDE.encode() + (UNIT % "&a;").encode(), "entity"),
    "outside.tmx": (OUTSIDE.encode() + (MEMORY % "&a;").encode(), "entity"),
    "parameter.xlf": (PARAMETER.encode() + (UNIT % "a").encode(), "entity"),
    "quadratic.xlf": (QUADRATIC.encode() + (UNIT % ("&a;" * 10_000)).encode(), "entity"),
    "undefined.xlf": ((UNIT % "&nbsp;").encode(), "well-formed"),
    "deep.xlf": ((UNIT % ("<g>" * 100_000)).encode(), "inside each other"),
    "deep-closed.xlf": ((UNIT % ("<g>" * 20_000 + "</g>" * 20_000)).encode(), "inside each other"),
    "deep.tmx": ((MEMORY % ("<hi>" * 100_000)).encode(), "inside each other"),
    "deep.html": (b"<b>" * 20_000 + b"x", None),
    "deep-divs.html": (b"<div>" * 20_000 + b"x", None),
    "deep.md": (b">" * 100_000 + b" x\n", None),
    "lists.md": (b"- " * 50_000 + b"x\n", None),
    "huge-attribute.xlf": ((UNIT % f'<x id="{"a" * 3_000_000}"/>b').encode(), "tag of"),
    "many-attributes.xlf": ((UNIT % f"<x {ATTRIBUTES}/>b").encode(), None),
    "huge-attribute.html": (b'<p title="' + b"a" * 3_000_000 + b'">b</p>', None),
    "open-attribute.html": (b'<a href="' + b"x" * 300_000, None),
    "open-tags.html": (b"<a " * 100_000, None),
    "open-comments.html": (b"<!--" * 100_000, None),
    "ampersands.html": (b"&" * 300_000, None),
    "references.xlf": ((UNIT % "&#x110000;").encode(), "well-formed"),
    "zero.xlf": ((UNIT % "&#0;").encode(), "well-formed"),
    "control.xlf": ((UNIT % "\x00").encode(), "well-formed"),
    "cut.xlf": (XLIFF1.encode()[:300], "well-formed"),
    "two-roots.xlf": (XLIFF1.encode() + b"<a/>", "well-formed"),
    "empty.xlf": (b"", "well-formed"),
    "other.xlf": (b"<html/>", "expected XLIFF"),
    "other.tmx": (b"<html/>", "expected a translation memory"),
    "latin.xlf": ((UNIT % "\xe9").encode("latin-1"), "not utf-8"),
    "utf-7.xlf": (b'<?xml version="1.0" encoding="utf-7"?>' + (UNIT % "a").encode(), "encoding"),
    "escape.po": (b'"Content-Type: text/plain; charset=unicode_escape\\n"\n', "encoding"),
    "punycode.html": (b'<meta charset="punycode">' + b"a" * 100_000, "encoding"),
    "idna.html": (b'<meta charset="zlib">', "encoding"),
    "half.txt": (b"\xff\xfea", "not utf-16-le"),
    "surrogate.txt": (b"\xff\xfe\x00\xd8", "not utf-16-le"),
    "binary.txt": (bytes(range(256)), "not utf-8"),
    "nul.srt": (b"1\n00:00:01,000 --> 00:00:02,000\n\x00\n", None),
    "arrows.srt": (b"00:00:01,000 --> x\n" * 20_000, "no line with times"),
    "stars.md": (b"*" * 100_000, None),
    "mixed-stars.md": (b"*a_" * 15_000, None),
    "brackets.md": (b"[" * 30_000 + b"](x)", None),
    "ticks.md": (b"`a" * 20_000 + b"``", None),
    "pipes.md": (b"|" * 100_000 + b"\n|-|\n", None),
    "open-string.po": (b'msgid "a\nmsgstr ""\n', "quoted string"),
    "no-translation.po": (b'msgid "a"\n', "without msgid or msgstr"),
    "backslashes.po": (b'msgid "' + b"\\" * 99_999 + b'"\nmsgstr ""\n', "quoted string"),
    "bomb.docx": (zip_bomb(), "packed"),
    "zeros.docx": (zipped(("word/document.xml", b"\0" * 20_000_000)), "packed"),
    "outside.docx": (zipped(("word/document.xml", WORD.encode()), ("../../evil.xml", b"x")), "expected one inside"),
    "absolute.docx": (zipped(("/etc/cron.d/x", b"x")), "expected one inside"),
    "drive.docx": (zipped(("C:\\x", b"x")), "expected one inside"),
    "entities.docx": (package(BOMB + WORD[55:]), "entity"),
    "broken.docx": (package(WORD[:-30]), "well-formed"),
    "no-text.docx": (zipped(("a.txt", b"x")), "word/document.xml"),
    "no-zip.docx": (b"PK\x03\x04" + b"\0" * 100, "damaged"),
    "cut.docx": (package()[:-30], "damaged"),
    "flipped.docx": (package().replace(zlib.crc32(WORD.encode()).to_bytes(4, "little"), b"abcd"), "damaged"),
    "members.docx": (
        zipped(*((f"a{n}", b"") for n in range(10_001)), method=zipfile.ZIP_STORED),
        "files in the package",
    ),
}


def test_there_are_fifty() -> None:
    assert len(HOSTILE) >= 50


def fault(name: str, data: bytes) -> str | None:
    """Why a document cannot be read; None: it was read, and written again."""
    try:
        document = open_document(name, data, Reading(target="de"))
        assert document.render([None] * len(document.units)) == data
        document.render(outputs(document, str.upper))
    except DragomanError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents(name: str) -> None:
    data, message = HOSTILE[name]
    with takes_at_most(3):
        found = fault(name, data)
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert message in found
        assert "\n" not in found
        assert found.startswith((name, "word/"))


@pytest.mark.parametrize("name", ["bomb.tmx", "outside.tmx", "deep.tmx", "other.tmx"])
def test_hostile_training_data(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name][0])
    with takes_at_most(1), pytest.raises(DragomanError, match=name):
        list(read_pairs(path, ReadOptions(columns=("en", "de"))))


def test_the_command_writes_nothing_elsewhere(inside: TrainedFolder) -> None:
    folder = inside.folder / "hostile"
    folder.mkdir()
    (folder / "out").mkdir()
    for name in ("outside.docx", "bomb.xlf", "cut.xlf"):
        (folder / name).write_bytes(HOSTILE[name][0])
    before = sorted(inside.folder.rglob("*"))
    for name in ("outside.docx", "bomb.xlf", "cut.xlf"):
        result = call("translate", inside.run, folder / name, "-o", folder / "out/", "--to", "de")
        assert result.code == 2
        assert result.err.count("\n") == 1
    assert sorted(inside.folder.rglob("*")) == before
    assert SAMPLES
