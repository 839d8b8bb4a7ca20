"""Character references: a translation is escaped as its source was, so that what nobody translated keeps its bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import repeat

from dragoman.inference.segments import Escape

REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});")
# XML 1.0 allows neither control characters nor half characters, escaped or not.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
XML = {**MARKUP, "\r": "&#13;"}  # a parser reads a bare carriage return as a line feed

_REQUIRED = {"&": r"&(?!\s)", "<": r"<(?!\s)", ">": r"(?<=--|\]\])>"}  # where even a bare one must be escaped


def escape_like(source: str, unescape: Escape, needed: Mapping[str, str], bare: str) -> Escape:
    """An escape that writes characters the way `source` does: as the reference it has for them, else as `needed` says.

    A character of `bare` stays bare where it was, if no markup begins or ends with it. Where a source writes a
    character in several ways, a text with as many of them has the same ways in the same order; else all are references.
    """
    ways: dict[str, list[str]] = {}  # how the source writes a character, in order
    for match in re.finditer(rf"{REFERENCE.pattern}|[{re.escape(bare)}]", source):
        character = unescape(match[0]) if len(match[0]) > 1 else match[0]
        if len(character) == 1:
            ways.setdefault(character, []).append(match[0])
    references = {character: next((way for way in used if way != character), "") for character, used in ways.items()}
    written = {character: reference or needed[character] for character, reference in {**needed, **references}.items()}
    pattern = re.compile("|".join(map(re.escape, written)))
    required = re.compile("|".join(_REQUIRED[character] for character in bare))

    def escape(text: str) -> str:
        counts = Counter(pattern.findall(text))
        left = {
            character: iter(used) if counts[character] == len(used) else repeat(used[0])
            for character, used in ways.items()
            if counts[character] == len(used) or len({*used}) == 1
        }

        def way(match: re.Match[str]) -> str:
            character = match[0]
            chosen = next(left[character]) if character in left else written[character]
            unsafe = chosen == character and required.match(text, match.start())
            return written[character] if unsafe else chosen

        return pattern.sub(way, text)

    return escape


def without_forbidden(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return _NO_XML.sub("", text)
