"""Checks of translations: what is lost is found, and good translations are left alone."""

from __future__ import annotations

import gzip
import json
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.decoding.constraints import Terminology
from dragoman.inference.checks import HARD_FINDINGS, LengthRatios, check_translation
from dragoman.inference.numbers import NOTATIONS, localiser
from tests.clock import check_time

SHARED = Path(__file__).parents[3] / "shared" / "data"


def kinds(source: str, output: str, languages: str = "en de", **facts: object) -> list[str]:
    first, second = (languages + " ").split(" ")[:2]
    found = check_translation(source, output, source_language=first, target_language=second, **facts)  # type: ignore[arg-type]
    return [finding.kind for finding in found]


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("12 dogs and 7 men are running.", "Drei Hunde und zwei Hunde laufen.", ["number"]),
        ("He paid 1,234.50 euros.", "Er zahlte 1.234,5 Euro.", []),
        ("He paid 1,234.50 euros.", "Er zahlte 1.234 Euro.", ["number"]),
        ("He paid 1.5 million.", "Er zahlte 15 Millionen.", ["number"]),
        ("It weighs 2.5 kg.", "Es wiegt 2.5 kg.", ["notation"]),
        ("Write to {name} at 5.", "Schreibe {name} um fünf.", []),
        ("Write to {name}.", "Schreibe.", ["placeholder"]),
        ("Write to Tom.", "Schreibe an {name}.", ["placeholder"]),
        ("Look at <b>this</b> house.", "Sieh <b>dieses Haus.", ["tag"]),
        ('A <a title="dog">house</a>.', 'Ein <a title="Hund">Haus</a>.', ["attribute"]),
        ("See https://a.org/b?c=1 for more.", "Mehr unter https://a.org/b.", ["url"]),
        ("Write to me@a.org soon.", "Schreib mir bald.", ["url"]),
        ("A man sings a song.", "Ein Mann singt ein Lied ein Lied ein Lied ein Lied.", ["loop"]),
        ("No no no no, she said.", "Nein nein nein nein, sagte sie.", []),
        ("A dog.", "", ["length"]),
        ("A dog.", "Ein Hund, der über eine Wiese läuft, und noch viele andere Dinge, von denen niemand etwas sagte.",
         ["length"]),
        ("Where is the station?", "Wo ist der Bahnhof.", ["ending"]),
        ("The old man sits on a bench.", "The old man sits on a bench.", ["untranslated"]),
        ("New York", "New York", []),
        ("The old man sits on a bench by the sea.", "Hier the old man sits on a bench am Meer.", ["untranslated"]),
        ("A good dog.", "Ein guter собака.", ["script"]),
        ("The letter α is Greek.", "Der Buchstabe α ist griechisch.", []),
        ("The dog (a small one) sleeps.", "Der Hund (ein kleiner schläft.", ["bracket"]),
        ("a) The dog sleeps :)", "a) Der Hund schläft :)", []),
        ('He said "no" to her.', 'Er sagte „nein zu ihr.', ["quote"]),
        ("The dog is asleep.", "Der Hund Hund schläft.", ["double"]),
        ("She loves her.", "Ich weiß, dass sie sie liebt.", []),
        ("The dog sleeps.", "der Hund schläft.", ["capital"]),
        ("The dog sleeps, now.", "Der Hund schläft , jetzt.", ["space"]),
        ("Name: ", "Name:", ["space"]),
        ("One\nTwo", "Eins Zwei", ["newline"]),
        ("Path\\nLine", "Pfad Zeile", ["escape"]),
        ("Cats &amp; dogs", "Katzen und Hunde", ["escape"]),
        ("It is **bold**.", "Es ist fett.", ["markup"]),
        ("A café.", "Ein CafÃ©.", ["character"]),
    ],
)  # fmt: skip
def test_kinds(source: str, output: str, expected: list[str]) -> None:
    assert kinds(source, output) == expected


@pytest.mark.parametrize(
    ("languages", "source", "output"),
    [
        ("en de", "We met at 2:30 p.m.", "Wir trafen uns um 14.30 Uhr."),
        ("en de", "Let us meet at 2:30.", "Treffen wir uns um halb drei."),
        ("en fr", "He was born in 1988.", "Il est né en mille neuf cent quatre-vingt-huit."),
        ("en fr", "in the 20th century", "au XXe siècle"),
        ("en de", "on 3/12/2020", "am 12. März 2020"),
        ("en fr", "12,345 people", "12\u202f345 personnes"),
        ("fr en", "12 345 personnes", "12,345 people"),
        ("en de", "5 million people", "5.000.000 Menschen"),
        ("en de", "twenty-one dogs", "21 Hunde"),
        ("de en", "einundzwanzig Hunde", "21 dogs"),
        ("en cs", "3 dogs", "tři psi"),
        ("en ja", "3 dogs", "三匹の犬"),
        ("ar en", "٣ كلاب", "3 dogs"),
        ("en de", "in the 1950s", "in den Fünfzigern"),
        ("en de", "10,000 dollars", "zehntausend Dollar"),
        ("", "two dogs", "2 Hunde"),
    ],
)
def test_numbers_are_compared_by_value(languages: str, source: str, output: str) -> None:
    assert "number" not in kinds(source, output, languages)


