"""Office Open XML: Word documents (.docx) and presentations (.pptx).

The members of a package that have text, and their paragraphs: runs of text with properties (w:r in w:p, a:r in a:p).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from dragoman.base import DataError
from dragoman.documents.base import Reading
from dragoman.documents.html_tokens import tag_names
from dragoman.documents.package import Package, PackageDocument
from dragoman.documents.paragraphs import Kept, PackagePart, Paragraph, Piece, Place
from dragoman.documents.xml import XMLToken, local, start_tags
from dragoman.inference.segments import escape_text

TYPES = "[Content_Types].xml"
_DRAWINGS = r"drawingml\.(?:chart|diagramData|diagramDrawing)\+xml$"
BREAKS = frozenset({"w:tab", "w:ptab", "w:br", "w:cr", "a:br"})  # end a unit
CHARACTERS = {"w:noBreakHyphen": "\u2011", "w:softHyphen": "\u00ad"}  # written as elements
DROPPED = frozenset({"w:proofErr"})  # where a spelling checker found faults in the old text
CONTAINERS = tag_names("w:hyperlink w:ins w:moveTo w:smartTag w:customXml w:fldSimple w:sdt w:dir w:bdo w:ruby")
MAX_OPEN_FIELDS = 20  # over several paragraphs
CONTENT = {"w:sdt": "w:sdtContent", "w:ruby": "w:rubyBase"}  # the child of a container that has its text
_SELECTED = re.compile(r"<[\w.-]*:?(?:date|dropDownList|comboBox|checkbox|dataBinding|citation|bibliography|picture)\b")
_HIDDEN = re.compile(r"""<(?:[\w.-]+:)?vanish(?:\s*/|\s(?![^>]*?val\s*=\s*["'](?:0|false|off|none)["'])[^>]*/?)?>""")
_RANGE = re.compile(r"(.*)(Start|End)")


class OfficeDocument(PackageDocument):
    """A package of Office Open XML. The types of its members say which have text; without a type, names do."""

    suffix: ClassVar[str]
    main: ClassVar[str]  # the member that every document of this kind has, in the files of Office
    kinds: ClassVar[re.Pattern[str]]  # types of members with text
    names: ClassVar[re.Pattern[str]]

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(Package(data, self.suffix))
        types = {}  # of each member that has one of its own
        for tag, attributes in start_tags(self.package.read(TYPES), TYPES) if TYPES in self.package else ():
            if tag == "Override":
                types[attributes.get("PartName", "").removeprefix("/")] = attributes.get("ContentType", "")
        required = re.compile(r"\.main\+xml$")
        if self.main not in self.package and not any(required.search(kind) for kind in types.values()):
            raise DataError(f"document: found no {self.main} in the package, expected {self.suffix}")
        paragraphs = dict.fromkeys(("w:p", "a:p"), RunParagraph)
        for name in sorted(self.package.members, key=_in_order):
            kind = types.get(name)
            if self.names.fullmatch(name) if kind is None else self.kinds.search(kind):
                masters = "slideMaster" in name or "slideLayout" in name
                self.add(name, PackagePart(name, self.package.read(name), paragraphs, reading.limits, masters=masters))


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts slide2 before slide10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class WordDocument(OfficeDocument):
    """Paragraphs in the text, in headers, footers, notes and comments, and in charts and diagrams."""

    suffix, main = ".docx", "word/document.xml"
    kinds = re.compile(
        r"wordprocessingml\.(?:document\.main|header|footer|footnotes|endnotes|comments)\+xml$"
        rf"|word\.(?:document|template)\.macroEnabled\.main\+xml$|{_DRAWINGS}"
    )
    names = re.compile(
        r"word/(?:(?:document|header\d*|footer\d*|footnotes|endnotes|comments)|charts/chart\d+|diagrams/(?:data|drawing)\d+)\.xml"
    )


class PresentationDocument(OfficeDocument):
    """Paragraphs on slides and notes pages, in charts and diagrams; of masters, those that every slide shows."""

    suffix, main = ".pptx", "ppt/presentation.xml"
    kinds = re.compile(rf"presentationml\.(?:slide|notesSlide|slideMaster|slideLayout)\+xml$|{_DRAWINGS}")
    names = re.compile(
        r"ppt/(?:slides/slide|notesSlides/notesSlide|slideMasters/slideMaster|slideLayouts/slideLayout|charts/chart"
        r"|diagrams/(?:data|drawing))\d+\.xml"
    )


# --- paragraphs


class RunParagraph(Paragraph):
    """Runs; neighbours with the same properties are written as one."""

    def __init__(self, text: str, tokens: list[XMLToken], place: Place) -> None:
        super().__init__(text, tokens, place)
        self.style: str | None = None  # of the run that is open for writing
        self.waiting = ""  # text to write
        used = {token.name for token in tokens}
        self.elements = {
            character: f"<{place.prefix}{local(name)}/>" for name, character in CHARACTERS.items() if name in used
        }

    def read(self) -> tuple[list[Piece], str]:
        return _with_fields(list(self._pieces(0, len(self.tokens))), self.place.fields)

    def _pieces(self, first: int, end: int) -> Iterator[Piece]:
        for index in self.children(first, end):
            token = self.tokens[index]
            name = token.name
            if token.kind == "text" or name in DROPPED:
                continue  # white space between elements
            kept = self.kept(index)
            if name in ("w:r", "a:r"):
                yield from self._run(index + 1, self.last(index)) if token.kind == "open" else ()
            elif name in BREAKS:
                yield Piece("break", [kept])
            elif name in CONTAINERS and token.kind == "open" and not self._stays(index):
                yield from self._container(index, None)
            elif match := _RANGE.fullmatch(name):
                kind = "open" if match[2] == "Start" else "close"
                yield Piece(kind, [kept], name=name, range=f"{match[1]} {self.attribute(index, 'id')}")
            else:
                yield Piece("point", [kept], name=name)

    def _stays(self, index: int) -> bool:
        """Whether the text of a container is no text of the author: results of fields, choices from a list."""
        name = self.tokens[index].name
        if name == "w:fldSimple":
            return not _is_link(self.attribute(index, "instr"))
        if name == "w:sdt":
            children = self.children(index + 1, self.last(index))
            inner = next((child for child in children if self.tokens[child].name), 0)
            return self.tokens[inner].name == "w:sdtPr" and bool(_SELECTED.search(self.raw(inner)))
        return False

    def _container(self, index: int, style: str | None) -> Iterator[Piece]:
        """A container and the pieces inside; its properties belong to its start tag. `style`: of the run it is in."""
        last = self.last(index)
        name, first, end = self.tokens[index].name, index + 1, last
        for child in self.children(index + 1, last):
            token = self.tokens[child]
            if token.name == CONTENT.get(name) and token.kind == "open":
                first, end = child + 1, self.last(child)
                break
            if token.name.endswith("Pr") and name not in CONTENT:
                first = self.last(child) + 1
            elif token.kind != "text" and name not in CONTENT:
                break
        else:
            if name in CONTENT:
                yield Piece("point", [self.kept(index, style=style)], name=name)
                return
        opening, closing = self.kept(index, first - 1, style), self.kept(end, last, style)
        if style is not None:
            opening, closing = opening._replace(level=1), closing._replace(level=-1)
        yield Piece("open", [opening], name=name)
        yield from self._pieces(first, end)
        yield Piece("close", [closing], name=name)

    def _run(self, first: int, end: int) -> Iterator[Piece]:
        style, hidden = "", False
        for index in self.children(first, end):
            token = self.tokens[index]
            name, kept = token.name, self.kept(index, style=style)
            if local(name) == "rPr":
                style = self.raw(index)
                hidden = bool(_HIDDEN.search(style))
            elif token.kind == "text" or name in DROPPED:
                continue
            elif (name in ("w:t", "a:t") or name in CHARACTERS) and not hidden:
                yield Piece("text", [kept], CHARACTERS.get(name) or self._text(index), style)
            elif name in BREAKS:
                yield Piece("break", [kept])
            elif name in CONTAINERS and token.kind == "open":
                yield from self._container(index, style)
            else:
                code = self._text(index) if name == "w:instrText" else ""
                name = self.attribute(index, "fldCharType") if name == "w:fldChar" else name
                yield Piece("point", [kept], code, name=name)

    def _text(self, index: int) -> str:
        tokens = self.tokens[index + 1 : self.last(index)]
        parts = ((token.kind, self.text[token.start : token.end]) for token in tokens)
        return "".join(
            escape_text(raw[9:-3]) if kind == "cdata" else raw for kind, raw in parts if kind in ("text", "cdata")
        )

    # --- writing

    def write(self, style: str, text: str) -> None:
        self._open(style)
        self.waiting += text

    def keep(self, style: str | None, xml: str, level: int = 0) -> None:
        prefix = self.place.prefix
        if style is None or level:
            self._open(None)
            start, end = f"<{prefix}r>{style}" * (level > 0), f"</{prefix}r>" * (level < 0)
            self.parts.append(f"{start}{xml}{end}")
        else:
            self._open(style)
            self._write_text()
            self.parts.append(xml)

    def result(self) -> str:
        self._open(None)
        return super().result()

    def _open(self, style: str | None) -> None:
        """Be in a run with these properties; None: in none."""
        if style == self.style:
            return
        self._write_text()
        if self.style is not None:
            self.parts.append(f"</{self.place.prefix}r>")
        if style is not None:
            self.parts.append(f"<{self.place.prefix}r>{style}")
        self.style = style

    def _write_text(self) -> None:
        """Write what waits; some characters are elements of their own, as they were in the paragraph."""
        pattern = "|".join(self.elements) or "(?!)"
        texts, between = re.split(pattern, self.waiting), re.findall(pattern, self.waiting)
        for text, character in zip(texts, [*between, ""], strict=True):
            if text:
                space = ' xml:space="preserve"' if text != text.strip() and self.place.name != "a:p" else ""
                self.parts.append(f"<{self.place.prefix}t{space}>{text}</{self.place.prefix}t>")
            self.parts.append(self.elements.get(character, ""))
        self.waiting = ""


def _is_link(code: str) -> bool:
    return code.split(None, 1)[:1] == ["HYPERLINK"]


def _with_fields(pieces: list[Piece], fields: str) -> tuple[list[Piece], str]:
    """Fields (page numbers, references, dates) as single points; a link stands around its text.

    A field that ends in another paragraph, as a table of contents does, has text in its result, but none in its code.
    """
    whole = _whole_fields(pieces)
    out: list[Piece] = []
    index = 0
    while index < len(pieces):
        piece = pieces[index]
        if index in whole:
            middle, end = whole[index]
            code = "".join(part.text for part in pieces[index : middle or end] if part.name == "w:instrText")
            if middle and _is_link(code) and not _depth(pieces[index:middle]):
                out.append(Piece("open", _all_kept(pieces[index : middle + 1]), name="field"))
                out += _with_fields(pieces[middle + 1 : end], "")[0]
                out.append(Piece("close", pieces[end].kept, name="field"))
            else:
                out.append(Piece("point", _all_kept(pieces[index : end + 1]), name="field"))
            index = end + 1
            continue
        if piece.name in ("begin", "separate", "end"):
            fields = fields + "c" if piece.name == "begin" else fields[:-1] + "r" * (piece.name == "separate")
            fields = fields[-MAX_OPEN_FIELDS:]
        stays = "c" in fields and piece.kind in ("text", "break")
        out.append(Piece("point", piece.kept, name="code") if stays else piece)
        index += 1
    return out, fields


def _whole_fields(pieces: Sequence[Piece]) -> dict[int, tuple[int, int]]:
    """The start of each field that begins and ends in one container; where its result begins (0: nowhere), its end."""
    fields: dict[int, tuple[int, int]] = {}
    stack: list[list[int]] = []  # start, start of the result, depth
    depth = 0
    for index, piece in enumerate(pieces):
        if not piece.range:
            depth += (piece.kind == "open") - (piece.kind == "close")
        while stack and depth < stack[-1][2]:  # its container ended
            stack.pop()
        if piece.name == "begin":
            stack.append([index, 0, depth])
        elif stack and stack[-1][2] == depth and piece.name == "separate":
            stack[-1][1] = index
        elif stack and stack[-1][2] == depth and piece.name == "end":
            start, middle, _ = stack.pop()
            fields[start] = middle, index
    return fields


def _depth(pieces: Sequence[Piece]) -> int:
    return sum((piece.kind == "open") - (piece.kind == "close") for piece in pieces if not piece.range)


def _all_kept(pieces: Sequence[Piece]) -> list[Kept]:
    return [kept for piece in pieces for kept in piece.kept]
