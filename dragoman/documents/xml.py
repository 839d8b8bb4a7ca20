"""XML as text with positions: checked by expat, which resolves no entity, then cut into tags and texts."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from dragoman.base import DataError, check_interrupted
from dragoman.data.readers import SafeParser
from dragoman.documents.base import Reading, TextDocument, declared_encoding, decode

MAX_TAG = 1 << 20  # characters
_TOKEN = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<!DOCTYPE(?:[^\[\]>\"']|\"[^\"]*\"|'[^']*'|\[[^\]]*\])*+>"
    r"|<(?P<close>/?)(?P<name>[^\s/>\"'<!?]++)(?:[^\"'>]|\"[^\"]*\"|'[^']*')*+>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([^\s=<>"']+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_REFERENCE = re.compile(r"&(?:#x([0-9a-fA-F]{1,6})|#([0-9]{1,7})|(lt|gt|amp|quot|apos));")
_NAMES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


class XMLToken(NamedTuple):
    """A tag, a text, or another stretch of an XML document."""

    kind: str  # open, close, empty, text, cdata, other
    name: str
    start: int
    end: int


def unescape_xml(text: str) -> str:
    """A text with the references of XML resolved, which are no more than five names and numbers."""
    if "&" not in text:
        return text

    def resolved(match: re.Match[str]) -> str:
        if match[3]:
            return _NAMES[match[3]]
        code = int(match[1], 16) if match[1] else int(match[2])
        return chr(code) if code < 0x110000 else match[0]

    return _REFERENCE.sub(resolved, text)


def check_xml(text: str, name: str) -> None:
    """Raise DataError unless a text is well-formed XML of reasonable depth without entities of its own."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{name}: found half a character (a lone surrogate), expected complete ones") from None
    SafeParser(name, "utf-8").feed(data, True)


def xml_tokens(text: str, name: str) -> Iterator[XMLToken]:
    """All tokens of a checked document in order; together they are its whole text."""
    place = 0
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if start > place:
            yield XMLToken("text", "", place, start)
        if end - start > MAX_TAG:
            raise DataError(f"{name}: found a tag of {end - start:,} characters, expected at most {MAX_TAG:,}")
        if tag := match["name"]:
            kind = "close" if match["close"] else "empty" if text[end - 2] == "/" else "open"
            yield XMLToken(kind, tag, start, end)
        else:
            yield XMLToken("cdata" if text.startswith("<![CDATA[", start) else "other", "", start, end)
        place = end
    if place < len(text):
        yield XMLToken("text", "", place, len(text))


KINDS = ("open", "close", "empty", "text", "cdata", "other")


class XMLTokens(Sequence[XMLToken]):
    """All tokens of a checked document; each takes nine bytes until it is asked for."""

    def __init__(self, text: str, name: str) -> None:
        self._starts, self._kinds, self._names = array("I"), array("B"), array("I")
        numbers: dict[str, int] = {}  # of names
        for number, token in enumerate(xml_tokens(text, name)):
            if not number % 1_000:
                check_interrupted()
            self._starts.append(token.start)
            self._kinds.append(KINDS.index(token.kind))
            self._names.append(numbers.setdefault(token.name, len(numbers)))
        self._starts.append(len(text))
        self._known = list(numbers)

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        kind, name = KINDS[self._kinds[index]], self._known[self._names[index]]
        return XMLToken(kind, name, self._starts[index], self._starts[index + 1])


class _HasKind(Protocol):
    @property
    def kind(self) -> str: ...


def element_ends(tokens: Sequence[_HasKind]) -> dict[int, int]:
    """The index of the end tag of every start tag; tags must nest."""
    waiting: list[int] = []
    ends: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            waiting.append(index)
        elif token.kind == "close":
            ends[waiting.pop()] = index
    return ends


def attributes_of(tag: str) -> dict[str, str]:
    return {name: unescape_xml(double or single) for name, double, single in _ATTRIBUTE.findall(tag)}


def quoted(value: str) -> str:
    escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return f'"{escaped}"'


def with_attribute(tag: str, name: str, value: str | None) -> str:
    """A start tag with an attribute set, or without it; one of that name is replaced."""
    for match in _ATTRIBUTE.finditer(tag):
        if match[1] == name:
            before, after = tag[: match.start()], tag[match.end() :]
            return before.rstrip() + after if value is None else f"{before}{name}={quoted(value)}{after}"
    if value is None:
        return tag
    end = len(tag) - (2 if tag.endswith("/>") else 1)
    return f"{tag[:end].rstrip()} {name}={quoted(value)}{tag[end:]}"


def local(name: str) -> str:
    return name.rpartition(":")[2]


def start_tags(data: bytes, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The names and attributes of the start tags of a member of a package, in order; names are without prefixes."""
    text = decode(data, declared_encoding(data)).text
    check_xml(text, f"document, {name}")
    for token in xml_tokens(text, f"document, {name}"):
        if token.kind in ("open", "empty"):
            attributes = attributes_of(text[token.start : token.end])
            yield local(token.name), {local(key): value for key, value in attributes.items()}


class XMLDocument(TextDocument):
    """A document that is one XML file, with its tokens."""

    escape_unknown = True

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading, declared_encoding(data))
        check_xml(self.text, "document")
        self.tokens: Sequence[XMLToken] = XMLTokens(self.text, "document")

    def raw(self, token: XMLToken) -> str:
        return self.text[token.start : token.end]
