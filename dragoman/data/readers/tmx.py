"""TMX translation memories, read as a stream: memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.languages import same_language
from dragoman.data.readers.base import Reader, ReadOptions, SourceRow
from dragoman.data.readers.lines import Read, check_file, open_bytes
from dragoman.data.readers.safe_xml import SafeParser
from dragoman.errors import ConfigError, DataError

BLOCK = 1 << 16
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
                    yield SourceRow(_pick(variants, (language,))[0])
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
    """All units of a file, as soon as they are read."""
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
