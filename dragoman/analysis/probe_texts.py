"""The texts that probes feed to a run: built-in English ones, or sentences and frequent words of its training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.errors import DataError
from dragoman.inference.training_texts import has_sentences, is_english, is_spaced, training_texts
from dragoman.runs import Run

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
    if given is not None:
        given = [text for text in given if text.strip()]
        if not given:
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
