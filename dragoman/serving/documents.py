"""Files that the server translates: plain text, HTML, subtitles."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import PurePath

from dragoman.errors import DataError

Translate = Callable[[list[str]], Awaitable[list[str]]]
_CUE = re.compile(r"^\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->")


async def translate_document(name: str, data: bytes, text: Translate, html: Translate) -> bytes:
    """The file in the other language; `text` and `html` translate texts and HTML documents."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        raise DataError(f"file: found {suffix or 'no suffix'!r}, expected one of {', '.join(FORMATS)}")
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"file: found a byte at {error.start:,} that is not UTF-8, expected UTF-8 text") from None
    if suffix in (".html", ".htm", ".xhtml"):
        (translated,) = await html([content])
    elif suffix in (".srt", ".vtt"):
        translated = await _subtitles(content, html)
    else:
        (translated,) = await text([content])
    return translated.encode()


FORMATS = (".txt", ".md", ".html", ".htm", ".xhtml", ".srt", ".vtt")


async def _subtitles(content: str, html: Translate) -> str:
    """Subtitles with their numbers and times; the lines of one cue are one text, cut again where it was."""
    lines = content.split("\n")
    cues: list[tuple[int, int]] = []  # first line and end of the text of each cue
    index = 0
    while index < len(lines):
        if _CUE.match(lines[index]):
            end = index + 1
            while end < len(lines) and lines[end].strip():
                end += 1
            cues.append((index + 1, end))
            index = end
        index += 1
    texts = [" ".join(line.strip() for line in lines[first:end]) for first, end in cues]
    outputs = await html(texts)
    for (first, end), output in reversed(list(zip(cues, outputs, strict=True))):
        ending = "\r" if any(line.endswith("\r") for line in lines[first:end]) else ""
        lines[first:end] = [line + ending for line in balanced_lines(output, end - first)] if end > first else []
    return "\n".join(lines)


def balanced_lines(text: str, count: int) -> list[str]:
    """A text in so many lines of about equal length; tags and words stay whole."""
    words = re.findall(r"(?:<[^<>]*>|\S)+", text)
    lines: list[list[str]] = [[]]
    share = sum(map(len, words)) / max(1, count)
    for word in words:
        if lines[-1] and len(lines) < count and sum(map(len, lines[-1])) + len(word) / 2 > share:
            lines.append([])
        lines[-1].append(word)
    return [" ".join(line) for line in lines]
