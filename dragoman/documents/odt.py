"""OpenDocument texts and presentations (.odt, .odp): paragraphs with spans, also in notes, comments and text boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.base import DataError
from dragoman.documents.base import Reading
from dragoman.documents.package import Package, PackageDocument
from dragoman.documents.paragraphs import PackagePart, Paragraph, Piece, escape_legal
from dragoman.documents.xml import unescape_xml

BREAKS = frozenset({"text:tab", "text:line-break"})  # end a unit
CONTAINERS = frozenset({"text:span", "text:a", "text:meta", "text:ruby"})
SKIPPED = frozenset({"text:tracked-changes"})  # deleted text
MAX_SPACES = 10_000  # in one element
_SPACE = re.compile(r"[ \t\r\n]+")
_RANGE = re.compile(r"(.*)-(start|end)|(office:annotation)")
# Before and after these, white space is still one stretch; all other elements end it.
_INVISIBLE = re.compile(
    r"</|<(?:[\w.-]+:)?(?:span|a|meta|ruby|bookmark|reference-mark|soft-page-break|change|[\w-]+-start|[\w-]+-end)[\s/>]"
)


class TextParagraph(Paragraph):
    """Runs of white space are one space, and none at the start; a space that readers would leave out is an element."""

    spaced = True  # whether white space that follows is left out

    def read(self) -> tuple[list[Piece], str]:
        """The pieces of a paragraph; there are no fields over several ones."""
        pieces = list(self._pieces(0, len(self.tokens)))
        self.spaced = True  # for writing
        return pieces, ""

    def _pieces(self, first: int, end: int) -> Iterator[Piece]:
        for index in self.children(first, end):
            token = self.tokens[index]
            kept = self.kept(index)
            raw = self.raw(index, index)
            if token.kind in ("text", "cdata"):
                yield Piece("text", [kept], self._collapsed(raw[9:-3] if token.kind == "cdata" else unescape_xml(raw)))
                continue
            if token.name == "text:s":
                count = self.attribute(index, "c")
                wide = int(count) if count.isdecimal() and len(count) < 6 else 1
                yield Piece("text", [kept], " " * min(wide, MAX_SPACES))
            elif token.name in BREAKS:
                yield Piece("break", [kept])
            elif token.name in CONTAINERS and token.kind == "open":
                yield from self._container(index)
            else:
                yield self._point(index)
            self.spaced = self.spaced and bool(_INVISIBLE.match(raw))

    def _collapsed(self, text: str) -> str:
        """A text as it is read: white space is one space, or none after another."""
        text = _SPACE.sub(" ", text)
        if self.spaced and text.startswith(" "):
            text = text[1:]
        if text:
            self.spaced = text.endswith(" ")
        return escape_legal(text)

    def _container(self, index: int) -> Iterator[Piece]:
        """A container and the pieces inside; a pronunciation (ruby) belongs to the end tag of its text."""
        last = self.last(index)
        first, end = index + 1, last
        if self.tokens[index].name == "text:ruby":
            inner = (child for child in self.children(first, last) if self.tokens[child].name == "text:ruby-base")
            base = next(inner, None)
            if base is None or self.last(base) == base:
                yield Piece("point", [self.kept(index)], name="text:ruby")
                return
            first, end = base + 1, self.last(base)
        yield Piece("open", [self.kept(index, first - 1)], name=self.tokens[index].name)
        yield from self._pieces(first, end)
        yield Piece("close", [self.kept(end, last)], name=self.tokens[index].name)

    def _point(self, index: int) -> Piece:
        """An element that stays; some begin or end a range, such as a bookmark."""
        name, kept = self.tokens[index].name, [self.kept(index)]
        match = _RANGE.fullmatch(name)
        identity = self.attribute(index, "name", "change-id", "id", "ref-name") if match else ""
        if match is None or not identity:
            return Piece("point", kept, name=name)
        kind = "close" if match[2] == "end" else "open"
        return Piece(kind, kept, name=name, range=f"{match[1] or match[3]} {identity}")

    def write(self, style: str, text: str) -> None:
        prefix = self.place.prefix
        for part in re.split(r"( +)", text):
            if not part.startswith(" "):
                self.parts.append(part)
                self.spaced = self.spaced and not part
                continue
            count = len(part) - (not self.spaced)
            self.parts.append(" " * (not self.spaced))
            if count > 1 and prefix:
                self.parts.append(f'<{prefix}s {prefix}c="{count}"/>')
            else:
                self.parts.append(f"<{prefix}s/>" * count)
            self.spaced = True

    def keep(self, style: str | None, xml: str, level: int = 0) -> None:
        self.parts.append(xml)
        self.spaced = self.spaced and bool(_INVISIBLE.match(xml))


class OpenDocument(PackageDocument):
    """The paragraphs of the text, and of headers and footers, which are among the styles."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(Package(data, ".odt"), reading)
        if "content.xml" not in self.package:
            raise DataError("document: found no content.xml in the package, expected .odt")
        manifest = "META-INF/manifest.xml"
        if manifest in self.package and b"encryption-data" in self.package.read(manifest):
            raise DataError("document: found an encrypted package, expected one without password")
        kinds = dict.fromkeys(("text:p", "text:h"), TextParagraph)
        for name in ("content.xml", "styles.xml"):
            if name in self.package:
                self.add(name, PackagePart(name, self.package.read(name), kinds, reading.limits, SKIPPED))
