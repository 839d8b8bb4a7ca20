"""OpenDocument texts and presentations (.odt, .odp): paragraphs with spans, also in notes, comments and text boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.documents.base import Reading
from dragoman.documents.package import Package, PackageDocument
from dragoman.documents.paragraphs import Dialect, PackagePart, ParagraphContent, Piece, Writer, escape_legal
from dragoman.documents.xml import attributes_of, local, unescape_xml
from dragoman.errors import DataError

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
_IDENTITY = ("name", "change-id", "id", "ref-name")


class _Reader:
    """Reads a paragraph; runs of white space are one space, and none at its start."""

    def __init__(self, content: ParagraphContent) -> None:
        self.content, self.spaced = content, True

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        content = self.content
        for index in content.children(first, end):
            token = content.tokens[index]
            kept = content.kept(index)
            raw = content.raw(index, index)
            if token.kind in ("text", "cdata"):
                yield Piece("text", [kept], self.collapsed(raw[9:-3] if token.kind == "cdata" else unescape_xml(raw)))
                continue
            if token.name == "text:s":
                count = next((value for key, value in attributes_of(raw).items() if local(key) == "c"), "1")
                wide = int(count) if count.isdecimal() and len(count) < 6 else 1
                yield Piece("text", [kept], " " * min(wide, MAX_SPACES))
            elif token.name in BREAKS:
                yield Piece("break", [kept])
            elif token.name in CONTAINERS and token.kind == "open":
                yield from self.container(index)
            else:
                yield self.point(index)
            self.spaced = self.spaced and bool(_INVISIBLE.match(raw))

    def collapsed(self, text: str) -> str:
        """A text as it is read: white space is one space, or none after another."""
        text = _SPACE.sub(" ", text)
        if self.spaced and text.startswith(" "):
            text = text[1:]
        if text:
            self.spaced = text.endswith(" ")
        return escape_legal(text)

    def container(self, index: int) -> Iterator[Piece]:
        """A container and the pieces inside; a pronunciation (ruby) belongs to the end tag of its text."""
        content = self.content
        last = content.last(index)
        first, end = index + 1, last
        if content.tokens[index].name == "text:ruby":
            inner = (child for child in content.children(first, last) if content.tokens[child].name == "text:ruby-base")
            base = next(inner, None)
            if base is None or content.last(base) == base:
                yield Piece("point", [content.kept(index)], name="text:ruby")
                return
            first, end = base + 1, content.last(base)
        yield Piece("open", [content.kept(index, first - 1)], name=content.tokens[index].name)
        yield from self.pieces(first, end)
        yield Piece("close", [content.kept(end, last)], name=content.tokens[index].name)

    def point(self, index: int) -> Piece:
        """An element that stays; some begin or end a range, such as a bookmark."""
        name, kept = self.content.tokens[index].name, [self.content.kept(index)]
        match = _RANGE.fullmatch(name)
        if match:
            attributes = {local(key): value for key, value in attributes_of(self.content.raw(index, index)).items()}
            identity = next((attributes[key] for key in _IDENTITY if key in attributes), "")
            if identity:
                kind = "close" if match[2] == "end" else "open"
                return Piece(kind, kept, name=name, range=f"{match[1] or match[3]} {identity}")
        return Piece("point", kept, name=name)


def read_paragraph(content: ParagraphContent) -> tuple[list[Piece], str]:
    """The pieces of a paragraph; there are no fields over several ones."""
    return list(_Reader(content).pieces(0, len(content.tokens))), ""


class TextWriter(Writer):
    """Writes text; a space that readers would leave out is an element."""

    def __init__(self, content: ParagraphContent) -> None:
        self.prefix = content.prefix
        self.parts: list[str] = []
        self.spaced = True

    def text(self, style: str, text: str) -> None:
        for part in re.split(r"( +)", text):
            if not part.startswith(" "):
                self.parts.append(part)
                self.spaced = self.spaced and not part
                continue
            count = len(part) - (not self.spaced)
            self.parts.append(" " * (not self.spaced))
            if count > 1 and self.prefix:
                self.parts.append(f'<{self.prefix}s {self.prefix}c="{count}"/>')
            else:
                self.parts.append(f"<{self.prefix}s/>" * count)
            self.spaced = True

    def keep(self, style: str | None, xml: str, level: int = 0) -> None:
        self.parts.append(xml)
        self.spaced = self.spaced and bool(_INVISIBLE.match(xml))

    def result(self) -> str:
        return "".join(self.parts)


DIALECTS = dict.fromkeys(("text:p", "text:h"), Dialect(read_paragraph, TextWriter))


class OpenDocument(PackageDocument):
    """The paragraphs of the text, and of headers and footers, which are among the styles."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(Package(data, ".odt"))
        if "content.xml" not in self.package:
            raise DataError("document: found no content.xml in the package, expected .odt")
        manifest = "META-INF/manifest.xml"
        if manifest in self.package and b"encryption-data" in self.package.read(manifest):
            raise DataError("document: found an encrypted package, expected one without password")
        for name in ("content.xml", "styles.xml"):
            if name in self.package:
                self.add(name, PackagePart(name, self.package.read(name), DIALECTS, SKIPPED))
