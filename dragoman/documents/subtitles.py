"""Subtitles (SRT, WebVTT): the lines of one cue are one unit, cut again into lines of the same shares."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.documents.base import Edit, PartsDocument, Reading, UnitTranslation
from dragoman.documents.html_tokens import unescape_text
from dragoman.documents.references import MARKUP, escape_like
from dragoman.inference.segments import Block, Escape, Token, block_of, unchanged

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_TIMING = re.compile(r"[ \t]*\d+(?::\d+){1,2}(?:[.,:]\d+)?[ \t]*-->[ \t]*\d")
_NUMBER = re.compile(r"\s*\d+\s*")
_DIALOGUE = re.compile(r"(?:<[^<>]*>|\s)*[-–—]\s*\S")  # a line of another speaker
# Scripts without spaces between words: lines are joined without one, and may be cut between any two characters.
_WIDE = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60"
_UNSPACED = f"(?<=[{_WIDE}])(?=[{_WIDE}])"  # compiled when it is first needed, which takes 10 ms; so is _CUT
_TAG = r"</?[A-Za-z][^<>]*>|<\d[^<>]*>"
_WEBVTT_TAG = re.compile(rf"{_TAG}|</?[^\s<>]*>|<\.[^<>]*>")  # WebVTT shows no tag, a known one or not
_SRT_TAG = re.compile(r"</?(?:b|i|u|s|em|strong|font|span|c|v|ruby|rt|br)(?:[\s./][^<>]*)?/?>|\{\\[^{}\n]*\}", re.I)
_TAG_NAME = re.compile(r"</?([A-Za-z]*)")
_CUT = rf"<[^<>]*>|(\s+)|(?<=[{_WIDE}])()(?=[{_WIDE}<])"


class _Group(NamedTuple):
    """Lines of a cue that are translated together: their texts, and what stands between them."""

    lines: list[str]
    between: list[str]

    @property
    def text(self) -> str:
        joined = [joiner(left, right) + right for left, right in pairwise(self.lines)]
        return "".join([self.lines[0], *joined])


def joiner(left: str, right: str) -> str:
    return "" if re.compile(_UNSPACED).match(left[-1:] + right[:1], 1) else " "


class SRTDocument(PartsDocument):
    """Cues with their numbers and times. A line of another speaker is a text of its own."""

    tag = _SRT_TAG
    unescape: Escape = staticmethod(unchanged)

    def escape_of(self, raw: str) -> Escape:
        return unchanged

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        for start, end in self._cues():
            self.add(None, start, end)
        if not (self.units or self._may_be_empty() or any(map(_TIMING.match, self._lines_of_file()))):
            lines = list(islice(self._lines_of_file(), 1_000))
            first = next((number for number, line in enumerate(lines, 1) if not _NUMBER.fullmatch(line or "0")), 1)
            raise DataError(
                f"document:{first}: found {lines[first - 1].strip()[:40]!r} and no line with times in the whole file, "
                "expected cues, each with a line such as 00:00:01,000 --> 00:00:02,500"
            )

    def _lines_of_file(self) -> Iterator[str]:
        return (match[1] for match in _LINE.finditer(self.text))

    def _cues(self) -> Iterator[tuple[int, int]]:
        """Where the text of each cue begins and ends."""
        reading, first = False, -1  # whether text of a cue may follow; where the text began
        last = end = before = 0  # where the last line begins and ends, and where the line before it ended
        for match in _LINE.finditer(self.text):
            line = match[1]
            timing = self._is_timing(line)
            if (
                timing and first >= 0 and _NUMBER.fullmatch(self.text, last, end)
            ):  # of the next cue, after no blank line
                first, end = first if last > first else -1, before
            if timing or not self._is_text(line):
                if first >= 0:
                    yield first, end
                reading, first = _TIMING.match(line) is not None, -1
            elif reading and (text := line.strip()):
                last, before = match.start() + line.index(text), end
                end = last + len(text)
                first = last if first < 0 else first
        if first >= 0:
            yield first, end

    def _may_be_empty(self) -> bool:
        """Whether a file without cues is a valid one."""
        return not self.text.strip()

    def _is_timing(self, line: str) -> bool:
        return _TIMING.match(line) is not None

    def _is_text(self, line: str) -> bool:
        return bool(line.strip())

    def _groups(self, start: int, end: int) -> tuple[list[_Group], list[str]]:
        """The lines of the cue between two characters in groups, and what stands between the groups."""
        groups: list[_Group] = []
        after: list[str] = []
        place = start  # the end of the line before
        for match in _LINE.finditer(self.text, start, end):
            if not (line := match[1].strip()):
                continue
            first = match.start(1) + match[1].index(line)
            between, place = self.text[place:first], first + len(line)
            if groups and not _DIALOGUE.match(line):
                groups[-1].lines.append(line)
                groups[-1].between.append(between)
            else:
                after += [between] * bool(groups)
                groups.append(_Group([line], []))
        return groups, after

    def block_at(self, index: int, start: int, end: int) -> Block:
        raw = "\n".join(group.text for group in self._groups(start, end)[0])
        return block_of(self._tokens(raw), self.unescape, self.escape_of(raw))

    def _tokens(self, raw: str) -> Iterator[Token]:
        place = 0
        for match in self.tag.finditer(raw):
            if match.start() > place:
                yield Token("text", "", raw[place : match.start()])
            name = _TAG_NAME.match(match[0])
            if name is None or not name[1] or name[1].lower() == "br" or match[0].endswith("/>"):
                yield Token("void", "", match[0])
            else:
                yield Token("close" if match[0].startswith("</") else "open", name[1].lower(), match[0])
            place = match.end()
        if place < len(raw):
            yield Token("text", "", raw[place:])

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        groups, after = self._groups(*self.span(index))
        texts = output.markup.split("\n")
        if len(texts) != len(groups):  # the model wrote a line break of its own
            whole = _Group([line for group in groups for line in group.lines], [])
            for number, group in enumerate(groups):
                whole.between.extend([*group.between, *after[number : number + 1]])
            groups, after, texts = [whole], [], [" ".join(texts)]
        parts = []
        for number, (group, text) in enumerate(zip(groups, texts, strict=True)):
            parts += [cut_lines(text, group), *after[number : number + 1]]
        yield Edit(*self.span(index), "".join(parts))


class WebVTTDocument(SRTDocument):
    """Cues of WebVTT, where & and < are escaped and every other < begins a tag."""

    tag = _WEBVTT_TAG
    unescape: Escape = staticmethod(unescape_text)

    def escape_of(self, raw: str) -> Escape:
        return escape_like(self.tag.sub("", raw), self.unescape, MARKUP, bare="&<>")

    def _may_be_empty(self) -> bool:
        return self.text.startswith("WEBVTT") or super()._may_be_empty()

    def _is_timing(self, line: str) -> bool:
        return "-->" in line  # ends the text of a cue, also where what follows is no valid cue

    def _is_text(self, line: str) -> bool:
        return bool(line)  # white space ends no cue


def cut_lines(text: str, group: _Group) -> str:
    """A text in as many lines as a group has, each with about the share of the text that it had. Tags stay whole."""
    if not group.between:
        return text
    ends, visible = list[float](), len(_without_tags(group.lines[0]))  # where lines ended, in characters without tags
    for left, right in pairwise(group.lines):
        space = len(joiner(left, right))
        ends.append(visible + space / 2)
        visible += space + len(_without_tags(right))
    cuts, tags = list[tuple[float, int, int]](), 0  # place without tags, start and end of what a line break may replace
    for match in re.finditer(_CUT, text):
        start, end = match.span()
        if match[1] is None and match[2] is None:
            tags += end - start
        elif start > 0 and end < len(text):
            cuts.append(((start + end) / 2 - tags, start, end))
    scale = (len(text) - tags) / max(1, visible)
    parts, place, first = [], 0, 0
    for number, (end_of_line, between) in enumerate(zip(ends, group.between, strict=True)):
        last = max(first + 1, len(cuts) - (len(ends) - number - 1))  # leave a cut for each further line
        if first >= len(cuts):
            break
        wanted = end_of_line * scale
        after = bisect_left(cuts, (wanted, 0, 0), first, min(last, len(cuts)))
        nearest = [cut for cut in (after - 1, after) if first <= cut < min(last, len(cuts))]
        best = min(nearest, key=lambda cut: abs(cuts[cut][0] - wanted))
        _, start, end = cuts[best]
        parts += [text[place:start], between]
        place, first = end, best + 1
    return "".join([*parts, text[place:]])


def _without_tags(text: str) -> str:
    return re.sub(r"<[^<>]*>", "", text)
