"""HTML pages as documents: blocks of text, and attributes that people read."""

from __future__ import annotations

import bisect
import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dragoman.documents.base import Edit, Output, PartsDocument, Reading, declared_encoding, splice
from dragoman.documents.html import placed_blocks, readable_attributes, tokens_of
from dragoman.documents.html_tokens import unescape_attribute
from dragoman.documents.markup import Block


class ReadableTag(NamedTuple):
    """A tag with attributes that people read."""

    start: int
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
        parts = [(start, start + len(block.raw), block) for start, block in placed_blocks(self.text, self.xml)]
        values: dict[int, tuple[int, int]] = {}  # start of a value → the tag that it is in
        place = 0
        for token in tokens_of(self.text, self.xml):
            for start, end in readable_attributes(token):
                value = token.raw[start:end]
                block = Block(unescape_attribute(value), escape=html.escape, raw=value)
                parts.append((place + start, place + end, block))
                values[place + start] = (place, place + len(token.raw))
            place += len(token.raw)
        self.tags: dict[int, ReadableTag] = {}
        for index, (start, end, block) in enumerate(sorted(parts, key=lambda part: part[:2])):
            self.add(block, start, end)
            if start in values:
                first, last = values[start]
                tag = self.tags.setdefault(first, ReadableTag(first, last, {}))
                tag.attributes[index] = (start - first, end - first)

    def render(self, outputs: Sequence[Output | None]) -> bytes:
        """A tag inside a translated block is wherever the block has it now."""
        changed = {start: new for start, tag in self.tags.items() if (new := self._tag(tag, outputs)) is not None}
        starts, attributes = sorted(changed), {index for tag in self.tags.values() for index in tag.attributes}
        edits = []
        for index, output in enumerate(outputs):
            if output is None or index in attributes:
                continue
            start, end = self.spans[index]
            inside = starts[bisect.bisect_left(starts, start) : bisect.bisect_left(starts, end)]
            new_tags = {self.text[tag : self.tags[tag].end]: changed.pop(tag) for tag in inside}
            edits.append(Edit(start, end, with_tags(output.markup, new_tags, self.xml) if new_tags else output.markup))
        edits += [Edit(start, self.tags[start].end, new) for start, new in changed.items()]
        return self.file.encode(splice(self.text, edits), self.escape_unknown)

    def _tag(self, tag: ReadableTag, outputs: Sequence[Output | None]) -> str | None:
        """A tag with the translations of its attributes; None: there are none."""
        found = ((place, outputs[index]) for index, place in tag.attributes.items())
        edits = [Edit(*place, output.markup) for place, output in found if output is not None]
        return splice(self.text[tag.start : tag.end], edits) if edits else None


class XHTMLDocument(HTMLDocument):
    """A page that is XML: a slash closes any tag, and scripts are text as any other."""

    xml = True


def with_tags(markup: str, tags: Mapping[str, str], xml: bool) -> str:
    """Text with some of its tags replaced; comments and code stay."""
    tokens = tokens_of(markup, xml)
    return "".join(tags.get(token.raw, token.raw) if token.kind in ("open", "void") else token.raw for token in tokens)
