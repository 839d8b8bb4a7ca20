"""HTML pages as documents."""

from __future__ import annotations

from dragoman.documents.base import PartsDocument, Reading, declared_encoding
from dragoman.documents.html import parse_blocks
from dragoman.documents.markup import Block


class HTMLDocument(PartsDocument):
    """The blocks of a page; their tags, scripts, code and translate="no" stay."""

    escape_unknown = True

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading, declared_encoding(data))
        place = 0
        for part in parse_blocks(self.text):
            size = len(part.raw if isinstance(part, Block) else part)
            if isinstance(part, Block):
                self.add(part, place, place + size)
            place += size
