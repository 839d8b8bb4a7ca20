"""Markdown: paragraphs, headings, list items, quotes and table cells are units; code and addresses are kept."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dragoman.documents.base import Edit, Output, PartsDocument, Reading
from dragoman.documents.html import parse_blocks
from dragoman.documents.html_tokens import VOID
from dragoman.documents.markup import Block, Token, block_of, unchanged

_FENCE = re.compile(r"[ \t]*(?:[>] ?|[-*+][ \t]+|\d{1,9}[.)][ \t]+)*(`{3,}|~{3,})")
_PREFIX = re.compile(
    r"[ \t]*(?:>[ \t]?)*[ \t]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$))*(?:\[[ xX]\][ \t]+)?(?:#{1,6}(?:[ \t]+|$))?"
)
_STARTS = re.compile(r"[ \t]*(?:[-*+](?:[ \t]|$)|\d{1,9}[.)](?:[ \t]|$)|>|#{1,6}(?:[ \t]|$)|=+\s*$|\||```|~~~)")
_NO_TEXT = re.compile(
    r"[ \t>]*(?:=+|-+|(?:[*][ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|:?-+:?(?:[ \t]*\|[ \t]*:?-+:?)*[ \t]*\|?"
    r"|\|(?:[ \t]*:?-+:?[ \t]*\|)+|\[(?!\^)[^\]]{1,999}\]:[ \t]+.*|\\?\$\$.*|:::.*|!!!.*|@.*)[ \t]*$"
)
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,99}\]:[ \t]*")
_HTML_BLOCK = re.compile(r"[ ]{0,3}<(?:/?[A-Za-z][A-Za-z0-9-]*[\s/>]|!--|\?|![A-Z])")
_INLINE = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<code>(?<!`)(?P<ticks>`{1,20})(?!`)[^`](?:.{0,4000}?[^`])??(?P=ticks)(?!`))"
    r"|(?P<auto><(?:https?|mailto|ftp):[^\s<>]{1,2000}>|\[\^[^\]\s]{1,99}\])"
    r"|(?P<tag></?(?P<name>[A-Za-z][A-Za-z0-9-]{0,30})(?:\s[^<>]{0,2000})?/?>)"
    r"|(?P<image>!?\[)"
    r"|(?P<target>\](?:\([^()\s]{0,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,2000})?"
    r"(?:[ \t]+(?:\"[^\"]{0,500}\"|'[^']{0,500}'))?\)|\[[^\[\]]{0,200}\]))"
    r"|(?P<mark>\*{1,3}|_{1,3}|~~)",
    re.DOTALL,
)


@dataclass
class _Line:
    start: int
    prefix: str
    body: str  # without prefix and line break

    @property
    def span(self) -> tuple[int, int]:
        """Where the text of the line begins and ends."""
        begin = self.start + len(self.prefix)
        return begin, begin + len(self.body.rstrip())


class MarkdownDocument(PartsDocument):
    """The texts of a Markdown file; a paragraph of several lines is wrapped again at the same width."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        self.wrapped: list[tuple[int, str]] = []  # width of each unit (0: one line) and prefix of its further lines
        self._paragraph: list[_Line] = []
        place, fence = 0, ""
        lines = self.text.splitlines(keepends=True)
        matter = bool(lines) and lines[0].strip() == "---" and any(line.strip() in ("---", "...") for line in lines[1:])
        html: int | None = None  # where a block of HTML began
        blank, listed = True, False
        for number, line in enumerate([*lines, ""]):
            body = line.rstrip("\r\n")
            if matter:
                matter = not number or body.strip() not in ("---", "...")
            elif fence:
                if body.strip(" \t>").startswith(fence) and not body.strip(" \t>`~"):
                    fence = ""
            elif html is not None:
                if not body.strip():
                    self._add_html(html, place)
                    html = None
            elif opened := _FENCE.match(body):
                self._flush()
                fence = opened[1]
            elif not body.strip():
                self._flush()
            elif not self._paragraph and _HTML_BLOCK.match(body):
                html = place
            elif blank and not listed and re.match(r" {4}|\t", body):
                pass  # code
            elif _NO_TEXT.match(body):
                self._flush()
            else:
                self._read(place, body, lines[number + 1 : number + 2])
                listed = bool(re.match(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]", body)) or (listed and body[:1] in " \t")
            blank = not body.strip() or (blank and bool(re.match(r" {4}|\t", body)))
            place += len(line)
        if html is not None:
            self._add_html(html, len(self.text))
        self._flush()

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
        if prefix.strip(" \t>") or heading:
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
        self.add(inline_markdown(text), lines[0].span[0], lines[-1].span[1])

    def _add_row(self, place: int, row: str) -> None:
        """The cells of a table."""
        for match in re.finditer(r"(?:\\.|`[^`]*`|[^|\\])+", row):
            if cell := match[0].strip():
                start = place + match.start() + match[0].index(cell)
                self.wrapped.append((0, ""))
                self.add(inline_markdown(cell), start, start + len(cell))

    def _add_html(self, start: int, end: int) -> None:
        for part in parse_blocks(self.text[start:end]):
            raw = part.raw if isinstance(part, Block) else part
            if isinstance(part, Block):
                self.wrapped.append((0, ""))
                self.add(part, start, start + len(raw))
            start += len(raw)

    def edits(self, index: int, output: Output) -> Iterable[Edit]:
        """See TextDocument."""
        width, prefix = self.wrapped[index]
        start, end = self.spans[index]
        ending = "\r\n" if "\r\n" in self.text[start : end + 2] else "\n"
        yield Edit(start, end, (ending + prefix).join(wrapped_lines(output.markup, width)) if width else output.markup)


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


def inline_markdown(text: str) -> Block:
    """A paragraph as a block: emphasis, links and tags are elements, code and addresses are kept whole."""
    return block_of(_paired(list(_inline_tokens(text))), unchanged, unchanged)


def _inline_tokens(text: str) -> Iterator[Token]:
    """Texts and marks; marks that can open or close have the kinds "open?", "close?" and "both?"."""
    place = 0
    for match in _INLINE.finditer(text):
        if match.start() > place:
            yield Token("text", "", text[place : match.start()])
        place = match.end()
        before, after = text[match.start() - 1 : match.start()] or " ", text[place : place + 1] or " "
        raw = match[0]
        if match["code"] or match["auto"]:
            yield Token("copied", "code", raw)
        elif match["tag"]:
            name = match["name"].lower()
            kind = "close" if raw[1] == "/" else "void" if raw.endswith("/>") or name in VOID else "open"
            yield Token(kind, f"<{name}", raw)
        elif match["image"]:
            yield Token("open?", "[", raw)
        elif match["target"]:
            yield Token("close?", "[", raw)
        elif match["mark"]:
            inside = raw[0] == "_" and before.isalnum() and after.isalnum()
            opens, closes = not after.isspace() and not inside, not before.isspace() and not inside
            opens, closes = (
                opens and not (raw[0] == "_" and before.isalnum()),
                closes and not (raw[0] == "_" and after.isalnum()),
            )
            kind = "both?" if opens and closes else "open?" if opens else "close?" if closes else "text"
            yield Token(kind, raw, raw)
        else:
            yield Token("text", "", raw)
    if place < len(text):
        yield Token("text", "", text[place:])


def _paired(tokens: list[Token]) -> list[Token]:
    """Marks with a partner become tags, all others are text."""
    out = list(tokens)
    waiting: list[int] = []  # marks that may still be closed
    counts: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind in ("close?", "both?") and counts.get(token.name):
            while True:
                opened = waiting.pop()
                counts[tokens[opened].name] -= 1
                if tokens[opened].name == token.name:
                    break
                out[opened] = Token("text", "", tokens[opened].raw)
            out[opened] = Token("open", token.name, tokens[opened].raw)
            out[index] = Token("close", token.name, token.raw)
        elif token.kind in ("open?", "both?"):
            waiting.append(index)
            counts[token.name] = counts.get(token.name, 0) + 1
        elif token.kind == "close?":
            out[index] = Token("text", "", token.raw)
    for index in waiting:
        out[index] = Token("text", "", tokens[index].raw)
    return out
