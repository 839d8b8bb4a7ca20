"""Text with inline markup: tags are taken out of a text, and put around the words that the alignment says.

A block is a text and a tree of elements over it. The output is written from the same tree: each element gets a stretch
of the output inside that of its parent and outside those of its siblings. So tags nest for any output and any
alignment. Every tag of a block is in the output exactly once.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dragoman.data import protected_spans

MAX_DEPTH = 50  # of elements; tags of deeper ones are points that keep their order
NEAR = 50  # words in which to look for one that an element may take
BLANKS = " \t\r\n\f"
Span = tuple[int, int]
Escape = Callable[[str], str]
Check = Callable[[str, str, Sequence[str]], bool]  # of an output, its text, and the tags that it leaves out
escape_text: Escape = partial(html.escape, quote=False)

# Scripts without spaces between words: a letter with its marks is a word here.
_MARKS = "\u0300-\u036f\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"
_IDEOGRAPHS = (
    "\u2e80-\u2fff\u3001-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
_THAI, _THAI_FIRST = "\u0e00-\u0eff", "\u0e40-\u0e44\u0ec0-\u0ec4"
_THAI_MARKS = "\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebc\u0ec8-\u0ece"
_KHMER, _KHMER_MARKS = "\u1000-\u109f\u1780-\u17ff", "\u102b-\u103e\u17b4-\u17d3"
_WORD = (  # compiled when it is first needed, which takes 10 ms
    rf"[{_IDEOGRAPHS}][{_MARKS}]*|[{_THAI_FIRST}]?[{_THAI}][{_THAI_MARKS}]*"
    rf"|[{_KHMER}](?:[\u1039\u17d2].|[{_KHMER_MARKS}])*|[^\s{_IDEOGRAPHS}{_THAI}{_KHMER}]+"
)

_PART = re.compile(r"\w+|[^\w\s]+")


def unchanged(text: str) -> str:
    return text


class Token(NamedTuple):
    """A tag, a copied stretch or a text of a document.

    `open` and `close` are the tags of an element. `begin` and `end` are two points that belong together, such as
    <bpt> and <ept>: no element, so they may cross the tags of elements.
    """

    kind: str  # text, open, close, begin, end, void, copied
    name: str
    raw: str


@dataclass(slots=True)
class Element:
    """An inline element: the characters it covers, its tags, and the elements inside it. A point has start == end."""

    start: int
    end: int
    opening: str
    closing: str = ""
    children: list[Element] = field(default_factory=list)
    gap: str = ""  # white space after a tag that also has white space before it: the text has it once
    ordered: bool = False  # keeps its order among the siblings that are ordered too
    filled: bool = False  # tags around no text would not be tags, as in Markdown: they are left out


@dataclass(slots=True)
class Block:
    """The text between two block tags, without its inline tags."""

    text: str
    elements: list[Element] = field(default_factory=list)
    escape: Escape = escape_text  # how the format writes text
    raw: str = ""  # text and tags as they were
    preserve: bool = False  # white space inside sentences has a meaning: the model gets the texts around it
    check: Check | None = None  # for formats in which text may become markup: whether an output is read as it is meant
    careful: Escape | None = None  # for an output that is not


class Aligned(NamedTuple):
    """An output, for each of its words the source word that it comes from, and for each source word its output word.

    −1: none is known. Words are those of `words_of` unless their spans are given.
    """

    text: str
    sources: Sequence[int]
    targets: Sequence[int] = ()
    source_words: Sequence[Span] | None = None
    output_words: Sequence[Span] | None = None


def words_of(text: str) -> list[Span]:
    """The spans of the words between white space; where a script has no spaces, of its letters."""
    return [match.span() for match in re.finditer(_WORD, text)]


# --- a block from its tags


def block_of(
    tokens: Iterable[Token], unescape: Escape = html.unescape, escape: Escape = escape_text, filled: str = ""
) -> Block:
    """A block from its texts and inline tags; elements whose names begin with a letter of `filled` need text.

    Tags without a partner in the block become points, which keep their order.
    """
    tokens = list(tokens)
    partners = _partners(tokens)
    elements: set[int] = set()  # tokens that open an element
    root = Element(0, 0, "")
    stack, loose = [root], list[Element]()
    text, length, blank = list[str](), 0, False
    last: Element | None = None  # the element with the tag before this token
    for index, token in enumerate(tokens):
        if token.kind == "text":
            piece = unescape(token.raw)
            if last is not None and blank:
                rest = piece.lstrip(BLANKS)
                gap, piece = piece[: len(piece) - len(rest)], rest
                if last.closing:
                    last.closing += gap
                else:
                    last.gap += gap
            if piece:
                text.append(piece)
                length, blank, last = length + len(piece), piece[-1] in BLANKS, None
            continue
        if index in partners and index < partners[index] and len(stack) <= MAX_DEPTH:
            last = Element(length, length, token.raw, filled=bool(token.name) and token.name[0] in filled)
            stack[-1].children.append(last)
            stack.append(last)
            elements.add(index)
        elif index in partners and partners[index] in elements:
            last = stack.pop()
            last.end, last.closing = length, token.raw
        else:
            last = Element(length, length, token.raw)
            stack[-1].children.append(last)
            if token.kind in ("open", "close", "begin", "end") or len(stack) > MAX_DEPTH:
                loose.append(last)
    root.end = length
    _keep_order(root, loose)
    return Block("".join(text), root.children, escape, "".join(token.raw for token in tokens))


def _partners(tokens: Sequence[Token]) -> dict[int, int]:
    """The other tag of each tag that has one, so that pairs nest; elements before points that belong together."""
    partners: dict[int, int] = {}
    stack: list[tuple[int, int, str]] = []  # (token, scope, name); the scope is the element around a point, or −1
    around = [-1]  # open elements
    waiting: Counter[tuple[int, str]] = Counter()
    for index, token in enumerate(tokens):
        points = token.kind in ("begin", "end")
        key = (around[-1] if points else -2, token.name)
        if token.kind in ("open", "begin"):
            stack.append((index, *key))
            waiting[key] += 1
            if not points:
                around.append(index)
        elif token.kind in ("close", "end") and waiting[key]:
            while True:
                other, scope, name = stack.pop()
                waiting[scope, name] -= 1
                if scope == -2:
                    around.pop()
                if (scope, name) == key:
                    break
            partners[other], partners[index] = index, other
    return partners


def _keep_order(root: Element, points: Sequence[Element]) -> None:
    """Mark what must keep its order so that these points, wherever they are in the tree, follow each other."""
    if len(points) < 2:
        return
    paths: dict[int, tuple[Element, ...]] = {}
    waiting: list[tuple[Element, ...]] = [(child,) for child in root.children]
    wanted = {id(point) for point in points}
    while waiting:
        path = waiting.pop()
        if id(path[-1]) in wanted:
            paths[id(path[-1])] = path
        waiting += [(*path, child) for child in path[-1].children]
    for point, following in pairwise(points):
        for above, beside in zip(paths[id(point)], paths[id(following)], strict=False):
            if above is not beside:
                above.ordered = beside.ordered = True
                break


# --- inline tags in the output


def place_markup(block: Block, output: Aligned) -> str:
    """The output with the inline tags of the block around the words that come from theirs."""
    if block.raw and output.text == block.text:
        return block.raw
    if not block.elements:
        return block.escape(output.text)
    return project(block, output)


def project(block: Block, output: Aligned) -> str:
    """The output with the tags of the block, whether or not it differs from the source.

    If a reader would take it for something else, more is escaped; then elements that need text cover whole words; then
    they are left out.
    """
    root = Element(0, len(block.text), "", children=block.elements)
    markup = ""
    for careful, whole_words, bare in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)):
        projection = _Projection(block, output, bool(whole_words), bool(bare))
        if careful and block.careful is not None:
            projection.escape = block.careful
        projection.write(root, 0, len(output.text))
        markup = "".join(projection.out)
        if block.check is None or block.check(markup, output.text, projection.left_out):
            break
    return markup


def fill_unaligned(sources: Sequence[int], targets: int, words: int) -> list[int]:
    """A source word for every output word: unknown ones follow the word before them, or lie at the same share."""
    known = [source if 0 <= source < words else -1 for source in sources[:targets]]
    last = next((source for source in known if source >= 0), -1)
    if last < 0:
        return [index * words // max(1, targets) for index in range(targets)]
    filled: list[int] = []
    for index in range(targets):
        last = known[index] if index < len(known) and known[index] >= 0 else last
        filled.append(last)
    return filled


class _Taken:
    """Intervals of words that siblings have taken."""

    def __init__(self) -> None:
        self.intervals: list[Span] = []

    def add(self, interval: Span) -> None:
        insort(self.intervals, interval)

    def holds(self, word: int) -> bool:
        index = bisect_right(self.intervals, word, key=lambda interval: interval[0])
        return index > 0 and self.intervals[index - 1][1] > word

    def between(self, word: int, later: int) -> bool:
        """Whether an interval begins between two words."""
        index = bisect_right(self.intervals, word, key=lambda interval: interval[0])
        return index < len(self.intervals) and self.intervals[index][0] < later


class _Projection:
    """Writes the elements of a block over the words of its output."""

    def __init__(self, block: Block, output: Aligned, whole_words: bool, bare: bool) -> None:
        self.source, self.text, self.escape = block.text, output.text, block.escape
        self.whole_words, self.bare = whole_words, bare  # of elements that need text
        self.out: list[str] = []
        self.last = ""  # the last character of the output
        self.left_out: list[str] = []  # tags
        self.words = list(words_of(block.text) if output.source_words is None else output.source_words)
        self.spans = list(words_of(output.text) if output.output_words is None else output.output_words)
        self.sources = fill_unaligned(output.sources, len(self.spans), len(self.words))
        self.targets = [word if word < len(self.spans) else -1 for word in output.targets]
        spans = protected_spans(output.text, messages=True)
        self.protected = [(start, end) for start, end, kind in spans if kind != "tag"]  # <like this> may be text
        self.link()
        self.cut_words(block.elements)

    def link(self) -> None:
        """Find the output words of each source word, in order."""
        self.outputs: dict[int, list[int]] = {}
        for word, source in enumerate(self.sources):
            self.outputs.setdefault(source, []).append(word)
        self.aligned = sorted(self.outputs)

    def cut_words(self, elements: Iterable[Element]) -> None:
        """Cut words that have a tag inside, with their output words, where both have the same parts."""
        cuts: dict[int, list[int]] = {}  # of source words
        waiting = list(elements)
        while waiting:
            element = waiting.pop()
            waiting += element.children
            for character in (element.start, element.end):
                word = bisect_right(self.words, character, key=lambda span: span[1])
                if word < len(self.words) and self.words[word][0] < character:
                    cuts.setdefault(word, []).append(character - self.words[word][0])
        parts: dict[int, list[Span]] = {}  # of source words and of output words
        others: dict[int, list[Span]] = {}
        for source, offsets in cuts.items():
            outputs = self.outputs.get(source, [])
            if len(outputs) == 1 and (both := self.common_parts(source, outputs[0], sorted(set(offsets)))):
                parts[source], others[outputs[0]] = both
        if not parts:
            return
        self.words, places = _with_parts(self.words, parts)
        self.spans, output_places = _with_parts(self.spans, others)
        sources, targets = self.sources, self.targets
        self.sources = [0] * len(self.spans)
        for word, source in enumerate(sources):
            for part in range(len(others.get(word, "1"))):
                self.sources[output_places[word] + part] = places[source] + (part if word in others else 0)
        self.targets = [-1] * len(self.words) if targets else []
        for source, word in enumerate(targets[: len(places)]):
            for part in range(len(parts.get(source, "1"))):
                same = source in parts and word in others and sources[word] == source
                self.targets[places[source] + part] = output_places[word] + part * same if word >= 0 else -1
        self.link()

    def common_parts(self, source: int, target: int, offsets: list[int]) -> tuple[list[Span], list[Span]] | None:
        """The parts of a source word and of its output word: at tags if they are equal, else between punctuation."""
        (start, end), (begin, stop) = self.words[source], self.spans[target]
        word, other = self.source[start:end], self.text[begin:stop]
        if len(word) == len(other) and word.casefold() == other.casefold():
            spans = list(pairwise([0, *offsets, len(word)]))
            pieces = spans, spans
        else:
            pieces = tuple([match.span() for match in _PART.finditer(text)] for text in (word, other))  # type: ignore[assignment]
            if len(pieces[0]) != len(pieces[1]):
                return None
        first, second = (
            [(left + at, right + at) for left, right in spans] for at, spans in zip((start, begin), pieces, strict=True)
        )
        return first, second

    def add(self, part: str) -> None:
        if part:
            self.out.append(part)
            self.last = part[-1]

    def write(self, parent: Element, low: int, high: int) -> None:
        """Write the output from character `low` to `high` with the children of an element that covers it.

        Tags nest whatever `places` says: a child begins where its siblings have ended, and ends with its parent.
        """
        children = parent.children
        places = self.places(parent, low, high) if children else []
        place = low
        order = [(start, stop > start, index) for index, (start, stop) in enumerate(places)]  # points first
        for _, _, index in sorted(order):
            child = children[index]
            start = min(max(place, places[index][0]), high)
            stop = min(max(start, places[index][1]), high)
            self.add(self.escape(self.text[place:start]))
            before = child.gap if start and not self.text[start - 1].isspace() else ""
            touching = self.last == "`" and child.opening.startswith("`")  # two pieces of code would be one
            apart = self.apart(child)
            self.add(before or " " * (touching or (apart[0] and self.last.isalnum())))
            if self.last == "!" and child.opening == "[":  # a link would be a picture
                self.out[-1] = self.out[-1][:-1] + "\\!"
            size = len(self.out)
            self.add(child.opening)
            self.add("" if before else child.gap)
            opened = len(self.out)
            self.write(child, start, stop)
            self.add(child.closing)
            if child.filled and (self.bare or not "".join(self.out[opened:-1]).strip()):
                inner = "".join(self.out[opened:-1])
                del self.out[size:]
                self.last = self.out[-1][-1] if self.out else ""
                self.add(" " * (self.last == "`" == inner[:1]))
                self.add(inner)
                self.left_out += [child.opening, child.closing]
            place = stop
            self.add(" " * (apart[1] and not self.last.isspace() and self.text[stop : stop + 1].isalnum()))
        self.add(self.escape(self.text[place:high]))

    def apart(self, child: Element) -> tuple[bool, bool]:
        """Whether a point, such as code, touched no word before and none after it: so it must stay."""
        if child.closing or child.end > child.start or " " not in self.text:  # a script may have no spaces
            return False, False
        before, after = self.source[: child.start][-1:], self.source[child.end :][:1]
        return not before.isalnum(), bool(child.gap) or not after.isalnum()

    def places(self, parent: Element, low: int, high: int) -> list[Span]:
        """Where each child of an element begins and ends in the output, of which the element has `low` to `high`."""
        children = parent.children
        first = bisect_right(self.spans, low, key=lambda span: span[1])
        end = max(first, bisect_left(self.spans, high, key=lambda span: span[0]))
        covered = [self.covered(child) for child in children]
        # Elements over many words choose first: one word more or less hurts them least, and the short ones fit between.
        taken, places = _Taken(), list[Span | None]([None] * len(children))
        for index in sorted(range(len(children)), key=lambda index: covered[index][0] - covered[index][1]):
            interval = self.interval(*covered[index], first, end, taken, children[index].filled)
            if interval[0] < interval[1]:
                taken.add(interval)
                places[index] = self.stretch(children[index], covered[index], interval)
        stretches = sorted(place for place in places if place is not None)
        spans = [
            place or self.point(child, parent, (first, end), (low, high), stretches)
            for child, place in zip(children, places, strict=True)
        ]
        least = low
        for index, child in enumerate(children):
            if child.ordered:
                start = max(least, spans[index][0])
                least = max(start, spans[index][1])
                spans[index] = (start, least)
        return [(self.outside(start), self.outside(stop)) for start, stop in spans]

    def outside(self, place: int) -> int:
        """A place that is inside no protected span; the order of places stays."""
        index = bisect_right(self.protected, place, key=lambda span: span[0]) - 1
        start, end = self.protected[index] if index >= 0 else (0, 0)
        return place if place >= end else start if 2 * place < start + end else end

    def covered(self, element: Element) -> Span:
        """The source words that an element covers; of a point, none before the word that follows."""
        first = bisect_right(self.words, element.start, key=lambda span: span[1])
        if element.end == element.start:
            return first, first
        return first, max(first, bisect_left(self.words, element.end, key=lambda span: span[0]))

    def interval(self, first: int, end: int, low: int, high: int, taken: _Taken, filled: bool) -> Span:
        """Of the output words `low` to `high`, those that come from source words `first` to `end`; (0, 0): none.

        They are the interval with most of them and least others. If no output word comes from them, the output words
        that they lead to count instead.
        """
        if first == end or low == high:
            return 0, 0
        own = sorted({word for source in range(first, end) for word in self.outputs.get(source, ())})
        own = own[bisect_left(own, low) : bisect_left(own, high)]
        own = [word for word in own if not taken.holds(word)]
        if not own:
            leads = sorted({word for word in self.targets[first:end] if low <= word < high})
            own = [word for word in leads if not taken.holds(word)]
        if not own and filled:
            near = min(max(low, self.nearest(first)), high - 1)
            free = (word for step in range(NEAR) for word in (near - step, near + step) if low <= word < high)
            own = [word for word in free if not taken.holds(word)][:1]
        if not own:
            return 0, 0
        # Kadane's algorithm: an own word counts 1, each foreign word between two of them −1; the best sum wins.
        best, interval, total, start = 0, (0, 0), 0, own[0]
        for index, word in enumerate(own):
            before = own[index - 1] if index else word
            total -= max(0, word - before - 1)
            if total <= 0 or taken.between(before, word):
                total, start = 0, word
            total += 1
            if total > best:
                best, interval = total, (start, word + 1)
        return interval

    def nearest(self, source: int) -> int:
        """The first output word of a source word, or of the next one that has some."""
        index = bisect_left(self.aligned, source)
        return self.outputs[self.aligned[index]][0] if index < len(self.aligned) else len(self.spans)

    def stretch(self, element: Element, covered: Span, interval: Span) -> Span:
        """The characters of an element over an interval of output words."""
        start = self.boundary(element.start, covered[0], interval[0], True)
        stop = self.boundary(element.end, covered[1] - 1, interval[1] - 1, False)
        for _ in range(self.words[covered[0]][0] - element.start):  # white space at its ends
            start -= start > 0 and self.text[start - 1].isspace()
        for _ in range(element.end - self.words[covered[1] - 1][1]):
            stop += stop < len(self.text) and self.text[stop].isspace()
        if element.filled and self.whole_words:
            while start and not self.text[start - 1].isspace():
                start -= 1
            while stop < len(self.text) and not self.text[stop].isspace():
                stop += 1
        return start, max(start, stop)

    def boundary(self, character: int, source: int, target: int, first: bool) -> int:
        """Where in an output word an element begins (or ends) that does so at a character of a source word."""
        (start, end), (begin, stop) = self.words[source], self.spans[target]
        word, other = self.source[start:end], self.text[begin:stop]
        offset = min(max(character, start), end) - start
        if self.sources[target] == source and len(word) == len(other) and word.casefold() == other.casefold():
            return begin + offset
        if offset == len(word) and not first:
            return stop
        (left, right), (head, tail) = _core(word), _core(other)
        if offset <= left:  # among the marks before the word
            return begin + (head if offset == left and left else min(offset, head))
        if offset < right:
            return begin + (head if first else tail)
        return begin + min(tail + offset - right, len(other))

    def point(self, element: Element, parent: Element, words: Span, characters: Span, stretches: list[Span]) -> Span:
        """Where an element without output words is: with the word that it touches, never inside a sibling."""
        (low, high), (begin, end) = words, characters
        start = element.start
        if not (left := self.source[parent.start : start]).strip():  # before all text of its parent
            place = begin
            while place < min(end, begin + len(left)) and self.text[place].isspace():
                place += 1
            return place, self.over_space(element, place)
        if not self.source[element.end : parent.end].strip():  # after it
            place = end
            while place > max(begin, end - (parent.end - start)) and self.text[place - 1].isspace():
                place -= 1
            return place, self.over_space(element, place)
        if element.opening[:1].isspace() and not any(map(str.isalnum, self.source[element.end : parent.end])):
            place = end  # a span before the last punctuation: the output may end in other words, or in another sign
            while place > begin and not self.text[place - 1].isalnum():
                place -= 1
            return (place or end,) * 2
        after = not self.source[start - 1].isspace()
        word = bisect_right(self.words, start - after, key=lambda span: span[1])
        own = [target for target in self.outputs.get(word, ()) if low <= target < high]
        own = own or [target for target in self.targets[word : word + 1] if low <= target < high]
        if low == high:
            place = begin
        elif own:
            place = self.boundary(start, word, own[-1] if after else own[0], not after)
            for _ in range(self.words[word][0] - start):  # white space between it and the word
                place -= place > begin and self.text[place - 1].isspace()
        else:
            near = self.nearest(word)
            place = self.spans[near][0] if low <= near < high else begin if near < low else self.spans[high - 1][1]
        index = bisect_left(stretches, place, key=lambda stretch: stretch[0])
        if index and stretches[index - 1][1] > place:
            place = stretches[index - 1][1 if after else 0]
        return place, self.over_space(element, place)

    def over_space(self, element: Element, place: int) -> int:
        """The end of an element at a place, which may have nothing but white space inside."""
        inside = self.source[element.start : element.end]
        return place + len(inside) if inside.isspace() and self.text.startswith(inside, place) else place


def _with_parts(words: list[Span], parts: dict[int, list[Span]]) -> tuple[list[Span], list[int]]:
    """Words, some of them in parts, and for each word where it is among them."""
    parts_of_words: list[Span] = []
    places = []
    for index, word in enumerate(words):
        places.append(len(parts_of_words))
        parts_of_words += parts.get(index, [word])
    return parts_of_words, places


def _core(word: str) -> Span:
    """Where a word begins and ends between the punctuation around it; punctuation alone is all before it."""
    first, end = 0, len(word)
    while first < end and not word[first].isalnum():
        first += 1
    while end > first and not word[end - 1].isalnum():
        end -= 1
    return first, end
