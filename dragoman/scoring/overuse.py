"""Words that one system puts into outputs more often than another system and the references do.

A sign test compares the counts of a word segment by segment: had a word become no more usual, it would come and go
equally often. The p-value of a word is the larger one of the two comparisons, and holds for all words together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

Words = Sequence[str]  # of a text


@dataclass(frozen=True)
class OverusedWord:
    """A word that outputs have significantly more often than they should."""

    word: str
    before: int  # times
    after: int
    references: int  # times, in the reference of each segment that has it most often
    p: float  # after correction for the number of words

    def __str__(self) -> str:
        return f"{self.word} ({self.before:,} → {self.after:,} times, {self.references:,} in references)"


def sign_test(rises: int, falls: int) -> float:
    """The one-sided p-value of so many rises among the pairs that differ."""
    pairs = rises + falls
    return float(Fraction(sum(math.comb(pairs, count) for count in range(rises, pairs + 1)), 2**pairs))


def overused_words(
    before: Sequence[Words], after: Sequence[Words], references: Sequence[Sequence[Words]], level: float = 0.05
) -> list[OverusedWord]:
    """The words that `after` overuses, the most frequent first; each argument has one entry for every segment."""
    old, new = ([Counter(text) for text in texts] for texts in (before, after))
    right = [[Counter(text) for text in texts] for texts in references]
    versus_old, versus_right = _changes(new, [[text] for text in old]), _changes(new, right)
    # Tarone (1990): a word with so few changes that it cannot be significant does not count in the correction.
    least = sorted(0.5 ** (rises + falls) for rises, falls in versus_old.values())
    tested = next((count for count in range(1, len(least)) if least[count] * count > level), max(1, len(least)))
    found = []
    for word, changes in versus_old.items():
        p = tested * sign_test(*changes) if changes[0] > changes[1] else 1.0
        if p < level and (p := max(p, tested * sign_test(*versus_right.get(word, (0, 0))))) < level:
            was, now = (sum(text[word] for text in texts) for texts in (old, new))
            found.append(OverusedWord(word, was, now, sum(max(text[word] for text in texts) for texts in right), p))
    return sorted(found, key=lambda item: (item.before - item.after, item.word))


def _changes(outputs: Sequence[Counter[str]], others: Iterable[Sequence[Counter[str]]]) -> dict[str, tuple[int, int]]:
    """For each word the segments whose output has it more often, and less often, than all other texts."""
    rises, falls = Counter[str](), Counter[str]()
    for output, texts in zip(outputs, others, strict=True):
        for word in output.keys() | {word for text in texts for word in text}:
            counts = [text[word] for text in texts]
            rises[word] += output[word] > max(counts)
            falls[word] += output[word] < min(counts)
    return {word: (rises[word], falls[word]) for word in rises}
