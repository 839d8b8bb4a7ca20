"""PO files of gettext: msgid is the source, msgstr the translation.

An entry with the flag `fuzzy` has no translation yet: msgfmt leaves it out, and translators review it. Machine output
gets the same flag unless the caller wants none of it reviewed; what is wrong for sure gets it anyway. A comment names
what is doubtful.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dragoman.base import DataError
from dragoman.data import normal_code, same_language
from dragoman.documents.base import Edit, Reading, TextDocument, Unit, UnitTranslation, declared_encoding
from dragoman.inference.segments import Block, unchanged

HEAD = 1 << 16  # bytes in which the header names the encoding; comments with all translators may come before it
# As in gettext, a line ends at a line feed alone; any other control character inside a string is text.
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f\v\n]++)"
    r"|(?P<comment>#[^\n]*+)"
    r"|(?P<keyword>msgctxt|msgid_plural|msgid|msgstr|domain)(?![\w])(?:[ \t]*\[[ \t]*(?P<form>\d{1,3})[ \t]*\])?"
    r'|"(?P<string>(?:[^"\\\n]|\\[^\n])*+)"'
)
_ESCAPE = re.compile(r"((?:\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}))+)|\\(.)", re.DOTALL)
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WRITTEN = str.maketrans(
    {character: f"\\{letter}" for letter, character in _ESCAPES.items()} | {'"': '\\"', "\\": "\\\\"}
)
_LANGUAGE = re.compile(r"""(?:"|\\n)Language:[ ]?([\w@.-]*)""")  # of the header, as it is written
_ONE_LINE = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")
_PLURALS = re.compile(r"nplurals\s*=\s*(\d)")
_FINDING = "# dragoman: "  # comments of ours begin so
_FUZZY = re.compile(r"(?<=[,\s])fuzzy(?=[,\s]|$)")


@dataclass
class _Field:
    """The strings of one keyword, and where they are."""

    start: int
    end: int
    strings: list[str] = field(default_factory=list)
    text: str = ""  # what they mean


@dataclass
class _Entry:
    line: int
    start: int  # of its first keyword
    flags: tuple[int, int] | None = None  # of the comment "#, …" before it
    previous: int | None = None  # where the comments "#| …" before it start
    comments: int | None = None  # where all of its comments start
    findings: list[tuple[int, int]] = field(default_factory=list)  # comments about an earlier translation
    fields: dict[str, _Field] = field(default_factory=dict)  # "msgid", "msgstr", "msgstr[1]"
    units: list[int] = field(default_factory=list)


