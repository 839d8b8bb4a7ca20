"""Behavioural probes of a run: repeated input, copying, extreme lengths, gender.

A probe feeds made-up inputs to the run and classifies each output. It counts and shows examples; it does not judge.
The built-in texts are English; pass `sentences` for another language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
REPETITIONS = (4, 16, 48)
NAMES = ("Anna Kowalski", "Omar Haddad", "Yuki Tanaka", "Peter Obi", "Maria Silva", "Lars Nilsson")
NUMBERS = ("7", "42", "365", "1984", "20517", "3.14")
NAMED = ("my name is {} .", "yesterday {} came to visit us .")
NUMBERED = ("the number is {} .", "there are {} people in the room .")
OCCUPATIONS = (
    "doctor", "nurse", "teacher", "engineer", "cook", "pilot", "secretary", "scientist", "farmer", "lawyer", "dancer",
    "mechanic",
)  # fmt: skip
GENDERED = (("he is a {} .", "she is a {} ."), ("the {} said that he is late .", "the {} said that she is late ."))

MIN_LOOP = 4  # repetitions in a row that count as a loop
MAX_PERIOD = 6  # words of one repetition
PRONOUN_EDITS = 2  # words that may differ where only a pronoun, or also its verb, was exchanged


class ProbeCase(NamedTuple):
    """One input, or two whose outputs are compared, and the text that the output must contain."""

    sources: tuple[str, ...]
    must_contain: str = ""


class ProbeExample(NamedTuple):
    """Inputs and outputs of a case."""

    sources: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """The inputs of a probe and how it classifies outputs; `kinds` explains each class."""

    about: str
    cases: Callable[[Sequence[str]], list[ProbeCase]]
    classify: Callable[[ProbeCase, tuple[str, ...]], str]
    kinds: Mapping[str, str]


@dataclass(frozen=True)
class ProbeResult:
    """The number of cases of each kind, and examples."""

    probe: str
    about: str
    cases: int
    counts: dict[str, int]
    examples: dict[str, list[ProbeExample]]

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        examples = {kind: [example._asdict() for example in several] for kind, several in self.examples.items()}
        return {
            "probe": self.probe,
            "about": self.about,
            "cases": self.cases,
            "counts": self.counts,
            "examples": examples,
        }


def units(text: str) -> list[str]:
    """The words of a text, or its characters if it has no spaces."""
    return text.split() if len(text.split()) > 1 else list(text.strip())


def max_repetitions(text: str) -> int:
    """The largest number of repetitions in a row of one to six words."""
    symbols = units(text)
    longest = 1 if symbols else 0
    for period in range(1, MAX_PERIOD + 1):
        run = 0  # symbols in a row that equal the one a period earlier
        for index in range(period, len(symbols)):
            run = run + 1 if symbols[index] == symbols[index - period] else 0
            longest = max(longest, 1 + run // period)
    return longest


# --- repeated tokens


def _repeated_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [ProbeCase((" ".join([word] * times),)) for word in REPEATED for times in REPETITIONS]


def _classify_repeated(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    source, output = case.sources[0], outputs[0]
    if not output.strip():
        return "empty"
    if max_repetitions(output) > max(MIN_LOOP, 2 * max_repetitions(source)):
        return "runaway"
    # The source repeats one word; an output with more different words than a loop needs invents content.
    return "repeats" if max_repetitions(output) >= MIN_LOOP or len(set(units(output))) <= MAX_PERIOD else "invented"


# --- names and numbers


def _copied_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [
        ProbeCase((frame.format(word),), word)
        for frames, words in ((NAMED, NAMES), (NUMBERED, NUMBERS))
        for frame in frames
        for word in words
    ]


def _plain(text: str) -> str:
    """Lower-case letters and digits only, because thousands separators and case differ between languages."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _classify_copied(case: ProbeCase, outputs: tuple[str, ...]) -> str:
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


