"""The languages of documents: what a file names is checked, and what is written is labelled."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from dragoman.base.errors import DataError
from dragoman.data.languages import normal_code
from dragoman.documents.base import Reading
from dragoman.documents.registry import open_document
from tests.conftest import TrainedFolder, call
from tests.documents.model import translated
from tests.documents.samples import TMX, XLIFF1, XLIFF2

GERMAN = Reading(target="de", expected=("en", "de"))
PO = r"""msgid ""
msgstr ""
"Language-Team: x\n"
"Language: {}\n"
"MIME-Version: 1.0\n"

msgid "two words"
msgstr ""
"""


def written(name: str, text: str, reading: Reading = GERMAN) -> str:
    return translated(open_document(name, text.encode(), reading), str.upper).decode()


def named(text: str, source: str = "en", target: str = "") -> str:
    """A file with other languages."""
    for old, new in (("source-language", "target-language"), ("srcLang", "trgLang")):
        text = text.replace(f'{old}="en"', f'{old}="{source}"' + (f' {new}="{target}"' if target else ""))
    return text.replace('srclang="en"', f'srclang="{source}"')


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.xlf", named(XLIFF1, "ja"), r"the source language ja \(Japanese\), expected en of the run; .* from="),
        ("a.xlf", named(XLIFF1, target="fr"), r"the target language fr \(French\), expected de of the run; .* to="),
        ("a.xliff", named(XLIFF2, "ja"), "the source language ja"),
        ("a.xliff", named(XLIFF2, target="fr_FR"), "the target language fr-FR"),
        ("a.po", PO.format("fr"), "the target language fr"),
        ("a.po", PO.format("pt_BR"), "the target language pt-BR"),
        ("a.tmx", named(TMX, "ja"), "the source language ja"),
        ("a.html", '<!-- <html lang="en"> --><HTML LANG=ja><p>a', "the source language ja"),
        ("a.html", '<html xml:lang="de-AT"><p lang="en">a', "the source language de-AT"),
    ],
)
def test_a_file_in_other_languages_is_refused(name: str, text: str, found: str) -> None:
    with pytest.raises(DataError, match=rf"^{name}: found {found}"):
        open_document(name, text.encode(), GERMAN)
    open_document(name, text.encode(), Reading(target="de"))  # the caller has named the languages


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.xlf", named(XLIFF1, "en-GB", "de-AT")),
        ("a.xlf", named(XLIFF1, "und", "")),
        ("a.po", PO.format("de_CH")),
        ("a.po", PO.format("")),
        ("a.po", PO.format("LANGUAGE")),
        ("a.tmx", named(TMX, "EN-us")),
        ("a.html", '<html lang="en_GB"><p lang="ja">a'),
        ("a.html", '<html lang=""><p>a'),
        ("a.html", "<html><p>a"),
    ],
)
def test_a_file_in_the_languages_of_the_run_is_read(name: str, text: str) -> None:
    open_document(name, text.encode(), GERMAN)


def test_codes_of_languages() -> None:
    codes = {"pt_BR": "pt-BR", "sr@latin": "sr", " de ": "de", "und": "", "German": "", "": "", "zh-Hans": "zh-Hans"}
    assert {code: normal_code(code) for code in codes} == codes


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<html lang="en"><p>a</p>', '<html lang="de"><p>A</p>'),
        ("<html lang=en-US><p>a</p>", "<html lang=de><p>A</p>"),
        ('<html lang="de-AT"><p>a</p>', '<html lang="de-AT"><p>A</p>'),
        ("<html><p>a</p>", "<html><p>A</p>"),
        (  # what is in the language of the page is not any more; a quotation is marked as it was
            '<HTML xml:lang="en" lang="en"><p lang="en-GB">a</p><p lang="fr">b</p><code lang="en">c</code>',
            '<HTML xml:lang="de" lang="de"><p lang="de">A</p><p lang="fr">B</p><code lang="en">c</code>',
        ),
        ('<html lang="en"><p>a <i lang="en">b</i></p>', '<html lang="de"><p>A <i lang="de">B</i></p>'),
    ],
)
def test_a_translated_page_names_its_language(page: str, expected: str) -> None:
    assert written("a.html", page, Reading(target="de")) == expected
    document = open_document("a.html", page.encode(), Reading(target="de"))
    assert document.render([None] * len(document.units)) == page.encode()
    assert 'lang="de"' not in written("a.html", '<html lang="en"><p>a</p>', Reading())


@pytest.mark.parametrize(("before", "after"), [("", "de"), ("en", "de"), ("de_AT", "de_AT")])
def test_the_header_of_a_po_file_names_the_language(before: str, after: str) -> None:
    found = written("a.po", PO.format(before), Reading(target="de"))
    assert f'"Language: {after}\\n"\n' in found
    assert '"Language-Team: x\\n"' in found
    assert "Language: pt_BR\\n" in written("a.po", PO.format("fr"), Reading(target="pt-BR"))
    assert 'msgstr "TWO WORDS"' in found


def test_an_xliff_file_names_the_language_that_the_caller_asks_for() -> None:
    text = named(XLIFF1, target="fr").replace("<target/>", '<target xml:lang="fr"/>')
    found = written("a.xlf", text, Reading(target="de"))
    assert 'target-language="de"' in found
    assert '<target xml:lang="de"' in found
    assert "fr" not in found.replace("from", "")


def package(members: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DOCX = {
    "word/document.xml": f"<w:document {WORD}><w:body><w:p><w:r><w:rPr><w:b/><w:lang w:val='en-US' w:eastAsia='ja-JP'/>"
    "</w:rPr><w:t>two words</w:t></w:r></w:p></w:body></w:document>",
    "word/styles.xml": f'<w:styles {WORD}><w:rPr><w:lang w:val="en-US"/></w:rPr></w:styles>',
    "word/settings.xml": f'<w:settings {WORD}><w:themeFontLang w:val="en-GB"/></w:settings>',
}


@pytest.mark.parametrize(
    ("target", "run", "style", "theme"),
    [
        ("de", "w:val=\"de\" w:eastAsia='ja-JP'", 'w:val="de"', 'w:val="de"'),
        ("ja", "w:val='en-US' w:eastAsia='ja-JP'", 'w:val="en-US" w:eastAsia="ja"', 'w:val="en-GB" w:eastAsia="ja"'),
        ("", "w:val='en-US' w:eastAsia='ja-JP'", 'w:val="en-US"', 'w:val="en-GB"'),
    ],
)
def test_styles_and_runs_of_word_name_the_language(target: str, run: str, style: str, theme: str) -> None:
    document = open_document("a.docx", package(DOCX), Reading(target=target))
    with zipfile.ZipFile(io.BytesIO(translated(document, str.upper))) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "TWO WORDS" in texts["word/document.xml"]
    assert f"<w:lang {run}/>" in texts["word/document.xml"]
    assert f"<w:lang {style}/>" in texts["word/styles.xml"]
    assert f"<w:themeFontLang {theme}/>" in texts["word/settings.xml"]
    assert document.render([None] * len(document.units)) == package(DOCX) or target


def test_the_command_refuses_other_languages(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    run = tmp_path / "en-de"
    shutil.copytree(trained_folder.run, run)
    (tmp_path / "job.po").write_text(PO.format("fr"), encoding="utf-8")
    done = call("translate", run, tmp_path / "job.po", "--beam", "1")
    assert done.code == 2
    assert "found the target language fr (French), expected de of the run" in done.err
    assert call("translate", run, tmp_path / "job.po", "--to", "de", "--beam", "1").code == 0
    assert "Language: de\\n" in (tmp_path / "job.de.po").read_text(encoding="utf-8")


def test_a_faulty_file_stops_no_other(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    (tmp_path / "fake.docx").write_bytes(b"no package")
    (tmp_path / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nabc\n", encoding="utf-8")
    (tmp_path / "notes.srt").write_text("\n1\nno times\n", encoding="utf-8")
    files = [tmp_path / name for name in ("fake.docx", "film.srt", "notes.srt")]
    done = call("translate", trained_folder.run, *files, "--beam", "1")
    assert done.code == 1
    assert "--> 00:00:02,000" in (tmp_path / "film.translated.srt").read_text(encoding="utf-8")
    lines = done.err.splitlines()
    assert lines[-1] == f"2 of 3 files could not be translated: {files[0]}, {files[2]}"
    assert any(line.startswith(f"error: {files[0]}: found a damaged package") for line in lines)
    assert any(line.startswith(f"error: {files[2]}:3: found 'no times' and no line with times") for line in lines)
    assert not list(tmp_path.glob("*.translated.docx"))
    assert call("translate", trained_folder.run, files[0], "--beam", "1").code == 2
    assert call("translate", trained_folder.run, files[0], files[2], "--beam", "1").code == 2


@pytest.mark.parametrize("name", ["a.srt", "a.vtt"])
def test_subtitles_have_times(name: str) -> None:
    for text in ("hello", "1\nhello\n", "00:00:01 -> 00:00:02\nhello"):
        with pytest.raises(DataError, match=rf"^{name}:\d: found '.*' and no line with times in the whole file"):
            open_document(name, text.encode())
    assert not open_document(name, b"\n").units
    assert not open_document("a.vtt", b"WEBVTT\n\nNOTE none yet\n").units
    assert not open_document("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\n\n").units


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('maxwidth="12"', 12),
        ('maxwidth="12" size-unit="char"', 12),
        ('maxwidth="12" size-unit="pixel"', None),
        ('maxwidth="wide"', None),
        ("", None),
    ],
)
def test_the_width_of_a_unit(attributes: str, expected: int | None) -> None:
    text = XLIFF1.replace('<trans-unit id="1">', f'<trans-unit id="1" {attributes}>')
    assert open_document("a.xlf", text.encode()).units[0].maxwidth == expected
