"""Markdown: paragraphs, headings, list items, quotes and table cells are units; code and addresses are kept."""

from __future__ import annotations

import html
import re
import textwrap
import unicodedata
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

from dragoman.base import check_interrupted
from dragoman.documents.base import Edit, PartsDocument, Reading, UnitTranslation
from dragoman.documents.html import block_of_stretch, stretches, tokens_of
from dragoman.documents.html_tokens import VOID
from dragoman.inference.segments import Block, Token, block_of

# Possessive repetitions (*+, ++) give nothing back, so a long line takes no memory for it.
_FENCE = re.compile(r"[ \t]*(?:[>] ?|[-*+][ \t]+|\d{1,9}[.)][ \t]+)*+(`{3,}|~{3,}|\$\$(?=[ \t]*$))")
_ITEM = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]{1,4}|$))++")
_PREFIX = re.compile(
    r"[ \t]*(?:>[ \t]?)*+[ \t]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$))*+(?:\[[ xX]\][ \t]+)?(?:#{1,6}(?:[ \t]+|$))?"
)
_STARTS = re.compile(r"[ \t]*(?:[-*+](?:[ \t]|$)|\d{1,9}[.)](?:[ \t]|$)|>|#{1,6}(?:[ \t]|$)|=+\s*$|\||```|~~~)")
_NO_TEXT = re.compile(
    r"[ \t>]*(?:=+|-+|(?:[*][ \t]*){3,}+|(?:-[ \t]*){3,}+|(?:_[ \t]*){3,}+|:?-+:?(?:[ \t]*\|[ \t]*:?-+:?)*+[ \t]*\|?"
    r"|\|(?:[ \t]*:?-+:?[ \t]*\|)++|\[(?!\^)[^\]]{1,999}\]:[ \t]+.*|\\?\$\$.*|:::.*|!!!.*|@.*)[ \t]*$"
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


class _Line(NamedTuple):
    """A line of a paragraph."""

    prefix: str
    body: str  # without prefix and line break


PARAGRAPH, CELL, HTML = range(3)  # what a unit is


class MarkdownDocument(PartsDocument):
    """The texts of a Markdown file; a paragraph of several lines is wrapped again at the same width."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        self._kinds = array("B")  # of the units
        self._heads = array("I")  # where the line begins that a unit begins in
        self._head, self._start, self._end, self._quotes = -1, 0, 0, 0  # of the paragraph that is read; -1: none is
        place, fence = 0, ""
        self.labels = {label_of(match[1]) for match in DEFINITION.finditer(self.text)}
        matter = self._has_front_matter()
        html: int | None = None  # where a block of HTML began
        ending: re.Pattern[str] | None = None  # what ends it
        blank, depth = True, 0  # whether the line before was blank; how far the text of a list item is indented
        for number, (line, following) in enumerate(pairwise(chain(self._lines_from(0), ("", "")))):
            check_interrupted()
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
            elif blank and indent >= depth + 4 and self._head < 0:
                pass  # code
            elif _NO_TEXT.match(body):
                self._flush()
            else:
                self._read(place, body, following)
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
        for begin, end in _HTML_ENDS[: -1 if self._head >= 0 else None]:  # a lone inline tag interrupts no paragraph
            if begin.match(body):
                return (end,)
        return None

    def _lines_from(self, start: int) -> Iterator[str]:
        return (match[0] for match in _LINE.finditer(self.text, start))

    def _has_front_matter(self) -> bool:
        lines = self._lines_from(0)
        return next(lines, "").strip() == "---" and any(line.strip() in ("---", "...") for line in lines)

    def _read(self, place: int, body: str, following: str) -> None:
        prefix = prefix_of(body)
        ruled = "|" in body and "-" in following and _NO_TEXT.match(following) is not None
        if ruled or (body.lstrip().startswith("|") and body.rstrip().endswith("|")):
            self._flush()
            self._add_row(place, body)
            return
        heading = prefix.rstrip().endswith("#") and "#" in prefix
        if prefix.strip(" \t>") or heading or (self._head >= 0 and prefix.count(">") > self._quotes):
            self._flush()
        text = body[len(prefix) :]
        if heading:
            text = re.sub(r"[ \t]+#+[ \t]*$", "", text)
        broken = body.endswith(("  ", "\\"))  # a hard line break
        if heading or broken:
            text = text.removesuffix("\\")
        begin = place + len(prefix)
        if self._head < 0:
            self._head, self._start = place, begin
        if text.strip():
            self._end = begin + len(text.rstrip())
        self._quotes = prefix.count(">")
        if heading or broken:
            self._flush()

    def _flush(self) -> None:
        """End the paragraph that is read."""
        if self._end:
            self._add(PARAGRAPH, self._start, self._end, self._head)
        self._head, self._start, self._end, self._quotes = -1, 0, 0, 0

    def _add(self, kind: int, start: int, end: int, head: int = 0, block: Block | None = None) -> None:
        self._kinds.append(kind)
        self._heads.append(head)
        self.add(block, start, end)

    def _add_row(self, place: int, row: str) -> None:
        for match in re.finditer(r"(?:\\.|`[^`]*`|[^|\\])+", row):
            if cell := match[0].strip():
                start = place + match.start() + match[0].index(cell)
                self._add(CELL, start, start + len(cell))

    def _add_html(self, start: int, end: int) -> None:
        page = self.text[start:end]
        for stretch in stretches(page, tokens_of(page), attributes=False):
            self._add(HTML, start + stretch.start, start + stretch.end, block=stretch.block)

    def block_at(self, index: int, start: int, end: int) -> Block:
        if self._kinds[index] == HTML:
            return block_of_stretch(self.text[start:end])
        if self._kinds[index] == CELL:
            return inline_markdown(self.text[start:end], self.labels, True)
        text = " ".join(line.body.strip() for line in self._lines_of(index))
        return inline_markdown(text, self.labels)

    def _lines_of(self, index: int) -> list[_Line]:
        """The lines of a paragraph."""
        place, (_, end) = self._heads[index], self.span(index)
        lines: list[_Line] = []
        for line in self._lines_from(place):
            body = line.rstrip("\r\n")
            prefix = prefix_of(body)
            lines.append(_Line(prefix, body[len(prefix) : max(len(prefix), end - place)]))
            place += len(line)
            if place >= end:
                break
        return lines

    def _wrapped(self, index: int) -> tuple[int, str]:
        """The width of a unit (0: one line) and the prefix of its further lines."""
        lines = self._lines_of(index) if self._kinds[index] == PARAGRAPH else []
        if len(lines) < 2:
            return 0, ""
        width = max(len(line.prefix + line.body.rstrip()) for line in lines)
        return width - min(len(lines[0].prefix), width // 2), lines[1].prefix

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        block = self.units[index].block
        if output.text == block.text:
            return
        width, prefix = self._wrapped(index)
        start, end = self.span(index)
        markup = output.markup
        if (begin := _STARTS.match(markup)) and not _STARTS.match(block.raw):
            mark = re.search(r"[.)]|[^\d\s]", begin[0])
            markup = markup[: mark.start()] + "\\" + markup[mark.start() :] if mark else markup
        ending = "\r\n" if "\r\n" in self.text[start : end + 2] else "\n"
        yield Edit(start, end, (ending + prefix).join(wrapped_lines(markup, width)) if width else markup)


def prefix_of(body: str) -> str:
    """What stands before the text of a line: quotes, a mark of a list, a heading or a footnote."""
    prefix = _PREFIX.match(body)[0]  # type: ignore[index]
    footnote = _FOOTNOTE.match(body, len(prefix))
    return prefix + footnote[0] if footnote else prefix


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


# --- the inline part as CommonMark reads it: emphasis, links, code, tags; with deleted text and formulas

_ATTRIBUTE = r"""\s++[A-Za-z_:][\w.:-]*+(?:\s*+=\s*+(?:[^\s"'=<>`]++|'[^']*+'|"[^"]*+"))?+"""
_INLINE = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`++)"
    r"|(?P<auto><[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*+>|<[\w.!#$%&'*+/=?^`{|}~-]++@[\w.-]++>|\[\^[^\]\s]{1,99}\])"
    rf"|(?P<tag></(?P<close>[A-Za-z][A-Za-z0-9-]*+)\s*+>|<(?P<name>[A-Za-z][A-Za-z0-9-]*+)(?:{_ATTRIBUTE})*+\s*+/?>)"
    r"|(?P<comment><!--)"
    r"|(?P<math>\$\$?(?=[^\s$]))"
    r"|(?P<image>!?\[)"
    r"|(?P<target>\](?:\((?:<[^<>]{0,2000}>|[^()\s]{0,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,2000})*+)"
    r"(?:\s++(?:\"(?:\\.|[^\"\\]){0,500}\"|'(?:\\.|[^'\\]){0,500}'))?+\s*+\)|\[[^\[\]]{1,200}\]|\[\])?+)"
    r"|(?P<mark>\*++|_++|~~(?!~))",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\\([!-/:-@\[-`{-~])|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# What would be read as markup in a text: marks that may open or close, code, links, tags and references.
_SPECIAL = re.compile(
    r"\\(?=[!-/:-@\[-`{-~]|$)|(?<!\s)\*|\*(?!\s)|^\*|(?<![^\W_])_(?!\s)|(?<!\s)_(?![^\W_])|`|\](?=[(\[:])|\[(?=\^)|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w++;)|~(?=~)"
)
MAX_LABEL = 100  # tokens
DEFINITION = re.compile(r"^[ >]*\[((?:\\.|[^\[\]\\]){1,999})\]:[ \t]*\S", re.MULTILINE)


def unescape_markdown(text: str) -> str:
    """A text without backslashes before punctuation, and with its references resolved."""
    return _REFERENCE.sub(lambda match: match[1] or html.unescape(match[0]), text)


def escape_markdown(text: str) -> str:
    """A text with backslashes before what would be markup."""
    return _SPECIAL.sub(lambda match: "&amp;" if match[0] == "&" else "\\" + match[0], text)


def escape_punctuation(text: str) -> str:
    """A text with backslashes before all that may ever be markup."""
    return re.sub(r"[\\`*_\[\]<>&~!|]", r"\\\g<0>", text)


def escape_cell(text: str) -> str:
    return escape_markdown(text).replace("|", "\\|")


def label_of(text: str) -> str:
    """The label of a link, as labels are compared."""
    return re.sub(r"\s+", " ", text.strip()).casefold()


def inline_markdown(text: str, labels: Collection[str] = (), cell: bool = False) -> Block:
    """A paragraph as a block: emphasis, links and tags are elements, code and addresses are kept whole.

    `labels` are those with an address in the file: [label] alone is a link then.
    """

    def reads_as_meant(markup: str, output: str, left_out: Sequence[str]) -> bool:
        tags = Counter(token.raw for token in _Inline(text, labels).tokens if token.kind != "text")
        again = _Inline(markup, labels).tokens
        read = "".join(unescape_markdown(token.raw) for token in again if token.kind == "text")
        kept = tags - Counter(left_out)
        return kept == Counter(token.raw for token in again if token.kind != "text") and read.split() == output.split()

    block = block_of(
        _Inline(text, labels).tokens, unescape_markdown, escape_cell if cell else escape_markdown, filled="*_~"
    )
    block.check, block.careful = reads_as_meant, escape_punctuation
    return block


@dataclass(slots=True)
class _Run:
    """Marks of emphasis: some close what came before, some open what follows, the others are text."""

    place: int  # among the tokens
    mark: str
    left: int  # marks not yet used
    opens: bool
    closes: bool
    size: int
    closings: list[str] = field(default_factory=list)
    openings: list[str] = field(default_factory=list)  # the innermost first


class _Inline:
    """The tokens of a paragraph."""

    def __init__(self, text: str, labels: Collection[str]) -> None:
        self.text, self.labels = text, labels
        self.tokens: list[Token] = []
        self.runs: list[_Run] = []  # marks that may still be used
        self.brackets: list[tuple[int, int]] = []  # tokens of [ and ![, and how many runs came before
        self.linked = 0  # a [ before this token opens no link: it would have a link inside
        self.ticks: dict[int, list[int]] = {}  # places of backticks by their number
        for match in re.finditer("`+", text):
            self.ticks.setdefault(len(match[0]), []).append(match.start())
        self.done: dict[int, _Run] = {}  # marks by token
        self.endless: set[str] = set()  # marks that nothing closes from here on
        self._read()
        self._emphasis(0)
        self._write_marks()

    def _read(self) -> None:
        place = start = 0
        while match := _INLINE.search(self.text, place):
            place, end = match.end(), self._copied_end(match)
            if end == match.start():  # no markup: it stays in the text
                if match["ticks"] is None:
                    place = match.start() + 1
                continue
            if match.start() > start:
                self.tokens.append(Token("text", "", self.text[start : match.start()]))
            start = place = max(end, match.end())
            self._add(match, self.text[match.start() : place], end > match.end())
        if start < len(self.text):
            self.tokens.append(Token("text", "", self.text[start:]))

    def _copied_end(self, match: re.Match[str]) -> int:
        """Where code, a comment or a formula ends; the start of the match where it has no end."""
        if match["ticks"]:
            places = self.ticks[len(match[0])]
            index = bisect_left(places, match.end())
            return places[index] + len(match[0]) if index < len(places) else match.start()
        if match["comment"] or match["math"]:
            ending = re.compile("-->" if match["comment"] else rf"(?<=[^\s\\]){re.escape(match[0])}(?![0-9$])")
            end = None if match[0] in self.endless else ending.search(self.text, match.end())
            if end is None:
                self.endless.add(match[0])
            return end.end() if end else match.start()
        return match.end()

    def _add(self, match: re.Match[str], raw: str, copied: bool) -> None:
        before, after = self.text[match.start() - 1 : match.start()] or " ", self.text[match.end() :][:1] or " "
        if copied or match["auto"] or match["ticks"]:
            self.tokens.append(Token("copied", "code", raw))
        elif match["tag"]:
            name = (match["name"] or match["close"]).lower()
            kind = "close" if match["close"] else "void" if raw.endswith("/>") or name in VOID else "open"
            self.tokens.append(Token(kind, f"<{name}", raw))
        elif match["image"]:
            self.brackets.append((len(self.tokens), len(self.runs)))
            self.tokens.append(Token("text", "", raw))
        elif match["target"]:
            self._close_link(raw)
        elif match["mark"]:
            run = _run_of(len(self.tokens), raw, before, after)
            self.runs.append(run)
            self.done[run.place] = run
            self.tokens.append(Token("text", "", raw))
        else:
            self.tokens.append(Token("text", "", raw))

    def _close_link(self, raw: str) -> None:
        """End a link or a picture, if there is one."""
        index = len(self.tokens)
        self.tokens.append(Token("text", "", raw))
        if not self.brackets:
            return
        opened, runs = self.brackets.pop()
        image = self.tokens[opened].raw.startswith("!")
        if opened < self.linked and not image:
            return
        if not raw.startswith("]("):
            label = "".join(token.raw for token in self.tokens[opened + 1 : min(index, opened + MAX_LABEL)])
            named = raw[2:-1] if len(raw) > 3 else label
            if label_of(named) not in self.labels:
                return
            raw = f"][{named}]"
        self._emphasis(runs)
        self.tokens[opened] = Token("open", f"[{opened}", self.tokens[opened].raw)
        self.tokens[index] = Token("close", f"[{opened}", raw)
        if not image:
            self.linked = index

    def _emphasis(self, bottom: int) -> None:
        """Pair the marks after the first `bottom` ones (CommonMark, "process emphasis")."""
        waiting: list[_Run] = []  # marks that may open
        lowest: dict[tuple[str, bool, int], int] = {}  # below which nothing opens for such a mark
        for closer in self.runs[bottom:]:
            key = (closer.mark, closer.opens, closer.size % 3)
            while closer.closes and closer.left:
                index = len(waiting) - 1
                floor = min(lowest.get(key, 0), len(waiting))
                while index >= floor and not _pairs(waiting[index], closer):
                    index -= 1
                if index < floor:
                    lowest[key] = len(waiting)
                    break
                opener = waiting[index]
                used = closer.mark * (2 if opener.left > 1 and closer.left > 1 else 1)
                opener.openings.append(used)
                closer.closings.append(used)
                opener.left -= len(used)
                closer.left -= len(used)
                del waiting[index + (opener.left > 0) :]
                lowest = {key: min(floor, len(waiting)) for key, floor in lowest.items()}
            if closer.opens and closer.left:
                waiting.append(closer)
        del self.runs[bottom:]

    def _write_marks(self) -> None:
        """Put tokens of elements in place of marks that are used."""
        tokens: list[Token] = []
        for index, token in enumerate(self.tokens):
            run = self.done.get(index)
            if run is None:
                tokens.append(token)
                continue
            tokens += [Token("close", mark, mark) for mark in run.closings]
            if run.left:
                tokens.append(Token("text", "", run.mark * run.left))
            tokens += [Token("open", mark, mark) for mark in reversed(run.openings)]
        self.tokens = tokens


def _run_of(place: int, raw: str, before: str, after: str) -> _Run:
    """Marks, and whether they can open and close (CommonMark, "flanking")."""
    left = not after.isspace() and (not _mark(after) or before.isspace() or _mark(before))
    right = not before.isspace() and (not _mark(before) or after.isspace() or _mark(after))
    opens, closes = left, right
    if raw[0] == "_":
        opens, closes = left and (not right or _mark(before)), right and (not left or _mark(after))
    return _Run(place, raw[0], len(raw), opens, closes, len(raw))


def _mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _pairs(opener: _Run, closer: _Run) -> bool:
    if opener.mark != closer.mark:
        return False
    if opener.closes or closer.opens:
        return (opener.size + closer.size) % 3 != 0 or (opener.size % 3 == 0 and closer.size % 3 == 0)
    return True
