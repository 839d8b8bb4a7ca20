"""Numbers in the notation of the target language: 1,234.5 km in English is 1.234,5 km in German. No value changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dragoman.data import UNITS, short_code

Localise = Callable[[str, str], str]  # source and output → output


class Notation(NamedTuple):
    """How a language writes numbers."""

    decimal: str
    group: str
    grouped_from: int = 4  # digits of the least integer that is grouped


# Unicode CLDR, symbols of numbers and minimumGroupingDigits, as ICU in Chromium 156 formats them. Left out are those
# that it does not have, and languages with digits of their own or groups of two digits.
NOTATIONS: dict[str, Notation] = {
    code: notation
    for notation, codes in (
        (Notation(".", ","), "en he ja ko ms sw th zh es-mx es-us es-419"),
        (Notation(",", "."), "ca da de el hr id nl pt ro sr tr vi"),
        (Notation(",", ".", 5), "es it sl"),
        (Notation(",", "\u00a0"), "af cs fi lt nb no ru sk sv uk de-at en-za fr-ca"),
        (Notation(",", "\u00a0", 5), "bg et hu lv pl pt-pt"),
        (Notation(",", "\u202f"), "fr"),
    )
    for code in codes.split()
}
OTHERS = ("de-ch", "de-li", "en-in", "en-ch", "fr-ch", "it-ch")  # regions that do not follow their language
# A number that stands alone: not v1.5, not 3-1.5, not 10:30.
NUMBER = re.compile(r"(?<![\w.,:/’'+-])\d+(?:[.,\u00a0\u202f]\d+)+(?![\w:/’'-]|[.,]\d)")
MEASURED = re.compile(rf"[ \u00a0\u202f]?(?:{UNITS})(?!\w)")
CURRENCY = re.compile(r"[€$£¥]\s?$")


def notation_of(language: str) -> Notation | None:
    """The notation of a language code; None where it is not known."""
    code = language.lower().replace("_", "-")
    base = short_code(code.split("-")[0])
    return None if code in OTHERS else NOTATIONS.get(code) or NOTATIONS.get(base)


def localiser(source: str, target: str) -> Localise | None:
    """What writes the numbers of outputs as the target language does; None: languages unknown, or nothing to do."""
    old, new = notation_of(source), notation_of(target)
    if old is None or new is None or old == new:
        return None

    def localise(text: str, output: str) -> str:
        changes = changed_numbers(text, old, new)
        return NUMBER.sub(lambda match: changes.get(match[0], match[0]), output) if changes else output

    return localise


def changed_numbers(text: str, old: Notation, new: Notation) -> dict[str, str]:
    """The numbers of a source that the target language writes differently.

    An output that has one of them as it was got it copied. None are changed where one number would become another
    one of the source: an output may have either.
    """
    changes = {}
    for match in NUMBER.finditer(text):
        measured = MEASURED.match(text, match.end()) or CURRENCY.search(text, max(0, match.start() - 2), match.start())
        if (written := rewritten(match[0], old, new, bool(measured))) not in (None, match[0]):
            changes[match[0]] = str(written)
    return {} if {*changes.values()} & {match[0] for match in NUMBER.finditer(text)} else changes


def rewritten(number: str, old: Notation, new: Notation, measured: bool) -> str | None:
    """A number in another notation; None for what may be no number.

    That is a date, an IP address or, with one point and nothing measured, a version or the number of a section (3.5).
    """
    whole, decimal, fraction = number.partition(old.decimal)
    spaces = "\u00a0\u202f" if old.group in "\u00a0\u202f" else old.group
    parts = re.split(f"[{re.escape(spaces)}]", whole)
    regular = 1 <= len(parts[0]) <= 3 and all(len(part) == 3 for part in parts[1:])
    if not all(part.isdigit() for part in parts) or (len(parts) > 1 and not regular):
        return None
    if decimal and not fraction.isdigit():
        return None
    if len(parts) == 1 and old.decimal == "." and not measured:
        return None
    digits = "".join(parts)
    if len(parts) > 1 and len(digits) >= new.grouped_from:
        digits = f"{int(digits):,}".replace(",", new.group) if digits.isascii() else number
    return digits + (new.decimal + fraction if decimal else "")
