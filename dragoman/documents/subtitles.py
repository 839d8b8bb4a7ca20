"""Subtitles (SRT, WebVTT): the lines of one cue are one unit, cut again into as many lines of about equal length."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.documents.base import Edit, Output, PartsDocument, Reading
from dragoman.documents.html import INLINE, tokens_of
from dragoman.documents.markup import Token, block_of, escape_text, unchanged
from dragoman.documents.xml import unescape_xml

_CUE = re.compile(r"^\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->")
_INLINE = INLINE | {"c", "v", "lang", "ruby", "rt"}


class SubtitleDocument(PartsDocument):
    """Cues with their numbers and times; only WebVTT escapes & and <."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        escaped = self.text.lstrip().startswith("WEBVTT")
        self.lines: list[int] = []  # of each cue
        place, cue = 0, list[tuple[int, int]]()  # lines of the cue that is read
        inside = False
        for line in [*self.text.splitlines(keepends=True), ""]:
            if inside and line.strip():
                cue.append((place, place + len(line.rstrip("\r\n"))))
            else:
                self._add_cue(cue, escaped)
                cue = []
                inside = bool(_CUE.match(line))
            place += len(line)

    def _add_cue(self, cue: list[tuple[int, int]], escaped: bool) -> None:
        raw = " ".join(self.text[start:end].strip() for start, end in cue)
        if raw.strip():
            tokens = [
                token._replace(name=name)
                if (name := token.name.partition(".")[0]) in _INLINE  # <c.class> ends with </c>
                else Token("text", "", token.raw)
                for token in tokens_of(raw)
            ]
            block = block_of(tokens, *((unescape_xml, escape_text) if escaped else (unchanged, unchanged)))
            self.add(block, cue[0][0], cue[-1][1])
            self.lines.append(len(cue))

    def edits(self, index: int, output: Output) -> Iterable[Edit]:
        """See TextDocument."""
        start, end = self.spans[index]
        ending = "\r\n" if "\r\n" in self.text[start : end + 2] else "\n"
        yield Edit(start, end, ending.join(balanced_lines(output.markup, self.lines[index])))


def balanced_lines(text: str, count: int) -> list[str]:
    """A text in so many lines of about equal length; tags and words stay whole."""
    words = re.findall(r"(?:<[^<>]*>|\S)+", text)
    lines: list[list[str]] = [[]]
    length, share = 0, sum(map(len, words)) / max(1, count)
    for word in words:
        if lines[-1] and len(lines) < count and length + len(word) / 2 > share:
            lines.append([])
            length = 0
        lines[-1].append(word)
        length += len(word)
    return [" ".join(line) for line in lines]
