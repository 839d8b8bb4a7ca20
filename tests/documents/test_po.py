"""PO files as gettext and polib read them: flags, odd characters, encodings, plural forms."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import polib
import pytest

from dragoman.base.errors import DataError
from dragoman.documents.base import Reading
from dragoman.documents.registry import open_document
from tests.documents.samples import outputs

HEADER = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=n != 1;\n"

"""
FUZZY = (
    HEADER
    + """# of a person
#: a.c:1
msgid "one"
msgstr ""

#, fuzzy, c-format
#| msgid "to"
msgid "two"
msgstr "zwo"

#, c-format
msgid "three %d"
msgid_plural "threes %d"
msgstr[0] "drei %d"
msgstr[1] ""

#| msgid "for"
msgctxt "number"
msgid "four"
msgstr ""

msgid "five"
msgstr "fünf"

#, fuzzy
msgid "six"
msgstr "sex"

#, fuzzy
#~ msgid "seven"
#~ msgstr "sieben"

msgid "eight"
msgstr "acht"
"""
)


def translated(text: str | bytes, reading: Reading | None = None, everything: bool = False) -> bytes:
    """A file with all its missing translations in upper case."""
    document = open_document("a.po", text if isinstance(text, bytes) else text.encode(), reading)
    return document.render(outputs(document, str.upper, everything))


def entries(data: bytes, tmp_path: Path) -> dict[str, polib.POEntry]:
    path = tmp_path / "read.po"
    path.write_bytes(data)
    return {entry.msgid: entry for entry in polib.pofile(str(path))}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_machine_output_is_fuzzy_and_fuzzy_entries_are_translated(tmp_path: Path, ending: str) -> None:
    found = entries(translated(FUZZY.replace("\n", ending)), tmp_path)
    assert {name: entry.msgstr or entry.msgstr_plural for name, entry in found.items()} == {
        "one": "ONE", "two": "TWO", "three %d": {0: "drei %d", 1: "THREES %D"}, "four": "FOUR", "five": "fünf",
        "six": "SIX", "seven": "sieben", "eight": "acht",
    }  # fmt: skip
    flags = {name: entry.flags for name, entry in found.items() if not entry.obsolete}
    assert flags == {
        "one": ["fuzzy"], "two": ["fuzzy", "c-format"], "three %d": ["fuzzy", "c-format"], "four": ["fuzzy"],
        "five": [], "six": ["fuzzy"], "eight": [],
    }  # fmt: skip
    assert found["four"].previous_msgid == "for"
    assert found["one"].tcomment == "of a person"


def test_without_review_no_translation_is_fuzzy(tmp_path: Path) -> None:
    data = translated(FUZZY, Reading(review=False))
    found = entries(data, tmp_path)
    assert not [name for name, entry in found.items() if entry.fuzzy and not entry.obsolete]
    assert found["two"].flags == found["three %d"].flags == ["c-format"]
    again = entries(translated(data, Reading(review=False), everything=True), tmp_path)
    assert (again["five"].msgstr, again["five"].flags) == ("FIVE", [])
    assert entries(translated(FUZZY, everything=True), tmp_path)["eight"].fuzzy


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="needs gettext")
@pytest.mark.parametrize(("review", "counts"), [(True, (2, 5)), (False, (7, 0))])
def test_msgfmt_counts_them_so(tmp_path: Path, review: bool, counts: tuple[int, int]) -> None:
    path = tmp_path / "a.po"
    path.write_bytes(translated(FUZZY.replace(" %d", ""), Reading(review=review)))
    command = ["msgfmt", "--check", "--statistics", "-o", str(tmp_path / "a.mo"), str(path)]
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    fuzzy = f", {counts[1]} fuzzy translations" if counts[1] else ""
    assert f"{counts[0]} translated messages{fuzzy}." in done.stderr


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\f", "\v", "\x1c", "\x1e", "\x01", "\x1b", "\u2029", "\t"])
def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path, odd: str) -> None:
    text = f'{HEADER}# note{odd}more\nmsgid "one{odd}two"\nmsgstr ""\n'
    assert open_document("a.po", text.encode()).render([None]) == text.encode()
    data = translated(text)
    assert entries(data, tmp_path)[f"one{odd}two"].msgstr == f"ONE{odd}TWO"
    assert open_document("a.po", data).units[0].block.text == f"one{odd}two"


def test_strings_as_gettext_allows_them() -> None:
    text = 'domain "x"\nmsgid\n"one " "two"  "\\303\\251\\x41"\nmsgstr\n  ""\nmsgid"b"msgstr [0]""'
    document = open_document("a.po", text.encode())
    assert [unit.block.text for unit in document.units] == ["one twoéA", "b"]
    assert translated('msgid "a"\nmsgstr ""').decode() == '#, fuzzy\nmsgid "a"\nmsgstr "A"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"\n', ":3: found a second msgstr"),
        ('msgid "a"\nmsgstr\n', ":1: found msgstr without text"),
        ('msgid "a"\n# x\n"b"\nmsgstr ""\n', ":3: found '\"b\"'"),
        ('msgid "a"\nmsgstr "" junk\n', ":2: found 'junk'"),
    ],
)
def test_what_is_no_po_file_is_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match="a.po" + message.replace("(", r"\(")):
        open_document("a.po", text.encode())


@pytest.mark.parametrize(
    "charset",
    ["CP1251", "windows-1251", "KOI8-R", "koi8_u", "mac-cyrillic", "ISO-8859-5", "cp866", "utf8"],
)
def test_encodings_that_python_knows(charset: str) -> None:
    text = "#" * 5000 + f'\nmsgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\nmsgid "да"\nmsgstr ""\n'
    changed = translated(text.encode(charset)).decode(charset)
    assert 'msgstr "ДА"' in changed


@pytest.mark.parametrize(
    "charset",
    [
        "rot13",
        "hex",
        "base64",
        "zlib",
        "unicode_escape",
        "raw_unicode_escape",
        "idna",
        "punycode",
        "utf-7",
        "undefined",
        "x/y",
    ],
)
def test_codecs_that_are_no_encodings_of_files(charset: str) -> None:
    with pytest.raises(DataError, match="found the encoding"):
        open_document("a.po", b'msgid "a"\nmsgstr ""\n', Reading(encoding=charset))


def test_wrapped_messages_and_line_breaks_at_both_ends(tmp_path: Path) -> None:
    text = HEADER + 'msgid ""\n"\\n"\n"a long "\n"line\\n"\n"next\\n"\nmsgstr ""\n'
    assert entries(translated(text), tmp_path)["\na long line\nnext\n"].msgstr == "\nA LONG LINE\nNEXT\n"
