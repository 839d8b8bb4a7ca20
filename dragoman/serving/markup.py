"""Translate HTML: blocks become texts, and inline tags are put around the words that the alignment says.

Every tag of the input is in the output exactly once and as well nested as it was. Scripts, styles, code, comments and
elements with translate="no" are copied.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Bounded repetitions: a hostile text must not make matching quadratic.
_ATTRIBUTES = r"""(?:[^<>"']|"[^"]{0,8000}"|'[^']{0,8000}'){0,2000}+"""
_TOKEN = re.compile(
    rf"(?P<copied><!--.*?-->|<![^>]{{0,8000}}>|<\?[^>]{{0,8000}}>)"
    rf"|<(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9:-]{{0,60}}+)(?P<attributes>{_ATTRIBUTES})>",
    re.DOTALL,
)
_NO_TRANSLATE = re.compile(r"""translate\s*=\s*["']?no\b|class\s*=\s*["'][^"']*\bnotranslate\b""", re.IGNORECASE)
INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span "
        "strike strong sub sup time tt u var wbr",
    )
)
VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
COPIED = frozenset(re.findall(r"\w+", "code kbd math noscript pre samp script style svg template textarea var"))


class Token(NamedTuple):
    """A tag, a copied stretch or a text of an HTML document."""

    kind: str  # text, open, close, void, copied
    name: str
    raw: str


@dataclass
class Element:
    """An inline element: the characters it covers, its tags, and the elements inside it. A point has start == end."""

    start: int
    end: int
    opening: str
    closing: str = ""
    children: list[Element] = field(default_factory=list)
    spaced: bool = False  # a point with white space on both sides
    before_mark: bool = False  # punctuation of the same word follows its end


@dataclass
class Block:
    """The text between two block tags, without its inline tags."""

    text: str
    elements: list[Element]


class Aligned(NamedTuple):
    """An output, for each of its words the source word that it comes from, and for each source word its output word.

    −1: none is known.
    """

    text: str
    sources: list[int]
    targets: list[int] = []  # noqa: RUF012  (never changed)


def tokens_of(document: str) -> list[Token]:
    """The document cut into tags, copied stretches and texts; their `raw` joined is the document."""
    found: list[Token] = []
    place = 0
    while match := _TOKEN.search(document, place):
        if match.start() > place:
            found.append(Token("text", "", document[place : match.start()]))
        name, raw = (match["name"] or "").lower(), match[0]
        end = match.end()
        if match["copied"]:
            kind = "copied"
        elif match["close"]:
            kind = "close"
        elif name in VOID or raw.endswith("/>"):
            kind = "void"
        elif name in COPIED or _NO_TRANSLATE.search(match["attributes"]):
            kind, end = "copied", _element_end(document, name, end)
            raw = document[match.start() : end]
        else:
            kind = "open"
        found.append(Token(kind, name, raw))
        place = end
    if place < len(document):
        found.append(Token("text", "", document[place:]))
    return found


def _element_end(document: str, name: str, place: int) -> int:
    """Where an element that begins before `place` ends, nested elements of its name included."""
    depth = 1
    for match in re.finditer(rf"<(/?){re.escape(name)}\b[^<>]{{0,8000}}>", document[place:], re.IGNORECASE):
        depth += -1 if match[1] else 0 if match[0].endswith("/>") else 1
        if not depth:
            return place + match.end()
    return len(document) if name in ("script", "style") else place


def parse_blocks(document: str) -> list[Block | str]:
    """The blocks of a document, and between them the tags and other stretches to copy."""
    out: list[Block | str] = []
    waiting: list[Token] = []

    def flush() -> None:
        if any(token.kind == "text" and token.raw.strip() for token in waiting):
            out.append(_block(waiting))
        else:
            out.extend(token.raw for token in waiting)
        waiting.clear()

    for token in tokens_of(document):
        if token.kind == "text" or token.name in INLINE or (token.kind == "copied" and not token.name):
            waiting.append(token)
        else:
            flush()
            out.append(token.raw)
    flush()
    return out


def _block(tokens: Sequence[Token]) -> Block:
    """A block from its texts and inline tags; tags without a partner in the block become points."""
    text = ""
    root: list[Element] = []
    stack: list[tuple[str, Element, list[Element]]] = []  # open elements and the lists that hold them
    inside = root
    for token in tokens:
        if token.kind == "text":
            text += html.unescape(token.raw)
        elif token.kind == "open":
            element = Element(len(text), len(text), token.raw)
            inside.append(element)
            stack.append((token.name, element, inside))
            inside = element.children
        elif token.kind == "close" and any(name == token.name for name, _, _ in stack):
            while True:
                name, element, inside = stack.pop()
                element.end = len(text)
                if name == token.name:
                    element.closing = token.raw
                    break
        else:
            inside.append(Element(len(text), len(text), token.raw))
    for _, element, _ in stack:
        element.end = len(text) if element.closing else element.start
    _describe(root, text)
    return Block(text, root)


def _describe(elements: Iterable[Element], text: str) -> None:
    for element in elements:
        before, after = text[element.start - 1 : element.start], text[element.end : element.end + 1]
        element.spaced = element.start == element.end and before.isspace() and after.isspace()
        element.before_mark = bool(after) and not after.isalnum() and not after.isspace()
        _describe(element.children, text)


# --- inline tags in the output


