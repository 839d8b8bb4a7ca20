"""What is doubtful about a translation stands in the file where people who review it look."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import polib
import pytest

from dragoman.documents.base import Reading
from dragoman.documents.registry import open_document
from dragoman.documents.report import CheckedFile, CheckedPair
from dragoman.documents.translation import Translation, finished, translate_units
from dragoman.inference.checks import Finding, checker
from dragoman.web import page_data
from tests.conftest import TrainedFolder, call
from tests.documents.model import SameOrderEngine


def drop_digits(text: str) -> str:
    return re.sub(r"\d", "x", text)


def translated(name: str, text: str, change: Callable[[str], str], review: bool = True, again: bool = False) -> str:
    document = open_document(name, text.encode(), Reading("en", "de", review=review))
    return translation_of(document, change, again).data.decode()


def translation_of(document: object, change: Callable[[str], str], again: bool = False) -> Translation:
    work = translate_units(document, SameOrderEngine(change), None, again, checker("en", "de"))  # type: ignore[arg-type]
    return finished(work)


ENTRIES = '#: a.c:1\n#, c-format\nmsgid "12 dogs"\nmsgstr ""\n\nmsgid "a dog"\nmsgstr ""\n'
PO = f'msgid ""\nmsgstr "Language: de\\n"\n\n{ENTRIES}'


@pytest.mark.parametrize("review", [True, False])
def test_po_flags_and_comments(review: bool) -> None:
    wrong = translated("a.po", PO, drop_digits, review)
    first, second = polib.pofile(wrong)
    assert first.flags == ["fuzzy", "c-format"]
    assert first.tcomment.startswith("dragoman: number: '12'")
    assert first.occurrences == [("a.c", "1")]
    assert ("fuzzy" in second.flags) is review
    assert not second.tcomment
    # A second translation replaces what the first one left.
    right = translated("a.po", wrong, str, review, again=True)
    assert right == translated("a.po", PO, str, review)
    assert wrong == translated("a.po", wrong, drop_digits, review, again=True)


def version1(body: str) -> str:
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"'
    return f'{head} target-language="de"><body>{body}</body></file></xliff>'


def version2(body: str) -> str:
    head = '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">'
    return f'{head}<file id="f">{body}</file></xliff>'


@pytest.mark.parametrize("review", [True, False])
def test_xliff_1_states_and_notes(review: bool) -> None:
    text = version1("<trans-unit id='1'><source>12 dogs &amp; men</source><note>mine</note></trans-unit>")
    wrong = translated("a.xlf", text, drop_digits, review)
    root = ElementTree.fromstring(wrong)
    target = root.find(".//{*}target")
    assert target is not None
    assert target.get("state") == "needs-review-translation"
    notes = {note.get("from"): str(note.text) for note in root.iterfind(".//{*}note")}
    assert notes[None] == "mine"
    assert notes["dragoman"].startswith("number: '12'")
    right = translated("a.xlf", wrong, str, review, again=True)
    assert right == translated("a.xlf", text, str, review)


@pytest.mark.parametrize(
    "notes", ["", "<notes><note>mine</note></notes>", "<originalData><data id='d'/></originalData>"]
)
@pytest.mark.parametrize("review", [True, False])
def test_xliff_2_states_and_notes(notes: str, review: bool) -> None:
    segment = "<segment id='s'><source>12 dogs</source></segment>"
    text = version2(f"<notes><note>of all</note></notes><unit id='1'>{notes}{segment}</unit>")
    wrong = translated("a.xlf", text, drop_digits, review)
    root = ElementTree.fromstring(wrong)
    found = root.find(".//{*}segment")
    assert found is not None
    assert (found.get("state"), found.get("subState")) == ("translated", "dragoman:number")
    own = root.findall(".//{*}unit/{*}notes/{*}note[@category='dragoman']")
    assert [str(note.text)[:12] for note in own] == ["number: '12'"]
    names = [child.tag.rpartition("}")[2] for child in root.find(".//{*}unit") or ()]
    assert names == sorted(names, key=["matches", "notes", "originalData", "segment"].index)
    right = translated("a.xlf", wrong, str, review, again=True)
    assert ElementTree.fromstring(right).find(".//{*}note[@category='dragoman']") is None
    assert "subState" not in right
    assert ("mine" in right) is ("mine" in notes)
    assert "<notes></notes>" not in right
    assert wrong == translated("a.xlf", wrong, drop_digits, review, again=True)


def test_tmx_properties() -> None:
    unit = '<tu><tuv xml:lang="en"><seg>12 dogs</seg></tuv></tu>'
    text = f'<tmx version="1.4"><header srclang="en"/><body>{unit}</body></tmx>'
    wrong = translated("a.tmx", text, drop_digits)
    prop = ElementTree.fromstring(wrong).find(".//tuv/prop[@type='x-dragoman-finding']")
    assert prop is not None
    assert str(prop.text).startswith("number: '12'")
    assert "x-dragoman-finding" not in translated("a.tmx", wrong, str, again=True)


def test_a_line_and_the_places_of_findings() -> None:
    document = open_document("a.txt", b"12 dogs\n\nA dog sleeps\n3 cats\n", Reading("en", "de"))
    found = translation_of(document, drop_digits)
    assert [(pair.place, pair.hard) for pair in found.checked.found] == [("line 1", True), ("line 4", True)]
    assert found.checked.line == "2 of 3 segments have findings: number 2"
    assert CheckedFile("a", 3).line == ""
    soft, hard = Finding("ending", ""), Finding("loop", "")
    pairs = [CheckedPair("", "", "", [soft, hard]), CheckedPair("", "", "", [soft])]
    assert CheckedFile("a", 3, pairs).line == "2 of 3 segments have findings: loop 1, ending 2"


def test_translate_reports(trained_folder: TrainedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    file, report = tmp_path / "a.txt", tmp_path / "report.html"
    file.write_text("abc 1234567\n", encoding="utf-8")
    done = call("translate", trained_folder.run, file, "--to", "de", "--report", report)
    assert done.code == 0, done.err
    [pair] = page_data(report.read_text(encoding="utf-8"))["pairs"] or [None]
    assert pair is None or f"{file}: 1 of 1 segments has findings: " in done.err
    assert call("translate", trained_folder.run, file, "--to", "de", "--report", file).code == 2
