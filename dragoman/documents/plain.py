"""Plain text: every line is a unit."""

from __future__ import annotations

import re

from dragoman.documents.base import PartsDocument, Reading
from dragoman.documents.markup import Block, unchanged


class PlainDocument(PartsDocument):
    """The lines of a text; white space around them stays."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        for match in re.finditer(r"[^\s](?:[^\r\n]*[^\s])?", self.text):
            self.add(Block(match[0], escape=unchanged), *match.span())