def words_of(text: str) -> list[tuple[int, int]]:
    """The spans of the words between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def place_markup(block: Block, output: Aligned) -> str:
    """The output as HTML, with the inline tags of the block around the words that come from theirs."""
    if not block.elements:
        return html.escape(output.text, quote=False)
    words, spans = words_of(block.text), words_of(output.text)
    inserted: list[tuple[int, int, str]] = []  # (character, order, tag)
    projection = _Projection(words, spans, fill_unaligned(output.sources, len(spans), len(words)), output)
    projection.place(block.elements, 0, len(spans), inserted)
    parts, place = [], 0
    for character, _, tag in sorted(inserted, key=lambda one: one[:2]):
        parts += [html.escape(output.text[place:character], quote=False), tag]
        place = character
    return "".join([*parts, html.escape(output.text[place:], quote=False)])


def fill_unaligned(sources: Sequence[int], targets: int, words: int) -> list[int]:
    """A source word for every output word: unknown ones follow the word before them, or lie at the same share."""
    filled: list[int] = []
    for index in range(targets):
        source = sources[index] if index < len(sources) else -1
        if source < 0 and not any(one >= 0 for one in sources):
            source = index * words // max(1, targets)
        filled.append(source if source >= 0 else filled[-1] if filled else next(one for one in sources if one >= 0))
    return filled


class _Projection:
    """Places the elements of a block over the words of its output."""

    def __init__(
        self, words: list[tuple[int, int]], spans: list[tuple[int, int]], sources: list[int], output: Aligned
    ) -> None:
        self.words, self.spans, self.sources, self.text = words, spans, sources, output.text
        self.targets = output.targets
        self.order = 0

    def place(self, elements: list[Element], low: int, high: int, inserted: list[tuple[int, int, str]]) -> None:
        """Put elements over output words `low` to `high`, which belong to their parent."""
        intervals = self.intervals(elements, low, high)
        for element, (first, end) in sorted(
            zip(elements, intervals, strict=True), key=lambda pair: (pair[1][0], pair[0].start)
        ):
            self.add(element, first, end, high, inserted)

    def add(self, element: Element, first: int, end: int, high: int, inserted: list[tuple[int, int, str]]) -> None:
        """Insert the tags of one element and of those inside it."""
        opening, closing = element.opening, element.closing
        if first >= end:  # nothing inside: a point before word `first`
            inside = "".join(_raw(child) for child in element.children)
            if first < len(self.spans) and (first < high or not first):
                self.insert(self.spans[first][0], opening + inside + closing + " " * element.spaced, inserted)
            else:
                last = self.spans[first - 1][1] if first else len(self.text)
                self.insert(last, " " * element.spaced + opening + inside + closing, inserted)
            return
        start, stop = self.spans[first][0], self.spans[end - 1][1]
        if element.before_mark:
            while stop - 1 > start and not self.text[stop - 1].isalnum():
                stop -= 1
        self.insert(start, opening, inserted)
        self.place(element.children, first, end, inserted)
        self.insert(stop, closing, inserted)

    def insert(self, character: int, tag: str, inserted: list[tuple[int, int, str]]) -> None:
        """Remember a tag; tags at one place keep the order in which they come."""
        self.order += 1
        inserted.append((character, self.order, tag))

    def intervals(self, elements: list[Element], low: int, high: int) -> list[tuple[int, int]]:
        """Disjoint intervals of output words for elements that follow each other, the largest element first."""
        taken = [False] * (high - low)
        found: dict[int, tuple[int, int]] = {}
        covered = [self.covered(element) for element in elements]
        for index in sorted(range(len(elements)), key=lambda one: covered[one][0] - covered[one][1]):
            first, end = covered[index]
            start, stop = best_interval(self.gains(first, end, low, high, taken)) if end > first else (0, 0)
            if start == stop:
                point = self.point(first, low, high, found.values())
                found[index] = (point, point)
                continue
            taken[start:stop] = [True] * (stop - start)
            found[index] = (low + start, low + stop)
        return [found[index] for index in range(len(elements))]

    def gains(self, first: int, end: int, low: int, high: int, taken: Sequence[bool]) -> list[int]:
        """1 for each output word that comes from source words `first` to `end`, −1 for others, −∞ for taken ones.

        If no output word comes from them, the output words that they lead to count instead.
        """
        own = {word for word in range(low, high) if first <= self.sources[word] < end and not taken[word - low]}
        own = own or {word for word in self.targets[first:end] if low <= word < high}
        return [-(10**6) if taken[word - low] else 1 if word in own else -1 for word in range(low, high)]

    def covered(self, element: Element) -> tuple[int, int]:
        """The source words that an element covers; of a point, the word that follows it, as an empty interval."""
        first = sum(end <= element.start for _, end in self.words)
        end = sum(start < element.end for start, _ in self.words)
        return (first, max(first, end)) if element.end > element.start else (first, first)

    def point(self, source: int, low: int, high: int, others: Iterable[tuple[int, int]]) -> int:
        """Before the first output word of a source word or of a later one; never inside another element."""
        later = [word for word in range(low, high) if self.sources[word] >= source]
        place = (
            high if source >= len(self.words) else min(later, key=lambda word: (self.sources[word], word), default=high)
        )
        return next((first for first, end in others if first < place < end), place)


def best_interval(gains: Sequence[int]) -> tuple[int, int]:
    """The interval with the largest sum above 0; (0, 0): there is none."""
    best, found, total, start = 0, (0, 0), 0, 0
    for index, gain in enumerate(gains):
        if total <= 0:
            total, start = 0, index
        total += gain
        if total > best:
            best, found = total, (start, index + 1)
    return found


def _raw(element: Element) -> str:
    return element.opening + "".join(map(_raw, element.children)) + element.closing
