"""Numbers of documents in the notation of the target language: the value stays, and what may be no number, too."""

from __future__ import annotations

import random
import re

import pytest

from dragoman.data import find_placeholders, protected_spans
from dragoman.documents.numbers import NOTATIONS, localiser, notation_of
from dragoman.documents.registry import open_document
from dragoman.documents.translation import finished, translate_units
from tests.documents.model import ChangingEngine


@pytest.mark.parametrize(
    ("pair", "source", "expected"),
    [
        ("en de", "It costs 1,234.50 euros", "It costs 1.234,50 euros"),
        ("en de", "12,345,678 people", "12.345.678 people"),
        ("en fr", "12,345.6", "12\u202f345,6"),
        ("en es", "1,234 and 12,345", "1234 and 12.345"),
        ("en pl-PL", "1,234.5 %", "1234,5 %"),
        ("de en", "3,5 Liter und 12.345,67", "3.5 Liter und 12,345.67"),
        ("fr en", "12\u00a0345,5", "12,345.5"),
        ("en de", "2.5 km, $3.75, 0.5%", "2,5 km, $3,75, 0,5%"),
        # What may be a version, a section, a date, a time, an address or a list stays.
        ("en de", "Python 3.11 in 4.2, v1.5", None),
        ("en de", "192.168.0.1 at 10:30 on 12/05/2024, 2024-05-12", None),
        ("en de", "1,23 and 12,34,56 and 1,2345 and 0,123,456,7", None),
        ("de en", "am 12.05.2024, Version 2.5, 1.23", None),
        ("en de", "in 2024, 500 people", None),
        ("en de", "1.5mm-2.5mm", None),
        # One number would become another one of the same sentence.
        ("en de", "1,234 km and 1.234 km", None),
        ("en en-GB", "1,234.5", None), ("en xx", "1,234.5", None), ("en de-CH", "1,234.5", None),
        ("hi de", "1,234.5", None),
    ],
)  # fmt: skip
def test_only_the_notation_changes(pair: str, source: str, expected: str | None) -> None:
    localise = localiser(*pair.split())
    found = localise(source, source) if localise is not None else source
    assert found == (expected or source)


def test_what_a_model_has_localised_itself_stays() -> None:
    localise = localiser("en", "de")
    assert localise is not None
    assert localise("about 1,234.5 km", "rund 1.234,5 km") == "rund 1.234,5 km"
    assert localise("about 12,345", "rund 12,345 oder 1,234") == "rund 12.345 oder 1,234"


def value(text: str, language: str) -> float:
    notation = notation_of(language)
    assert notation is not None
    return float(re.sub(f"[{re.escape(notation.group)}\u00a0\u202f]", "", text).replace(notation.decimal, "."))


def test_no_value_ever_changes_between_any_languages() -> None:
    draw = random.Random(1)
    for _ in range(3_000):
        source, target = draw.sample(list(NOTATIONS), 2)
        old = NOTATIONS[source]
        number = f"{draw.randrange(10 ** draw.randint(1, 10)):,}".replace(",", old.group)
        number += draw.choice(["", old.decimal + str(draw.randrange(1, 10_000))])
        localise = localiser(source, target)
        if localise is None:
            continue
        written = localise(f"{number} kg", f"{number} kg").removesuffix(" kg")
        if written != number:
            assert value(written, target) == value(number, source), (source, target, number, written)
            back = localiser(target, source)
            assert back is None or value(back(f"{written} kg", f"{written} kg")[:-3], source) == value(number, source)


def test_units_of_documents() -> None:
    """Sentences with and without letters, from a model that copies; tags keep their place."""
    html = "<p>Drive <b>1,234.5 km</b> now.</p><p>1,234.50</p><td><i>12,345</i> 6.5 %</td>"
    document = open_document("page.html", html.encode())
    translation = finished(translate_units(document, ChangingEngine(), localiser("en", "de")))
    rendered = translation.data.decode()
    assert rendered == "<p>Drive <b>1.234,5 km</b> now.</p><p>1.234,50</p><td><i>12.345</i> 6,5 %</td>"


def test_a_unit_goes_with_its_number_and_addresses_are_copied() -> None:
    text = "5 km, 20°C, 3.5 GHz at 10 % or 5 kmh"
    found = [span.of(text) for span in protected_spans(text, lambda number: True)]
    assert found == ["5 km", "20°C", "3.5 GHz", "10 %", "5"]
    addresses = find_placeholders("see www.example.org/a?b=1, or a@b.org")
    assert [text for text, _ in addresses] == ["www.example.org/a?b=1", "a@b.org"]
