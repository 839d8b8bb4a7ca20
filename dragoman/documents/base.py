"""What every document format has in common: units of text in a file that stays as it is around them."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dragoman.base import DataError, check_interrupted
from dragoman.inference.segments import Block, unchanged

if TYPE_CHECKING:
    from dragoman.inference import Finding

MAX_BYTES = 1 << 28  # of a document, which is read whole


MAX_MARKS = 100_000  # of a text
_MARKS = "<*_`[]~$"  # where tags begin, and the marks of Markdown


class Limits:
    """Counts the texts of a document while it is read, and refuses a document with too many."""

    def __init__(self, most: int = 0) -> None:  # texts, and marks or tags inside them; 0: any number
        self.most, self.texts, self.marks = most, 0, 0

    def add(self, text: str, start: int, end: int, place: str, marked: str = _MARKS) -> None:
        """Count a text before it is cut into elements, which take hundreds of times the memory of their marks."""
        check_interrupted()
        marks = sum(text.count(mark, start, end) for mark in marked)
        self.texts, self.marks = self.texts + 1, self.marks + marks
        if marks > MAX_MARKS:
            found = f"found {marks:,} marks or tags in one text"
            raise DataError(f"document, {place}: {found}, expected at most {MAX_MARKS:,}")
        for count, name in ((self.texts, "texts"), (self.marks, "marks or tags in texts")):
            if self.most and count > self.most:
                raise DataError(f"document: found more than {self.most:,} {name}; split the file")


class Unit(NamedTuple):
    """A text of a document that can be translated."""

    block: Block
    location: str  # for messages: "line 7"
    translated: bool = False  # the document has a translation of it already
    maxwidth: int | None = None  # characters that the translation may have at most


class UnitTranslation(NamedTuple):
    """The translation of a unit."""

    markup: str  # with the inline tags of the unit, escaped as the format needs it
    text: str  # without them
    confidence: float | None = None  # geometric mean of the probabilities of its tokens
    from_memory: bool = False  # a translation memory had all of its sentences
    refused: bool = False  # too uncertain: the markup is that of the source
    wordless: bool = False  # without a letter, as numbers are: no model has read it
    findings: tuple[Finding, ...] = ()  # what is doubtful about it

    @property
    def needs_review(self) -> bool:
        """Whether a person must look at it, whatever the caller thinks of review."""
        return any(finding.hard for finding in self.findings)


class Edit(NamedTuple):
    """A stretch of a text and what replaces it."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Reading:
    """What a caller knows about a document that the file may not say."""

    source: str = ""  # language codes
    target: str = ""
    encoding: str = ""
    review: bool = True  # mark translations for review by a person, where the format can
    expected: tuple[str, str] = ("", "")  # languages of the run, where the caller has not said that others are right
    limits: Limits = field(default_factory=Limits)


class Document(ABC):
    """A file with units; `render` gives its bytes again, with some units translated."""

    units: Sequence[Unit]
    sources: Sequence[str] = ()  # codes of the languages that the file names for its texts
    targets: Sequence[str] = ()  # and for their translations
    marks_refused: ClassVar[bool] = False  # whether a unit can say that it has no translation yet

    @abstractmethod
    def render(self, outputs: Sequence[UnitTranslation | None]) -> bytes:
        """The file with these translations; None leaves a unit as it is."""

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        """Source, translation and place of everything that has a translation, for bilingual files."""
        yield from ()

    def confirmed(self) -> Iterator[tuple[str, str, str]]:
        """Source, translation and place of everything that a person has translated or reviewed, for bilingual files."""
        yield from ()


class TextDocument(Document):
    """A document that is text: each translation is a few edits of it."""

    def __init__(self, data: bytes, reading: Reading, declared: str = "") -> None:
        self.reading = reading
        self.file = decode(data, reading.encoding or declared)
        self.limits = reading.limits
        self.text = self.file.text
        self.units = []

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        """The edits that put the translation of a unit into the text."""
        return ()

    def further_edits(self, outputs: Sequence[UnitTranslation | None]) -> Iterable[Edit]:
        """Edits that belong to no single unit; at least one output is not None."""
        return ()

    def render(self, outputs: Sequence[UnitTranslation | None]) -> bytes:
        edits: list[Edit] = []
        for index, output in enumerate(outputs):
            if output is not None:
                edits += self.edits(index, output)
        if any(output is not None for output in outputs):
            edits += self.further_edits(outputs)
        return self.file.encode(splice(self.text, edits), self.escape_unknown)

    escape_unknown = False  # True: a character that the encoding lacks may be written as &#233;


def splice(text: str, edits: Iterable[Edit]) -> str:
    """The text with some stretches replaced; insertions at one place keep their order."""
    parts, place = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        assert start >= place, "edits overlap"
        parts += [text[place:start], new]
        place = end
    return "".join([*parts, text[place:]])


