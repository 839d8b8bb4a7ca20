"""Consecutive parts of a corpus with few different target words each (Jean et al. 2015, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store import Column
from dragoman.data.tokenizers.base import EOS
from dragoman.errors import ConfigError

ROWS = 4096  # read at a time


class VocabularyParts:
    """Parts of a column of targets; part i has the vocabulary V_i: all its words and <eos>, at most `size`.

    A part ends before the row whose words would not fit any more. Where `size` reaches the whole vocabulary, there is
    one part with all words.
    """

    def __init__(self, targets: Column, vocabulary: int, size: int) -> None:
        self.words: list[NDArray[np.int64]] = []
        starts = [0]
        if size < vocabulary:
            known = {EOS}
            for number, row in enumerate(rows_of_column(targets)):
                words = {EOS, *row}
                if len(words) > size:
                    most = max(len({EOS, *other}) for other in rows_of_column(targets))
                    raise ConfigError(
                        f"model.softmax.size: found {size}, but a target has {most} different tokens with <eos>; "
                        f"expected at least {most}"
                    )
                if len(known | words) > size:
                    self._close(known)
                    starts.append(number)
                    known = words
                else:
                    known |= words
            self._close(known)
        else:
            self.words.append(np.arange(vocabulary))
        self.of_row = (np.searchsorted(starts, np.arange(len(targets)), "right") - 1).astype(np.int32)  # (N,)

    def _close(self, words: set[int]) -> None:
        self.words.append(np.array(sorted(words), np.int64))

    def __len__(self) -> int:
        return len(self.words)


def rows_of_column(column: Column) -> Iterator[list[int]]:
    """All rows, some read at a time."""
    for first in range(0, len(column), ROWS):
        offsets = column.offsets(first, min(first + ROWS, len(column)))
        tokens = column.tokens(int(offsets[0]), int(offsets[-1])).tolist()
        bounds = (offsets - offsets[0]).tolist()
        yield from (tokens[start:end] for start, end in pairwise(bounds))
