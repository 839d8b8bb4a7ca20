"""Rows of tokens as arrays, which are written to a store without a list for each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class FlatRows(NamedTuple):
    """Rows one after the other in one array."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], dtype: str) -> FlatRows:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)

    def select(self, chosen: NDArray[np.bool_]) -> FlatRows:
        return FlatRows(self.values[np.repeat(chosen, self.lengths)], self.lengths[chosen])
