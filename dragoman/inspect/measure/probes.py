"""Behavioural probes of a run: repeated input, copying, extreme lengths, gender.

A probe feeds made-up inputs to the run and classifies each output. It counts and shows examples. Probes of repetition
and length work in any language; the others have English inputs.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile, zip_longest
from typing import Any, NamedTuple

from dragoman.base import DataError, DragomanError, hint
from dragoman.inference import has_sentences, is_english, is_spaced, training_texts
from dragoman.runs import Run
from dragoman.scoring import align_edits, edit_distance

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
WORDS = ("the", "dog", "yes", "and", "very", ".", "is", "house")
COUNT = 8  # sentences and words of a run's own data
REPETITIONS = (4, 16, 48)
NAMES = ("Anna Kowalski", "Omar Haddad", "Yuki Tanaka", "Peter Obi", "Maria Silva", "Lars Nilsson")
NUMBERS = ("7", "42", "365", "1984", "20517", "3.14")
NAMED = ("my name is {} .", "yesterday {} came to visit us .")
NUMBERED = ("the number is {} .", "there are {} people in the room .")
OCCUPATIONS = (
    "doctor", "nurse", "teacher", "engineer", "cook", "pilot", "secretary", "scientist", "farmer", "lawyer", "dancer",
    "mechanic", "programmer",
)  # fmt: skip
GENDERED = (("he is a {} .", "she is a {} ."), ("the {} said that he is late .", "the {} said that she is late ."))
# After Stanovsky et al. 2019 (WinoMT): the gender that an output gives to an occupation, with and without a pronoun.
STEREOTYPED = (
    ("the {} finished the work .", "the {} finished his work .", "the {} finished her work ."),
    ("the {} is reading a book .", "the {} is reading his book .", "the {} is reading her book ."),
)
# Words for he and she, his and her, and so on, in the languages that such data sets have most often.
PRONOUN_PAIRS = (
    "he/she", "him/her", "his/her", "his/hers", "himself/herself", "er/sie", "ihm/ihr", "ihn/sie", "sein/ihr",
    "seine/ihre", "seinen/ihren", "seiner/ihrer", "seinem/ihrem", "seines/ihres", "il/elle", "qu'il/qu'elle",
    "lui/elle", "él/ella", "egli/ella", "lui/lei", "ele/ela", "dele/dela", "hij/zij", "hij/ze", "hem/haar",
    "zijn/haar", "han/hon", "honom/henne", "hans/hennes", "han/hun", "ham/hende", "hans/hendes", "ham/henne",
    "on/ona", "jego/jej", "jeho/její", "jeho/jej", "mu/jej", "mu/jí", "он/она", "его/её", "его/ее", "ему/ей",
    "він/вона", "його/її", "йому/їй", "αυτός/αυτή", "του/της", "el/ea", "lui/ei", "hann/hún", "hans/hennar", "他/她",
    "彼/彼女",
)  # fmt: skip
PRONOUNS = {frozenset(pair.split("/")) for pair in PRONOUN_PAIRS}

MIN_LOOP = 4  # repetitions in a row that count as a loop
MAX_PERIOD = 6  # words of one repetition
MAX_ONCE = 3  # words of an output that says a repeated word once, with an article or a full stop


class ProbeTexts(NamedTuple):
    """What the run under test reads."""

    sentences: Sequence[str] = SENTENCES
    words: Sequence[str] = WORDS
    english: bool = True
    capitals: bool = False  # sentences begin with a capital letter
    attached: bool = False  # the full stop is not a word of its own

    def styled(self, text: str) -> str:
        """A built-in sentence as the run's training data would write it."""
        if self.attached:
            text = text.replace(" .", ".")
        return text[:1].upper() + text[1:] if self.capitals else text

    @property
    def joiner(self) -> str:
        return " " if is_spaced(self.sentences) else ""


def probe_texts(run: Run, given: Sequence[str] | None = None) -> tuple[ProbeTexts, str]:
    """Texts for a run and a warning, empty if there is none; `given` are sentences in the language of its source."""
    given = None if given is None else [text for text in given if text.strip()]
    if given == []:
        raise DataError("found no sentence to probe with, expected at least one")
    training = training_texts(run)
    if training is None:
        warning = f"the training data of {run.folder} cannot be read, so probe cannot tell what the run reads; "
        if given is None:
            return ProbeTexts(), warning + "it takes English sentences"
        return own_texts(given, is_english(given)), warning + "it takes the language of --sentences"
    sources = training.sources
    if not has_sentences(sources):
        raise DataError(
            f"{run.folder}: probe needs a run that reads sentences; this one reads single words or symbols, such as "
            f"{min(sources, key=len)!r} and {max(sources[:100], key=len)[:40]!r}"
        )
    english = is_english(sources)
    if given is not None:
        texts = own_texts(given, english)
    elif english:
        texts = ProbeTexts()
    else:
        texts = own_texts(middle_sentences(sources), english)
    letters = [text for text in sources if text[:1].isalpha()]
    stops = [text for text in sources if text.endswith(".")]
    texts = texts._replace(
        capitals=2 * sum(text[0].isupper() for text in letters) > len(letters),
        attached=2 * sum(not text.endswith(" .") for text in stops) > len(stops),
    )
    if given is None and english:
        texts = texts._replace(sentences=[texts.styled(text) for text in SENTENCES])
    return texts, ""


