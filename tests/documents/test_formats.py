"""Every document format: what is no text stays, what is text can be replaced, and real readers read the result."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from xml.etree import ElementTree

import docx
import polib
import pytest

from dragoman.base.errors import ConfigError, DataError
from dragoman.data.examples import Example, Fault
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import read_pairs
from dragoman.documents.base import Reading, UnitTranslation, decode
from dragoman.documents.html import HTMLDocument
from dragoman.documents.registry import open_document
from dragoman.documents.translation import finished, translate_units
from dragoman.inference.align.alignment import WordAlignment
from dragoman.inference.prediction import Prediction
from dragoman.inference.segments.markup import Aligned, place_markup
from tests.conftest import TrainedFolder, call
from tests.documents.model import ChangingEngine
from tests.documents.samples import PO, SAMPLES, WORD, XLIFF1, outputs, package

GERMAN = Reading(target="de")


def texts(data: bytes, name: str) -> str:
    """The text of a document as one string."""
    if name.endswith(".docx"):
        return zipfile.ZipFile(io.BytesIO(data)).read("word/document.xml").decode()
    return decode(data, "utf-8").text


@pytest.mark.parametrize("name", SAMPLES)
def test_without_a_translation_every_byte_stays(name: str) -> None:
    document = open_document(name, SAMPLES[name], GERMAN)
    assert document.units
    assert document.render([None] * len(document.units)) == SAMPLES[name]


@pytest.mark.parametrize("name", ["a.srt", "a.vtt", "a.html", "a.md", "a.txt"])
def test_only_text_changes(name: str) -> None:
    """Upper-case letters of these samples are all in what must stay."""
    document = open_document(name, SAMPLES[name], GERMAN)
    changed = document.render(outputs(document, str.upper))
    assert changed != SAMPLES[name]
    before, after = (re.sub(rb"\s+", b" ", data).lower() for data in (SAMPLES[name], changed))
    assert after.replace(b"&lt;", b"<") == before
    kept = re.findall(rb"[A-Z][A-Za-z=1]*", SAMPLES[name])
    assert all(word in changed for word in kept)
    untouched = [line for line in SAMPLES[name].splitlines() if not re.search(rb"[a-z]", line)]
    assert all(line in changed.splitlines() for line in untouched)


def test_xliff_targets_states_and_quality() -> None:
    document = open_document("a.xlf", SAMPLES["a.xlf"], GERMAN)
    assert [unit.location for unit in document.units] == ["unit 1", "unit 3", "unit 4"]
    changed = document.render(outputs(document, str.upper)).decode()
    name = "{urn:oasis:names:tc:xliff:document:1.2}"
    root = ElementTree.fromstring(changed.encode())
    assert root.find(f".//{name}file").get("target-language") == "de"  # type: ignore[union-attr]
    units = {unit.get("id"): unit for unit in root.iter(f"{name}trans-unit")}
    target = units["1"].find(f"{name}target")
    assert target is not None
    assert "".join(target.itertext()) == "HELLO BRIGHT WORLD & MORE"
    assert target.get("state-qualifier") == "mt-suggestion"
    assert target.find(f"{name}g/{name}x").get("id") == "2"  # type: ignore[union-attr]
    assert units["1"].find(f"{name}alt-trans").get("match-quality") == "88%"  # type: ignore[union-attr]
    assert units["2"].find(f"{name}target") is None
    assert units["3"].find(f"{name}target").text == "fertig"  # type: ignore[union-attr]
    kept = units["4"].find(f"{name}target")
    assert kept is not None
    assert [child.tag.removeprefix(name) for child in kept] == ["ph", "mrk"]
    without = re.sub(r"\s*<target state=\"needs.*?</target>|\s*<alt-trans.*?</alt-trans>", "", changed)
    assert without.replace(' target-language="de"', "") == XLIFF1.replace("<target/>", "")


def test_xliff_2_candidates() -> None:
    document = open_document("b.xliff", SAMPLES["b.xliff"], GERMAN)
    root = ElementTree.fromstring(document.render(outputs(document, str.upper)))
    name = "{urn:oasis:names:tc:xliff:document:2.0}"
    targets = ["".join(one.itertext()) for one in root.iter(f"{name}segment") for one in one.iter(f"{name}target")]
    assert targets == ["ONE TWO.", "drei.", "FOUR FIVE."]
    matches = list(root.iter("{urn:oasis:names:tc:xliff:matches:2.0}match"))
    segments = {f"#{one.get('id')}" for one in root.iter(f"{name}segment")}
    assert [one.get("matchQuality") for one in matches] == ["87.6", "87.6"]
    assert {one.get("ref") for one in matches} <= segments
    assert root.get("trgLang") == "de"


def test_tmx_gets_a_variant() -> None:
    document = open_document("a.tmx", SAMPLES["a.tmx"])  # de is the only other language
    changed = document.render(outputs(document, str.upper))
    units = list(ElementTree.fromstring(changed).iter("tu"))
    assert ["".join(seg.itertext()) for seg in units[0].iter("seg")] == ["hello <b>world</b>", "HELLO <b>WORLD</b>"]
    assert [seg.text for seg in units[1].iter("seg")] == ["two", "zwei"]
    with pytest.raises(DataError, match="to=…"):
        open_document("a.tmx", SAMPLES["a.tmx"].replace(b'"de"', b'"en"'))


def test_po_as_polib_reads_it(tmp_path: Path) -> None:
    document = open_document("a.po", SAMPLES["a.po"])
    path = tmp_path / "a.po"
    path.write_bytes(document.render(outputs(document, str.upper)))
    before, after = polib.pofile(PO), polib.pofile(str(path))
    assert after.metadata == before.metadata
    assert [entry.msgid for entry in after] == [entry.msgid for entry in before]
    assert after[0].msgstr == 'HELLO %S, "YOU" \\ TAB\t'
    assert after[1].msgstr == "TWO LINES\nOF TEXT\n"
    assert after[2].msgstr == "fertig"
    assert after[3].msgstr_plural == {0: "%D FILE", 1: "%D FILES", 2: "%D FILES"}
    assert len(after.obsolete_entries()) == 1


def test_word_keeps_formatting_links_and_fields() -> None:
    styles = b"<w:styles/>"
    document = open_document("a.docx", package(**{"word/styles.xml": styles}))
    assert "bold & brave" in document.units[1].block.text
    changed = document.render(outputs(document, str.upper))
    file = zipfile.ZipFile(io.BytesIO(changed))
    assert file.read("word/styles.xml") == styles
    body = ElementTree.fromstring(file.read("word/document.xml"))
    space = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    runs = {
        "".join(run.itertext()): [child.tag.removeprefix(space) for child in run.iter()]
        for run in body.iter(f"{space}r")
    }
    assert "b" in runs["BOLD & BRAVE"]
    assert "b" not in runs["PLAIN "]
    link = next(body.iter(f"{space}hyperlink"))
    assert "".join(link.itertext()) == "THIS LONG LINK"
    assert [one.get(f"{space}fldCharType") for one in body.iter(f"{space}fldChar")] == ["begin", "separate", "end"]
    paragraphs = ["".join(one.itertext()) for one in body.iter(f"{space}p")]
    assert paragraphs == [
        "A HEADING", "PLAIN BOLD & BRAVE END", "LEFTRIGHT", "SEE THIS LONG LINK PAGE  PAGE 3", "OUTERINNER", "INNER", ""
    ]  # fmt: skip
    assert sum(1 for _ in body.iter(f"{space}tab")) == 1


def test_a_word_file_of_another_program() -> None:
    made = docx.Document()
    made.add_heading("one two", 1)
    made.add_paragraph("three ").add_run("four").italic = True
    made.add_table(1, 1).cell(0, 0).text = "five"
    made.sections[0].header.paragraphs[0].text = "six"
    out = io.BytesIO()
    made.save(out)
    document = open_document("a.docx", out.getvalue())
    read = docx.Document(io.BytesIO(document.render(outputs(document, str.upper))))
    assert [one.text for one in read.paragraphs] == ["ONE TWO", "THREE FOUR"]
    assert [(run.text, run.italic) for run in read.paragraphs[1].runs][-1] == ("FOUR", True)
    assert (read.tables[0].cell(0, 0).text, read.sections[0].header.paragraphs[0].text) == ("FIVE", "SIX")


def test_encodings_are_kept() -> None:
    unit = '<file><trans-unit id="1"><source>é</source></trans-unit></file>'
    text = f'<?xml version="1.0" encoding="iso-8859-1"?><xliff version="1.2">{unit}</xliff>'
    data = text.encode("latin-1")
    document = open_document("a.xlf", data)
    changed = document.render(outputs(document, lambda text: text + "ł"))
    assert "é&#322;".encode("latin-1") in changed
    plain = open_document("a.txt", "é".encode("latin-1"), Reading(encoding="latin-1"))
    assert plain.render(outputs(plain, str.upper)) == "É".encode("latin-1")
    with pytest.raises(DataError, match="latin-1 lacks"):
        plain.render(outputs(plain, lambda text: "ł"))
    with pytest.raises(DataError, match="encoding=…"):
        open_document("a.txt", "é".encode("latin-1"))


def test_a_long_sentence_is_split_and_joined() -> None:
    document = open_document("a.txt", ("word " * 50 + "end. Next.").encode())
    engine = ChangingEngine(str.upper, (-0.5, -1.5), longest=40)
    found = engine.outputs(document)[0]
    assert max(map(len, engine.read)) <= 40
    assert isinstance(found, UnitTranslation)
    assert found.text == ("word " * 50 + "end. Next.").upper()
    assert found.confidence == pytest.approx(0.3679, abs=1e-4)
    engine.has_probabilities = False
    found = engine.outputs(document)[0]
    assert isinstance(found, UnitTranslation)
    assert found.confidence is None


def test_one_sentence_that_fails_leaves_its_unit_alone() -> None:
    document = open_document("a.html", b"<p>a <b>b</b></p><p>c</p>")

    class Failing(ChangingEngine):
        async def predict(self, texts: Sequence[str]) -> Sequence[Prediction | Exception]:
            assert texts == ["a b", "c"]
            return [DataError("no"), Prediction("C", 0.0, (), ())]

        async def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[WordAlignment | None]:
            raise AssertionError("no unit with tags is left")

    translation = finished(translate_units(document, Failing()))
    assert translation.data == b"<p>a <b>b</b></p><p>C</p>"
    assert translation.faults == ["line 1: no"]
    assert (translation.counts["translated"], translation.counts["failed"], translation.characters) == (1, 1, 1)


def test_texts_without_letters_are_not_counted_as_translated(inside: TrainedFolder) -> None:
    said = call("translate", inside.run, inside.write("numbers.txt", "7,041\n\nabc\n"), "--to", "de", "--beam", "1")
    assert "1 without letters, 1 translated" in said.err


def test_the_command(inside: TrainedFolder) -> None:
    source = inside.write("job.xlf", XLIFF1.replace("hello", "abc").replace("world", "{name}"))
    said = call("translate", inside.run, source, "--to", "de", "--beam", "1")
    assert said.code == 0, said.err
    assert "2 translated" in said.err
    assert "1 already translated" in said.err
    written = (inside.folder / "job.de.xlf").read_text(encoding="utf-8")
    targets = re.findall(r"<target state=\"needs.*?</target>", written)
    assert "{name}" in targets[0]
    assert "match-quality=" in written
    terms = inside.write("terms.tsv", "abc\tHIJ\n")
    said = call("translate", inside.run, source, "--to", "de", "-o", "terms.xlf", f"constraints.terminology={terms}")
    assert said.code == 0, said.err
    assert "HIJ" in re.findall(r"<target state=\"needs.*?</target>", Path("terms.xlf").read_text(encoding="utf-8"))[0]
    word = inside.write("job.docx", package(WORD))
    said = call("translate", inside.run, word, "-o", inside.folder / "done.docx")
    assert said.code == 0, said.err
    assert zipfile.ZipFile(inside.folder / "done.docx").testzip() is None
    for arguments, message in (
        ((source, "-o", "x.po"), "expected the suffix"),
        ((source, "-o", source), "overwrite the input"),
        ((inside.folder / "pairs.tsv",), "expected one of .txt"),
        ((inside.folder / "none.txt",), "no such file"),
    ):
        said = call("translate", inside.run, *arguments)
        assert said.code == 2, said.err
        assert message in said.err
        assert said.err.count("\n") == 1


def test_tmx_as_training_data(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_bytes(SAMPLES["a.tmx"])
    items = list(read_pairs(path, ReadOptions(columns=("en", "de"))))
    assert isinstance(items[0], Fault)
    assert "expected de" in str(items[0])
    assert isinstance(items[1], Example)
    assert (items[1].source, items[1].references, items[1].line) == ("two", ("zwei",), 8)
    swapped = list(read_pairs(path, ReadOptions(columns=("de", "en-US"))))
    assert [type(item).__name__ for item in swapped] == ["Fault", "Example"]
    with pytest.raises(ConfigError, match=r"\[\"en\", \"de\"\]"):
        list(read_pairs(path))


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/data.md", "docs/how-to/transfer.md"])
def test_our_own_pages_keep_code_links_and_order(name: str) -> None:
    data = (Path(__file__).parents[2] / name).read_bytes()
    document = open_document(name, data)
    assert document.render([None] * len(document.units)) == data
    changed = document.render(outputs(document, str.upper)).decode()
    before = data.decode()
    assert re.sub(r"\s+", "", changed).lower() == re.sub(r"\s+", "", before).lower()
    for kept in (r"(?ms)^```.*?^```", r"\]\(([^)\s]+)\)", r"`[^`\n]+`"):
        assert re.findall(kept, changed) == re.findall(kept, before)


def test_marks_around_tags_stay_around_them() -> None:
    document = open_document("a.html", b"<p>see (<code>X</code>) and (<b>bold</b>), <i>open <code>Y</code> end</p>")
    changed = document.render(outputs(document, str.upper))
    assert re.sub(rb" +", b" ", changed) == b"<p>SEE (<code>X</code>) AND (<b>BOLD</b>), <i>OPEN <code>Y</code> END</p>"


PAGE = """<head><meta name="description" content="a page"><meta name="viewport" content="width=1">
<meta property='og:title' content='my "page"'></head><body title="whole &amp; body">
<p>see <img src="alt.png" data-title="no" alt="a cat"> and <a title='it&#39;s' href="x?title=y">this</a></p>
<!-- <img alt="a cat"> --><img alt=""><img alt="123"><input placeholder="your name" value="no">
<div aria-label="menu">go</div><div translate="no" title="no"><b title="no">no</b></div><img translate="no" alt="no">
<textarea placeholder="write here">no</textarea><code title="no">no</code><p TITLE = "loud" alt=bare>end</p>
<p>two <img alt="twin"> and <img alt="twin"></p></body>"""


UPPER = """<head><meta name="description" content="A PAGE"><meta name="viewport" content="width=1">
<meta property='og:title' content='MY &quot;PAGE&quot;'></head><body title="WHOLE &amp; BODY">
<p>SEE <img src="alt.png" data-title="no" alt="A CAT"> AND <a title='IT&#x27;S' href="x?title=y">THIS</a></p>
<!-- <img alt="a cat"> --><img alt=""><img alt="123"><input placeholder="YOUR NAME" value="no">
<div aria-label="MENU">GO</div><div translate="no" title="no"><b title="no">no</b></div><img translate="no" alt="no">
<textarea placeholder="WRITE HERE">no</textarea><code title="no">no</code><p TITLE = "LOUD" alt=bare>END</p>
<p>TWO <img alt="TWIN"> AND <img alt="TWIN"></p></body>"""


@pytest.mark.parametrize(
    "source", ["the cat finds `lamp`\n", "the `lamp` cat finds\n", "`lamp` the cat finds\n", "the cat (`lamp`) finds\n"]
)
def test_code_touches_no_word_at_its_new_place(source: str) -> None:
    document = open_document("a.md", source.encode())
    (unit,) = document.units
    words = unit.block.text.split()
    for order in permutations(range(len(words))):
        output = " ".join(words[word] for word in order).upper()
        markup = place_markup(unit.block, Aligned(output, order))
        assert len(re.findall(r"(?<!\w)`lamp`(?!\w)", markup)) == 1, markup
        assert "  " not in markup
        assert markup.replace("`lamp`", "").split() == output.split()


def test_attributes_that_people_read_are_translated() -> None:
    document = open_document("a.html", PAGE.encode())
    texts = [unit.block.text for unit in document.units]
    attributes = ["a page", 'my "page"', "whole & body", "a cat", "it's", "your name", "menu", "write here", "loud"]
    assert [text for text in texts if text in attributes] == attributes
    assert not any("no" in text.split() for text in texts)
    assert document.render([None] * len(texts)) == PAGE.encode()
    translated: list[UnitTranslation | None] = []
    for unit in document.units:
        text = re.sub("  +", " ", unit.block.text.upper())  # a tag was between two spaces
        markup = place_markup(unit.block, Aligned(text, list(range(len(text.split())))))
        translated.append(UnitTranslation(markup, text))
    page = document.render(translated).decode()
    assert page == UPPER
    # Blocks alone, or attributes alone: the other ones stay as they were.
    assert isinstance(document, HTMLDocument)
    starts = [document.span(index)[0] for index in range(len(texts))]
    attributes_of = {index for index, start in enumerate(starts) if document.text[start - 1] in "\"'"}
    for wanted in (True, False):
        page = document.render(
            [one if (index in attributes_of) == wanted else None for index, one in enumerate(translated)]
        ).decode()
        assert ('alt="A CAT">' in page, "SEE" in page) == (wanted, not wanted)
        assert page.lower().replace("&quot;", '"').replace("&#x27;", "&#39;") == PAGE.lower()
