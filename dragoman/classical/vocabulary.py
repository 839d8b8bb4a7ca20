"""Numbers for words that are compared without case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Ragged


class Vocabulary:
    """Numbers from 1 for words, in the order of their first occurrence; words are compared without case."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._spelt: dict[str, int] = {}  # the same for words as they are spelt

    @property
    def size(self) -> int:
        return len(self.numbers) + 1

    def learn(self, words: Iterable[str]) -> list[int]:
        """The numbers of words, which new words get now."""
        spelt, numbers, out = self._spelt, self.numbers, list[int]()
        for word in words:
            if (number := spelt.get(word)) is None:
                number = spelt[word] = numbers.setdefault(word.casefold(), len(numbers) + 1)
            out.append(number)
        return out

    def rows(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        """Sentences as numbers; an unknown word has the number `size`."""
        spelt, numbers, unknown = self._spelt.get, self.numbers, self.size
        return Ragged.of(
            [[spelt(word) or numbers.get(word.casefold(), unknown) for word in words] for words in sentences]
        )


def same_spelling(sources: Sequence[str], targets: Sequence[str]) -> list[int]:
    """For every source piece the target token of the same spelling, −1 where there is none."""
    spelt = {piece: token for token, piece in enumerate(targets)}
    return [spelt.get(piece, -1) for piece in sources]


def without_case(pieces: Sequence[str]) -> dict[str, int]:
    """The first token of every spelling without case: vocabularies begin with frequent tokens."""
    first: dict[str, int] = {}
    for token, piece in enumerate(pieces):
        first.setdefault(piece.casefold(), token)
    return first


def fold_case(pieces: Sequence[str]) -> NDArray[np.int32]:
    """For every token the first one of the same spelling without case."""
    first = without_case(pieces)
    return np.array([first[piece.casefold()] for piece in pieces], np.int32)