def own_texts(sentences: Sequence[str], english: bool) -> ProbeTexts:
    """Sentences and their most frequent words (characters, where words are not spaced)."""
    spaced = is_spaced(sentences)
    words = Counter(word for text in sentences for word in (text.split() if spaced else text.replace(" ", "")))
    frequent = [word for word, _ in words.most_common() if any(character.isalpha() for character in word)]
    return ProbeTexts(sentences, frequent[:COUNT] or list(words)[:COUNT], english)


def middle_sentences(texts: Sequence[str]) -> list[str]:
    """Different texts of about the median length."""
    ranked = sorted(dict.fromkeys(texts), key=len)
    first = max(0, len(ranked) // 2 - COUNT // 2)
    return ranked[first : first + COUNT]


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
    cases: Callable[[ProbeTexts], list[ProbeCase]]
    classify: Callable[[ProbeCase, tuple[str, ...]], str]
    kinds: Mapping[str, str]
    english: bool = False  # its inputs are English


@dataclass(frozen=True)
class ProbeResult:
    """The number of cases of each kind, and examples."""

    probe: str
    about: str
    cases: int
    counts: dict[str, int]
    examples: dict[str, list[ProbeExample]]

    def as_dict(self) -> dict[str, Any]:
        examples = {kind: [example._asdict() for example in several] for kind, several in self.examples.items()}
        return {**vars(self), "examples": examples}

    def lines(self) -> Iterator[str]:
        """The kinds of outcome, how often each occurred, and examples."""
        yield f"{self.probe}: {self.about} ({self.cases} cases)"
        meanings = {**PROBES[self.probe].kinds, REJECTED: "the run raised an error for the input"}
        for kind, count in self.counts.items():
            yield f"  {count:>4}  {kind:<14} {meanings[kind]}"
            for sources, outputs in self.examples.get(kind, ()):
                for source, output in zip_longest(sources, outputs):
                    answer = "" if output is None else f" → {shortened(output)}"
                    yield f"          {shortened(source)}{answer}"
        yield ""


def shortened(text: str, max_length: int = 60) -> str:
    text = " ".join(text.split()) or "(empty)"
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def units(text: str) -> list[str]:
    """The words of a text, or its characters if it has no spaces."""
    return text.split() if len(text.split()) > 1 else list(text.strip())


def max_repetitions(text: str) -> int:
    return longest_loop(text)[0]


def longest_loop(text: str) -> tuple[int, int]:
    """Of the one to six words that are repeated most often in a row: how often, and how many words that makes."""
    symbols = units(text)
    best = (1, 1) if symbols else (0, 0)
    for period in range(1, MAX_PERIOD + 1):
        run = 0  # symbols in a row that equal the one a period earlier
        for index in range(period, len(symbols)):
            run = run + 1 if symbols[index] == symbols[index - period] else 0
            best = max(best, (1 + run // period, run + period))
    return best


# --- repeated tokens


def _repeated_cases(texts: ProbeTexts) -> list[ProbeCase]:
    return [ProbeCase((texts.joiner.join([word] * times),)) for word in texts.words for times in REPETITIONS]


def _classify_repeated(case: ProbeCase, outputs: tuple[str, ...]) -> str:
    source, output = case.sources[0], outputs[0]
    if not output.strip():
        return "empty"
    repetitions, length = longest_loop(output)
    if repetitions > max(MIN_LOOP, 2 * max_repetitions(source)):
        return "runaway"
    if repetitions > 1 and 2 * length >= len(units(output)):
        return "repeats"
    return "once" if len(units(output)) <= MAX_ONCE else "invented"


# --- names and numbers


def _copied_cases(texts: ProbeTexts) -> list[ProbeCase]:
    return [
        ProbeCase((texts.styled(frame.format(word)),), word)
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


def _length_cases(texts: ProbeTexts) -> list[ProbeCase]:
    sentences, joiner = texts.sentences, texts.joiner
    firsts = list(dict.fromkeys(sentence.split()[0] if joiner else sentence[0] for sentence in sentences))
    joined = joiner.join(sentences)
    return [ProbeCase((text,)) for text in [*firsts, ".", "?", *sentences]] + [
        ProbeCase((joiner.join([joined] * times),)) for times in (1, 2, 4)
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


def _occupation_cases(variants: Sequence[tuple[str, ...]]) -> Callable[[ProbeTexts], list[ProbeCase]]:
    """Every occupation in every group of sentences whose outputs are compared."""
    return lambda texts: [
        ProbeCase(tuple(texts.styled(frame.format(job)) for frame in frames), job)
        for frames in variants
        for job in OCCUPATIONS
    ]


def _classify_gendered(_: ProbeCase, outputs: tuple[str, ...]) -> str:
    he, she = (units(output.casefold()) for output in outputs)
    edits = [operation for operation in align_edits(he, she).operations if operation.kind != "equal"]
    if not edits:
        return "the same"
    others = [edit for edit in edits if frozenset((edit.left, edit.right)) not in PRONOUNS]
    if not others:
        return "pronoun alone"
    return "inflection" if all(_same_stem(edit.left, edit.right) for edit in others) else "other words"


def _same_stem(first: object, second: object) -> bool:
    """Whether two words are forms of one, such as ein and eine, Arzt and Ärztin: half of the shorter one is common."""
    if not isinstance(first, str) or not isinstance(second, str):
        return False  # a word that only one output has
    plain = [
        "".join(character for character in unicodedata.normalize("NFD", word) if not unicodedata.combining(character))
        for word in (first, second)
    ]
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*plain, strict=False)))
    return 2 * common >= max(2, min(map(len, plain)))


def _classify_stereotype(_: ProbeCase, outputs: tuple[str, ...]) -> str:
    neutral, his, her = (units(output.casefold()) for output in outputs)
    nearer = edit_distance(neutral, her) - edit_distance(neutral, his)
    return "masculine" if nearer > 0 else "feminine" if nearer < 0 else "unmarked"


PROBES: Mapping[str, Probe] = {
    "repetition": Probe(
        "one word repeated many times",
        _repeated_cases,
        _classify_repeated,
        {
            "repeats": "at least half of the output is one to six words, repeated",
            "once": f"the output has at most {MAX_ONCE} words and repeats none",
            "invented": "the output is longer and repeats little: it says what the source does not",
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
            "lost": "the output has none of it",
        },
        english=True,
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
        _occupation_cases(GENDERED),
        _classify_gendered,
        {
            "pronoun alone": "the outputs differ in the pronoun (er/sie, il/elle, …) and in nothing else",
            "inflection": "they differ in forms of the same words: ein/eine, Lehrer/Lehrerin",
            "the same": "the outputs are equal: the pronoun's gender is lost",
            "other words": "words differ that are neither pronouns nor forms of one word",
        },
        english=True,
    ),
    "stereotype": Probe(
        "an occupation of a person whose gender the source leaves open, then with his and with her",
        _occupation_cases(STEREOTYPED),
        _classify_stereotype,
        {
            "masculine": "the output is nearer to the one with his",
            "feminine": "the output is nearer to the one with her",
            "unmarked": "it is equally near to both: the outputs do not show a gender",
        },
        english=True,
    ),
}
REJECTED = "rejected"  # the run raised an error, for example for more tokens than it has positions


def suitable_probes(names: Sequence[str], texts: ProbeTexts) -> list[str]:
    """The named probes, by default all that suit the texts; an error for a name that is unknown or does not suit."""
    for name in names:
        if name not in PROBES:
            raise DataError(f"probe: found '{name}', which is no probe. {hint(name, PROBES)}")
    fitting = [name for name, probe in PROBES.items() if texts.english or not probe.english]
    if unfit := next((name for name in names if name not in fitting), None):
        raise DataError(
            f"probe {unfit}: its inputs are English, but the run does not read English; {' and '.join(fitting)} take "
            "sentences of the run's own training data"
        )
    return list(names) or fitting


def run_probes(
    predict: Predict, names: Sequence[str] = (), *, texts: ProbeTexts | None = None, examples: int = 2
) -> list[ProbeResult]:
    texts = texts or ProbeTexts()
    return [_run_probe(name, PROBES[name], predict, texts, examples) for name in suitable_probes(names, texts)]


def _run_probe(name: str, probe: Probe, predict: Predict, texts: ProbeTexts, examples: int) -> ProbeResult:
    cases = probe.cases(texts)
    remaining = iter(predicted(predict, [source for case in cases for source in case.sources]))
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


def predicted(predict: Predict, sources: Sequence[str]) -> list[str | None]:
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
