"""Paragraphs of Office Open XML: runs of text with properties, in .docx (w:p, w:r, w:t) and .pptx (a:p, a:r, a:t)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.documents.markup import escape_text
from dragoman.documents.paragraphs import Dialect, Kept, ParagraphContent, Piece, Writer
from dragoman.documents.xml import attributes_of, local

BREAKS = frozenset({"w:tab", "w:ptab", "w:br", "w:cr", "a:br"})  # end a unit
CHARACTERS = {"w:noBreakHyphen": "\u2011", "w:softHyphen": "\u00ad"}  # written as elements
DROPPED = frozenset({"w:proofErr"})  # where a spelling checker found faults in the old text
CONTAINERS = frozenset(
    f"w:{name}"
    for name in "hyperlink ins moveTo smartTag customXml fldSimple sdt dir bdo ruby".split()  # noqa: SIM905
)
MAX_OPEN_FIELDS = 20  # over several paragraphs
CONTENT = {"w:sdt": "w:sdtContent", "w:ruby": "w:rubyBase"}  # the child of a container that has its text
_SELECTED = re.compile(r"<[\w.-]*:?(?:date|dropDownList|comboBox|checkbox|dataBinding|citation|bibliography|picture)\b")
_HIDDEN = re.compile(r"""<(?:[\w.-]+:)?vanish(?:\s*/|\s(?![^>]*?val\s*=\s*["'](?:0|false|off|none)["'])[^>]*/?)?>""")
_RANGE = re.compile(r"(.*)(Start|End)")


def read_runs(content: ParagraphContent) -> tuple[list[Piece], str]:
    return _with_fields(list(_pieces(content, 0, len(content.tokens))), content.fields)


def _pieces(content: ParagraphContent, first: int, end: int) -> Iterator[Piece]:
    for index in content.children(first, end):
        token = content.tokens[index]
        last = content.last(index)
        name = token.name
        if token.kind == "text" or name in DROPPED:
            continue  # white space between elements
        kept = content.kept(index)
        if name in ("w:r", "a:r"):
            yield from _run(content, index + 1, last) if token.kind == "open" else ()
        elif name in BREAKS:
            yield Piece("break", [kept])
        elif name in CONTAINERS and token.kind == "open" and not _stays(content, index):
            yield from _container(content, index, None)
        elif match := _RANGE.fullmatch(name):
            identity = attributes_of(content.raw(index, index))
            number = next((value for key, value in identity.items() if local(key) == "id"), "")
            yield Piece("open" if match[2] == "Start" else "close", [kept], name=name, range=f"{match[1]} {number}")
        else:
            yield Piece("point", [kept], name=name)


def _stays(content: ParagraphContent, index: int) -> bool:
    """Whether the text of a container is no text of the author: results of fields, choices from a list."""
    name = content.tokens[index].name
    if name == "w:fldSimple":
        code = next((v for k, v in attributes_of(content.raw(index, index)).items() if local(k) == "instr"), "")
        return not _is_link(code)
    if name == "w:sdt":
        children = content.children(index + 1, content.last(index))
        inner = next((child for child in children if content.tokens[child].name), 0)
        return content.tokens[inner].name == "w:sdtPr" and bool(_SELECTED.search(content.raw(inner)))
    return False


def _is_link(code: str) -> bool:
    return code.split(None, 1)[:1] == ["HYPERLINK"]


def _container(content: ParagraphContent, index: int, style: str | None) -> Iterator[Piece]:
    """A container and the pieces inside; its properties belong to its start tag. `style`: that of the run it is in."""
    last = content.last(index)
    name, first, end = content.tokens[index].name, index + 1, last
    for child in content.children(index + 1, last):
        token = content.tokens[child]
        if token.name == CONTENT.get(name) and token.kind == "open":
            first, end = child + 1, content.last(child)
            break
        if token.name.endswith("Pr") and name not in CONTENT:
            first = content.last(child) + 1
        elif token.kind != "text" and name not in CONTENT:
            break
    else:
        if name in CONTENT:
            yield Piece("point", [content.kept(index, style=style)], name=name)
            return
    opening, closing = content.kept(index, first - 1, style), content.kept(end, last, style)
    if style is not None:
        opening, closing = opening._replace(level=1), closing._replace(level=-1)
    yield Piece("open", [opening], name=name)
    yield from _pieces(content, first, end)
    yield Piece("close", [closing], name=name)


def _run(content: ParagraphContent, first: int, end: int) -> Iterator[Piece]:
    style, hidden = "", False
    for index in content.children(first, end):
        token = content.tokens[index]
        name = token.name
        if local(name) == "rPr":
            style = content.raw(index)
            hidden = bool(_HIDDEN.search(style))
        elif token.kind == "text" or name in DROPPED:
            continue
        elif name in ("w:t", "a:t") and not hidden:
            yield Piece("text", [content.kept(index, style=style)], _text(content, index), style)
        elif name in CHARACTERS and not hidden:
            yield Piece("text", [content.kept(index, style=style)], CHARACTERS[name], style)
        elif name in BREAKS:
            yield Piece("break", [content.kept(index, style=style)])
        elif name in CONTAINERS and token.kind == "open":
            yield from _container(content, index, style)
        else:
            if name == "w:fldChar":
                kinds = attributes_of(content.raw(index, index)).items()
                name = next((value for key, value in kinds if local(key) == "fldCharType"), "")
            code = _text(content, index) if name == "w:instrText" else ""
            yield Piece("point", [content.kept(index, style=style)], code, name=name)


def _text(content: ParagraphContent, index: int) -> str:
    parts = (
        (token.kind, content.text[token.start : token.end]) for token in content.tokens[index + 1 : content.last(index)]
    )
    return "".join(
        escape_text(raw[9:-3]) if kind == "cdata" else raw for kind, raw in parts if kind in ("text", "cdata")
    )


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


class RunWriter(Writer):
    """Writes runs; neighbours with the same properties are one run."""

    def __init__(self, content: ParagraphContent) -> None:
        self.prefix = content.prefix
        self.drawing = content.paragraph == "a:p"
        used = {token.name for token in content.tokens}
        self.elements = {
            character: f"<{self.prefix}{local(name)}/>" for name, character in CHARACTERS.items() if name in used
        }
        self.parts: list[str] = []
        self.style: str | None = None  # of the open run
        self.waiting = ""  # text

    def text(self, style: str, text: str) -> None:
        self._open(style)
        self.waiting += text

    def keep(self, style: str | None, xml: str, level: int = 0) -> None:
        if style is None or level:
            self._open(None)
            start, end = f"<{self.prefix}r>{style}" * (level > 0), f"</{self.prefix}r>" * (level < 0)
            self.parts.append(f"{start}{xml}{end}")
        else:
            self._open(style)
            self._write_text()
            self.parts.append(xml)

    def result(self) -> str:
        self._open(None)
        return "".join(self.parts)

    def _open(self, style: str | None) -> None:
        """Be in a run with these properties; None: in none."""
        if style == self.style:
            return
        self._write_text()
        if self.style is not None:
            self.parts.append(f"</{self.prefix}r>")
        if style is not None:
            self.parts.append(f"<{self.prefix}r>{style}")
        self.style = style

    def _write_text(self) -> None:
        """Write what waits; some characters are elements of their own, as they were in the paragraph."""
        pattern = "|".join(self.elements) or "(?!)"
        texts, between = re.split(pattern, self.waiting), re.findall(pattern, self.waiting)
        for text, character in zip(texts, [*between, ""], strict=True):
            if text:
                space = ' xml:space="preserve"' if text != text.strip() and not self.drawing else ""
                self.parts.append(f"<{self.prefix}t{space}>{text}</{self.prefix}t>")
            self.parts.append(self.elements.get(character, ""))
        self.waiting = ""


RUNS = Dialect(read_runs, RunWriter)
