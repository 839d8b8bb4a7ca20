"""Text with inline markup: tags are taken out of a text, and put around the words that the alignment says.

Every tag of a block is in the output exactly once and as well nested as it was.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

OPENING = "([{<«„“‘\"'¿¡"  # marks that begin a word
MAX_DEPTH = 50  # of inline elements; deeper ones are kept, but not as elements
Escape = Callable[[str], str]
escape_text: Escape = partial(html.escape, quote=False)


def unchanged(text: str) -> str:
    """The escape of formats that need none."""
    return text


class Token(NamedTuple):
    """A tag, a copied stretch or a text of a document."""

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
    after_mark: bool = False  # an opening bracket or quote of the same word comes before its start
    edge: int = 0  # −1: a point before all text, 1: a point after it


@dataclass
class Block:
    """The text between two block tags, without its inline tags."""

    text: str
    elements: list[Element] = field(default_factory=list)
    escape: Escape = escape_text  # how the format writes text
    raw: str = ""  # text and tags as they were
    preserve: bool = False  # white space inside sentences has a meaning: the model gets the texts around it


class Aligned(NamedTuple):
    """An output, for each of its words the source word that it comes from, and for each source word its output word.

    −1: none is known.
    """

    text: str
    sources: list[int]
    targets: list[int] = []  # noqa: RUF012  (never changed)


def block_of(tokens: Iterable[Token], unescape: Escape = html.unescape, escape: Escape = escape_text) -> Block:
    """A block from its texts and inline tags; tags without a partner in the block become points."""
    text, raw = "", []
    root: list[Element] = []
    stack: list[tuple[str, Element, list[Element]]] = []  # open elements and the lists that hold them
    inside = root
    for token in tokens:
        raw.append(token.raw)
        if token.kind == "text":
            text += unescape(token.raw)
        elif token.kind == "open" and len(stack) < MAX_DEPTH:
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
    for _, element, holder in reversed(stack):  # never closed: a point, and what followed stands beside it
        element.end = element.start
        holder.extend(element.children)
        element.children = []
    _describe(root, text)
    for element in root:
        if element.start == element.end and text:
            element.edge = -1 if not element.start else int(element.start == len(text))
    return Block(text, root, escape, "".join(raw))


def _describe(elements: Iterable[Element], text: str) -> None:
    for element in elements:
        before, after = text[element.start - 1 : element.start], text[element.end : element.end + 1]
        element.spaced = element.start == element.end and before.isspace() and after.isspace()
        element.after_mark = bool(before) and before in OPENING
        element.before_mark = bool(after) and not after.isalnum() and not after.isspace()
        _describe(element.children, text)


# --- inline tags in the output


def words_of(text: str) -> list[tuple[int, int]]:
    """The spans of the words between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def place_markup(block: Block, output: Aligned) -> str:
    """The output with the inline tags of the block around the words that come from theirs."""
    if not block.elements:
        return block.escape(output.text)
    words, spans = words_of(block.text), words_of(output.text)
    inserted: list[tuple[int, int, str]] = []  # (character, order, tag)
    projection = _Projection(words, spans, fill_unaligned(output.sources, len(spans), len(words)), output)
    projection.place(block.elements, 0, len(spans), inserted)
    parts, place = [], 0
    for character, _, tag in sorted(inserted, key=lambda one: one[:2]):
        parts += [block.escape(output.text[place:character]), tag]
        place = character
    return "".join([*parts, block.escape(output.text[place:])])


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
        self.outputs: dict[int, list[int]] = {}  # of each source word
        for word, source in enumerate(sources):
            self.outputs.setdefault(source, []).append(word)
        self.following = [len(spans)] * len(words)  # first output word of a source word or a later one
        for source in reversed(range(len(words))):
            later = self.following[source + 1] if source + 1 < len(words) else len(spans)
            self.following[source] = min(self.outputs.get(source, (later,)))
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
            if (element.edge < 0 and not first) or (element.edge > 0 and first >= len(self.spans)):
                self.insert(0 if element.edge < 0 else len(self.text), opening + inside + closing, inserted)
                return
            if first < len(self.spans) and (first < high or not first):
                place = self.after_marks(element, *self.spans[first])
                self.insert(place, opening + inside + closing + " " * element.spaced, inserted)
            else:
                last = self.spans[first - 1][1] if first else len(self.text)
                self.insert(last, " " * element.spaced + opening + inside + closing, inserted)
            return
        start, stop = self.after_marks(element, *self.spans[first]), self.spans[end - 1][1]
        if element.before_mark:
            while stop - 1 > start and not self.text[stop - 1].isalnum():
                stop -= 1
        self.insert(start, opening, inserted)
        self.place(element.children, first, end, inserted)
        self.insert(stop, closing, inserted)

    def after_marks(self, element: Element, start: int, stop: int) -> int:
        """Where an element begins in the word that it begins with: after its opening marks, if it did so before."""
        while element.after_mark and start + 1 < stop and self.text[start] in OPENING:
            start += 1
        return start

    def insert(self, character: int, tag: str, inserted: list[tuple[int, int, str]]) -> None:
        """Remember a tag; tags at one place keep the order in which they come."""
        self.order += 1
        inserted.append((character, self.order, tag))

    def intervals(self, elements: list[Element], low: int, high: int) -> list[tuple[int, int]]:
        """Disjoint intervals of output words for elements that follow each other, the largest element first."""
        starts: dict[int, int] = {}  # of the interval that has taken a word
        found: dict[int, tuple[int, int]] = {}
        covered = [self.covered(element) for element in elements]
        for index in sorted(range(len(elements)), key=lambda one: covered[one][0] - covered[one][1]):
            start, stop = self.interval(*covered[index], low, high, starts)
            if start == stop:
                place = self.point(covered[index][0], low, high)
                start = stop = starts.get(place, place)  # never inside another element
            starts.update(dict.fromkeys(range(start, stop), start))
            found[index] = (start, stop)
        return [found[index] for index in range(len(elements))]

    def interval(self, first: int, end: int, low: int, high: int, starts: dict[int, int]) -> tuple[int, int]:
        """The output words that come from source words `first` to `end`, most of them; (0, 0): there are none.

        If no output word comes from them, the output words that they lead to count instead.
        """
        own = {word for source in range(first, end) for word in self.outputs.get(source, ())}
        own = {word for word in own if low <= word < high and word not in starts}
        if not own:
            own = {word for word in self.targets[first:end] if low <= word < high and word not in starts}
        if not own:
            return 0, 0
        least = min(own)
        gains = [1 if word in own else -(10**6) if word in starts else -1 for word in range(least, max(own) + 1)]
        start, stop = best_interval(gains)
        return least + start, least + stop

    def covered(self, element: Element) -> tuple[int, int]:
        """The source words that an element covers; of a point, the word that follows it, as an empty interval."""
        first = bisect.bisect_right(self.words, element.start, key=lambda span: span[1])
        end = bisect.bisect_left(self.words, element.end, key=lambda span: span[0])
        return (first, max(first, end)) if element.end > element.start else (first, first)

    def point(self, source: int, low: int, high: int) -> int:
        """Before the first output word of a source word or of a later one."""
        place = self.following[source] if source < len(self.following) else high
        return min(max(place, low), high)


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