@given(
    st.lists(st.integers(13, 10**9) | st.decimals("13", "99999", places=2), min_size=1, max_size=5, unique=True),
    st.sampled_from(sorted(NOTATIONS)),
    st.data(),
)
def test_every_notation_has_the_same_values_and_a_lost_number_is_found(
    values: list[int | Decimal], language: str, data: st.DataObject
) -> None:
    localise = localiser("en", language) or (lambda source, output: output)

    def text(numbers: list[int | Decimal]) -> str:
        return "".join(f"{number:,} km and " for number in numbers)

    source = text(values)
    assert not {*kinds(source, localise(source, source), f"en {language}")} & HARD_FINDINGS
    place = data.draw(st.integers(0, len(values) - 1))
    fewer, changed = values[:place] + values[place + 1 :], [*values]
    changed[place] += 1
    assert "number" in kinds(source, localise(source, text(fewer)) + "dog", f"en {language}")
    if changed[place] not in values:
        assert "number" in kinds(source, text(changed), f"en {language}")


SPANS = st.sampled_from(["{name}", "<b>", "</b>", "<1/>", "https://a.org/x", "me@a.org", "%s", "%(n)s", "${x}"])


@given(st.lists(st.sampled_from(["dog", "runs", "very", "fast"]) | SPANS, min_size=1, max_size=12), st.data())
def test_every_lost_or_repeated_span_is_found(pieces: list[str], data: st.DataObject) -> None:
    source = " ".join(pieces)
    spans = [index for index, piece in enumerate(pieces) if not piece.isalpha()]
    survive = {"placeholder", "tag", "url"}
    assert not survive & {*kinds(source, " ".join(reversed(pieces)))}
    if spans:
        index = data.draw(st.sampled_from(spans))
        assert survive & {*kinds(source, " ".join([*pieces[:index], *pieces[index + 1 :], "dog"]))}
        assert survive & {*kinds(source, f"{source} {pieces[index]}")}


@given(st.text(max_size=60), st.text(max_size=60), st.sampled_from(["", "en de", "de fr", "zh en", "xx yy"]))
def test_any_texts_can_be_checked(source: str, output: str, languages: str) -> None:
    first, second = (languages + " ").split(" ")[:2]
    found = check_translation(source, output, source_language=first, target_language=second, accelerators=True)
    assert [finding.hard for finding in found] == sorted((finding.hard for finding in found), reverse=True)
    for finding in found:
        assert "\n" not in finding.message
        assert json.dumps(finding.as_table())
    # A text is a faithful copy of itself.
    assert not {*kinds(source, source, languages)} & HARD_FINDINGS


def test_facts() -> None:
    terms = Terminology({"bank": ("Ufer", "Böschung")})
    assert kinds("A dog on the bank.", "Ein Hund auf der Bank.", terms=terms) == ["term"]
    assert kinds("A dog on the bank.", "Ein Hund am ufer.", terms=terms) == []
    assert kinds("A dog.", "Ein Hund.", maxwidth=8) == ["maxwidth"]
    assert kinds("&File", "Datei", accelerators=True) == ["accelerator"]
    assert kinds("&File", "&Datei", accelerators=True) == []
    assert kinds("A dog.", "Ein Hund.", lengths=LengthRatios(30.0)) == ["length"]
    english = "This is a sentence that is long enough to be judged."
    assert kinds("Das ist ein Satz.", english, identify=lambda text: ("en", 0.99)) == ["language"]
    assert kinds("Das ist ein Satz.", english, identify=lambda text: ("en", 0.5)) == []


@pytest.mark.parametrize(
    "unit", ["a", "1", "<b", "{", "no ", "1,", "1 000 ", "\\n", "((", "“", "A. ", "http://", "一", " "]
)
def test_time_is_linear(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        check_translation(text, text + "x", source_language="en", target_language="de")
        return time.process_time() - start

    seconds(1000)
    check_time(seconds(40_000), 2.0)  # in quadratic time 40 times as long


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")
@pytest.mark.parametrize("language", ["de", "fr", "cs"])
def test_people_who_translate_are_left_alone(language: str) -> None:
    """Of real translations, fewer than one in 500 has a hard finding."""
    texts = [
        gzip.decompress(Path(SHARED, "multi30k", f"val.{code}.gz").read_bytes()).decode().splitlines()
        for code in ("en", language)
    ]
    pairs = zip(*texts, strict=True)
    hard = [(source, output) for source, output in pairs if {*kinds(source, output, f"en {language}")} & HARD_FINDINGS]
    assert len(hard) <= len(texts[0]) / 500, hard
