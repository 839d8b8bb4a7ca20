"""Markdown: paragraphs, headings, list items, quotes and table cells are units; code and addresses are kept."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.documents.base import Edit, PartsDocument, Reading, UnitTranslation
from dragoman.documents.html import placed_blocks
from dragoman.documents.markdown_inline import DEFINITION, inline_markdown, label_of

_FENCE = re.compile(r"[ \t]*(?:[>] ?|[-*+][ \t]+|\d{1,9}[.)][ \t]+)*(`{3,}|~{3,}|\$\$(?=[ \t]*$))")
_ITEM = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]{1,4}|$))+")
_PREFIX = re.compile(
    r"[ \t]*(?:>[ \t]?)*[ \t]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$))*(?:\[[ xX]\][ \t]+)?(?:#{1,6}(?:[ \t]+|$))?"
)
_STARTS = re.compile(r"[ \t]*(?:[-*+](?:[ \t]|$)|\d{1,9}[.)](?:[ \t]|$)|>|#{1,6}(?:[ \t]|$)|=+\s*$|\||```|~~~)")
_NO_TEXT = re.compile(
    r"[ \t>]*(?:=+|-+|(?:[*][ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|:?-+:?(?:[ \t]*\|[ \t]*:?-+:?)*[ \t]*\|?"
    r"|\|(?:[ \t]*:?-+:?[ \t]*\|)+|\[(?!\^)[^\]]{1,999}\]:[ \t]+.*|\\?\$\$.*|:::.*|!!!.*|@.*)[ \t]*$"
)
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,99}\]:[ \t]*")
_BLOCKS = (
    "address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt"
    "|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu"
    "|menuitem|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr"
    "|track|ul"
)
# How a block of HTML begins, and what ends it: a line with this, or else (empty) an empty line.
_HTML_ENDS = tuple(
    (re.compile(rf" {{0,3}}<{begin}"), re.compile(end) if end else None)
    for begin, end in (
        (r"(?i:script|pre|style|textarea)(?=[\s>]|$)", "</(?i:script|pre|style|textarea)>"),
        ("!--", "-->"),
        (r"\?", r"\?>"),
        (r"!\[CDATA\[", r"\]\]>"),
        ("![A-Za-z]", ">"),
        (rf"/?(?i:{_BLOCKS})(?=[\s>]|/>|$)", ""),
        (r"""(?:/[A-Za-z][\w-]*|[A-Za-z][\w-]*(?:\s[^<>"']*(?:"[^"]*"[^<>"']*|'[^']*'[^<>"']*)*+)?)>[ \t]*$""", ""),
    )
)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_INDENT = re.compile(r"[ \t]*")


@dataclass
class _Line:
    start: int
    prefix: str
    body: str  # without prefix and line break

    @property
    def span(self) -> tuple[int, int]:
        begin = self.start + len(self.prefix)
        return begin, begin + len(self.body.rstrip())


class MarkdownDocument(PartsDocument):
    """The texts of a Markdown file; a paragraph of several lines is wrapped again at the same width."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        self.wrapped: list[tuple[int, str]] = []  # width of each unit (0: one line) and prefix of its further lines
        self._paragraph: list[_Line] = []
        place, fence = 0, ""
        lines = _LINE.findall(self.text)
        self.labels = {label_of(match[1]) for match in DEFINITION.finditer(self.text)}
        matter = bool(lines) and lines[0].strip() == "---" and any(line.strip() in ("---", "...") for line in lines[1:])
        html: int | None = None  # where a block of HTML began
        ending: re.Pattern[str] | None = None  # what ends it
        blank, depth = True, 0  # whether the line before was blank; how far the text of a list item is indented
        for number, line in enumerate([*lines, ""]):
            body = line.rstrip("\r\n")
            indent = len(_INDENT.match(body)[0].expandtabs(4))  # type: ignore[index]
            if matter:
                matter = not number or body.strip() not in ("---", "...")
            elif fence:
                if body.strip(" \t>").startswith(fence) and not body.strip(" \t>`~$"):
                    fence = ""
            elif html is not None:
                if ending.search(body) if ending else not body.strip():
                    self._add_html(html, place + len(line))
                    html = None
            elif (opened := _FENCE.match(body)) and indent < depth + 4:
                self._flush()
                fence = opened[1]
            elif not body.strip(" \t>"):
                self._flush()
            elif (begun := self._html_block(body)) is not None:
                self._flush()
                html, ending = place, begun[0]
                if ending and ending.search(body):
                    self._add_html(html, place + len(line))
                    html = None
            elif blank and indent >= depth + 4 and not self._paragraph:
                pass  # code
            elif _NO_TEXT.match(body):
                self._flush()
            else:
                self._read(place, body, lines[number + 1 : number + 2])
                if item := _ITEM.match(body):
                    depth = len(item[0].expandtabs(4))
                elif indent < depth and blank:
                    depth = 0
            blank = not body.strip(" \t>") or (blank and indent >= depth + 4)
            place += len(line)
        if html is not None:
            self._add_html(html, len(self.text))
        self._flush()

    def _html_block(self, body: str) -> tuple[re.Pattern[str] | None] | None:
        """What ends the block of HTML that begins with a line; None: none begins."""
        for begin, end in _HTML_ENDS[: -1 if self._paragraph else None]:  # a lone inline tag interrupts no paragraph
            if begin.match(body):
                return (end,)
        return None

    def _read(self, place: int, body: str, following: list[str]) -> None:
        prefix = _PREFIX.match(body)[0]  # type: ignore[index]
        if footnote := _FOOTNOTE.match(body, len(prefix)):
            prefix += footnote[0]
        line = _Line(place, prefix, body[len(prefix) :])
        ruled = bool(following) and "|" in body and _NO_TEXT.match(following[0]) is not None and "-" in following[0]
        if ruled or (body.lstrip().startswith("|") and body.rstrip().endswith("|")):
            self._flush()
            self._add_row(place, body)
            return
        heading = prefix.rstrip().endswith("#") and "#" in prefix
        deeper = self._paragraph and prefix.count(">") > self._paragraph[-1].prefix.count(">")
        if prefix.strip(" \t>") or heading or deeper:
            self._flush()
        self._paragraph.append(line)
        if heading:
            line.body = re.sub(r"[ \t]+#+[ \t]*$", "", line.body)
        if heading or body.endswith(("  ", "\\")):  # a hard line break
            line.body = line.body.removesuffix("\\")
            self._flush()

    def _flush(self) -> None:
        """End the paragraph that is read."""
        lines, self._paragraph = self._paragraph, []
        if not any(line.body.strip() for line in lines):
            return
        text = " ".join(line.body.strip() for line in lines)
        width = 0 if len(lines) == 1 else max(len(line.prefix + line.body.rstrip()) for line in lines)
        further = lines[1].prefix if len(lines) > 1 else ""
        indent = len(lines[0].prefix)
        self.wrapped.append((width - min(indent, width // 2), further) if width else (0, ""))
        self.add(inline_markdown(text, self.labels), lines[0].span[0], lines[-1].span[1])

    def _add_row(self, place: int, row: str) -> None:
        for match in re.finditer(r"(?:\\.|`[^`]*`|[^|\\])+", row):
            if cell := match[0].strip():
                start = place + match.start() + match[0].index(cell)
                self.wrapped.append((0, ""))
                self.add(inline_markdown(cell, self.labels, True), start, start + len(cell))

    def _add_html(self, start: int, end: int) -> None:
        for place, block in placed_blocks(self.text[start:end]):
            self.wrapped.append((0, ""))
            self.add(block, start + place, start + place + len(block.raw))

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        width, prefix = self.wrapped[index]
        start, end = self.spans[index]
        block = self.units[index].block
        if output.text == block.text:
            return
        markup = output.markup
        if (begin := _STARTS.match(markup)) and not _STARTS.match(block.raw):
            mark = re.search(r"[.)]|[^\d\s]", begin[0])
            markup = markup[: mark.start()] + "\\" + markup[mark.start() :] if mark else markup
        ending = "\r\n" if "\r\n" in self.text[start : end + 2] else "\n"
        yield Edit(start, end, (ending + prefix).join(wrapped_lines(markup, width)) if width else markup)


def wrapped_lines(text: str, width: int) -> list[str]:
    """A paragraph in lines; none begins with what Markdown would take for a list, a quote or a heading."""
    lines: list[str] = []
    kept = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\x00"), text)  # code stays on one line
    for part in textwrap.wrap(kept, max(20, width), break_long_words=False, break_on_hyphens=False):
        line = part.replace("\x00", " ")
        if lines and _STARTS.match(line):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return lines or [text]
