"""Paragraphs of office documents: each is cut into texts to translate, and into everything else, which stays.

The class of a format reads the content of a paragraph as pieces. Numbered marks (`<3>`, `</3>`, `<4/>`) stand for the
pieces that are no text while a unit is translated. The same class then writes texts and pieces as XML again.
Marks are as well nested as `place_markup` leaves them, so a run is never cut open in the wrong place.
"""

from __future__ import annotations

import bisect
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.documents.base import Document, Limits, Unit, UnitTranslation, declared_encoding, decode
from dragoman.documents.references import without_forbidden
from dragoman.documents.xml import XMLToken, attributes_of, check_xml, element_ends, local, unescape_xml, xml_tokens
from dragoman.inference.segments import Block, Token, block_of, escape_text

MAX_TOKENS = 100_000  # of a paragraph
MAX_INLINE_DEPTH = 20  # of containers in a paragraph; the tags of deeper ones stay where they are
NAMESPACES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://purl.oclc.org/ooxml/drawingml/main": "a",
    "http://schemas.openxmlformats.org/presentationml/2006/main": "p",
    "http://purl.oclc.org/ooxml/presentationml/main": "p",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "urn:oasis:names:tc:opendocument:xmlns:office:1.0": "office",
    "urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text",
}
_DECLARED = re.compile(r"""\sxmlns(?::([^\s=]{1,100}))?\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_MARK = re.compile(r"<(/?)(\d+)(/?)>")


def escape_legal(text: str) -> str:
    """A text for XML, without the characters that XML cannot have."""
    return escape_text(without_forbidden(text))


class Kept(NamedTuple):
    """A stretch of the file that stays: in a run with these properties, or beside the runs (None)."""

    style: str | None
    start: int
    end: int
    level: int = 0  # 1: a start tag inside a run, which has runs inside in turn (ruby); -1: its end tag


@dataclass
class Piece:
    """A part of a paragraph.

    `point` and `break` stay as they are, and a break ends a unit. `open` and `close` stand around text: those of a
    container are XML tags, those of a range (a bookmark, a comment) are points that belong together.
    """

    kind: str  # text, point, break, open, close
    kept: list[Kept]
    text: str = ""  # escaped
    style: str = ""  # properties of the run that the text is in, as XML
    name: str = ""
    range: str = ""  # name of the range; empty: a container


class Mark(NamedTuple):
    """What a mark in the text of a unit stands for."""

    style: str | None  # of the text inside; None: that of the text around
    opening: list[Kept]
    closing: list[Kept]


@dataclass
class ParagraphSegment:
    """Pieces that stay, a text to translate between them, and its marks."""

    before: list[Piece]
    block: Block | None = None
    after: list[Piece] = field(default_factory=list)
    style: str = ""  # of text outside all marks
    marks: list[Mark] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)  # marks of points that begin and end a range


class Place(NamedTuple):
    """Where the content of a paragraph is, and what is known about it."""

    start: int
    end: int
    name: str
    prefix: str  # of its name in the file
    fields: str  # those that began in earlier paragraphs: c: in its code, r: in its result
    first: int  # unit
    units: int


class Paragraph(ABC):
    """How a format has the content of a paragraph: it reads pieces, and writes them and new texts as XML.

    Its tokens are without those of paragraphs inside it (text boxes, notes).
    """

    def __init__(self, text: str, tokens: list[XMLToken], place: Place) -> None:
        self.text, self.tokens, self.place = text, tokens, place
        self.ends = element_ends(tokens)
        self.parts: list[str] = []  # what is written

    @abstractmethod
    def read(self) -> tuple[list[Piece], str]:
        """The pieces, and the fields that go on in the next paragraph."""

    @abstractmethod
    def write(self, style: str, text: str) -> None:
        """Add escaped text in a run with these properties."""

    @abstractmethod
    def keep(self, style: str | None, xml: str, level: int = 0) -> None:
        """Add XML inside a run with these properties, or beside the runs; `level` as in Kept."""

    def result(self) -> str:
        """All that was written."""
        return "".join(self.parts)

    def raw(self, first: int, last: int | None = None) -> str:
        """The XML from one token to another, or to the end of its element."""
        return self.text[self.tokens[first].start : self.tokens[self.last(first) if last is None else last].end]

    def last(self, index: int) -> int:
        return self.ends.get(index, index)

    def kept(self, first: int, last: int | None = None, style: str | None = None) -> Kept:
        """The stretch from one token to another, or to the end of its element."""
        return Kept(style, self.tokens[first].start, self.tokens[self.last(first) if last is None else last].end)

    def attribute(self, index: int, *names: str) -> str:
        """The value of the first of these attributes that a tag has, whatever their prefixes; empty: it has none."""
        attributes: dict[str, str] = {}
        for key, value in attributes_of(self.raw(index, index)).items():
            attributes.setdefault(local(key), value)
        return next((attributes[name] for name in names if name in attributes), "")

    def children(self, first: int, end: int) -> Iterator[int]:
        """The indices of the texts and elements beside each other."""
        while first < end:
            yield first
            first = self.last(first) + 1


Kinds = Mapping[str, type[Paragraph]]  # by the names of their tags


class PackagePart(Document):
    """An XML file of a package."""

    def __init__(
        self, name: str, data: bytes, kinds: Kinds, limits: Limits, skip: Collection[str] = (), masters: bool = False
    ) -> None:
        self.name, self.kinds = f"document, {name}", kinds
        self.file = decode(data, declared_encoding(data))
        self.text = self.file.text
        check_xml(self.text, self.name)
        self.units: list[Unit] = []
        self._prefixes = {
            match[1] or "": NAMESPACES[uri]
            for match in _DECLARED.finditer(self.text)
            if (uri := match[2] or match[3] or "") in NAMESPACES
        }
        self._names: dict[str, str] = {}
        self._paragraphs: list[Place] = []
        spans = sorted(self._find(skip, masters))
        self._starts = [span[0] for span in spans]
        self._ends = [span[1] for span in spans]
        shared: dict[tuple[int, str], Place] = {}
        fields, outer = "", 0
        for number, (start, end, tag, scope) in enumerate(spans, 1):
            prefix = tag[: -len(local(tag))]
            inner = start < outer
            paragraph = Place(start, end, self._name(tag), prefix, "" if inner else fields, 0, 0)
            if scope and (known := shared.get((scope, self.text[start:end]))):
                # Word writes a text box twice, for itself and for older programs: one unit, so that both agree.
                self._paragraphs.append(paragraph._replace(first=known.first, units=known.units))
                continue
            limits.add(self.text, start, end, f"paragraph {number}", "")
            _, segments, after = self._parse(paragraph)
            blocks = [segment.block for segment in segments if segment.block is not None]
            paragraph = paragraph._replace(first=len(self.units), units=len(blocks))
            self.units += [Unit(block, f"paragraph {number}") for block in blocks]
            self._paragraphs.append(paragraph)
            if scope:
                shared[scope, self.text[start:end]] = paragraph
            if not inner:
                fields, outer = after, end

    def _name(self, name: str) -> str:
        """A name with the prefix that this code uses for its namespace."""
        known = self._names.get(name)
        if known is None:
            prefix, _, after = name.rpartition(":")
            mine = self._prefixes.get(prefix, prefix)
            known = self._names[name] = f"{mine}:{after}" if mine else after
        return known

    def _find(self, skip: Collection[str], masters: bool) -> Iterator[tuple[int, int, str, int]]:
        """Start and end of the content of each paragraph, its name, and the start of the alternatives it is in."""
        stack: list[tuple[str, str, int]] = []
        hidden = 0  # depth of the element whose paragraphs are not translated
        scopes: list[int] = []
        for token in xml_tokens(self.text, self.name):
            name = self._name(token.name) if token.name else ""
            if token.kind == "open":
                stack.append((name, token.name, token.end))
                if name == "mc:AlternateContent":
                    scopes.append(token.start)
                if name in skip and not hidden:
                    hidden = len(stack)
            elif token.kind == "close":
                depth = len(stack)
                name, written, start = stack.pop()
                if name in self.kinds and not hidden:
                    yield start, token.start, written, scopes[0] if scopes else 0
                if name == "mc:AlternateContent":
                    scopes.pop()
                if depth == hidden:
                    hidden = 0
            if masters and name == "p:ph" and not hidden:  # only shows where a slide has no text of its own
                hidden = max((depth for depth, entry in enumerate(stack, 1) if entry[0] == "p:sp"), default=0)

    def _inside(self, start: int, end: int) -> Iterator[int]:
        """The outermost paragraphs of which the content begins in a stretch of the text."""
        index = bisect.bisect_right(self._starts, start)
        while index < len(self._starts) and self._starts[index] < end:
            yield index
            index = bisect.bisect_left(self._starts, self._ends[index], index + 1)

    def _parse(self, place: Place) -> tuple[Paragraph, list[ParagraphSegment], str]:
        start = place.start
        stretches = []
        for index in self._inside(place.start, place.end):
            stretches.append((start, self._starts[index]))
            start = self._ends[index]
        inner = (
            XMLToken(token.kind, self._name(token.name), start + token.start, start + token.end)
            for start, end in [*stretches, (start, place.end)]
            for token in xml_tokens(self.text[start:end], self.name)
        )
        tokens = list(itertools.islice(inner, MAX_TOKENS + 1))
        if len(tokens) > MAX_TOKENS:
            raise DataError(f"{self.name}: found a paragraph of more than {MAX_TOKENS:,} tags, expected fewer")
        paragraph = self.kinds[place.name](self.text, tokens, place)
        pieces, fields = paragraph.read()
        return paragraph, segments_of(pieces), fields

    def render(self, outputs: Sequence[UnitTranslation | None]) -> bytes:
        return self.file.encode(self._stretch(0, len(self.text), outputs), references=True)

    def _stretch(self, start: int, end: int, outputs: Sequence[UnitTranslation | None]) -> str:
        """A stretch of the text with the paragraphs in it translated."""
        parts, place = [], start
        for index in self._inside(start, end):
            paragraph = self._paragraphs[index]
            parts += [self.text[place : paragraph.start], self._paragraph(paragraph, outputs)]
            place = paragraph.end
        return "".join([*parts, self.text[place:end]])

    def _paragraph(self, place: Place, outputs: Sequence[UnitTranslation | None]) -> str:
        own = outputs[place.first : place.first + place.units]
        if all(output is None for output in own):
            return self._stretch(place.start, place.end, outputs)
        paragraph, segments, _ = self._parse(place)

        def keep(kept: Sequence[Kept]) -> None:
            for style, start, end, level in kept:
                paragraph.keep(style, self._stretch(start, end, outputs), level)

        def write(pieces: Sequence[Piece]) -> None:
            for piece in pieces:
                if piece.kind == "text":
                    paragraph.write(piece.style, piece.text)
                else:
                    keep(piece.kept)

        waiting = iter(own)
        for segment in segments:
            write(segment.before)
            if segment.block is not None:
                output = next(waiting)
                markup = segment.block.raw if output is None else output.markup
                write_unit(segment, markup, paragraph.write, keep)
            write(segment.after)
        return paragraph.result()


def write_unit(
    segment: ParagraphSegment,
    markup: str,
    write: Callable[[str, str], None],
    keep: Callable[[Sequence[Kept]], None],
) -> None:
    styles = [segment.style]
    place = 0
    numbers = dict(_in_order(segment, markup))
    for match in _MARK.finditer(markup):
        if match.start() > place:
            write(styles[-1], markup[place : match.start()])
        place = match.end()
        mark = segment.marks[numbers.get(int(match[2]), int(match[2]))]
        if match[1]:
            keep(mark.closing)
            styles.pop()
            continue
        keep(mark.opening)
        if not match[3]:
            styles.append(styles[-1] if mark.style is None else mark.style)
    if place < len(markup):
        write(styles[-1], markup[place:])


def _in_order(segment: ParagraphSegment, markup: str) -> Iterator[tuple[int, int]]:
    """The points of ranges that end before they begin, exchanged."""
    places = {int(match[2]): match.start() for match in _MARK.finditer(markup)} if segment.ranges else {}
    for first, last in segment.ranges:
        if places[last] < places[first]:
            yield from ((first, last), (last, first))


# --- pieces


def segments_of(pieces: Sequence[Piece]) -> list[ParagraphSegment]:
    """The units of a paragraph, each with the pieces around it that stay in their place."""
    segments: list[ParagraphSegment] = []
    current: list[Piece] = []
    for piece in [*_with_breaks(pieces), Piece("break", [])]:
        if piece.kind != "break":
            current.append(piece)
            continue
        segments += [_segment(current), ParagraphSegment([piece])]
        current = []
    return segments


def _with_breaks(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces; the tags of a container with a break inside are breaks as well, so that none leaves its place."""
    stack: list[int] = []
    cut: set[int] = set()
    deepest = 0
    for index, piece in enumerate(pieces):
        if piece.kind == "break":
            cut.update(stack)
        elif piece.kind == "open" and not piece.range:
            stack.append(index)
            deepest = max(deepest, len(stack))
        elif piece.kind == "close" and not piece.range:
            first = stack.pop()
            if first in cut:
                cut.add(index)
    every = deepest > MAX_INLINE_DEPTH
    return [
        replace(piece, kind="break")
        if index in cut or (every and piece.kind in ("open", "close") and not piece.range)
        else piece
        for index, piece in enumerate(pieces)
    ]


def _settled(pieces: Sequence[Piece]) -> tuple[list[Piece], list[tuple[int, int]]]:
    """The pieces of a unit; ranges that are not well nested become points. Also where the latter begin and end."""
    stack: list[int] = []  # open containers and ranges
    begun: dict[str, int] = {}
    points: set[int] = set()
    crossing: list[tuple[int, int]] = []
    for index, piece in enumerate(pieces):
        if piece.kind == "open":
            stack.append(index)
            if piece.range:
                begun[piece.range] = index
        if piece.kind != "close":
            continue
        while stack and (stack[-1] in points or (pieces[stack[-1]].range and not piece.range)):
            points.add(stack.pop())  # a range that goes on beyond the container that it began in
        if not piece.range or (stack and pieces[stack[-1]].range == piece.range and len(stack) <= MAX_INLINE_DEPTH):
            stack.pop()
            continue
        points.add(index)
        if piece.range in begun:
            points.add(begun[piece.range])
            crossing.append((begun[piece.range], index))
    points.update(stack)
    settled = [replace(piece, kind="point") if index in points else piece for index, piece in enumerate(pieces)]
    return settled, crossing


def _segment(pieces: Sequence[Piece]) -> ParagraphSegment:
    """A unit from its pieces. What stands before or after all text, and what stands around all of it, stays there."""
    pieces, crossing = _settled(pieces)
    if not any(_has_text(piece) for piece in pieces):
        return ParagraphSegment(pieces)
    partners = element_ends(pieces)
    low, high = 0, len(pieces) - 1
    while True:
        if pieces[low].kind == "point" or (pieces[low].kind == "text" and not _has_text(pieces[low])):
            low += 1
        elif pieces[high].kind == "point" or (pieces[high].kind == "text" and not _has_text(pieces[high])):
            high -= 1
        elif partners.get(low) == high:
            low, high = low + 1, high - 1
        else:
            break
    before, after = pieces[:low], pieces[high + 1 :]
    for index in (low, high):
        piece = pieces[index]
        if piece.kind != "text":
            continue
        text = piece.text.strip() if low == high else piece.text.lstrip() if index == low else piece.text.rstrip()
        if text == piece.text:
            continue
        space, _, further = piece.text.partition(text)
        before += [replace(piece, text=space)] if space else []
        after = [replace(piece, text=further), *after] if further else after
        pieces[index] = replace(piece, text=text)
    inside = range(low, high + 1)
    segment = ParagraphSegment(before, after=after, style=_plain_style(pieces[low : high + 1]) or "")
    numbers: dict[int, int] = {}  # index of a point → its mark
    segment.block = block_of(_marked(pieces, inside, partners, segment, numbers), unescape_xml, escape_legal)
    segment.ranges = [(numbers[first], numbers[last]) for first, last in crossing if first in inside and last in inside]
    return segment


def _has_text(piece: Piece) -> bool:
    return piece.kind == "text" and bool(unescape_xml(piece.text).strip())


def _plain_style(pieces: Sequence[Piece]) -> str | None:
    """The plainest properties of text outside containers, or else of any text; None: there is no text."""
    styles: tuple[list[str], list[str]] = ([], [])
    depth = 0
    for piece in pieces:
        depth += (not piece.range) * ((piece.kind == "open") - (piece.kind == "close"))
        if piece.kind == "text":
            styles[depth > 0].append(piece.style)
    return min(styles[0] or styles[1], key=len, default=None)


def _marked(
    pieces: Sequence[Piece],
    inside: range,
    partners: Mapping[int, int],
    segment: ParagraphSegment,
    numbers: dict[int, int],
) -> Iterator[Token]:
    """Texts and marks; text in another style than the plain one of its container has a mark around it."""
    marks = segment.marks
    plain = [segment.style]
    opened: list[int] = []
    styled = -1  # the mark of the style that the text is in

    def mark(style: str | None, opening: list[Kept]) -> int:
        marks.append(Mark(style, opening, []))
        return len(marks) - 1

    for index in inside:
        piece = pieces[index]
        style = piece.style if piece.kind == "text" else None
        if styled >= 0 and piece.kind != "point" and style != marks[styled].style:
            yield Token("close", str(styled), f"</{styled}>")
            styled = -1
        if piece.kind == "text":
            if styled < 0 and style != plain[-1]:
                styled = mark(style, [])
                yield Token("open", str(styled), f"<{styled}>")
            yield Token("text", "", piece.text)
        elif piece.kind == "open":
            own = None if piece.range else _plain_style(pieces[index + 1 : partners[index]])
            number = mark(own, piece.kept)
            opened.append(number)
            plain.append(plain[-1] if own is None else own)
            yield Token("open", str(number), f"<{number}>")
        elif piece.kind == "close":
            number = opened.pop()
            plain.pop()
            marks[number].closing.extend(piece.kept)
            yield Token("close", str(number), f"</{number}>")
        else:
            number = numbers[index] = mark(None, piece.kept)
            yield Token("copied", piece.name, f"<{number}/>")
    if styled >= 0:
        yield Token("close", str(styled), f"</{styled}>")
