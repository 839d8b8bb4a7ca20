"""HTML pages as documents: blocks of text with inline tags, and attributes that people read.

Scripts, styles, code, comments and translate="no" are copied.
"""

from __future__ import annotations

import bisect
import html
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dragoman.data import same_language
from dragoman.documents.base import Edit, PartsDocument, Reading, UnitTranslation, declared_encoding, splice
from dragoman.documents.html_tokens import attributes_of_tag, html_tokens, tag_names, unescape_attribute, unescape_text
from dragoman.inference.segments import Block, Token, block_of

READABLE = frozenset({"alt", "title", "placeholder", "aria-label"})
SUMMARIES = frozenset({"description", "og:description", "og:title", "twitter:description", "twitter:title"})
LABELS = frozenset({"lang", "xml:lang"})
INLINE = tag_names(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark math nobr q rb rp rt rtc "
    "ruby s samp small span strike strong sub sup time tt u var wbr"
)
_FOREIGN = re.compile("<(?:svg|math)", re.IGNORECASE)
# Code and what only says how its neighbour sounds: a translation has other sounds.
COPIED = tag_names(
    "code kbd math noscript pre rp rt rtc samp script style svg template textarea var xmp iframe noembed noframes"
)


def tokens_of(page: str, xml: bool = False) -> list[Token]:
    """The page cut into tags, copied stretches and texts; their `raw` joined is the page."""
    tokens = html_tokens(page, xml)
    ends = _copied_ends(tokens)
    if not ends:
        return tokens
    kept: list[Token] = []
    index = 0
    while index < len(tokens):
        if index in ends:
            whole = "".join(part.raw for part in tokens[index : ends[index] + 1])
            kept.append(Token("copied", tokens[index].name, whole))
            index = ends[index]
        else:
            kept.append(tokens[index])
        index += 1
    return kept


def _stays(token: Token) -> bool:
    """Whether a tag says that its content is not translated."""
    if "translate" not in token.raw.lower():
        return False
    attributes = {attribute.name: attribute.value for attribute in attributes_of_tag(token.raw)}
    return attributes.get("translate", "").lower() == "no" or "notranslate" in attributes.get("class", "").split()


def readable_attributes(token: Token) -> Iterator[tuple[int, int]]:
    """Where in a tag the texts are that people read: descriptions of images, tooltips, placeholders, summaries."""
    if (token.kind not in ("open", "void") and token.name != "textarea") or _stays(token):
        return
    attributes = attributes_of_tag(token.raw)
    about = {attribute.name: attribute.value.strip().lower() for attribute in attributes}
    described = token.name == "meta" and (about.get("name") or about.get("property")) in SUMMARIES
    for attribute in attributes:
        if not (attribute.quote and any(map(str.isalpha, attribute.value))):
            continue  # without quotes there is no room for a text
        if attribute.name in READABLE or (described and attribute.name == "content"):
            yield attribute.start, attribute.end


def _copied_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """The index of the closing tag of every element that is copied."""
    waiting: dict[str, array[int]] = {}
    ends: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            waiting.setdefault(token.name, array("I")).append(index)
        elif token.kind == "close" and waiting.get(token.name):
            first = waiting[token.name].pop()
            if token.name in COPIED or _stays(tokens[first]):
                ends[first] = index
    return ends


def parse_blocks(page: str, xml: bool = False) -> list[Block | str]:
    """The blocks of a page, and between them the tags and other stretches to copy."""
    out: list[Block | str] = []
    waiting: list[Token] = []

    def flush() -> None:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            out.append(block_of(waiting, unescape_text))
        else:
            out.extend(token.raw for token in waiting)
        waiting.clear()

    for token in tokens_of(page, xml):
        if token.kind == "text" or token.name in INLINE or (token.kind == "copied" and not token.name):
            waiting.append(token)
        else:
            flush()
            out.append(token.raw)
    flush()
    return out


class Stretch(NamedTuple):
    """A stretch of a page that people read: a block, or the value of an attribute inside the tag at `tag`."""

    start: int
    end: int
    tag: tuple[int, int] | None = None
    block: Block | None = None  # that its characters alone do not give


def stretches(page: str, tokens: Sequence[Token], attributes: bool = True) -> Iterator[Stretch]:
    """The blocks of a page and the readable attributes of its tags, in order of their starts."""
    foreign = _FOREIGN.search(page) is not None
    waiting: list[Token] = []  # of a block
    values = array("I")  # of its tags: start and end of each, and of the tag
    start = place = 0

    def block() -> Iterator[Stretch]:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            # Text of a <title> may look like a tag, and in SVG a slash closes one: read alone, both are different.
            alone = not foreign and not any(token.kind == "text" and "<" in token.raw for token in waiting)
            yield Stretch(start, place, None, None if alone else block_of(waiting, unescape_text))
        for index in range(0, len(values), 4):
            yield Stretch(values[index], values[index + 1], (values[index + 2], values[index + 3]))

    for token in tokens:
        inside = token.kind == "text" or token.name in INLINE or (token.kind == "copied" and not token.name)
        if not inside or not waiting:
            yield from block()
            waiting, values, start = [], array("I"), place
        if inside:
            waiting.append(token)
        for first, last in readable_attributes(token) if attributes else ():
            values.extend((place + first, place + last, place, place + len(token.raw)))
        place += len(token.raw)
    yield from block()


