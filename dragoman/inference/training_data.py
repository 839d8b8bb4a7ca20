"""Some texts that a run was trained on, and what they show: letters, words or sentences, English, like other texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from dragoman.base import DragomanError
from dragoman.data import Example, read_examples
from dragoman.data.tokenizers import UNK, split_features
from dragoman.runs import Run

READ, SAMPLE = 20_000, 2_000  # lines that are read, and kept: files may be sorted, so the first alone say little
# Frequent in English and in no other language: together they are some 10 % of the words of English sentences.
ENGLISH_WORDS = frozenset(
    ("the", "of", "and", "that", "with", "this", "are", "you", "his", "her", "they", "have", "from", "there", "which")
)
ENGLISH_SHARE = 0.04
DIRECTION_MARGIN = 0.1  # by which a run must be more similar in one direction than in the other
SENTENCE_WORDS = 3.0  # mean number of words from which texts count as sentences
SENTENCE_CHARACTERS = 6.0  # the same in scripts without spaces
# Thai, Lao, Myanmar, Khmer; kana, Chinese characters. Compiled when it is first needed, which takes 10 ms.
UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"


class TrainingTexts(NamedTuple):
    """Sources and targets of the training data; the sources of a language model are empty."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


def training_texts(run: Run) -> TrainingTexts | None:
    """A sample of the training data; None if the files are gone, or if the run reads recordings or pictures."""
    data, example_format = run.config.data, run.task.example_format(run.config)
    try:
        items = list(islice(read_examples(data, data.train, example_format=example_format), READ))
    except (DragomanError, OSError):
        return None
    examples = [item for item in items if isinstance(item, Example) and item.references and not item.media_path]
    sample = [(example.source, example.references[0]) for example in examples[:: -(-len(examples) // SAMPLE) or 1]]
    return TrainingTexts(*zip(*sample, strict=True)) if sample else None


def has_sentences(texts: Sequence[str]) -> bool:
    """Whether the texts are sentences, not single words, names or sequences of single symbols."""
    if not is_spaced(texts):
        return sum(map(len, texts)) >= SENTENCE_CHARACTERS * max(1, len(texts))
    words = [word for text in texts for word in text.split()]
    return len(words) >= SENTENCE_WORDS * max(1, len(texts)) and sum(map(len, words)) >= 2 * len(words)


def are_single_words(texts: Sequence[str]) -> bool:
    """Whether nearly all texts are one word, in a script with spaces."""
    return is_spaced(texts) and sum(len(text.split()) == 1 for text in texts) >= 0.9 * len(texts)


def in_letters(texts: Sequence[str]) -> bool:
    """Whether these texts are shown, marked and measured by letter: single words, or a script without spaces."""
    return any(texts) and (not is_spaced(texts) or are_single_words(texts))


def letter_sides(run: Run, tokenizers: Sequence[Any]) -> tuple[bool, ...]:
    """Whether the sources and the targets of a run are shown by letter: read so, and no sentences of words.

    If the training data are gone, a vocabulary without the space stands for them: such data had single words.
    """
    if all(tokenizer.kind != "characters" for tokenizer in tokenizers):
        return (False,) * len(tokenizers)
    texts = training_texts(run)
    return tuple(
        tokenizer.kind == "characters"
        and (in_letters(stems(side, tokenizer)) if side else UNK in tokenizer.encode(" "))
        for tokenizer, side in zip(tokenizers, texts or ((), ()), strict=False)
    )


def stems(texts: Sequence[str], tokenizer: Any) -> list[str]:
    """The texts without the features at their end, which are whole tokens."""
    marks = tokenizer.innermost.config.features
    return [split_features(text, marks)[0] for text in texts] if marks else list(texts)


def is_spaced(texts: Sequence[str]) -> bool:
    """Whether the script of the texts puts spaces between words: most characters are not Chinese, Thai or the like."""
    characters = [character for text in texts for character in text if character.isalpha()]
    return 2 * len(re.findall(UNSPACED, "".join(characters))) <= len(characters)


def is_english(texts: Sequence[str]) -> bool:
    words = [word.strip(".,!?;:\"'()") for text in texts for word in text.casefold().split()]
    return sum(word in ENGLISH_WORDS for word in words) >= ENGLISH_SHARE * max(1, len(words))


def similarity(first: Sequence[str], second: Sequence[str]) -> float:
    """The cosine of the counts of character trigrams, from 0 to 1.

    Of 17 corpora, those in one language had 0.38 and more, those of two languages at most 0.33.
    """
    left, right = trigrams(first), trigrams(second)
    product = sum(count * right[gram] for gram, count in left.items())
    norms = math.prod(math.sqrt(sum(count * count for count in counts.values())) for counts in (left, right))
    return product / norms if norms else 0.0


def trigrams(texts: Sequence[str]) -> Counter[str]:
    """How often each trigram of characters occurs; a space stands before and after each text."""
    return Counter(
        padded[index : index + 3]
        for padded in (f" {text.strip()} " for text in texts)
        for index in range(len(padded) - 2)
    )
