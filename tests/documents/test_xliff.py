"""XLIFF and TMX as translation tools write them: states, segments, CDATA, white space, candidates."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dragoman.data.sentences import split_fields
from dragoman.documents.base import Reading, UnitTranslation
from dragoman.documents.registry import open_document
from tests.conftest import call
from tests.documents.model import ChangingEngine
from tests.documents.samples import outputs

NAME1, NAME2 = "{urn:oasis:names:tc:xliff:document:1.2}", "{urn:oasis:names:tc:xliff:document:2.0}"
GERMAN = Reading(target="de")
MATCHES = "{urn:oasis:names:tc:xliff:matches:2.0}"


def version1(body: str) -> str:
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"><body>'
    return f"{head}{body}</body></file></xliff>"


def version2(body: str, attributes: str = "") -> str:
    head = '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"'
    return f'{head}{attributes}><file id="f">{body}</file></xliff>'


def memory(body: str) -> str:
    return f'<tmx version="1.4"><header srclang="en"/><body>{body}</body></tmx>'


def translated(text: str, everything: bool = False, reading: Reading = GERMAN, name: str = "a.xlf") -> str:
    document = open_document(name, text.encode(), reading)
    return document.render(outputs(document, str.upper, everything)).decode()


def squeezed(text: str, name: str = "a.xlf", change: Callable[[str], str] = str.upper) -> str:
    """A document as a model translates it that writes one space for any white space, without alignment."""
    document = open_document(name, text.encode(), Reading(target="de"))
    found = ChangingEngine(lambda source: change(" ".join(source.split())), (-0.1, -0.1)).outputs(document)
    return document.render([one if isinstance(one, UnitTranslation) else None for one in found]).decode()


def target(text: str, name: str = NAME1) -> ElementTree.Element:
    found = ElementTree.fromstring(text).find(f".//{name}target")
    assert found is not None
    return found


@pytest.mark.parametrize("where", ["file", "group", "unit", "source"])
def test_spaces_that_xml_space_preserves(where: str) -> None:
    marked = {one: ' xml:space="preserve"' * (one == where) for one in ("file", "group", "unit", "source")}
    body = "<group{group}><trans-unit id='1'{unit}><source{source}>  a   b\tc. d  </source></trans-unit></group>"
    text = version1(body.format(**marked)).replace("<file", f"<file{marked['file']}")
    assert target(squeezed(text)).text == "  A   B\tC. D  "
    body = "<group{group}><unit{unit}><segment><source{source}>  a   b  </source></segment></unit></group>"
    text = version2(body.format(**marked)).replace("<file", f"<file{marked['file']}")
    changed = squeezed(text)
    assert target(changed, NAME2).text == "  A   B  "
    assert changed.count("preserve") == 1 + (where == "source")  # a new target keeps it as its source does


def test_spaces_around_tags_that_xml_space_preserves() -> None:
    text = version1('<trans-unit id="1" xml:space="preserve"><source>a   <g id="1">b  c</g>   d</source></trans-unit>')
    assert "".join(target(squeezed(text)).itertext()) == "A   B  C   D"
    assert [tuple(one) for one in split_fields("a  b\tc d\xa0end. F")] == [
        ("a", "  "), ("b", "\t"), ("c d\xa0end.", " "), ("F", "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "read", "written"),
    [
        ("<![CDATA[<b>bold</b> & more]]>", ["bold & more"], "<b>BOLD</b> & MORE"),
        ("<![CDATA[Fish &amp; chips&nbsp;now]]>", ["Fish & chips\xa0now"], "FISH &amp; CHIPS&nbsp;NOW"),
        ("<![CDATA[<p>one</p><p class='x > y'>two<br/>three</p>]]>", ["one", "two", "three"],
         "<p>ONE</p><p class='x > y'>TWO<br/>THREE</p>"),
        ("&lt;p&gt;one &lt;i&gt;two&lt;/i&gt;&lt;/p&gt;", ["one two"], "<p>ONE <i>TWO</i></p>"),
        ("a <![CDATA[< b]]> c", ["a < b c"], "A < B C"),
        ("press &lt;Enter&gt;", ["press <Enter>"], "PRESS <ENTER>"),
        ("a&#13;b &quot;c&quot; d > e", ['a\rb "c" d > e'], 'A\rB "C" D > E'),
    ],
)  # fmt: skip
def test_cdata_and_html_inside(source: str, read: list[str], written: str) -> None:
    for name, text in (
        ("a.xlf", version1(f'<trans-unit id="1"><source>{source}</source></trans-unit>')),
        ("a.tmx", memory(f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv></tu>')),
    ):
        document = open_document(name, text.encode(), Reading(target="de"))
        assert [unit.block.text for unit in document.units] == read
        root = ElementTree.fromstring(translated(text, name=name))
        found = root.find(f".//{NAME1}target") if name == "a.xlf" else root.findall(".//seg")[-1]
        assert found is not None
        assert "".join(found.itertext()) == written


def test_references_are_written_as_the_source_has_them() -> None:
    text = version1('<trans-unit id="1"><source>a&#160;b &quot;c&quot; &apos;d > e</source></trans-unit>')
    assert "A&#160;B &quot;C&quot; &apos;D > E</target>" in translated(text)


def test_bare_line_ends_are_line_feeds() -> None:
    text = version1('<trans-unit id="1"><source>a\r\n<g id="1">b&#13;</g>\r\nc</source></trans-unit>')
    found = translated(text)
    assert "".join(target(found).itertext()) == "A\nB\r\nC"
    assert "A\r\n" in found


def test_characters_that_xml_forbids_are_left_out() -> None:
    document = open_document("a.xlf", version1('<trans-unit id="1"><source>a > b</source></trans-unit>').encode())
    text = "\x00b\x1b\ufffe\r\n]]>"
    found = document.render([UnitTranslation(document.units[0].block.escape(text), text, 0.5)])
    assert target(found.decode()).text == "b\r\n]]>"


def test_states_of_version_1() -> None:
    states = ("new", "needs-translation", "translated", "final")
    body = "".join(f'<trans-unit><source>a</source><target state="{one}">x</target></trans-unit>' for one in states)
    body += '<trans-unit id="yes" approved="yes"><source>a</source><target state="new">x</target></trans-unit>'
    found = ElementTree.fromstring(translated(version1(body)))
    assert [one.text for one in found.iter(f"{NAME1}target")] == ["A", "A", "A", "A", "x", "x", "x"]
    again = ElementTree.fromstring(translated(version1(body), everything=True))
    units = {unit.get("id"): unit for unit in again.iter(f"{NAME1}trans-unit")}
    assert units["yes"].get("approved") == "no"
    done = ElementTree.fromstring(translated(version1(body), True, Reading(target="de", review=False)))
    assert [unit.get("approved") for unit in done.iter(f"{NAME1}trans-unit")][-1] == "yes"
    states_of = {one.get("state") for unit in done.iter(f"{NAME1}trans-unit") for one in unit.findall(f"{NAME1}target")}
    assert states_of == {"translated"}


def test_states_of_version_2() -> None:
    body = (
        '<unit id="u"><segment id="1" state="initial"><source>a</source><target>a</target></segment>'
        '<segment id="2" state="final" subState="x:y"><source>b</source><target>c</target></segment>'
        '<segment id="3"><source>d</source></segment></unit>'
    )
    found = {one.get("id"): one for one in ElementTree.fromstring(translated(version2(body))).iter(f"{NAME2}segment")}
    assert [(one.get("state"), one.find(f"{NAME2}target").text) for one in found.values()] == [  # type: ignore[union-attr]
        ("initial", "A"), ("final", "c"), (None, "D"),
    ]  # fmt: skip
    again = ElementTree.fromstring(translated(version2(body), everything=True))
    assert [(one.get("state"), one.get("subState")) for one in again.iter(f"{NAME2}segment")] == [
        ("initial", None), ("translated", None), (None, None),
    ]  # fmt: skip
    done = ElementTree.fromstring(translated(version2(body), True, Reading(target="de", review=False)))
    assert {one.get("state") for one in done.iter(f"{NAME2}segment")} == {"translated"}


SEGMENTED = """<trans-unit id="1"><source>One two. Three. Four</source>
<seg-source><g id="9"><mrk mtype="seg" mid="1">One <x id="1"/>two.</mrk> <mrk mtype="seg" mid="2">Three.</mrk></g>
<mrk mtype="seg" mid="3">Four</mrk></seg-source>{}<note>n</note>
<alt-trans origin="person"><source>x</source><target>y</target></alt-trans></trans-unit>"""


def test_segments_of_version_1() -> None:
    text = version1(SEGMENTED.format(""))
    document = open_document("a.xlf", text.encode())
    assert [unit.block.text.split() for unit in document.units] == [["One", "two."], ["Three."], ["Four"]]
    found = target(translated(text))
    marks = {one.get("mid"): "".join(one.itertext()) for one in found.iter(f"{NAME1}mrk")}
    assert {mid: text.split() for mid, text in marks.items()} == {"1": ["ONE", "TWO."], "2": ["THREE."], "3": ["FOUR"]}
    assert found.find(f"{NAME1}g/{NAME1}mrk/{NAME1}x") is not None
    partly = '<target><mrk mtype="seg" mid="2">Drei.</mrk><mrk mtype="seg" mid="3"/></target>'
    text = version1(SEGMENTED.format(partly))
    assert [unit.translated for unit in open_document("a.xlf", text.encode()).units] == [False, True, False]
    found = target(translated(text))
    marks = {one.get("mid"): one.text for one in found.iter(f"{NAME1}mrk")}
    assert (marks["2"], marks["3"]) == ("Drei.", "FOUR")


def test_a_second_translation_replaces_the_candidates_of_the_first() -> None:
    text = version1(SEGMENTED.format(""))
    once = translated(text)
    assert translated(once, everything=True) == once
    assert once.count('origin="dragoman"') == once.count('origin="person"') == 1
    body = '<unit id="u"><mtc:matches xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0">{}</mtc:matches>{}</unit>'
    other = '<mtc:match ref="#1"><source>p</source><target>q</target></mtc:match>'
    segments = '<segment id="1"><source>a b</source></segment><segment><source>c</source></segment>'
    once = translated(version2(body.format(other, segments)))
    root = ElementTree.fromstring(once)
    assert [len(one) for one in root.iter(f"{MATCHES}matches")] == [3]  # a unit has one list of matches
    assert len(list(root.iter(f"{NAME2}source"))) == 5
    again = translated(once, everything=True)
    assert len(list(ElementTree.fromstring(again).iter(f"{MATCHES}match"))) == 3


def test_matches_in_a_file_with_prefixes() -> None:
    text = (
        '<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.1" srcLang="en"><x:file><x:unit id="u">'
        '<x:ignorable><x:source> </x:source></x:ignorable><x:segment id="s"><x:source>a</x:source></x:segment></x:unit>'
        "</x:file></x:xliff>"
    )
    root = ElementTree.fromstring(translated(text))
    match = root.find(f".//{MATCHES}match")
    assert match is not None
    assert [one.tag for one in match] == [f"{NAME2}source", f"{NAME2}target"]
    assert len(list(root.iter(f"{NAME2}target"))) == 2


@pytest.mark.parametrize("confidence", [1.0, 0.9999, 0.996])
def test_a_machine_never_claims_a_perfect_match(confidence: float) -> None:
    for name, text, pattern in (
        ("a.xlf", version1('<trans-unit id="1"><source>a</source></trans-unit>'), r'match-quality="(\d+)%"'),
        ("a.xlf", version2('<unit id="1"><segment><source>a</source></segment></unit>'), r'matchQuality="([\d.]+)"'),
        ("a.tmx", memory('<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>'), r"quality\">(\d+)<"),
    ):
        document = open_document(name, text.encode(), Reading(target="de"))
        found = re.findall(pattern, document.render([UnitTranslation("A", "A", confidence)]).decode())
        assert [float(one) for one in found] == [99.0]
        assert not re.search(r"(?i)match", document.render([UnitTranslation("A", "A")]).decode())


@pytest.mark.parametrize("preset", ["copy", "phrase-based"])
def test_models_without_probabilities_claim_no_quality(cached: Path, tmp_path: Path, preset: str) -> None:
    data, job = tmp_path / "pairs.tsv", tmp_path / "job.xlf"
    data.write_text("".join(f"a {word}\tb {word}\n" for word in "klmnopqrstuvwxyz"), encoding="utf-8")
    job.write_text(version1('<trans-unit id="1"><source>a k</source></trans-unit>'), encoding="utf-8")
    settings = ["model.tune=0"] * (preset == "phrase-based")
    result = call("train", data, f"preset={preset}", *settings, "--run", tmp_path / "run")
    assert result.code == 0, result.err
    result = call("translate", tmp_path / "run", job, "--to", "de")
    assert result.code == 0, result.err
    assert "probability" not in result.err
    written = (tmp_path / "job.de.xlf").read_text(encoding="utf-8")
    assert target(written).get("state") == "needs-review-translation"
    assert "match-quality" not in written
    result = call("translate", tmp_path / "run", job, "--to", "de", "--no-review", "-o", tmp_path / "done.xlf")
    assert result.code == 0, result.err
    assert target((tmp_path / "done.xlf").read_text(encoding="utf-8")).get("state") == "translated"


def test_attributes_that_look_like_others() -> None:
    text = version1("""<trans-unit id="1"><source>a</source><target note='x state="new" y'>b</target></trans-unit>""")
    found = target(translated(text, everything=True))
    assert (found.get("note"), found.get("state")) == ('x state="new" y', "needs-review-translation")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        # Tags of HTML that belong to one leaf of a message stay in it.
        (
            "Now <b>{n, plural, one {<i>#</i> file} other {files}}</b> x",
            "{n, plural, one {<i>#</i> file} other {files}}",
        ),
        # Beside HTML a tag of another kind is a tag, and no text that HTML would escape.
        ("Go <b>on</b> to <1>here</1> &amp; there", "<1>"),
    ],
)
def test_html_beside_other_marks(text: str, kept: str) -> None:
    unit = f'<trans-unit id="1"><source>{escape(text)}</source></trans-unit>'
    document = open_document("a.xlf", version1(unit).encode())
    (output,) = ChangingEngine(lambda text: f"some more words and {text}").outputs(document)
    assert isinstance(output, UnitTranslation)
    assert kept in unescape(output.markup)