class PODocument(TextDocument):
    """A unit for every message, and one for every plural form of it."""

    units: list[Unit]

    marks_refused = True

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading, declared_encoding(data, HEAD))
        self.review = reading.review
        # A file of old Macs has no line feed at all.
        self.ending = "\r\n" if "\r\n" in self.text else "\n" if "\n" in self.text or "\r" not in self.text else "\r"
        self.entries = self._entries()
        header = next((entry for entry in self.entries if not entry.fields["msgid"].text), None)
        plurals = _PLURALS.search(header.fields["msgstr"].text) if header and "msgstr" in header.fields else None
        self.plurals = int(plurals[1]) if plurals else 2
        head = header.fields.get("msgstr") if header else None
        self.language = _LANGUAGE.search(self.text, head.start, head.end) if head else None
        self.targets = [self.language[1]] if self.language else []
        self.places: list[tuple[_Field, str, str]] = []  # where each unit is written, its keyword, text that follows
        for entry in self.entries:
            if entry is not header:
                self._add(entry)

    def _entries(self) -> list[_Entry]:
        """The messages in order; comments and obsolete messages (#~) belong to none."""
        text = self.text.replace("\r", "\n") if self.ending == "\r" else self.text
        entries: list[_Entry] = []
        current: _Field | None = None
        flags, previous, comments = None, None, None
        findings: list[tuple[int, int]] = []
        place, line = 0, 1
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or (match["string"] is not None and current is None):
                rest = text[place : place + 60].split("\n")[0]
                raise DataError(f"document:{line}: found {rest!r}, expected a keyword and a quoted string")
            if (comment := match["comment"]) is not None:
                current = None
                if comment.startswith("#~"):  # the flags were those of an obsolete message
                    flags, previous, comments, findings = None, None, None, []
                else:
                    comments = place if comments is None else comments
                    if comment.startswith(_FINDING):
                        findings.append((place, min(len(text), match.end() + 1)))
                    elif comment.startswith("#,") and flags is None:
                        flags = match.span()
                    elif comment.startswith("#|") and previous is None:
                        previous = place
            elif match["space"] is not None:
                comments = None if match["space"].count("\n") > 1 else comments
            elif (keyword := match["keyword"]) is not None:
                name = keyword if match["form"] is None else f"{keyword}[{int(match['form'])}]"
                last = entries[-1].fields if entries else {}
                if keyword == "domain":
                    entries.append(_Entry(line, place))
                elif (
                    not entries or keyword == "msgctxt" or "domain" in last or (keyword == "msgid" and "msgid" in last)
                ):
                    entries.append(_Entry(line, place, flags, previous, comments, findings))
                    flags, previous, comments, findings = None, None, None, []
                elif name in last:
                    raise DataError(f"document:{line}: found a second {name} in a message, expected one")
                current = entries[-1].fields[name] = _Field(match.end(), match.end())
            elif (string := match["string"]) is not None:
                assert current is not None
                if not current.strings:
                    current.start = place
                current.strings.append(string)
                current.end = match.end()
            line += text.count("\n", place, match.end())
            place = match.end()
        entries = [entry for entry in entries if "domain" not in entry.fields]
        for entry in entries:
            if "msgid" not in entry.fields or not any(name.startswith("msgstr") for name in entry.fields):
                raise DataError(f"document:{entry.line}: found a message without msgid or msgstr, expected both")
            for name, entry_field in entry.fields.items():
                if not entry_field.strings:
                    raise DataError(f"document:{entry.line}: found {name} without text, expected a quoted string")
                entry_field.text = _unescape("".join(entry_field.strings), self.file.encoding)
        return entries

    def _fuzzy(self, entry: _Entry) -> bool:
        return entry.flags is not None and _FUZZY.search(self.text, *entry.flags) is not None

    def _add(self, entry: _Entry) -> None:
        single, several = entry.fields["msgid"], entry.fields.get("msgid_plural")
        forms = [("msgstr", single)]
        if several is not None:
            forms = [(f"msgstr[{form}]", several if form else single) for form in range(max(1, self.plurals))]
            if self.plurals == 1:
                forms = [("msgstr[0]", several)]
        targets = [target for name, target in entry.fields.items() if name.startswith("msgstr")]
        last = max(targets, key=lambda target: target.end)
        for name, source in forms:
            if not source.text.strip():
                continue
            target = entry.fields.get(name)
            translated = target is not None and bool(target.text) and not self._fuzzy(entry)
            self.limits.add(source.text, 0, len(source.text), f"line {entry.line}", "")
            entry.units.append(len(self.units))
            self.units.append(Unit(Block(source.text, escape=unchanged), f"line {entry.line}", translated))
            self.places.append((target or last, "" if target else name, source.text))

    def confirmed(self) -> Iterator[tuple[str, str, str]]:
        for unit, (target, missing, source) in zip(self.units, self.places, strict=True):
            if unit.translated and not missing:
                yield source, target.text, unit.location

    def edits(self, index: int, output: UnitTranslation) -> Iterable[Edit]:
        place, missing, source = self.places[index]
        # gettext demands the same line break at both ends
        text = "\n" * source.startswith("\n") + output.markup.strip("\n") + "\n" * source.endswith("\n")
        written = _written("" if output.refused else text, self.ending)
        if missing:
            yield Edit(place.end, place.end, f"{self.ending}{missing} {written}")
        else:
            yield Edit(place.start, place.end, written)

    def further_edits(self, outputs: Sequence[UnitTranslation | None]) -> Iterable[Edit]:
        for entry in self.entries:
            own = [output for index in entry.units if (output := outputs[index]) is not None]
            fuzzy = self.review or any(output.refused or output.needs_review for output in own)
            if own:
                yield from self._comments(entry, own)
            if own and self._fuzzy(entry) is not fuzzy:
                yield self._flag(entry, fuzzy)
        if self.language and (code := self.reading.target) and not same_language(normal_code(self.language[1]), code):
            yield Edit(*self.language.span(1), code.replace("-", "_"))

    def _comments(self, entry: _Entry, outputs: Sequence[UnitTranslation]) -> Iterator[Edit]:
        """A comment for each finding, in place of those about an earlier translation."""
        yield from (Edit(start, end, "") for start, end in entry.findings)
        own = (finding for output in outputs if not output.refused for finding in output.findings)
        lines = dict.fromkeys(f"{_FINDING}{finding}".translate(_ONE_LINE) + self.ending for finding in own)
        if lines:
            place = entry.start if entry.comments is None else entry.comments
            yield Edit(place, place, "".join(lines))

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        for unit, (target, missing, source) in zip(self.units, self.places, strict=True):
            if target.text and not missing:
                yield source, target.text, unit.location

    def _flag(self, entry: _Entry, fuzzy: bool) -> Edit:
        """Flag a message as fuzzy, or take that flag away."""
        if entry.flags is None:
            place = entry.start if entry.previous is None else entry.previous
            return Edit(place, place, f"#, fuzzy{self.ending}")
        start, end = entry.flags
        flags = [flag.strip() for flag in self.text[start + 2 : end].split(",")]
        kept = [flag for flag in flags if flag not in ("", "fuzzy")]
        if fuzzy:
            kept.insert(0, "fuzzy")
        if kept:
            return Edit(start, start + len(self.text[start:end].rstrip()), f"#, {', '.join(kept)}")
        return Edit(start, min(len(self.text), end + 1), "")  # with its line end


def _unescape(text: str, encoding: str) -> str:
    def resolved(match: re.Match[str]) -> str:
        if match[1] is None:
            return _ESCAPES.get(match[2], match[2])
        codes = [int(code[1], 16) if code[1] else int(code[2], 8) & 0xFF for code in _CODE.finditer(match[1])]
        try:  # several of them may be the bytes of one character
            return bytes(codes).decode(encoding)
        except UnicodeError:
            return "".join(map(chr, codes))

    return _ESCAPE.sub(resolved, text)


def _written(text: str, ending: str) -> str:
    """A text as quoted strings: one line, or one for every line of the text."""
    lines = [f'"{line.translate(_WRITTEN)}"' for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    return ending.join(['""', *lines]) if len(lines) > 1 else "".join(lines) or '""'
