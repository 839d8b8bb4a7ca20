"""PO files of gettext: msgid is the source, msgstr the translation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dragoman.documents.base import Edit, Output, Reading, TextDocument, Unit, declared_encoding
from dragoman.documents.markup import Block, unchanged
from dragoman.errors import DataError

_KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d{1,3})\])?[ \t]*(".*)$')
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLURALS = re.compile(r"nplurals\s*=\s*(\d)")


@dataclass
class _Field:
    """The strings of one keyword, and where they are."""

    start: int = 0
    end: int = 0
    text: str = ""


@dataclass
class _Entry:
    line: int
    fields: dict[str, _Field] = field(default_factory=dict)  # "msgid", "msgstr", "msgstr[1]"


class PODocument(TextDocument):
    """A unit for every message, and one for every plural form of it."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading, declared_encoding(data))
        entries = self._entries()
        header = next((entry for entry in entries if not entry.fields["msgid"].text), None)
        found = _PLURALS.search(header.fields["msgstr"].text) if header and "msgstr" in header.fields else None
        self.plurals = int(found[1]) if found else 2
        self.places: list[tuple[_Field, str, str]] = []  # where each unit is written, its keyword, text that follows
        for entry in entries:
            if entry is not header:
                self._add(entry)

    def _entries(self) -> list[_Entry]:
        """The messages in order; comments and obsolete messages (#~) belong to none."""
        entries: list[_Entry] = []
        current: _Field | None = None
        place = 0
        for number, line in enumerate(self.text.splitlines(keepends=True), 1):
            start, place = place, place + len(line)
            body = line.strip()
            if not body or body.startswith("#"):
                current = None
                continue
            begin = start + line.index(body)
            if match := _KEYWORD.match(body):
                keyword, number_of_form, body = match.groups()
                name = f"{keyword}[{number_of_form}]" if number_of_form is not None else keyword
                new = not entries or keyword == "msgctxt" or (keyword == "msgid" and "msgid" in entries[-1].fields)
                if new:
                    entries.append(_Entry(number))
                begin += match.start(3)
                current = entries[-1].fields[name] = _Field(begin, begin)
            string = _STRING.fullmatch(body)
            if string is None or current is None:
                raise DataError(f"document:{number}: found {body[:60]!r}, expected a keyword and a quoted string")
            current.text += _unescape(string[1])
            current.end = begin + len(body)
        for entry in entries:
            if "msgid" not in entry.fields or not any(name.startswith("msgstr") for name in entry.fields):
                raise DataError(f"document:{entry.line}: found a message without msgid or msgstr, expected both")
        return entries

    def _add(self, entry: _Entry) -> None:
        single, several = entry.fields["msgid"], entry.fields.get("msgid_plural")
        forms = [("msgstr", single)]
        if several is not None:
            forms = [(f"msgstr[{form}]", several if form else single) for form in range(max(1, self.plurals))]
            if self.plurals == 1:
                forms = [("msgstr[0]", several)]
        last = max((one for name, one in entry.fields.items() if name.startswith("msgstr")), key=lambda one: one.end)
        for name, source in forms:
            if not source.text.strip():
                continue
            target = entry.fields.get(name)
            translated = target is not None and bool(target.text)
            self.units.append(Unit(Block(source.text, escape=unchanged), f"line {entry.line}", translated))
            self.places.append((target or last, "" if target else name, source.text))

    def edits(self, index: int, output: Output) -> Iterable[Edit]:
        """See TextDocument."""
        place, missing, source = self.places[index]
        # gettext demands the same line break at both ends
        text = "\n" * source.startswith("\n") + output.markup.strip("\n") + "\n" * source.endswith("\n")
        ending = "\r\n" if "\r\n" in self.text else "\n"
        written = _written(text, ending)
        if missing:
            yield Edit(place.end, place.end, f"{ending}{missing} {written}")
        else:
            yield Edit(place.start, place.end, written)


def _unescape(text: str) -> str:
    def resolved(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x":
            return chr(int(code[1:], 16)) if len(code) > 1 else "x"
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(resolved, text)


def _written(text: str, ending: str) -> str:
    """A text as quoted strings: one line, or one for every line of the text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    lines = re.findall(r"(?:(?!\\n)(?:\\.|[^\\]))*\\n|(?:(?!\\n)(?:\\.|[^\\]))+", escaped)
    if len(lines) < 2:
        return f'"{escaped}"'
    return ending.join(['""', *(f'"{line}"' for line in lines)])
