"""What files are read as: examples, faults that name their places, and the checks that part them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from dragoman.config.settings import setting
from dragoman.data.tokenizers import language_tags as tags

FaultKind = Literal[
    "bad-utf8",
    "wrong-columns",
    "empty-side",
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
FAULTS: tuple[str, ...] = get_args(FaultKind)
# Lone surrogates stand with the controls: JSON can write them ("\ud800"), UTF-8 and every tokenizer cannot.
UNWANTED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
UNWANTED_BUT_TAB = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


class Fault(NamedTuple):
    """A line that cannot be used, and why."""

    place: str
    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}"


class Example(NamedTuple):
    """A source and its references; the first reference is the training target."""

    source: str
    references: tuple[str, ...]
    path: str
    line: int
    tag: str = ""  # what the target is, where one model learns several
    at: str = ""  # where a recording or picture is read from; the source is then its name in the manifest
    word_lines: tuple[int, ...] = ()  # of every word, where each stands on a line of its own

    @property
    def tagged(self) -> str:
        """The source as a model reads it, its tag in front; of a recording or picture where it is read from."""
        if self.at:
            return self.at
        return tags.tagged(self.source, self.tag) if self.tag else self.source

    @property
    def place(self) -> str:
        """Where the example stands, as "path:line"; made on demand, since most are never asked for."""
        return f"{self.path}:{self.line}"

    def place_of_word(self, word: int) -> str:
        """Where a word of a sentence stands, counted from 0; that of the example where all are on one line."""
        return f"{self.path}:{self.word_lines[word]}" if self.word_lines else self.place


@dataclass(frozen=True)
class Pairs:
    """Where some pairs stand: two files in which line i of one answers line i of the other, or one file of both."""

    source: str | None = setting(None, help="a file of source lines")
    target: str | None = setting(None, help="a file of target lines, one for each source line")
    file: str | None = setting(None, help="in place of both: one file of pairs")
    tag: str | None = setting(None, help='what the targets are, such as "de", where one model learns several languages')

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        named = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if named in (["source"], ["target"]):
            yield f"{'target' if named == ['source'] else 'source'}: missing; expected text"
        elif named not in (["source", "target"], ["file"]):
            yield f"found {', '.join(named) or 'no file'}, expected source and target, or file"
        if self.tag is not None and not tags.NAME.fullmatch(self.tag):
            yield f"tag: found {self.tag!r}, expected letters, digits, '.', '_' or '-', such as \"de\""

    @property
    def paths(self) -> tuple[str, ...]:
        """The one or two files."""
        return tuple(path for path in (self.source, self.target, self.file) if path is not None)


class FaultyError(Exception):
    """Carries a fault out of a nested check; the caller knows the place."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FaultKind = kind
        self.detail = detail


def check_side(text: str, side: str, max_characters: int, unwanted: re.Pattern[str] = UNWANTED) -> None:
    """That a text can be one side of an example; raises a FaultyError."""
    # No control character is printable, and isprintable is several times faster than the search.
    if not text.isprintable() and (found := unwanted.search(text)):
        code, where = ord(found[0]), f"at offset {found.start()} of the {side}"
        if code >= 0xD800:
            raise FaultyError("bad-utf8", f"found the lone surrogate U+{code:04X} {where}, expected whole characters")
        raise FaultyError("control-characters", f"found U+{code:04X} {where}, expected no control characters")
    if not text or text.isspace():
        raise FaultyError("empty-side", f"the {side} is empty, expected text")
    if len(text) > max_characters:
        raise FaultyError("over-long", f"the {side} has {len(text)} characters, expected at most {max_characters}")


def checked_example(source: str, references: Sequence[str], name: str, number: int, max_characters: int) -> Example:
    """An example whose sides were all looked at; empty references but the first are left out."""
    check_side(source, "source", max_characters)
    check_side(references[0] if references else "", "target", max_characters)
    if len(references) > 1:
        references = [references[0], *(text for text in references[1:] if text and not text.isspace())]
        for index, text in enumerate(references[1:], 2):
            check_side(text, f"reference {index}", max_characters)
    return Example(source, tuple(references), name, number)