class Units(Sequence[Unit]):
    """Units that are made when they are first asked for: a place in the text takes a tenth of the memory."""

    def __init__(self, make: Callable[[int], Unit]) -> None:
        self._make = make
        self._made: list[Unit | None] = []

    def add(self, unit: Unit | None = None) -> None:
        """Add a unit, or one to be made."""
        self._made.append(unit)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            check_interrupted()
            made = self._made[index] = self._make(index)
        return made


class PartsDocument(TextDocument):
    """A document in which each unit is one stretch of the text."""

    marks = _MARKS  # what elements begin with

    def __init__(self, data: bytes, reading: Reading, declared: str = "") -> None:
        super().__init__(data, reading, declared)
        self.units: Units = Units(self._unit)
        self._starts, self._ends, self._lines = array("I"), array("I"), array("I")
        self._line, self._counted = 1, 0  # line of the character up to which lines were counted

    def add(self, block: Block | None, start: int, end: int) -> None:
        """Add the unit between two characters of the text; units come in order. None: `block_at` makes its block."""
        self._line += self.text.count("\n", self._counted, start)
        self._counted = start
        place = f"line {self._line}"
        self.limits.add(self.text, start, end, place, self.marks)
        self.units.add(None if block is None else Unit(block, place))
        self._starts.append(start)
        self._ends.append(end)
        self._lines.append(self._line)

    def span(self, index: int) -> tuple[int, int]:
        """The characters of a unit."""
        return self._starts[index], self._ends[index]

    def _unit(self, index: int) -> Unit:
        return Unit(self.block_at(index, *self.span(index)), f"line {self._lines[index]}")

    def block_at(self, index: int, start: int, end: int) -> Block:
        """The block of the unit between two characters."""
        raise NotImplementedError

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        yield Edit(*self.span(index), output.markup)


class PlainDocument(PartsDocument):
    """The lines of a plain text; white space around them stays."""

    marks = ""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        for match in re.finditer(r"[^\s](?:[^\r\n]*[^\s])?", self.text):
            self.add(None, *match.span())

    def block_at(self, index: int, start: int, end: int) -> Block:
        return Block(self.text[start:end], escape=unchanged)


# --- encodings

_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_DECLARED = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]+)|<meta[^>]{0,200}?charset\s*=\s*["']?([\w.:-]+)"""
    rb"""|Content-Type:\s*text/plain;\s*charset=([\w.:-]+)""",
    re.IGNORECASE,
)
# Python has them as encodings of text, but they hide text from other readers, or are no encodings of whole files.
_REFUSED = frozenset({"utf-7", "unicode-escape", "raw-unicode-escape", "idna", "punycode", "undefined", "charmap"})


def known_encoding(name: str) -> str:
    """Python's name of an encoding of text; empty: Python has none of that name, or it is no encoding for files."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError, UnicodeError):
        return ""
    # `bytes.decode` asks the same: codecs such as rot13, hex and zlib do not decode bytes to text.
    if not codec._is_text_encoding or codec.name.replace("_", "-") in _REFUSED:
        return ""
    return "utf-8" if codec.name == "utf-8-sig" else name  # the mark was taken off before


class DecodedFile(NamedTuple):
    """The text of a file, and how its bytes encode it."""

    text: str
    encoding: str
    mark: bytes = b""

    def encode(self, text: str, references: bool = False) -> bytes:
        """The bytes of a text in the same encoding; with `references`, other characters are written as &#233;."""
        try:
            return self.mark + text.encode(self.encoding, "xmlcharrefreplace" if references else "strict")
        except UnicodeEncodeError as error:
            raise DataError(
                f"document: the translation has {text[error.start]!r}, which {self.encoding} lacks; convert the file "
                "to UTF-8 first"
            ) from None


def declared_encoding(data: bytes, head: int = 4096) -> str:
    """The encoding that the first bytes of an XML, HTML or PO file name; empty: none."""
    match = _DECLARED.search(data[:head])
    name = next((group for group in match.groups() if group), b"").decode() if match else ""
    return "" if name.upper() == "CHARSET" else name  # the template of gettext


def decode(data: bytes, encoding: str = "") -> DecodedFile:
    """The text of a file: by its byte order mark, or else in `encoding`, which is UTF-8 by default."""
    if len(data) > MAX_BYTES:
        raise DataError(f"document: found {len(data):,} bytes, expected at most {MAX_BYTES:,}; split the file")
    mark, marked = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), (b"", ""))
    encoding = marked or encoding or "utf-8"
    if not (known := known_encoding(encoding)):
        raise DataError(f"document: found the encoding {encoding[:40]!r}, expected one such as utf-8 or latin-1")
    encoding = known
    try:
        text = data[len(mark) :].decode(encoding)
        if text.encode(encoding) != data[len(mark) :]:
            raise DataError(f"document: the bytes of this file are not plain {encoding}; convert it to UTF-8 first")
    except UnicodeError as error:
        place = f"byte 0x{data[len(mark) + error.start]:02x} at {error.start:,}" if hasattr(error, "start") else "bytes"
        advice = "" if marked else " (--encoding names another encoding, such as latin-1)"
        raise DataError(f"document: found {place}, which is not {encoding}{advice}") from None
    return DecodedFile(text, encoding, mark)
