"""Ready-made checks of a run (FIELD I7): meaningless input, copying, extreme lengths, gender.

A probe asks for outputs to inputs made for the purpose and sorts each into a named kind. It counts and shows; what is
good enough is for the reader to say. The built-in texts are English; other languages bring their own sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.errors import DataError, DragomanError, hint
from dragoman.scoring.edit import edit_distance

Predict = Callable[[Sequence[str]], Sequence[str]]

SENTENCES = (
    "the man is reading a book .",
    "a small dog runs through the park .",
    "two children are playing in the garden .",
    "we will meet again next week .",
    "she bought bread and milk at the market .",
    "the train arrives late in the evening .",
    "it is raining and the streets are wet .",
    "please open the window and close the door .",
)
REPEATED = ("the", "dog", "yes", "and", "very", ".", "is", "house")
TIMES = (4, 16, 48)
NAMES = ("Anna Kowalski", "Omar Haddad", "Yuki Tanaka", "Peter Obi", "Maria Silva", "Lars Nilsson")
NUMBERS = ("7", "42", "365", "1984", "20517", "3.14")
NAMED = ("my name is {} .", "yesterday {} came to visit us .")
NUMBERED = ("the number is {} .", "there are {} people in the room .")
OCCUPATIONS = (
    "doctor", "nurse", "teacher", "engineer", "cook", "pilot", "secretary", "scientist", "farmer", "lawyer", "dancer",
    "mechanic",
)  # fmt: skip
GENDERED = (("he is a {} .", "she is a {} ."), ("the {} said that he is late .", "the {} said that she is late ."))

LOOP = 4  # repeats of the same words in a row that no text has by intent
LONGEST_PERIOD = 6  # words that may make up one turn of a loop
PRONOUN_EDITS = 2  # words by which two outputs may differ when only a pronoun, or its verb too, was exchanged


class ProbeCase(NamedTuple):
    """One input, or two to be compared, and what must come through."""

    sources: tuple[str, ...]
    must_contain: str = ""


class ProbeExample(NamedTuple):
    """What was asked and what came back."""

    sources: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """Inputs, and a way to name what became of them; `kinds` says what each name means."""

    about: str
    cases: Callable[[Sequence[str]], list[ProbeCase]]
    classify: Callable[[ProbeCase, tuple[str, ...]], str]
    kinds: Mapping[str, str]


@dataclass(frozen=True)
class ProbeResult:
    """How many cases of a probe ended as each kind, and a few of them."""

    probe: str
    about: str
    cases: int
    counts: dict[str, int]
    examples: dict[str, list[ProbeExample]]

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON takes it."""
        shown = {kind: [example._asdict() for example in examples] for kind, examples in self.examples.items()}
        return {"probe": self.probe, "about": self.about, "cases": self.cases, "counts": self.counts, "examples": shown}


def units(text: str) -> list[str]:
    """Words, or characters where nothing is set apart by spaces."""
    return text.split() if len(text.split()) > 1 else list(text.strip())


