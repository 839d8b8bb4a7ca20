"""What a translation must keep as it is: tags, {variables}, formats such as %s, entities, addresses, ICU messages.

One grammar for every route: the pipeline takes these spans out of a source and puts them back into the output, the
splitter of sentences never cuts inside one, and the checks compare those of a source with those of its output.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

# International symbols, which the languages that use Latin letters share.
UNITS = (
    "[%‰°€$£¥]|°[CF]|[kmµn]?[mgVW]|cm|dm|ha|[mcd]?l|[kMG]?Hz|kWh|Nm|[km]?Pa|bar|dB|[kKMGT]i?B|[kMG]bit/s|"
    "km/h|m/s|px|dpi|rpm"
)
_ELEMENT = r"[^\W\d_][\w:.-]*+"
_NAME = r"[^\s<>\"'=/]++"
# What may follow the name of a tag: "<this word or that>" is text. A name without a value is one of HTML, or none that
# is written as a word; templates have {variables} there.
_ATTRIBUTE = (
    rf"(?:{_NAME}\s*+=\s*+(?:\"[^\"<]*+\"|'[^'<]*+'|(?![\"'])[^\s<>]*+)"
    r"|(?i:allowfullscreen|async|autofocus|autoplay|checked|compact|contenteditable|controls|default|defer|disabled"
    r"|download|formnovalidate|hidden|inert|ismap|itemscope|loop|multiple|muted|nomodule|noshade|novalidate|nowrap"
    r"|open|playsinline|popover|readonly|required|reversed|selected)(?=[\s/>])"
    r"|[^\W\d_]*+(?:[-:](?=\w)|[@#$%_])[^\s<>\"'=/]*+|[$#]?\{++[^<>{}]*+\}++)"
)
# Each alternative takes linear time over a text: a repetition begins only where nothing of its own kind stands before
# it, ends at the first character of another kind, and gives nothing back.
GRAMMAR = {
    "tag": r"<!--[^<]*?-->|</?(?:[^\W\d_][^\s<>]*+|\d+\s*+/?)>"  # <b>, </b>, <br/>, <1>, <file-name>
    rf"|</{_ELEMENT}\s*+>|<{_ELEMENT}(?:(?:(?:\s++|(?<=[\"'])){_ATTRIBUTE})*+\s*+/?\s*+|\s++{_NAME}\s*+=[^<>]*+)>",
    "url": r"(?:https?://|(?<![\w.])www\.)(?=\w)(?:[^\s<>\"'“”„‘«»{}]|\{[^{}\s]*+\})*(?<![.,:;!?)\]])",
    "email": r"(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]*\w",
    "variable": r"\{\{[^{}]*+\}\}|[$#%@]?\{[^{}]*+\}|%[A-Z_][A-Z0-9_]*+%",
    "format": r"%%|%(?:\(\w++\)|\d++\$)?[-+#0]?\d*+(?:\.\d++)?(?:hh|ll|[hlLqjzt])?"
    r"(?:@|[diouxXeEfFgGcCsS](?:(?=https?://)|(?![A-Za-z])))",
    "entity": r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});",
}
# A number takes the letters with it that touch it, as in B12, and the unit behind it.
NUMBER = rf"\d++(?:[.,:/’'-]\d++)*+(?:[ \u00a0]?(?:{UNITS})(?!\w))?"
_GRAMMAR = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in GRAMMAR.items()))
SIGN = "\ufffc"  # object replacement character
_SIGNS = re.compile(r"[<{%&@]|://|www\.")  # without one of them a text has no span
_NUMBER = re.compile(NUMBER)
_ARGUMENT = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal)\s*+,(?:\s*+offset:\d++)?")
_LEAF = re.compile(r"\s*+(?:=\d++|[\w-]++)\s*+(?=\{)")
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_TAG_NAME = re.compile(r"</?\s*([^\s<>/]*)")


class Protected(NamedTuple):
    """A stretch of a text that a translation must have once as well."""

    start: int
    end: int
    kind: str  # of GRAMMAR; or number, count (the # of a plural) or message

    def of(self, text: str) -> str:
        return text[self.start : self.end]


def protected_spans(
    text: str,
    numbers: Callable[[str], bool] | None = None,
    leaf: bool = False,
    grammar: bool = True,
    messages: bool = False,
) -> list[Protected]:
    """The spans of a text, first to last; with those of its numbers for which `numbers` is true.

    `leaf`: a text inside an ICU message, where # stands for a number. `messages`: whole ICU messages are spans.
    """
    spans: list[Protected] = []
    if grammar and _SIGNS.search(text):
        place = 0
        for message in icu_messages(text) if messages else ():
            spans += _grammar_spans(text, place, message.start)
            spans.append(Protected(message.start, message.end, "message"))
            place = message.end
        spans += _grammar_spans(text, place, len(text))
    if leaf:
        spans = _merged(spans, (Protected(*match.span(), "count") for match in re.finditer("#", text)))
    if numbers is not None:
        spans = _merged(spans, _numbers(text, numbers))
    return spans


def _grammar_spans(text: str, start: int, end: int) -> Iterator[Protected]:
    return (Protected(*match.span(), str(match.lastgroup)) for match in _GRAMMAR.finditer(text, start, end))


def _numbers(text: str, wanted: Callable[[str], bool]) -> Iterator[Protected]:
    last = 0
    for match in _NUMBER.finditer(text):
        start, end = match.span()
        if start < last or not wanted(match[0]):
            continue
        while start > last and text[start - 1].isalnum():
            start -= 1
        while end < len(text) and text[end].isalnum() and text[end - 1].isalnum():
            end += 1
        last = end
        yield Protected(start, end, "number")


def _merged(spans: Sequence[Protected], others: Iterator[Protected]) -> list[Protected]:
    """The spans and those of the others that overlap none of them."""
    starts = [span.start for span in spans]
    kept = []
    for other in others:
        index = bisect_left(starts, other.end)
        if not index or spans[index - 1].end <= other.start:
            kept.append(other)
    return sorted([*spans, *kept])


def without_spans(text: str, spans: Sequence[Protected]) -> str:
    """The text between the spans."""
    place, kept = 0, []
    for span in spans:
        kept.append(text[place : span.start])
        place = span.end
    return "".join([*kept, text[place:]])


def find_placeholders(text: str) -> tuple[tuple[str, int], ...]:
    """The protected texts of a source in order, those in the leaves of ICU messages too, and how often each occurs."""
    return tuple(Counter(_protected_texts(text, False)).items())


def _protected_texts(text: str, leaf: bool) -> Iterator[str]:
    place = 0
    for message in icu_messages(text):
        yield from _protected_texts(text[place : message.start], leaf)
        for first, last in message.leaves:
            yield from _protected_texts(text[first:last], True)
        place = message.end
    yield from (span.of(text[place:]) for span in protected_spans(text[place:], None, leaf))


def without_protected(text: str, leaf: bool = False) -> str:
    """A text with one sign, which is no letter, in place of each protected span and of the frames of ICU messages."""
    parts, place = list[str](), 0
    for message in icu_messages(text):
        parts.append(without_protected(text[place : message.start], leaf))
        parts += [f"{SIGN}{without_protected(text[first:last], True)}{SIGN}" for first, last in message.leaves]
        place = message.end
    rest = place
    for span in protected_spans(text[place:], None, leaf):
        parts += [text[rest : place + span.start], SIGN]
        rest = place + span.end
    return "".join([*parts, text[rest:]])


def tag_kind(tag: str) -> tuple[str, str]:
    """Whether a tag opens or closes an element or does neither ("copied"), and its name."""
    name = match[1].lower() if (match := _TAG_NAME.match(tag)) else ""
    if tag.startswith("</"):
        return "close", name
    return ("copied" if tag.endswith("/>") or tag.startswith("<!") or name in _VOID else "open"), name


# --- ICU messages: {count, plural, one {# file} other {# files}}


MAX_DEPTH = 50  # of braces in a message that somebody wrote


class Message(NamedTuple):
    """An ICU message in a text: what is around its leaves stays, its leaves are texts to translate."""

    start: int
    end: int
    leaves: tuple[tuple[int, int], ...]


def icu_messages(text: str) -> list[Message]:
    """The outermost plurals and selections of a text that are whole."""
    if not _ARGUMENT.search(text):
        return []
    ends: dict[int, int] = {}
    stack = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            stack.append(match.start())
            if len(stack) > MAX_DEPTH:
                return []
        elif stack:
            ends[stack.pop()] = match.end()
    messages: list[Message] = []
    place = 0
    for match in _ARGUMENT.finditer(text):
        end = ends.get(match.start(), 0)
        if match.start() < place or not end:
            continue
        leaves, at = [], match.end()
        while leaf := _LEAF.match(text, at):
            at = ends[leaf.end()]
            leaves.append((leaf.end() + 1, at - 1))
        if leaves and text[at : end - 1].isspace() | (at == end - 1):
            messages.append(Message(match.start(), end, tuple(leaves)))
            place = end
    return messages


def unbroken_spans(text: str) -> list[tuple[int, int]]:
    """Where no sentence may end: inside protected spans and ICU messages."""
    return [(span.start, span.end) for span in protected_spans(text, messages=True)]