def _classify_length(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    source, output = case.sources[0].strip(), outputs[0].strip()
    if not output:
        return "empty"
    if len(output) > 4 * len(source) + 40:
        return "too long"
    if max_repetitions(output) >= MIN_LOOP and max_repetitions(output) > max_repetitions(source):
        return "loops"
    # Scripts differ: a Chinese sentence has about a third of the characters of an English one.
    return "cut short" if len(output) < len(source) / 6 else "in proportion"


# --- gender


def _gendered_cases(_: Sequence[str]) -> list[ProbeCase]:
    return [ProbeCase((he.format(job), she.format(job)), job) for he, she in GENDERED for job in OCCUPATIONS]


def _classify_gendered(_: ProbeCase, outputs: tuple[str, ...]) -> str:
    distance = edit_distance(*(units(output) for output in outputs))
    if distance == 0:
        return "the same"
    return "pronoun alone" if distance <= PRONOUN_EDITS else "more differs"


PROBES: Mapping[str, Probe] = {
    "repetition": Probe(
        "one word repeated many times",
        _repeated_cases,
        _classify_repeated,
        {
            "repeats": "the output repeats too, or is short",
            "invented": "the output has content that is not in the source",
            "runaway": "the output repeats more than twice as often as the source",
            "empty": "the output is empty",
        },
    ),
    "copying": Probe(
        "names and numbers that the output must contain",
        _copied_cases,
        _classify_copied,
        {
            "copied": "the output has all of it",
            "in part": "the output has some words of it",
            "lost": "it has none of it",
        },
    ),
    "length": Probe(
        "one word, one sentence, many sentences at once",
        _length_cases,
        _classify_length,
        {
            "in proportion": "neither far shorter nor far longer than the source",
            "cut short": "less than a sixth of the source's characters",
            "too long": "more than four times the source's characters",
            "loops": "the output repeats the same words at least four times in a row",
            "empty": "the output is empty",
        },
    ),
    "gender": Probe(
        "the same sentence with he and with she",
        _gendered_cases,
        _classify_gendered,
        {
            "pronoun alone": "the outputs differ by one or two words",
            "the same": "the difference was lost",
            "more differs": "more than the pronoun changed with the gender",
        },
    ),
}
REJECTED = "rejected"  # the run raised an error, for example for more tokens than it has positions


def run_probes(
    predict: Predict, names: Sequence[str] = (), *, sentences: Sequence[str] = SENTENCES, examples: int = 2
) -> list[ProbeResult]:
    """Run the named probes, by default all; `sentences` replace the built-in English ones."""
    for name in names:
        if name not in PROBES:
            raise DataError(f"probe: found '{name}', which is no probe. {hint(name, PROBES)}")
    sentences = [sentence for sentence in sentences if sentence.strip()]
    if not sentences:
        raise DataError("found no sentence to probe with, expected at least one")
    return [_run_probe(name, PROBES[name], predict, sentences, examples) for name in names or PROBES]


def _run_probe(name: str, probe: Probe, predict: Predict, sentences: Sequence[str], examples: int) -> ProbeResult:
    cases = probe.cases(sentences)
    remaining = iter(_outputs(predict, [source for case in cases for source in case.sources]))
    by_kind: dict[str, list[ProbeExample]] = {kind: [] for kind in probe.kinds}
    for case in cases:
        outputs = tuple(output for output in islice(remaining, len(case.sources)) if output is not None)
        kind = probe.classify(case, outputs) if len(outputs) == len(case.sources) else REJECTED
        by_kind.setdefault(kind, []).append(ProbeExample(case.sources, outputs))
    return ProbeResult(
        name,
        probe.about,
        len(cases),
        {kind: len(several) for kind, several in by_kind.items()},
        {kind: several[:examples] for kind, several in by_kind.items() if several and examples},
    )


def _outputs(predict: Predict, sources: Sequence[str]) -> list[str | None]:
    """The output for every source; None where the run raised an error."""
    try:
        return list(predict(sources))
    except DragomanError:
        outputs: list[str | None] = []
        for source in sources:
            try:
                outputs.extend(predict([source]))
            except DragomanError:
                outputs.append(None)
        if all(output is None for output in outputs):
            raise  # the run accepts no input at all
        return outputs
