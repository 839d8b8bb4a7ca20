"""The content of an XML element as parts: blocks of text to translate, and what stands between them.

The text of translation files is often HTML, in CDATA or escaped. Its inline tags are tags of a block as well, and its
block tags end a block: a model reads none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.data import Protected, icu_messages, protected_spans, tag_kind, without_spans
from dragoman.documents.base import UnitTranslation
from dragoman.documents.html_tokens import tag_names, unescape_text
from dragoman.documents.references import REFERENCE, XML, escape_like, without_forbidden
from dragoman.documents.xml import XMLToken, attributes_of, local, unescape_xml
from dragoman.inference.segments import Block, Escape, Token, block_of, escape_text

if TYPE_CHECKING:
    from dragoman.inference import Finding

BREAKS = tag_names(
    "address article blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li "
    "main nav ol p pre section table tbody td tfoot th thead tr ul"
)
INLINE = tag_names(
    "a abbr b big bdi bdo cite code del dfn em font i img ins kbd mark q s samp small span strike strong sub sup tt u "
    "var wbr"
)


# Codes in two parts, which may cross elements: XLIFF 1.2, XLIFF 2 and TMX name the same thing by these attributes.
BEGIN = {"bpt": "bpt", "bx": "bx", "sc": "sc", "sm": "sm"}
END = {"ept": "bpt", "ex": "bx", "ec": "sc", "em": "sm"}
_REFERENCES = ("startRef", "rid", "i", "id")


@dataclass
class Content:
    """Literal strings and blocks; each block is a unit of the document."""

    parts: list[str | Block]
    first: int  # of the units of a document that its blocks are
    existing: str = ""  # the translation that the document has

    @property
    def blocks(self) -> list[Block]:
        return [part for part in self.parts if isinstance(part, Block)]

    def own(self, outputs: Sequence[UnitTranslation | None]) -> Sequence[UnitTranslation | None]:
        """The outputs of its blocks, among those of a document."""
        return outputs[self.first : self.first + len(self.blocks)]

    def findings(self, outputs: Sequence[UnitTranslation | None]) -> list[Finding]:
        """What is doubtful about the outputs of its blocks."""
        return [finding for output in self.own(outputs) if output is not None for finding in output.findings]

    def written(self, outputs: Sequence[UnitTranslation | None]) -> tuple[str, str, float | None] | None:
        """Markup, text and least confidence with the outputs of a document; None: one of its blocks has none."""
        waiting = iter(self.own(outputs))
        markup, text, known = [], [], list[float | None]()
        for part in self.parts:
            if isinstance(part, str):
                markup.append(part)
                text.append(" ")
                continue
            output = next(waiting)
            if output is None:
                return None
            markup.append(output.markup)
            text.append(output.text)
            known.append(output.confidence)
        sure = [confidence for confidence in known if confidence is not None]
        return "".join(markup), "".join(text), min(sure) if len(sure) == len(known) and sure else None


def content_of(
    text: str, tokens: Sequence[XMLToken], around: Collection[str], first: int, preserve: bool = False
) -> Content:
    """The content of an element; elements with names in `around` have text inside. `first`: its first unit."""
    inline = list(inline_tokens(text, tokens, around))
    texts = "".join(token.raw for token in inline if token.kind == "text")
    inner = unescape_xml(texts)
    cdata = any(token.name == "cdata" for token in inline)
    # The pipeline keeps the tags of ICU messages, which belong to single leaves.
    if not icu_messages(inner) and (cdata or any(_is_html(tag.of(inner)) for tag in _tags(inner))):
        bare = without_spans(inner, _tags(inner))
        unescape, escape = _html_escapes(texts, bare) if REFERENCE.search(bare) else _escapes(texts)
        pieces = _with_html(inline)
    else:
        (unescape, escape), pieces = _escapes(texts), iter(inline)
    parts: list[str | Block] = []
    waiting: list[Token] = []

    def close() -> None:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            block = block_of(waiting, unescape, escape)
            block.preserve = preserve
            parts.append(block)
        elif waiting:
            parts.append("".join(token.raw for token in waiting))
        waiting.clear()

    for token in pieces:
        if token.kind == "break":
            close()
            parts.append(token.raw)
        else:
            waiting.append(token)
    close()
    if inline and not any(isinstance(part, Block) for part in parts):
        parts = [block_of(inline, unescape, escape)]  # tags alone are a translation as well
    return Content(parts, first)


def percent(confidence: float) -> float:
    """A confidence as quality of a match: 100 is for what a person wrote."""
    return min(99.0, 100 * confidence)


def _escapes(texts: str) -> tuple[Escape, Escape]:
    """How text of the element is read and written. A bare line end is a line feed to every parser."""
    written = escape_like(texts, unescape_xml, XML, bare=">")
    ending = "\r\n" if "\r\n" in texts else "\n"
    return (
        lambda text: unescape_xml(text.replace("\r\n", "\n").replace("\r", "\n")),
        lambda text: written(without_forbidden(text)).replace("\n", ending),
    )


def _html_escapes(texts: str, bare: str) -> tuple[Escape, Escape]:
    """How HTML with references of its own is read and written inside XML: they are escaped twice."""
    read, write = _escapes(texts)
    inner = escape_like(bare, unescape_text, {"&": "&amp;", "<": "&lt;", ">": "&gt;"}, bare="&<>")
    return lambda text: unescape_text(read(text)), lambda text: write(inner(text))


def _tags(text: str) -> list[Protected]:
    return [span for span in protected_spans(text) if span.kind == "tag"]


def _is_html(tag: str) -> bool:
    """Whether a tag is one of HTML, and not such as <1> or <name>."""
    return tag_kind(tag)[1] in INLINE | BREAKS


def _with_html(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens with tags taken out of the texts; block tags of HTML inside other elements are points."""
    depth = 0  # of elements of XML
    for token in tokens:
        if token.kind != "text":
            depth += (token.kind == "open") - (token.kind == "close")
            yield token
            continue
        inner, place = unescape_xml(token.raw), 0
        for tag in _tags(inner):
            if tag.start > place:
                yield Token("text", "", escape_text(inner[place : tag.start]))
            kind, name = tag_kind(tag.of(inner))
            if name in BREAKS:
                kind = "void" if depth else "break"
            yield Token(kind, f"html {name}", escape_text(tag.of(inner)))
            place = tag.end
        if place < len(inner):
            yield Token("text", "", escape_text(inner[place:]))


