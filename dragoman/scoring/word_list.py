"""Words of outputs that a list of words lacks: models of characters and sub-words can write words that do not exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from dragoman.base import DataError

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")  # letters, with apostrophes and hyphens inside
SHOWN = 20


class InvalidWords(NamedTuple):
    """How many words of some texts are not in a list, and which."""

    words: int
    invalid: int
    examples: list[tuple[str, int]]  # with how often they occur, the most frequent first

    @property
    def rate(self) -> float:
        return self.invalid / max(1, self.words)

    def as_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, **self._asdict()}

    def lines(self) -> list[str]:
        shown = ", ".join(f"{word} ({count})" if count > 1 else word for word, count in self.examples[:SHOWN])
        return [
            f"{'invalid words':<15}{self.rate:>10.2%}   {self.invalid:,} of {self.words:,}",
            *([shown] * bool(shown)),
        ]


def invalid_words(texts: Iterable[str], word_list: Iterable[str]) -> InvalidWords:
    """Compare all words of texts with a list, the first column of its lines; a capital may stand for a small letter."""
    valid = {word for line in word_list if (word := line.partition("\t")[0].strip())}
    if not valid:
        raise DataError("the list of words is empty, expected a word on each line")
    counts = Counter(word for text in texts for word in WORD.findall(text.replace("’", "'")))
    wrong = {word: count for word, count in counts.items() if word not in valid and word.lower() not in valid}
    examples = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))
    return InvalidWords(counts.total(), sum(wrong.values()), examples)
