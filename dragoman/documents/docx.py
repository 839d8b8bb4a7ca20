"""Word documents (.docx): paragraphs of text, headers, footers, notes, comments; formatting follows its words."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dragoman.documents.base import MAX_BYTES, Document, Edit, Output, Reading, Unit, declared_encoding, decode, splice
from dragoman.documents.markup import Aligned, Block, Token, block_of, escape_text, place_markup, words_of
from dragoman.documents.xml import check_xml, element_ends, unescape_xml, xml_tokens
from dragoman.errors import DataError

MAX_MEMBERS = 10_000
MAX_RATIO = 200  # of a large package to its compressed size
PARTS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
END_RUN = "</w:t></w:r>"
BREAKS = frozenset({"w:tab", "w:br", "w:cr", "w:ptab"})  # end a unit
DROPPED = frozenset({"w:proofErr", "w:lastRenderedPageBreak"})  # of no meaning for a new text
_EMPTY_RUN = re.compile(
    r'<w:r>(?:<w:rPr>(?:(?!</w:rPr>).)*+</w:rPr>|<w:rPr/>)?<w:t xml:space="preserve"></w:t></w:r>', re.DOTALL
)
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
CONTAINERS = frozenset({"w:hyperlink", "w:ins", "w:smartTag", "w:moveTo", "w:fldSimple", "w:sdt", "w:dir", "w:bdo"})


@dataclass
class _Piece:
    """A part of a paragraph: text with the properties of its run, or something that is kept whole."""

    kind: str  # text, break, opaque, open, close
    raw: str  # the escaped text, or XML
    style: str = ""  # the properties (w:rPr) of its run
    name: str = ""


@dataclass
class _Paragraph:
    start: int  # after its properties
    end: int
    parts: list[Block | str] = field(default_factory=list)  # units, and runs between them
    units: list[int] = field(default_factory=list)
    style: dict[int, str] = field(default_factory=dict)  # properties of the plain text of each unit, by part
    inner: list[_Paragraph] = field(default_factory=list)  # of text boxes


class _Part:
    """One XML file of the package."""

    def __init__(self, name: str, data: bytes, units: list[Unit]) -> None:
        self.name, self.units = name, units
        self.file = decode(data, declared_encoding(data))
        self.text = self.file.text
        check_xml(self.text, name)
        self.tokens = list(xml_tokens(self.text, name))
        self.ends = element_ends(self.tokens)
        self.paragraphs: list[_Paragraph] = []
        self._find(0, len(self.tokens), self.paragraphs)

    def _find(self, first: int, end: int, found: list[_Paragraph]) -> None:
        """The paragraphs between two tokens; those inside a paragraph belong to it."""
        index = first
        while index < end:
            token = self.tokens[index]
            if token.kind == "open" and token.name == "w:p":
                found.append(self._paragraph(index, self.ends[index]))
                index = self.ends[index]
            index += 1

    def _paragraph(self, first: int, last: int) -> _Paragraph:
        content = first + 1
        while content < last and self.tokens[content].kind == "text":
            content += 1
        if self.tokens[content].name == "w:pPr":
            content = self.ends.get(content, content) + 1
        paragraph = _Paragraph(self.tokens[content].start, self.tokens[last].start)
        self._find(content, last, paragraph.inner)
        pieces = _joined_fields(list(self._pieces(content, last)))
        unit: list[_Piece] = []
        depth = 0
        for piece in [*pieces, _Piece("break", "")]:
            depth += (piece.kind == "open") - (piece.kind == "close")
            if piece.kind != "break" or depth:
                unit.append(piece)
                continue
            self._add(paragraph, unit)
            unit = []
            if piece.raw:
                paragraph.parts.append(f"<w:r>{piece.style}{piece.raw}</w:r>")
        return paragraph

    def _add(self, paragraph: _Paragraph, pieces: list[_Piece]) -> None:
        """Add a unit to a paragraph, or what is kept of it if there is no text."""
        styles, depth = [list[str](), list[str]()], 0  # outside and inside links
        for piece in pieces:
            depth += (piece.kind == "open") - (piece.kind == "close")
            if piece.kind == "text" and piece.raw.strip():
                styles[depth > 0].append(piece.style)
        style = min(styles[0] or styles[1], key=len, default="")  # the plainest: others stand around their words
        block = block_of(_run_tokens(pieces, style), unescape_xml, escape_text)
        if block.text.strip():
            paragraph.style[len(paragraph.parts)] = style
            paragraph.units.append(len(self.units))
            self.units.append(Unit(block, f"{self.name}, paragraph {len(self.paragraphs) + 1}"))
            paragraph.parts.append(block)
        elif pieces:
            paragraph.parts.append(_render(block, Aligned(block.text, []), style))

    def _pieces(self, index: int, end: int) -> Iterator[_Piece]:
        """The pieces of a paragraph or of a container in it."""
        while index < end:
            token = self.tokens[index]
            last = self.ends.get(index, index)
            raw = self.text[token.start : self.tokens[last].end]
            if token.name == "w:r" and token.kind == "open":
                yield from self._run(index + 1, last)
            elif token.name in CONTAINERS and token.kind == "open" and "<w:r" in raw and "<w:p " not in raw:
                inside = index + 1
                if token.name == "w:sdt":
                    inside = next((one for one in range(index, last) if self.tokens[one].name == "w:sdtContent"), last)
                    inside, close = min(inside + 1, last), self.ends.get(inside, last)
                else:
                    close = last
                opening = self.text[token.start : self.tokens[inside - 1].end]
                yield _Piece("open", opening, name=token.name)
                yield from self._pieces(inside, close)
                yield _Piece("close", self.text[self.tokens[close].start : self.tokens[last].end], name=token.name)
            elif token.kind in ("open", "empty") and token.name not in DROPPED:
                yield _Piece("opaque", raw, name=token.name)
            index = last + 1

    def _run(self, index: int, end: int) -> Iterator[_Piece]:
        style = ""
        while index < end:
            token = self.tokens[index]
            last = self.ends.get(index, index)
            raw = self.text[token.start : self.tokens[last].end]
            if token.name == "w:rPr":
                style = raw
            elif token.name == "w:t" and token.kind == "open":
                inner = (self.text[one.start : one.end] for one in self.tokens[index + 1 : last])
                yield _Piece("text", "".join(inner), style)
            elif token.name in BREAKS:
                yield _Piece("break", raw, style)
            elif token.kind in ("open", "empty") and token.name not in DROPPED:
                yield _Piece("opaque", f"<w:r>{style}{raw}</w:r>", style, token.name)
            index = last + 1

    def edits(self, paragraphs: Sequence[_Paragraph], outputs: Sequence[Output | None]) -> Iterator[Edit]:
        """The paragraphs that have translations, written anew."""
        for paragraph in paragraphs:
            if not any(outputs[unit] is not None for unit in paragraph.units):
                yield from self.edits(paragraph.inner, outputs)
                continue
            units = iter(paragraph.units)
            parts = []
            for number, part in enumerate(paragraph.parts):
                if isinstance(part, str):
                    parts.append(part)
                    continue
                style, output = paragraph.style[number], outputs[next(units)]
                if output is None:
                    same = list(range(len(words_of(part.text))))
                    parts.append(_render(part, Aligned(part.text, same, same), style))
                else:
                    parts.append(_runs(output.markup, style))
            text = "".join(parts)
            for inner in paragraph.inner:  # a text box, which the new paragraph has whole
                for start, end, new in self.edits([inner], outputs):
                    head = self.text[self.text.rfind("<w:p", 0, start) : start]
                    text = text.replace(head + self.text[start:end], head + new, 1)
            yield Edit(paragraph.start, paragraph.end, text)

    def render(self, outputs: Sequence[Output | None]) -> bytes:
        """The file with translations."""
        return self.file.encode(splice(self.text, self.edits(self.paragraphs, outputs)), references=True)


def _joined_fields(pieces: list[_Piece]) -> list[_Piece]:
    """Fields (page numbers, references, dates) as single pieces; a link stands around its text."""
    out: list[_Piece] = []
    index = 0
    while index < len(pieces):
        piece = pieces[index]
        if not (piece.name == "w:fldChar" and 'w:fldCharType="begin"' in piece.raw):
            out.append(piece)
            index += 1
            continue
        depth, end, middle = 0, index, 0
        while end < len(pieces):
            raw = pieces[end].raw if pieces[end].name == "w:fldChar" else ""
            depth += ('w:fldCharType="begin"' in raw) - ('w:fldCharType="end"' in raw)
            if 'w:fldCharType="separate"' in raw and depth == 1:
                middle = end
            if not depth:
                break
            end += 1
        whole = pieces[index : end + 1]
        link = middle and any("HYPERLINK" in one.raw for one in pieces[index:middle] if one.name == "w:instrText")
        if link and end < len(pieces):
            out.append(_Piece("open", _raw(pieces[index : middle + 1]), name="field"))
            out += [one for one in pieces[middle + 1 : end] if one.kind != "break"]
            out.append(_Piece("close", pieces[end].raw, name="field"))
        else:
            out.append(_Piece("opaque", _raw(whole), name="field"))
        index = end + 1
    return out


def _raw(pieces: Sequence[_Piece]) -> str:
    """Pieces as they were."""
    return "".join(
        _runs(piece.raw, piece.style) if piece.kind == "text"
        else f"<w:r>{piece.style}{piece.raw}</w:r>" if piece.kind == "break"
        else piece.raw
        for piece in pieces
    )  # fmt: skip


def _start_run(style: str) -> str:
    return f'<w:r>{style}<w:t xml:space="preserve">'


def _run_tokens(pieces: Sequence[_Piece], plain: str) -> Iterator[Token]:
    """Pieces as text and tags: what differs from the `plain` properties ends the plain run and begins it again."""
    again, style = _start_run(plain), plain
    for piece in [*pieces, _Piece("end", "")]:
        if piece.kind == "text" and not piece.raw:
            continue
        wanted = piece.style if piece.kind == "text" else plain
        if wanted != style:
            if style != plain:
                yield Token("close", "w:r", END_RUN + again)
            if wanted != plain:
                yield Token("open", "w:r", END_RUN + _start_run(wanted))
            style = wanted
        if piece.kind == "text":
            yield Token("text", "", piece.raw)
        elif piece.kind == "break":
            yield Token("text", "", " ")
        elif piece.kind != "end":
            kind = {"opaque": "copied"}.get(piece.kind, piece.kind)
            yield Token(kind, piece.name, END_RUN + piece.raw + again)


def _runs(markup: str, style: str) -> str:
    """The runs of a unit; those without text are left out."""
    text = _start_run(style) + markup + END_RUN
    return re.sub(
        r'<w:r>(?:<w:rPr>(?:(?!</w:rPr>).)*</w:rPr>|<w:rPr/>)?<w:t xml:space="preserve"></w:t></w:r>', "", text
    )


def _render(block: Block, aligned: Aligned, style: str) -> str:
    return _runs(place_markup(block, aligned), style)


class WordDocument(Document):
    """A package whose other members are copied; nothing is ever unpacked to disk."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        self.data = data
        self.units: list[Unit] = []
        self.members: list[tuple[zipfile.ZipInfo, bytes]] = []
        self.parts: dict[str, _Part] = {}
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as package:
                check_members(package.infolist())
                self.members = [(info, package.read(info)) for info in package.infolist()]
        except DAMAGE as error:
            raise DataError(f"document: found a damaged package ({error}), expected .docx") from None
        for info, content in self.members:
            if PARTS.fullmatch(info.filename):
                self.parts[info.filename] = _Part(info.filename, content, self.units)
        if "word/document.xml" not in self.parts:
            raise DataError("document: found no word/document.xml in the package, expected .docx")

    def render(self, outputs: Sequence[Output | None]) -> bytes:
        """See Document; without a translation these are the very same bytes."""
        if not any(output is not None for output in outputs):
            return self.data
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as package:
            for info, content in self.members:
                part = self.parts.get(info.filename)
                package.writestr(info, content if part is None else part.render(outputs), info.compress_type)
        return out.getvalue()


def check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse packages that would take all memory, or whose names lead out of a folder."""
    if len(members) > MAX_MEMBERS:
        raise DataError(f"document: found {len(members):,} files in the package, expected at most {MAX_MEMBERS:,}")
    total = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if total > MAX_BYTES or (total > MAX_BYTES // 16 and total > MAX_RATIO * packed):
        raise DataError(f"document: found {total:,} bytes packed into {packed:,}, expected a document")
    names = Counter(member.filename for member in members)
    for name, count in names.items():
        if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
            raise DataError(f"document: found the name {name[:60]!r} in the package, expected one inside it")
        if count > 1:
            raise DataError(f"document: found {name[:60]!r} {count} times in the package, expected it once")
    if any(member.flag_bits & 1 for member in members):
        raise DataError("document: found an encrypted package, expected one without password")
