"""Character references: a translation is escaped as its source was, so that what nobody translated keeps its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.documents.markup import Escape

REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});")
# XML 1.0 allows neither control characters nor half characters, escaped or not.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
XML = {**MARKUP, "\r": "&#13;"}  # a parser reads a bare carriage return as a line feed


def escape_like(source: str, unescape: Escape, needed: Mapping[str, str], bare: str = "") -> Escape:
    """An escape that writes characters the way `source` does: as the reference it has for them, else as `needed` says.

    A character of `bare` stays bare if the source has it bare only, and no markup begins or ends with it.
    """
    references = {unescape(reference): reference for reference in REFERENCE.findall(source)}
    written = {**needed, **{character: name for character, name in references.items() if len(character) == 1}}
    without = REFERENCE.sub("", source)
    required = {"&": r"&(?!\s)", "<": r"<(?!\s)", ">": r"(?<=--)>"}  # where even a bare one must be escaped
    kept = {character for character in bare if character in without and character not in references}
    pattern = re.compile("|".join(required[one] if one in kept else re.escape(one) for one in written))
    return lambda text: pattern.sub(lambda match: written[match[0]], text)


def without_forbidden(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return _NO_XML.sub("", text)
