"""Examples, faults (lines that cannot be used), and the checks that tell them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from dragoman.base.config import Range, setting
from dragoman.data.tokenizers.context import join_context
from dragoman.data.tokenizers.language_tags import TAG_NAME, add_tag

FaultKind = Literal[
    "bad-utf8",
    "wrong-columns",
    "empty-side",
    "blank-line",
    "control-characters",
    "over-long",
    "bad-json",
    "missing-field",
    "not-text",
    "unpaired-line",
    "missing-file",
    "unreadable-file",
    "wrong-rate",
    "empty-file",
    "not-a-number",
    "unknown-label",
    "wrong-tags",
]
# Lone surrogates count as control characters: JSON can write them ("\ud800"), UTF-8 and tokenizers cannot.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
CONTROLS_EXCEPT_TAB = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
# Nobody sees these: C1 controls, which conversions leave behind, and byte order marks of files that were joined.
HARMLESS = re.compile("[\x80-\x9f\ufeff]")


class Fault(NamedTuple):
    """Why a line or a media file cannot be used."""

    location: str  # "path:line", or the path of a media file
    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        return f"{self.location}: {self.detail}"


class Example(NamedTuple):
    """A source and its references; the first reference is the training target."""

    source: str
    references: tuple[str, ...]
    path: str
    line: int
    tag: str = ""  # the target language in a multilingual corpus, or another attribute of the target
    media_path: str = ""  # of a media file, whose source is its name in the manifest
    word_lines: tuple[int, ...] = ()  # the line of every word, in files with one word per line
    normalised: bool = False  # whether harmless control characters were removed
    document: str = ""  # that the example is a part of, where a column names it
    context: tuple[str, ...] | None = None  # the sources before it in its document; None: the run reads none

    @property
    def model_input(self) -> str:
        """What the source tokenizer encodes: the source with tag and context, or the path of the media file."""
        if self.media_path:
            return self.media_path
        text = self.source if self.context is None else join_context(self.context, self.source)
        return add_tag(text, self.tag) if self.tag else text

    @property
    def location(self) -> str:
        """ "path:line" for error messages."""
        return f"{self.path}:{self.line}"

    def word_location(self, word: int) -> str:
        """ "path:line" of a word, counted from 0."""
        return f"{self.path}:{self.word_lines[word]}" if self.word_lines else self.location


@dataclass(frozen=True)
class Pairs:
    """Two parallel files, line i of one the translation of line i of the other, or one file of pairs."""

    source: str | None = setting(None, help="a file of source lines")
    target: str | None = setting(None, help="a file of target lines, one for each source line")
    file: str | None = setting(None, help="instead of both: one file of pairs")
    tag: str | None = setting(None, help='target language in a multilingual corpus, such as "de"')
    weight: Annotated[float, Range(0.001, 1000.0)] | None = setting(
        None, help="how often an epoch has each example of these files: 2 is twice, 0.5 is every second epoch"
    )

    def problems(self) -> Iterator[str]:
        named = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if named in (["source"], ["target"]):
            yield f"{'target' if named == ['source'] else 'source'}: missing; expected text"
        elif named not in (["source", "target"], ["file"]):
            yield f"found {', '.join(named) or 'no file'}, expected source and target, or file"
        if self.tag is not None and not TAG_NAME.fullmatch(self.tag):
            yield f"tag: found {self.tag!r}, expected letters, digits, '.', '_' or '-', such as \"de\""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path in (self.source, self.target, self.file) if path is not None)


def file_of(entry: str | Path | Pairs) -> Path | None:
    """The file of an entry of data.train; None for two parallel files."""
    path = entry.file if isinstance(entry, Pairs) else entry
    return None if path is None else Path(path)


class FaultError(Exception):
    """A fault without its location, which the caller knows."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FaultKind = kind
        self.detail = detail

    def at(self, location: str) -> Fault:
        return Fault(location, self.kind, self.detail)


def normalise(text: str) -> str:
    """The text without harmless control characters; a line end in the text (U+0085) becomes a space."""
    if text.isascii() or not HARMLESS.search(text):
        return text
    return HARMLESS.sub(lambda match: " " if match[0] == "\x85" else "", text)


def check_text(text: str, name: str, max_characters: int, controls: re.Pattern[str] = CONTROLS) -> None:
    """Raise FaultError unless a text can be the source or target of an example; `name` is for the message."""
    # No control character is printable, and isprintable is several times faster than the search.
    if not text.isprintable() and (match := controls.search(text)):
        code, where = ord(match[0]), f"at offset {match.start()} of the {name}"
        if code >= 0xD800:
            raise FaultError("bad-utf8", f"found the lone surrogate U+{code:04X} {where}, expected complete characters")
        raise FaultError("control-characters", f"found U+{code:04X} {where}, expected no control characters")
    if not text or text.isspace():
        raise FaultError("empty-side", f"the {name} is empty, expected text")
    if len(text) > max_characters:
        raise FaultError("over-long", f"the {name} has {len(text)} characters, expected at most {max_characters}")


def make_example(source: str, references: Sequence[str], path: str, line: int, max_characters: int) -> Example:
    """An example of checked texts; raises FaultError. Empty references after the first are dropped."""
    given = source, *references
    source, *references = clean = tuple(map(normalise, given))
    check_text(source, "source", max_characters)
    check_text(references[0] if references else "", "target", max_characters)
    if len(references) > 1:
        references = [references[0], *(text for text in references[1:] if text and not text.isspace())]
        for index, text in enumerate(references[1:], 2):
            check_text(text, f"reference {index}", max_characters)
    return Example(source, tuple(references), path, line, normalised=clean != given)
