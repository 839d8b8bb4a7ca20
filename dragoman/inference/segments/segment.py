"""Take what must survive out of a text before a model reads it, and put it back into the output, each exactly once.

A text becomes parts. Some are copied: numbering, bullets and quotes at its edges, and the frames of ICU messages. A
model reads the others without their tags and protected spans, which return to the words that the alignment says.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dragoman.data import Protected, icu_messages, protected_spans, tag_kind, without_spans
from dragoman.inference.segments.markup import Aligned, Block, Span, Token, block_of, place_markup, unchanged, words_of

if TYPE_CHECKING:
    from dragoman.inference.align import WordAlignment

QUOTES = {"“": "”", "„": "“", "«": "»", "»": "«", "‹": "›", "›": "‹", "‘": "’", "‚": "‘", '"': '"'}
_CLOSING = {"”": {"“", "„", "”"}, "“": {"„"}, "»": {"«", "»"}, "«": {"»", "«"}, '"': {'"'}}
# Dialogue dashes, bullets and numbering, which a letter or a quotation mark follows.
_EDGE = re.compile(r"\s*(?:(?:[-–—―•‣◦▪·*]|\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z])[.)])\s+(?=\D))?")
_BEFORE = re.compile(r"(?<![\s,;:])[\s,;:]+\Z")
_AFTER = re.compile(r"\s*(?:[.!?,;:…)\]]|\Z)")
_BRACKETS = {"(": ")", "[": "]", **QUOTES}
_SIGNS = "{}<>"  # one alone would begin or end a span with what stands beside it
# What a span may be made of: it is taken out letter by letter only of an output that has broken one.
_REMAINS = re.compile(r"[<>{}%&$@#\\]|://|www\.")
_OPENING = re.compile(r"<(?=[^\W\d_]|[/!])|\{")
_CLOSING_SIGN = re.compile("[>}]")
NEAR = 40  # characters beside the place where two texts meet


class Parsing(NamedTuple):
    """How a text is taken apart."""

    protect: bool  # tags, variables, addresses and edges; else only numbers
    numbers: Callable[[str], bool] | None = None  # whether a number is taken out as well
    whole: bool = False  # the output is one search: constraints hold for it
    apart: bool = False  # the model has no alignment: what is taken out separates the texts beside it


class Part(NamedTuple):
    """A piece of an input."""

    text: str  # as the model reads it, or as it is copied
    copied: bool
    segment: Segment | None = None  # what the model does not read of this piece


class Restored(NamedTuple):
    """An output with everything that was taken out of its source."""

    text: str
    exact: bool  # False: the output was so broken that the spans stand around it in the order of the source


@dataclass(frozen=True)
class Segment:
    """A stretch of a text, and the tags and spans in it."""

    raw: str
    spans: tuple[Protected, ...]
    parsing: Parsing
    leaf: bool = False  # of an ICU message, where # stands for a number and braces have a meaning

    @cached_property
    def block(self) -> Block:
        """The text without any of them."""
        return block_of(_tokens(self.raw, self.spans), unchanged, unchanged)

    @cached_property
    def tagless(self) -> Block:
        """The text without its tags; the model reads the other spans."""
        return block_of(_tokens(self.raw, [span for span in self.spans if span.kind == "tag"]), unchanged, unchanged)

    def cleaned(self, output: str, read: str, phrases: Sequence[str] = ()) -> str:
        """An output without spans of its own: those that neither the text that was read nor required phrases have."""
        if not self.parsing.protect:
            return output
        wanted = self.parsing.numbers if any(span.kind == "number" for span in self.spans) else None
        text, read = read, " ".join([read, *phrases])
        for _ in range(3):  # what stood around a span may be one
            left = Counter(span.of(read) for span in protected_spans(read, wanted, self.leaf))
            added = []
            for span in protected_spans(output, wanted, self.leaf):
                left[span.of(output)] -= 1
                if left[span.of(output)] < 0:
                    added.append(span)
            if not added:
                signs = _SIGNS if self.leaf else "".join(sign for sign in _SIGNS if sign not in self.raw + read)
                return output if output == text else self._closed(output.translate(dict.fromkeys(map(ord, signs))))
            output = " ".join(without_spans(output, added).split())
        return " ".join(_REMAINS.sub("", output).split())

    def _closed(self, output: str) -> str:
        """The output without a < or { that begins no span: what follows the output might end one."""
        tokens = _tokens(output, protected_spans(output))
        return "".join(_OPENING.sub("", token.raw) if token.kind == "text" else token.raw for token in tokens)

    def has_all(self, text: str, phrases: Sequence[str] = ()) -> bool:
        """Whether a text has every span exactly once, and no other one but those of required phrases."""
        found, expected = self._counted(text), self._counted(self.raw)
        others = {span.of(phrase) for phrase in phrases for span in protected_spans(phrase)}
        return not expected - found and {*(found - expected)} <= others

    def _counted(self, text: str) -> Counter[str]:
        numbers = {span.of(self.raw) for span in self.spans if span.kind == "number"}
        wanted = (lambda number: any(number in known for known in numbers)) if numbers else None
        spans = protected_spans(text, wanted, self.leaf, self.parsing.protect, self.parsing.whole)
        return Counter(span.of(text) for span in spans if span.kind != "number" or span.of(text) in numbers)

    def restored(self, output: Aligned, block: Block, phrases: Sequence[str] = ()) -> Restored:
        """The output with the tags and spans of a block of this segment: `block`, or `tagless`."""
        text = place_markup(block, output)
        if self.has_all(text, phrases):
            return Restored(text, True)
        if not self.parsing.protect:
            return Restored(self.around(output.text), False)
        bare = without_spans(output.text, protected_spans(output.text, None, self.leaf))
        text = self.around(" ".join(_REMAINS.sub("", bare).split()))
        return Restored(text if self.has_all(text) else self.raw, False)

    def around(self, output: str) -> str:
        """All tags and spans as the source has them, and the output in place of the longest text between them."""
        tokens = list(_tokens(self.raw, self.spans))
        texts = [index for index, token in enumerate(tokens) if token.kind == "text"]
        longest = max(texts, key=lambda index: len(tokens[index].raw), default=-1)
        pieces = [
            token.raw if token.kind != "text" else f" {output.strip()} " if index == longest else " "
            for index, token in enumerate(tokens)
        ]
        return "".join(pieces).strip() if longest >= 0 else f"{output.strip()} {''.join(pieces)}".strip()


# --- a text as parts


def parts_of_text(text: str, parsing: Parsing, leaf: bool = False) -> list[Part]:
    """The parts of a text, which join to it where the model changes nothing."""
    if not parsing.protect or parsing.whole or not (messages := icu_messages(text)):
        return _parts(text, parsing, leaf)
    parts: list[Part] = []
    place = 0
    for message in messages:
        parts += _parts(text[place : message.start], parsing, leaf)
        place = message.start
        for first, last in message.leaves:
            parts = [*_with_copy(parts, text[place:first]), *parts_of_text(text[first:last], parsing, True)]
            place = last
        parts = _with_copy(parts, text[place : message.end])
        place = message.end
    return [*parts, *_parts(text[place:], parsing, leaf)]


def _with_copy(parts: list[Part], text: str) -> list[Part]:
    """The parts and a text that is copied: with the one before it, so that nothing can come between."""
    if parts and parts[-1].copied:
        return [*parts[:-1], Part(parts[-1].text + text, True)]
    return [*parts, Part(text, True)]


def join_texts(texts: Sequence[str]) -> str:
    """The texts of parts as one; a space keeps apart what would be another span together, as %s and a letter.

    Where it does not, a model has written the end of what the text before begins.
    """
    joined = list(texts[:1])
    for before, text in pairwise(texts):
        left, right = before[-NEAR:], text[:NEAR]
        spans = [span.of(side) for side in (left, right) for span in protected_spans(side)]

        def same(whole: str, spans: Sequence[str] = spans) -> bool:
            return spans == [span.of(whole) for span in protected_spans(whole)]

        if not same(left + right):
            if not same(f"{left} {right}"):
                tokens = _tokens(text, protected_spans(text))
                text = "".join(_CLOSING_SIGN.sub("", one.raw) if one.kind == "text" else one.raw for one in tokens)
            joined.append(" ")
        joined.append(text)
    return "".join(joined)


def _spans(text: str, parsing: Parsing, leaf: bool) -> list[Protected]:
    return protected_spans(text, parsing.numbers, leaf, parsing.protect, parsing.whole)


def _parts(text: str, parsing: Parsing, leaf: bool) -> list[Part]:
    spans = _spans(text, parsing, leaf)
    begin, end = _edges(text, spans) if parsing.protect else (0, len(text))
    if not spans and end - begin == len(text) and not leaf:
        return [Part(text, False)] if text else []
    if not has_letter(without_spans(text[begin:end], _inside(spans, begin, end))):
        return [Part(text, True)] if text else []
    if (not spans and not leaf) or (parsing.apart and not parsing.whole):
        return _apart(text, spans, begin, end)
    inner, first, last = text[begin:end], begin, end
    first, last = end - len(inner.lstrip()), begin + len(inner.rstrip())
    inside = _inside(spans, first, last)
    if last - first < len(text) and _spans(text[first:last], parsing, leaf) != inside:
        # Alone it is something else: %s1@x.org and {x}.www.x.org have no address.
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        inside = _inside(spans, first, last)
    segment = Segment(text[first:last], tuple(inside), parsing, leaf)
    middle = Part(segment.block.text, False, segment if segment.spans or leaf else None)
    parts = (Part(text[:first], True), middle, Part(text[last:], True))
    return [part for part in parts if part.text or part.segment is not None]


def _inside(spans: Sequence[Protected], begin: int, end: int) -> list[Protected]:
    """The spans between two places, counted from the first."""
    inside = (span for span in spans if begin <= span.start and span.end <= end)
    return [Protected(span.start - begin, span.end - begin, span.kind) for span in inside]


def _apart(text: str, spans: Sequence[Protected], begin: int, end: int) -> list[Part]:
    """The texts between the spans, each read by itself, with the punctuation that touches a span left to it."""
    parts: list[Part] = []
    place = 0
    for span in [*(span for span in spans if begin <= span.start < end), Protected(end, len(text), "")]:
        parts += _between(text[max(place, begin) : span.start], place > begin, bool(span.kind), text[place:begin])
        parts.append(Part(text[span.start : span.end], True))
        place = span.end
    joined: list[Part] = []
    for part in parts:
        if part.copied and joined and joined[-1].copied:  # nothing may come between them
            joined[-1] = Part(joined[-1].text + part.text, True)
        elif part.text:
            joined.append(part)
    return joined


def _between(text: str, left: bool, right: bool, before: str) -> Iterator[Part]:
    """A text to read between what is copied. Signs that touch a span are copied, as the colon of {x}: is."""
    if before:
        yield Part(before, True)
    if not has_letter(text):
        yield Part(text, True)
        return
    first, last = 0, len(text)
    while text[first].isspace() or (left and is_separator(text[first])):
        first += 1
    while text[last - 1].isspace() or (right and is_separator(text[last - 1])):
        last -= 1
    yield Part(text[:first], True)
    yield Part(text[first:last], bool(protected_spans(text[first:last])))  # alone it may be one: .www.x.org is none
    yield Part(text[last:], True)


def has_letter(text: str) -> bool:
    """Whether there is anything to translate: numbers, signs and white space are the same in every language."""
    return any(map(str.isalpha, text))


def is_separator(char: str) -> bool:
    """Whether a character is punctuation, a sign or white space."""
    return unicodedata.category(char)[0] in "PSZ" or char.isspace()


def _edges(text: str, spans: Sequence[Protected]) -> Span:
    """Where a text begins and ends without bullet or numbering, quotation marks, and a span before all words."""
    first = spans[0].start if spans else len(text)
    match = _EDGE.match(text, 0, first)
    begin, end = match.end() if match else 0, len(text)
    for index, span in enumerate(spans):
        before = text[begin : span.start].strip()
        closing = _BRACKETS.get(before)
        if span.kind == "tag" or (before and text[span.end : span.end + 1] != closing):
            break
        begin = span.end + bool(before)
        following = spans[index + 1].start if index + 1 < len(spans) else len(text)
        while begin < following and is_separator(text[begin]) and text[begin] not in _BRACKETS:
            begin += 1
    return _unquoted(text, begin, end, spans)


def _unquoted(text: str, begin: int, end: int, spans: Sequence[Protected]) -> Span:
    """Without quotation marks around all of it, and without one at an edge whose partner is in another segment."""
    first = next((span.start for span in spans if span.end > begin), end)
    last = max((span.end for span in spans), default=begin)
    while begin < min(first, end) and (closing := QUOTES.get(text[begin])):
        inner = text[begin + 1 : end].rstrip()
        if inner.endswith(closing) and begin + 1 + len(inner) > last and not {text[begin], closing} & {*inner[:-1]}:
            begin, end = begin + 1, begin + len(inner)
        elif closing not in inner:
            begin += 1
        else:
            break
    inner = text[begin:end].rstrip()
    if inner and begin + len(inner) > last and (openings := _CLOSING.get(inner[-1])) and not openings & {*inner[:-1]}:
        end = begin + len(inner) - 1
    return begin, end


def _tokens(text: str, spans: Sequence[Protected]) -> Iterator[Token]:
    """Texts, tags and points. A point takes with it the signs that would stand alone without it.

    The model reads "You have messages in." of "You have messages in {folder}.", and "Hello!" of "Hello, {name}!".
    """
    place = 0
    for index, span in enumerate(spans):
        start, end = span.start, span.end
        if span.kind == "tag":
            yield from [Token("text", "", text[place:start])] if start > place else []
            yield Token(*tag_kind(text[start:end]), text[start:end])
            place = end
            continue
        limit = spans[index + 1].start if index + 1 < len(spans) else len(text)
        while place < start and end < limit and _BRACKETS.get(text[start - 1]) == text[end]:
            start, end = start - 1, end + 1
        if (before := _BEFORE.search(text, place, start)) and before.start() > place and _AFTER.match(text, end):
            start = before.start()
        yield from [Token("text", "", text[place:start])] if start > place else []
        yield Token("copied", span.kind, text[start:end])
        place = end
    if place < len(text):
        yield Token("text", "", text[place:])


# --- links between the words of a source and of its output


def sentence_links(alignment: WordAlignment | None, source: str, output: str) -> Aligned:
    """An output with links between its words and those of its source, by the highest weights of an alignment.

    Where the alignment is between white space and a word here is a letter, the letters of two linked words are
    linked in order.
    """
    words, others = words_of(source), words_of(output)
    sources, targets = [-1] * len(others), [-1] * len(words)
    weights = alignment.weights if alignment is not None else None
    if weights is not None and weights.numel():
        rows, columns = weights.argmax(1).tolist(), weights.argmax(0).tolist()
        if weights.shape == (len(others), len(words)):
            sources, targets = rows, columns
        elif weights.shape == (len(output.split()), len(source.split())):
            groups, other_groups = letters_of_words(words), letters_of_words(others)
            sources, targets = letter_links(other_groups, groups, rows), letter_links(groups, other_groups, columns)
    for word, other in _copied_words(source, words, output, others):
        beside = word - 1 if word else min(1, len(words) - 1)  # other output words come from others
        sources = [beside if linked == word else linked for linked in sources]
        sources[other], targets[word] = word, other
    return Aligned(output, sources, targets, words, others)


def _copied_words(source: str, words: Sequence[Span], output: str, others: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The first words of spans that the output has from the source: no alignment knows them as well."""
    places = {span.of(output): span.start for span in protected_spans(output)}
    for span in protected_spans(source):
        if (place := places.get(span.of(source))) is not None:
            yield _word_at(words, span.start), _word_at(others, place)


def _word_at(words: Sequence[Span], place: int) -> int:
    return bisect_right(words, place, key=lambda word: word[0]) - 1


def letter_links(groups: list[list[int]], others: list[list[int]], links: Sequence[int]) -> list[int]:
    """For each letter the one at the same share of the word that its word is linked to."""
    return [
        others[link][index * len(others[link]) // len(letters)]
        for letters, link in zip(groups, links, strict=True)
        for index in range(len(letters))
    ]


def letters_of_words(words: Sequence[Span]) -> list[list[int]]:
    """For each stretch between white space the words in it."""
    groups: list[list[int]] = []
    end = -1
    for index, (start, stop) in enumerate(words):
        if start == end:
            groups[-1].append(index)
        else:
            groups.append([index])
        end = stop
    return groups
