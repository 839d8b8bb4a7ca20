"""What is doubtful about a translation: one function for every output of every format and route.

`check_translation` compares a source with its output and needs no model. Hard findings are mistakes that a reader
cannot see or mend without the source: a lost number, placeholder, tag or address, a loop, a length that no
translation has. The others say where a person should look first.

The checks that other tools have and that hold for every language are here, too (Okapi CheckMate, pofilter of the
Translate Toolkit, Weblate). Those that depend on house style are not: case of titles, kashida, ellipsis as one sign.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.data import find_placeholders, short_code, without_protected
from dragoman.data.cleaning import scripts_of
from dragoman.decoding.constraints import Terminology
from dragoman.inference.number_values import compare_numbers
from dragoman.inference.numbers import changed_numbers, notation_of

FINDINGS = {
    "number": "a number is missing, changed or added",
    "placeholder": "a placeholder such as {name} or %s is missing or added",
    "tag": "a tag is missing or added",
    "url": "an address is missing or changed",
    "length": "far shorter or longer than usual, or empty",
    "loop": "words are repeated over and over",
    "accelerator": "the mark of a key, as in &File, is missing or added (.po)",
    "attribute": "a tag has another attribute",
    "bracket": "a bracket without its partner",
    "capital": "a small letter at the start of a sentence",
    "character": "a control character, or text that was decoded wrongly",
    "double": "a word twice in a row",
    "ending": "other punctuation at the end",
    "escape": "an escape such as \\n is missing or added",
    "inconsistent": "the same source has another translation earlier (.xlf)",
    "language": "another language than the target's (needs py3langid)",
    "markup": "marks such as ** or [b] differ",
    "maxwidth": "longer than allowed",
    "newline": "another number of lines",
    "notation": "a number in the notation of the source language",
    "quote": "a quotation mark without its partner",
    "script": "letters of another script",
    "space": "spaces at the edges, several in a row, or beside punctuation",
    "term": "the term of a glossary is missing",
    "unreadable": "a line that has not two texts",
    "untranslated": "the source, or many of its words",
}
HARD_FINDINGS = frozenset({"number", "placeholder", "tag", "url", "length", "loop"})
SHOWN = 60  # characters of a text that a message quotes


class Finding(NamedTuple):
    """One thing that is doubtful about a translation."""

    kind: str  # a stable name, such as "number"
    message: str

    @property
    def hard(self) -> bool:
        """Whether the output is wrong; otherwise a person should look at it."""
        return self.kind in HARD_FINDINGS

    def as_table(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "hard": self.hard}

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class LengthRatios(NamedTuple):
    """Characters of an output for each character of its source: what is usual, and how far outputs may be from it."""

    usual: float | None = None  # None: by the scripts of the texts
    factor: float = 2.0


BY_SCRIPT = LengthRatios()


@dataclass(frozen=True)
class _Pair:
    """A source and an output with what the checks know about them."""

    source: str
    output: str
    languages: tuple[str, str]
    # Texts to copy, each with its count; and both texts without them.
    protected: tuple[Counter[str], Counter[str]]
    words: tuple[str, str]


Found = Iterator[tuple[str, str]]  # kind and message


def check_translation(
    source: str,
    output: str,
    *,
    source_language: str = "",
    target_language: str = "",
    terms: Terminology | None = None,
    maxwidth: int | None = None,
    lengths: LengthRatios = BY_SCRIPT,
    accelerators: bool = False,
    identify: Callable[[str], tuple[str, float]] | None = None,
) -> list[Finding]:
    """What is doubtful about the output for a source; hard findings first.

    Languages are codes such as "de"; without them, the checks that need them are lenient or do nothing. `maxwidth` is
    the most characters that the output may have, `lengths` what the training data had. With `accelerators`, an & or _
    before a letter marks the key of a menu item. `identify` gives the language of a text and its probability; it is
    asked for long texts only.
    """
    source, output = source.replace("\r\n", "\n"), output.replace("\r\n", "\n")
    languages = (source_language, target_language)
    if source.strip() and not output.strip():
        return [Finding("length", f"found an empty output for {_quoted(source.strip())}")]
    protected = _protected(source), _protected(output)
    words = without_protected(source), without_protected(output)
    pair = _Pair(source, output, languages, protected, words)
    found = [Finding(kind, message) for check in _CHECKS for kind, message in check(pair)]
    found += [Finding("length", message) for message in _lengths(pair, lengths)]
    if terms is not None:
        found += [Finding("term", message) for message in _terms(pair, terms)]
    if maxwidth is not None and len(output) > maxwidth:
        found.append(Finding("maxwidth", f"found {len(output):,} characters, expected at most {maxwidth:,}"))
    if accelerators:
        found += [Finding("accelerator", message) for message in _accelerators(pair)]
    if identify is not None:
        found += [Finding("language", message) for message in _language(pair, identify)]
    return sorted(found, key=lambda finding: not finding.hard)


def checker(
    source_language: str,
    target_language: str,
    terms: Terminology | str | Path | None = None,
    identify: Callable[[str], tuple[str, float]] | None = None,
) -> Callable[..., list[Finding]]:
    """`check_translation` with the facts that hold for all texts of a call."""
    terms = terms if terms is None or isinstance(terms, Terminology) else Terminology.read(terms)
    facts = {"source_language": source_language, "target_language": target_language}
    return partial(check_translation, **facts, terms=terms, identify=identify)  # type: ignore[arg-type]


def _protected(text: str) -> Counter[str]:
    """The texts that a translation must copy, with their counts. No check reads the grammar in another way."""
    return Counter(dict(find_placeholders(text)))


def _quoted(text: str) -> str:
    text = " ".join(text.split())
    return f"'{text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}'"


def _listed(texts: Iterable[str], most: int = 5) -> str:
    texts = list(texts)
    return ", ".join(map(_quoted, texts[:most])) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _base(code: str) -> str:
    return short_code(re.split("[-_]", code.lower())[0])


# --- hard: what must survive

_TAG_NAME = re.compile(r"</?[^\s/>]+")


def _placeholders(pair: _Pair) -> Found:
    """Tags, variables and addresses: each as often as in the source."""
    source, output = pair.protected
    if source == output:
        return
    missing, added = source - output, output - source
    # A tag may be changed in an attribute that is to be translated, such as its title.
    names = {_tag_name(text): text for text in added if text.startswith("<")}
    for text in [text for text in missing if text.startswith("<") and " " in text]:
        if (other := names.pop(_tag_name(text), None)) is not None:
            yield "attribute", f"found the tag {_quoted(other)}, expected {_quoted(text)}"
            missing[text] -= 1
            added[other] -= 1
    for kind in dict.fromkeys(map(_kind, chain(+missing, +added))):
        lost, others = ([text for text in +counts if _kind(text) == kind] for counts in (missing, added))
        yield kind, _difference(lost, others)


def _difference(missing: Sequence[str], added: Sequence[str]) -> str:
    if not missing:
        return f"found {_listed(added)}, which the source does not have so often"
    instead = f"; the output has {_listed(added)} instead" if added else ""
    return f"{_listed(missing)} of the source {'is' if len(missing) == 1 else 'are'} missing{instead}"


def _kind(text: str) -> str:
    if text.startswith("<"):
        return "tag"
    if text.startswith("&"):  # plain texts write &amp; on one side and "and" on the other
        return "escape"
    return "url" if text.startswith(("http", "www.")) or "@" in text[1:] else "placeholder"


def _tag_name(text: str) -> str:
    match = _TAG_NAME.match(text)
    return match[0].lower() if match else text


def _numbers(pair: _Pair) -> Found:
    source, output = pair.words
    missing, added = compare_numbers(source, output, pair.languages)
    if missing or added:
        yield "number", _difference(missing, added)
    old, new = (notation_of(code) if code else None for code in pair.languages)
    if old is not None and new is not None and old != new and not missing:
        changes = changed_numbers(source, old, new)
        for number, written in changes.items():
            if number in output and written not in output:
                yield "notation", f"found {_quoted(number)}, expected {_quoted(written)} in the target language"


_REPEATED_LETTERS = re.compile(r"([^\W\d_])\1{5,}|([^\W\d_]{2,8}?)\2{4,}", re.IGNORECASE)
MAX_PERIOD = 12  # words
MIN_WORDS = 24  # of a text whose share of different words is judged


def _loops(pair: _Pair) -> Found:
    """Words, or letters of scripts without spaces, that are repeated over and over; those of the source may be, too."""
    source, output = pair.words
    if (repeated := _repetition(output)) and not _repetition(source):
        yield "loop", f"{_quoted(repeated)} is repeated over and over"


def _repetition(text: str) -> str:
    """What a text repeats over and over; empty: nothing."""
    if match := _REPEATED_LETTERS.search(text):
        return match[0]
    words = text.lower().split()
    if len(words) - len({*words}) < 3:
        return ""
    for period in range(1, min(MAX_PERIOD, len(words) // 3) + 1):
        run = 0
        for index in range(period, len(words)):
            run = run + 1 if words[index] == words[index - period] else 0
            # Four times the same word, three times the same words.
            if run >= (3 if period == 1 else 2 * period):
                return " ".join(words[index - period + 1 : index + 1])
    if len(words) >= MIN_WORDS:
        triples = Counter[tuple[str, ...]](zip(words, words[1:], words[2:], strict=False))
        if len(triples) < 0.5 * (len(words) - 2):
            most = max(triples, key=lambda triple: triples[triple])
            return " ".join(most)
    return ""


MARGIN = 40  # characters added to both lengths, so that short texts may differ more
_DENSITY = {"CJK": 2.6, "HANGUL": 1.8}  # letters of an alphabet that one sign stands for


def _lengths(pair: _Pair, ratios: LengthRatios) -> Iterator[str]:
    source, output = (text.strip() for text in pair.words)
    if ratios.usual is not None:
        expected, found = len(source) * ratios.usual, float(len(output))
    else:
        expected, found = _letters(source), _letters(output)
    difference = math.log((found + MARGIN) / (expected + MARGIN))
    if abs(difference) > math.log(ratios.factor):
        much = "far fewer" if difference < 0 else "far more"
        yield f"found {len(output):,} characters for {len(source):,} of the source, {much} than usual"


def _letters(text: str) -> float:
    """The length of a text in letters of an alphabet."""
    if text.isascii():
        return len(text)
    scripts = scripts_of(text)
    return len(text) + sum((density - 1) * scripts[script] for script, density in _DENSITY.items())


# --- soft: language


COPIED_WORDS = 4  # equal names and terms are translations of each other
COPIED_RUN = 6  # words
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_SCRIPT_OF = {
    code: script
    for script, codes in {
        "LATIN": "af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv ms mt nb nl no pl pt ro "
        "sk sl sq sv sw tl tr uz vi zu",
        "CYRILLIC": "be bg kk ky mk mn ru uk", "ARABIC": "ar fa ur", "CJK": "ja zh", "DEVANAGARI": "hi mr ne",
        "GREEK": "el", "HEBREW": "he", "HANGUL": "ko", "THAI": "th", "BENGALI": "bn", "ARMENIAN": "hy",
        "GEORGIAN": "ka", "KHMER": "km", "KANNADA": "kn", "LAO": "lo", "MALAYALAM": "ml", "MYANMAR": "my",
        "GURMUKHI": "pa", "SINHALA": "si", "TAMIL": "ta", "TELUGU": "te", "GUJARATI": "gu",
    }.items()
    for code in codes.split()
}  # fmt: skip


def _untranslated(pair: _Pair) -> Found:
    """The source itself, or many of its words in a row, where the languages may differ."""
    if pair.languages[0] and _base(pair.languages[0]) == _base(pair.languages[1]):
        return
    source, output = (text.lower().split() for text in pair.words)
    if source == output:
        words = _LETTERS.findall(pair.words[0])
        if len(words) >= COPIED_WORDS or _letters(pair.words[0]) >= len(pair.words[0]) + 12:  # signs without spaces
            yield "untranslated", "the output is the source"
        return
    if len({*source} & {*output}) < 2:
        return
    runs = set(zip(*(source[place:] for place in range(COPIED_RUN)), strict=False))
    for run in zip(*(pair.words[1].split()[place:] for place in range(COPIED_RUN)), strict=False):
        lowered = tuple(word.lower() for word in run)
        if lowered in runs and sum(word.islower() and len(word) > 1 for word in run) >= COPIED_RUN // 2:
            yield "untranslated", f"{_quoted(' '.join(run))} is the same as in the source"
            return


def _scripts(pair: _Pair) -> Found:
    """Letters of a script that neither the target language nor the source has."""
    output = pair.words[1]
    expected = _SCRIPT_OF.get(_base(pair.languages[1]), "")
    if output.isascii() and expected in ("", "LATIN"):
        return
    counts = scripts_of(output)
    if expected and counts.total() >= 3 and not counts[expected]:
        # Names that are copied may be all that an output has.
        copied = {*pair.words[0].split()}
        if sum(map(str.isalpha, "".join(word for word in output.split() if word not in copied))) >= 3:
            main = max(counts, key=counts.__getitem__)
            yield "script", f"found {_named(main)} letters, expected {_named(expected)} ones"
            return
    allowed = {expected, *scripts_of(pair.source)}
    others = [script for script in counts if script not in allowed] if expected else []
    if others and not {"LATIN", "FEMININE", "MASCULINE", "MICRO"} & {*others}:
        yield "script", f"found {_named(others[0])} letters, expected {_named(expected)} ones"


def _named(script: str) -> str:
    return script if script == "CJK" else script.title()


MIN_LANGUAGE_LETTERS = 25
SURE = 0.95


def _language(pair: _Pair, identify: Callable[[str], tuple[str, float]]) -> Iterator[str]:
    target = pair.languages[1]
    if not target or sum(map(str.isalpha, pair.words[1])) < MIN_LANGUAGE_LETTERS:
        return
    code, share = identify(pair.words[1])
    if _base(code) != _base(target) and share > SURE:
        yield f"the output looks like '{code}', expected '{target}'"


def _terms(pair: _Pair, terms: Terminology) -> Iterator[str]:
    output = pair.output.lower()
    for options in terms.required_by(pair.source):
        if not any(option.lower() in output for option in options):
            yield f"found no {' or '.join(map(_quoted, options))}, which the glossary asks for"


# --- soft: punctuation and spaces

_BRACKETS = str.maketrans("（）［］｛｝【】〔〕", "()[]{}[][]")
_QUOTES = re.compile(r"[\"“”„‟«»「」『』〝〞〟]|''|``")
_ENDINGS = {
    **dict.fromkeys(".。．।॥۔።։", "a full stop"),
    **dict.fromkeys("!！¡", "an exclamation mark"),
    **dict.fromkeys("?？؟⸮՞", "a question mark"),
    **dict.fromkeys(":：", "a colon"),
    **dict.fromkeys(";；", "a semicolon"),
    **dict.fromkeys("…", "an ellipsis"),
    **dict.fromkeys(",，、،", "a comma"),
}
_UNENDED = frozenset({"th", "lo", "my", "km"})  # written without full stops
_CLOSING = " \u00a0\u202f\n\t\"'“”’‘«»」』）)]}*_"
_OPENING = ' \u00a0\u202f\n\t"“”„‘«»「『（([{*_¿¡-–—•'


def _brackets(pair: _Pair) -> Found:
    source, output = (text.translate(_BRACKETS) for text in pair.words)
    for opening, closing in ("()", "[]", "{}"):
        if opening not in output and closing not in output and opening not in source:
            continue
        excess = output.count(opening) - output.count(closing)
        if excess and excess != source.count(opening) - source.count(closing):
            sign, other = (opening, closing) if excess > 0 else (closing, opening)
            yield "bracket", f"found '{sign}' without its '{other}'"


def _quotes(pair: _Pair) -> Found:
    counts = [len(_QUOTES.findall(text)) for text in pair.words]
    if counts[1] % 2 and not counts[0] % 2:
        yield "quote", f"found {counts[1]} quotation mark{'s' * (counts[1] > 1)}, expected them in pairs"


def _ending(text: str) -> str:
    text = text.rstrip(_CLOSING)
    if text.endswith(("...", "。。。", "..")):
        return "an ellipsis"
    return _ENDINGS.get(text[-1:], "")


def _endings(pair: _Pair) -> Found:
    source, output = (_ending(text) for text in (pair.source, pair.output))
    target = _base(pair.languages[1])
    if target == "el" and output == "a semicolon":
        output = "a question mark"
    if source == output or target in _UNENDED:
        return
    # Where one ends with a full stop and the other with none, with ! or with an ellipsis, both may be right.
    if "a question mark" in (source, output) or {source, output} & {"a colon", "a semicolon", "a comma"}:
        yield "ending", f"found {output or 'no punctuation'} at the end, expected {source or 'none'}"
    elif not output and source and len(pair.output) > 20:
        yield "ending", f"found no punctuation at the end, expected {source}"


_SPACED = re.compile(r"\w[ \u00a0]+[,.](?=\s|$)")
_GLUED = re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}+[,;!?][^\W\d_]{2}")
_DOUBLE_SPACE = re.compile(r"\S  +\S")


def _spaces(pair: _Pair) -> Found:
    source, output = pair.source, pair.output
    for place, (expected, found) in (
        ("start", [text[: len(text) - len(text.lstrip())] for text in (source, output)]),
        ("end", [text[len(text.rstrip()) :] for text in (source, output)]),
    ):
        if expected != found:
            kind = "newline" if expected.count("\n") != found.count("\n") else "space"
            yield kind, f"found {found!r} at the {place}, expected {expected!r}"
    for pattern, problem in (
        (_DOUBLE_SPACE, "several spaces in a row"),
        (_SPACED, "a space before punctuation"),
        (_GLUED, "no space after punctuation"),
    ):
        if (match := pattern.search(pair.words[1])) and not pattern.search(pair.words[0]):
            yield "space", f"found {problem}: {_quoted(match[0])}"
    lines = source.strip().count("\n"), output.strip().count("\n")
    if lines[0] != lines[1]:
        yield "newline", f"found {lines[1] + 1:,} lines, expected {lines[0] + 1:,}"


def _capitals(pair: _Pair) -> Found:
    """A sentence that begins with a small letter where the source begins with a capital."""
    source, output = (text.lstrip(_OPENING) for text in (pair.source, pair.output))
    if not (source[:1].isupper() and output[:1].islower()) or len(source.split()) < 3 or not _ending(source):
        return
    first = output.split()[0]
    if first.islower() and first not in source.split():  # iPhone, or a name that is written so
        yield "capital", f"found {_quoted(first)} at the start, expected a capital letter"


_DOUBLED = re.compile(r"(?<![\w'’-])([^\W\d_]{2,}+)[ \u00a0](\1)(?![\w'’-])", re.IGNORECASE)
# Words that may well follow themselves: had had, nous nous, die die.
_MAY_DOUBLE = frozenset(
    "had that is her you it nous vous der die das sie ihr den dem des was wie se si li bye so ha".split()  # noqa: SIM905
)


def _doubled_words(pair: _Pair) -> Found:
    if _DOUBLED.search(pair.words[0]):
        return
    for match in _DOUBLED.finditer(pair.words[1]):
        if match[1] == match[2] and match[1].lower() not in _MAY_DOUBLE:
            yield "double", f"the word {_quoted(match[1])} occurs twice in a row"


# --- soft: characters

_ESCAPES = re.compile(r"\\(?:[nrtfvab0\"'\\]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})")
_STRANGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ufffd\ue000-\uf8ff]|[ÃÂ][\x80-\xbf]|â€")
_MARKUP = re.compile(r"\*\*|``?|\]\(|\[/?(?:b|i|u|s|url|img|quote|code|list|color|size)\b[^\]]{0,80}\]")
_ACCELERATOR = re.compile(r"(?<!&)&(?!\w{1,8};)(?=[^\W\d_])|(?<!\w)_(?=[^\W\d_])")


def _characters(pair: _Pair) -> Found:
    if "\\" in pair.source or "\\" in pair.output:
        source, output = (Counter(_ESCAPES.findall(text)) for text in (pair.source, pair.output))
        if source != output:
            differing = [*(source - output), *(output - source)]
            yield "escape", f"{_listed(differing)} not as often as in the source"
    strange = _STRANGE.search(pair.output)
    if strange is not None and strange[0] not in pair.source:
        yield "character", f"found {strange[0]!r}, which is no text"
    if any(sign in text for sign in "*`[" for text in pair.words):
        source, output = (Counter(_MARKUP.findall(text)) for text in pair.words)
        if source != output:
            differing = [*(source - output), *(output - source)]
            yield "markup", f"{_listed(differing)} not as often as in the source"


def _accelerators(pair: _Pair) -> Iterator[str]:
    """The mark of the key of a menu item, as in &File: one in the output if the source has one."""
    source, output = (len(_ACCELERATOR.findall(text)) for text in pair.words)
    if (source == 1) != (output == 1) and 1 in (source, output) and len(pair.source) <= 80:
        yield f"found {output} letters that are marked with & or _, expected {source}"


_CHECKS: Sequence[Callable[[_Pair], Found]] = (
    _placeholders, _numbers, _loops, _untranslated, _scripts, _brackets, _quotes, _endings, _spaces, _capitals,
    _doubled_words, _characters,
)  # fmt: skip
