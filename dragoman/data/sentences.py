"""Split running text into sentences and put their translations together again, every space where it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from dragoman.data.protected import unbroken_spans

# Words before a full stop that rarely end a sentence, in a few languages.
ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev gen sen rep st jr sr vs etc e.g i.e cf fig figs eq eqs sec no nos vol pp p ca approx inc ltd
    co al ed eds dept univ jan feb mar apr jun jul aug sep sept oct nov dec
    z.b d.h u.a o.ä bzw usw ggf evtl bspw hr fr nr str abs art bd evtl inkl max min mio mrd s.o s.u vgl
    m mm mme mlle me ex p.ex env av apr bd chap éd
    sr sra dña dn ud uds pág págs núm ej
    """.split()  # noqa: SIM905
)
# A run of stops is read from its first stop only: read from each of its stops, a long run would take quadratic time.
_END = re.compile(r"""(?<![.!?…])([.!?…]++["'”’»)\]]*+)(\s++)|([。！？]++[」』”’）]*+)(\s*+)""")
_OPENING = "\"'“‘«([¿¡„"
_OPENING_MARKS = re.compile(f"[{re.escape(_OPENING)}]*+")
_CLAUSE = re.compile(r"[,;:–—،、，；]\s+|[、，；]")
_SPACE = re.compile(r"\s+")
_FIELDS = re.compile(r"(\s{2,}|[\t\r\f\v])")


class Sentence(NamedTuple):
    """A sentence and the white space that follows it; white space at the start of a text follows an empty sentence."""

    text: str
    space: str


def split_sentences(text: str) -> list[Sentence]:
    """The sentences of a text; `join_sentences` of them is the text again. A line break always ends a sentence."""
    sentences: list[Sentence] = []
    spaces: list[str] = []  # white space since the last sentence

    def close() -> None:
        if spaces:
            last = sentences.pop() if sentences else Sentence("", "")
            sentences.append(Sentence(last.text, last.space + "".join(spaces)))
            spaces.clear()

    for line in re.split(r"(?<=\n)", text):
        body = line.strip()
        start = line.index(body) if body else len(line)
        if start:
            spaces.append(line[:start])
        if body:
            close()
            sentences += _sentences_of_line(body)
            spaces.append(line[start + len(body) :])
    close()
    return sentences


def split_fields(text: str) -> list[Sentence]:
    """The sentences of a text in which white space has a meaning: a tab or several spaces end a sentence too."""
    sentences: list[Sentence] = []
    for sentence in split_sentences(text):
        parts = _FIELDS.split(sentence.text)  # texts and the white space between them by turns
        sentences += [Sentence(*pair) for pair in zip(parts[::2], [*parts[1::2], sentence.space], strict=True)]
    return sentences


def _sentences_of_line(line: str) -> Iterator[Sentence]:
    start = 0
    for match in _END.finditer(line):
        end = match.end(1) if match[1] else match.end(3)
        if match.end() == len(line) or (match[1] and not _ends_sentence(line, match)):
            continue
        yield Sentence(line[start:end], line[end : match.end()])
        start = match.end()
    yield Sentence(line[start:], "")


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    """Whether a full stop, question mark or exclamation mark before a space ends a sentence."""
    marks = _OPENING_MARKS.match(line, match.end())
    place = marks.end() if marks else match.end()
    following = line[place : place + 1]
    if following.islower():
        return False
    if match[1] != ".":
        return True
    word = _word_before(line, match.start()).strip(_OPENING).lower()
    initial = len(word) == 1 and word.isalpha()
    ordinal = word.isdigit() and len(word) <= 2  # "am 3. Oktober"
    return not (word in ABBREVIATIONS or initial or ordinal)


def _word_before(line: str, place: int) -> str:
    """The word that ends before a place. It looks no further back: slices of the line would take quadratic time."""
    end = place
    while end and line[end - 1].isspace():
        end -= 1
    start = end
    while start and not line[start - 1].isspace():
        start -= 1
    return line[start:end]


def split_long(sentence: str, fits: Callable[[str], bool]) -> list[Sentence]:
    """Parts of a sentence that fit a model, cut at the clause mark, the space or the letter nearest the middle."""
    if len(sentence) < 2 or fits(sentence):
        return [Sentence(sentence, "")]
    middle = len(sentence) / 2
    cuts: Iterable[tuple[int, int]] = ()
    for pattern, least in ((_CLAUSE, 0.2), (_SPACE, 0.0)):
        ends = [
            (match.end() - len(match[0]) + len(match[0].rstrip()), match.end()) for match in pattern.finditer(sentence)
        ]
        cuts = [cut for cut in ends if least * len(sentence) <= cut[0] and cut[0] > 0 and cut[1] < len(sentence)]
        if cuts:
            break
    end, start = min(cuts, key=lambda cut: abs(cut[0] - middle), default=(len(sentence) // 2,) * 2)
    left, right = split_long(sentence[:end], fits), split_long(sentence[start:], fits)
    return [*left[:-1], Sentence(left[-1].text, left[-1].space + sentence[end:start]), *right]


def fitting_sentences(text: str, fits: Callable[[str], bool], preserve: bool = False) -> list[Sentence]:
    """The sentences of a text, none longer than a model can read; `preserve` cuts them at longer white space too."""
    sentences: list[Sentence] = []
    for sentence in unbroken(split_fields(text) if preserve else split_sentences(text), unbroken_spans(text)):
        parts = unbroken(split_long(sentence.text, fits), unbroken_spans(sentence.text))
        sentences += [*parts[:-1], Sentence(parts[-1].text, parts[-1].space + sentence.space)]
    return sentences


def unbroken(sentences: list[Sentence], spans: Sequence[tuple[int, int]]) -> list[Sentence]:
    """The sentences, joined where a tag or another span crosses the end of one; `spans` are in order."""
    if not spans:
        return sentences
    groups: list[list[Sentence]] = []
    place = reach = index = 0
    for sentence in sentences:
        if place >= reach:
            groups.append([])
        groups[-1].append(sentence)
        place += len(sentence.text) + len(sentence.space)
        while index < len(spans) and spans[index][0] < place:
            reach = max(reach, spans[index][1])
            index += 1
    return [Sentence(join_sentences(group)[: -len(group[-1].space) or None], group[-1].space) for group in groups]


def join_sentences(sentences: Iterable[Sentence], texts: Iterable[str] | None = None) -> str:
    """The sentences as one text, each replaced by its entry of `texts`, which has one for each that is not empty."""
    outputs = None if texts is None else iter(texts)
    parts = []
    for sentence in sentences:
        parts += [next(outputs) if outputs is not None and sentence.text else sentence.text, sentence.space]
    return "".join(parts)