def max_repetitions(text: str) -> int:
    """How often, at most, the same few words stand in a row."""
    symbols = units(text)
    most = 1 if symbols else 0
    for period in range(1, LONGEST_PERIOD + 1):
        run = 0  # symbols in a row that equal the one a period before
        for place in range(period, len(symbols)):
            run = run + 1 if symbols[place] == symbols[place - period] else 0
            most = max(most, 1 + run // period)
    return most


# --- repeated tokens


def _repeated_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [ProbeCase((" ".join([word] * times),)) for word in REPEATED for times in TIMES]


def _sort_repeated(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    source, output = case.sources[0], outputs[0]
    if not output.strip():
        return "empty"
    if max_repetitions(output) > max(LOOP, 2 * max_repetitions(source)):
        return "runaway"
    # A text of one word over and over says one thing: more words than the loop of it needs were invented.
    return "repeats" if max_repetitions(output) >= LOOP or len(set(units(output))) <= LONGEST_PERIOD else "invented"


# --- names and numbers


def _copied_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [
        ProbeCase((frame.format(word),), word)
        for frames, words in ((NAMED, NAMES), (NUMBERED, NUMBERS))
        for frame in frames
        for word in words
    ]


def _plain(text: str) -> str:
    """Letters and digits alone: separators of thousands and cases are matters of language."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _sort_copied(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    output = _plain(outputs[0])
    if _plain(case.must_contain) in output:
        return "copied"
    parts = [_plain(part) for part in case.must_contain.split()]
    return "in part" if len(parts) > 1 and any(part in output for part in parts) else "lost"


# --- lengths


def _length_cases(sentences: Sequence[str]) -> list[ProbeCase]:
    firsts = list(dict.fromkeys(sentence.split()[0] for sentence in sentences))
    joined = " ".join(sentences)
    return [ProbeCase((text,)) for text in [*firsts, ".", "?", *sentences]] + [
        ProbeCase((" ".join([joined] * times),)) for times in (1, 2, 4)
    ]


def _sort_length(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    source, output = case.sources[0].strip(), outputs[0].strip()
    if not output:
        return "empty"
    if len(output) > 4 * len(source) + 40:
        return "too long"
    if max_repetitions(output) >= LOOP and max_repetitions(output) > max_repetitions(source):
        return "loops"
    # Scripts differ: a Chinese sentence has about a third of the characters of an English one.
    return "cut short" if len(output) < len(source) / 6 else "in proportion"


# --- gender


def _gendered_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [ProbeCase((he.format(job), she.format(job)), job) for he, she in GENDERED for job in OCCUPATIONS]


def _sort_gendered(_: ProbeCase, outputs: tuple[str, ...]) -> str:
    distance = edit_distance(*(units(output) for output in outputs))
    if distance == 0:
        return "the same"
    return "pronoun alone" if distance <= PRONOUN_EDITS else "more differs"


PROBES: Mapping[str, Probe] = {
    "repetition": Probe(
        "one word over and over, which means nothing",
        _repeated_cases,
        _sort_repeated,
        {
            "repeats": "the output repeats too, or is short",
            "invented": "the output says things that are nowhere in the source",
            "runaway": "the output repeats more than twice as often as the source",
            "empty": "nothing was written",
        },
    ),
    "copying": Probe(
        "names and numbers that must come through",
        _copied_cases,
        _sort_copied,
        {"copied": "all of it stands in the output", "in part": "some words of it do", "lost": "none of it does"},
    ),
    "length": Probe(
        "one word, one sentence, many sentences at once",
        _length_cases,
        _sort_length,
        {
            "in proportion": "neither far shorter nor far longer than the source",
            "cut short": "less than a sixth of the source's characters",
            "too long": "more than four times the source's characters",
            "loops": "the same words at least four times in a row",
            "empty": "nothing was written",
        },
    ),
    "gender": Probe(
        "the same sentence with he and with she",
        _gendered_cases,
        _sort_gendered,
        {
            "pronoun alone": "the outputs differ by one or two words",
            "the same": "the difference was lost",
            "more differs": "more than the pronoun changed with the gender",
        },
    ),
}
REJECTED = "rejected"  # the run would not take the input, such as one longer than its table of positions


def run_probes(
    predict: Predict, names: Sequence[str] = (), *, sentences: Sequence[str] = SENTENCES, examples: int = 2
) -> list[ProbeResult]:
    """Run probes, all of them unless some are named; `sentences` stand in for the built-in English ones."""
    for name in names:
        if name not in PROBES:
            raise DataError(f"probe: found '{name}', which is no probe. {hint(name, PROBES)}")
    sentences = [sentence for sentence in sentences if sentence.strip()]
    if not sentences:
        raise DataError("found no sentence to probe with, expected at least one")
    return [_outcome(name, PROBES[name], predict, sentences, examples) for name in names or PROBES]


def _outcome(name: str, chosen: Probe, predict: Predict, sentences: Sequence[str], examples: int) -> ProbeResult:
    cases = chosen.cases(sentences)
    answers = _answers(predict, [source for case in cases for source in case.sources])
    found: dict[str, list[ProbeExample]] = {kind: [] for kind in chosen.kinds}
    place = 0
    for case in cases:
        outputs = answers[place : place + len(case.sources)]
        place += len(case.sources)
        written = tuple(output for output in outputs if output is not None)
        kind = chosen.classify(case, written) if len(written) == len(outputs) else REJECTED
        found.setdefault(kind, []).append(ProbeExample(case.sources, written))
    return ProbeResult(
        name,
        chosen.about,
        len(cases),
        {kind: len(cases) for kind, cases in found.items()},
        {kind: cases[:examples] for kind, cases in found.items() if cases and examples},
    )


def _answers(predict: Predict, sources: Sequence[str]) -> list[str | None]:
    """The output to every source; None for those that are refused."""
    try:
        return list(predict(sources))
    except DragomanError:
        answers: list[str | None] = []
        for source in sources:
            try:
                answers.extend(predict([source]))
            except DragomanError:
                answers.append(None)
        if all(answer is None for answer in answers):
            raise  # not the lengths: nothing at all can be asked
        return answers
