"""TMX translation memories, read as a stream, and a parser of XML from strangers.

Memory does not grow with the file. The parser resolves no entity and reads no other file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from dragoman.base import ConfigError, DataError
from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.languages import same_language
from dragoman.data.readers.base import Reader, ReadOptions, SourceRow
from dragoman.data.readers.lines import Read, check_file, open_bytes

BLOCK = 1 << 16
MAX_DEPTH = 256  # elements inside each other
MAX_SEGMENT = 1 << 22  # characters of a segment that are kept
NATIVE_CODE = frozenset({"bpt", "ept", "ph", "it", "ut"})  # elements whose content is no text


class TmxReader(Reader):
    """The units of a translation memory; `columns` are the codes of source and target language.

    By default the source language is the srclang of the header, and the target language the only other one. Text
    inside native code (<bpt>, <ph>, …) is left out.
    """

    suffixes = (".tmx",)
    about = "TMX"

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        with open_bytes(path) as read:
            chosen = options.columns
            for line, variants in _units(read, str(path)):
                chosen = chosen if len(chosen) == 2 else _choose(path, variants)
                try:
                    texts = _pick(variants, chosen)
                    yield make_example(texts[0], texts[1:], str(path), line, options.max_characters)
                except FaultError as fault:
                    yield fault.at(f"{path}:{line}")

    def sources(self, path: Path, options: ReadOptions) -> Iterator[SourceRow | Fault]:
        """The source side of every unit; units need no target."""
        check_file(path)
        language = next((column for column in options.columns if not column.isdigit()), "")
        with open_bytes(path) as read:
            for line, variants in _units(read, str(path)):
                language = language or _source_language(variants)
                try:
                    yield SourceRow(_pick(variants, (language,))[0], line=line)
                except FaultError as fault:
                    yield fault.at(f"{path}:{line}")


def _source_language(variants: dict[str, str]) -> str:
    """The language of the header ("" in `variants`), or the first one of the unit."""
    codes = [code for code in variants if code]
    return next((code for code in codes if same_language(code, variants.get("", ""))), codes[0] if codes else "")


def _choose(path: Path, variants: dict[str, str]) -> tuple[str, ...]:
    """Source and target language by the header and the first unit."""
    source = _source_language(variants)
    codes = [code for code in variants if code]
    others = [code for code in codes if code != source]
    if len(others) != 1:
        found = ", ".join(codes) or "no language"
        raise ConfigError(
            f'columns: missing; the first unit of {path} has {found}; name source and target as in ["en", "de"]'
        )
    return source, others[0]


def _pick(variants: dict[str, str], languages: tuple[str, ...]) -> list[str]:
    texts = []
    for wanted in languages:
        text = variants.get(wanted)
        if text is None:
            text = next((text for code, text in variants.items() if code and same_language(code, wanted)), None)
        if text is None:
            codes = ", ".join(code for code in variants if code) or "none"
            raise FaultError("missing-field", f"found the languages {codes}, expected {wanted}")
        texts.append(" ".join(text.split()))
    return texts


class SafeParser:
    """Feeds data to expat; subclasses handle tags and texts. `name` starts all messages."""

    def __init__(self, name: str, encoding: str | None = None) -> None:
        self.name, self.depth = name, 0
        self._parser = expat.ParserCreate(encoding)
        self._parser.buffer_text = True
        self._parser.EntityDeclHandler = self._refuse_entities
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.CharacterDataHandler = self.characters

    def feed(self, data: bytes, final: bool) -> None:
        """Parse more of the file; an error is a DataError with its place."""
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            place = f"{self.name}:{self._parser.ErrorLineNumber}:{self._parser.ErrorColumnNumber + 1}"
            raise DataError(f"{place}: found no well-formed XML ({expat.ErrorString(error.code)})") from None
        except (ValueError, LookupError):  # of an encoding that Python does not have
            raise DataError(f"{self.name}: found an unknown encoding, expected UTF-8") from None

    @property
    def line(self) -> int:
        return int(self._parser.CurrentLineNumber)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Called for every start tag."""

    def end(self, tag: str) -> None:
        """Called for every end tag."""

    def characters(self, data: str) -> None:
        """Called for text."""

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise DataError(f"{self.name}: found more than {MAX_DEPTH} elements inside each other, expected fewer")
        self.start(tag, attributes)

    def _end(self, tag: str) -> None:
        self.depth -= 1
        self.end(tag)

    def _refuse_entities(self, *declared: Any) -> NoReturn:
        raise DataError(f"{self.name}: found a declaration of an entity, expected none; remove it from the DOCTYPE")


class _Units(SafeParser):
    """Collects the units that are complete: the line of each, and its texts by language.

    The language "" names the source language of the header.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.done: list[tuple[int, dict[str, str]]] = []
        self.header = self.root = self.language = ""
        self.variants: dict[str, str] = {}
        self.first_line = 0
        self.text: list[str] | None = None  # of the segment that is read
        self.size = self.native = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.root = self.root or tag
        if self.root != "tmx":
            raise DataError(f"{self.name}: found <{self.root[:40]}>, expected <tmx>")
        if tag == "header":
            self.header = attributes.get("srclang", "")
        elif tag == "tu":
            self.variants, self.first_line = {"": self.header}, self.line
        elif tag == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif tag == "seg":
            self.text, self.size = [], 0
        elif tag in NATIVE_CODE or self.native:
            self.native += 1

    def characters(self, data: str) -> None:
        if self.text is not None and not self.native and self.size <= MAX_SEGMENT:
            self.text.append(data)
            self.size += len(data)

    def end(self, tag: str) -> None:
        if self.native:
            self.native -= 1
        elif tag == "seg" and self.text is not None:
            self.variants.setdefault(self.language, "".join(self.text))
            self.text = None
        elif tag == "tu":
            self.done.append((self.first_line, self.variants))


def _units(read: Read, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    parser = _Units(name)
    while True:
        block = read(BLOCK)
        try:
            parser.feed(block, not block)
        finally:
            done, parser.done = parser.done, []
        yield from done
        if not block:
            return