# --- inline elements: some stand around text that is translated, all others are kept whole


def inline_tokens(text: str, tokens: Sequence[XMLToken], around: Collection[str]) -> Iterator[Token]:
    """The content of an element as texts and tags; elements with names in `around` have text inside."""
    opaque: list[XMLToken] = []  # open elements that are kept whole
    kind, name, start = "", "", 0
    for token in tokens:
        raw = text[token.start : token.end]
        if opaque:
            if token.kind == "open":
                opaque.append(token)
            elif token.kind == "close":
                opaque.pop()
                if not opaque:
                    yield Token(kind, name, text[start : token.end])
        elif token.kind == "text":
            yield Token("text", "", raw)
        elif token.kind == "cdata":
            yield Token("text", "cdata", escape_text(raw[9:-3]))
        elif token.kind == "open":
            attributes = attributes_of(raw)
            kept = local(token.name) not in around or attributes.get("translate") == "no"
            kept = kept or attributes.get("mtype") == "protected"
            if kept:
                opaque, start = [token], token.start
                kind, name = _code(token, attributes, "copied")
            else:
                yield Token("open", local(token.name), raw)
        elif token.kind == "empty":
            yield Token(*_code(token, attributes_of(raw), "void"), raw)
        else:
            yield Token("close" if token.kind == "close" else "copied", local(token.name), raw)


def _code(token: XMLToken, attributes: Mapping[str, str], kind: str) -> tuple[str, str]:
    """Kind and name of a code: the two parts of one have the same name."""
    name = local(token.name)
    part = BEGIN.get(name) or END.get(name)
    if part is None:
        return kind, name
    reference = next((attributes[key] for key in _REFERENCES if key in attributes), "")
    return "begin" if name in BEGIN else "end", f"{part} {reference}"