def block_of_stretch(raw: str, xml: bool = False) -> Block:
    """The block of a stretch of a page that is one by itself."""
    return block_of(tokens_of(raw, xml), unescape_text)


def language_of_page(tokens: Sequence[Token]) -> tuple[Token | None, str]:
    """The tag <html> and the language that it names."""
    root = next((token for token in tokens if token.name == "html" and token.kind == "open"), None)
    return root, next((own.value for own in attributes_of_tag(root.raw) if own.name in LABELS), "") if root else ""


def relabelled(page: str, language: str, xml: bool = False) -> str:
    """A translated page whose <html> names its language, if it named one, and so do elements in the former language."""
    tokens = tokens_of(page, xml)
    root, former = language_of_page(tokens)
    edits, place = list[Edit](), 0
    for token in tokens if former else ():
        if token.kind in ("open", "void") and "lang" in token.raw.lower():
            for label in attributes_of_tag(token.raw):
                same = token is root or same_language(label.value, former)
                if label.name in LABELS and same and not same_language(label.value, language):
                    edits.append(Edit(place + label.start, place + label.end, language))
        place += len(token.raw)
    return splice(page, edits)


class ReadableTag(NamedTuple):
    """A tag with attributes that people read."""

    end: int
    attributes: dict[int, tuple[int, int]]  # unit → where in the tag its value is


class HTMLDocument(PartsDocument):
    """The blocks of a page, and `alt`, `title` and other texts of its tags; scripts, code and translate="no" stay."""

    escape_unknown = True
    xml = False

    def __init__(self, data: bytes, reading: Reading) -> None:
        # Browsers read a page that names no encoding as windows-1252: what is not ASCII is written as references.
        unnamed = "ascii" if data.isascii() and not self.xml else ""
        super().__init__(data, reading, declared_encoding(data) or unnamed)
        self._tags = array("I")  # of each unit: where the tag begins and ends whose value it is; two zeros: of none
        tokens = tokens_of(self.text, self.xml)
        if not reading.source and (named := language_of_page(tokens)[1]):
            self.sources = [named]  # pages are often named after their template: a caller knows better
        for stretch in stretches(self.text, tokens):
            self._tags.extend(stretch.tag or (0, 0))
            self.add(stretch.block, stretch.start, stretch.end)

    def block_at(self, index: int, start: int, end: int) -> Block:
        raw = self.text[start:end]
        if self._tags[2 * index + 1]:
            return Block(unescape_attribute(raw), escape=html.escape, raw=raw)
        return block_of_stretch(raw, self.xml)

    def _readable_tags(self) -> dict[int, ReadableTag]:
        """The tags with attributes that people read, by their starts."""
        tags: dict[int, ReadableTag] = {}
        for index in range(len(self.units)):
            first, last = self._tags[2 * index : 2 * index + 2]
            if last:
                start, end = self.span(index)
                tags.setdefault(first, ReadableTag(last, {})).attributes[index] = (start - first, end - first)
        return tags

    def render(self, outputs: Sequence[UnitTranslation | None]) -> bytes:
        tags = self._readable_tags()
        changed: dict[int, str] = {}  # start of a tag → the tag with the translations of its attributes
        for start, tag in tags.items():
            translations = ((place, outputs[index]) for index, place in tag.attributes.items())
            if edits := [Edit(*place, output.markup) for place, output in translations if output is not None]:
                changed[start] = splice(self.text[start : tag.end], edits)
        starts, edits = sorted(changed), []
        for index, output in enumerate(outputs):
            if output is None or self._tags[2 * index + 1]:
                continue
            start, end = self.span(index)
            # A tag inside a translated block is wherever the block has it now.
            inside = starts[bisect.bisect_left(starts, start) : bisect.bisect_left(starts, end)]
            new_tags = {self.text[tag : tags[tag].end]: changed.pop(tag) for tag in inside}
            edits.append(Edit(start, end, with_tags(output.markup, new_tags, self.xml) if new_tags else output.markup))
        edits += [Edit(start, tags[start].end, new) for start, new in changed.items()]
        page = splice(self.text, edits)
        if any(output is not None for output in outputs) and self.reading.target:
            page = relabelled(page, self.reading.target, self.xml)
        return self.file.encode(page, self.escape_unknown)


class XHTMLDocument(HTMLDocument):
    """A page that is XML: a slash closes any tag, and scripts are text as any other."""

    xml = True


def with_tags(markup: str, tags: Mapping[str, str], xml: bool) -> str:
    """Text with some of its tags replaced; comments and code stay."""
    tokens = tokens_of(markup, xml)
    return "".join(tags.get(token.raw, token.raw) if token.kind in ("open", "void") else token.raw for token in tokens)
