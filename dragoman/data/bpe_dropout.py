"""BPE-dropout (Provilkov et al. 2020): every epoch splits the words of the training data into other sub-words.

A store holds the usual sub-words. An epoch replaces those of every word by one of `VARIANTS` random splits, each made
when it is first needed. The splits of a word follow from (seed, word), and which of them stands at a place follows from
(seed, epoch, place in the store). So nothing has to be saved to resume, and all processes see the same rows.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store import COLUMNS, Column, TokenStore
from dragoman.data.tokenizers.subwords import SubwordTokenizer

VARIANTS = 16  # random splits of a word; with a dropout of 0.1 most of them are equal
MAX_CHARACTERS = 1000  # of a word that is split anew: time grows with the square


class MemoryColumn:
    """Rows in memory, read like a `Column`."""

    def __init__(self, tokens: NDArray[Any], bounds: NDArray[np.int64]) -> None:
        self._tokens, self._bounds = tokens, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self._bounds).astype(np.int32)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        return [self._tokens[self._bounds[index] : self._bounds[index + 1]] for index in indices]


class RandomSplits:
    """Splits words as the BPE model does, each merge left out with a probability."""

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        self.probability = tokenizer.config.dropout
        self.pieces = tokenizer.pieces(range(len(tokenizer)))
        self.scores = tokenizer.merge_scores()  # of all pieces that are no special tokens or bytes
        self.ids = {self.pieces[index]: index for index in self.scores}
        self._score_of = {piece: self.scores[index] for piece, index in self.ids.items()}

    def split(self, word: str, draw: random.Random) -> list[int]:
        """The ids of a word: again and again the best of the merges that are not left out, until none remains."""
        symbols = list(word)
        while len(symbols) > 1:
            best, place = -np.inf, -1
            for index, pair in enumerate(pairwise(symbols)):
                score = self._score_of.get(pair[0] + pair[1], -np.inf)
                if score > best and draw.random() >= self.probability:
                    best, place = score, index
            if place < 0:
                break
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        return [self.ids[symbol] for symbol in symbols]


class SampledColumn:
    """A column of sub-words, whose words are split anew in every epoch. Its tokens stay in memory."""

    def __init__(self, column: Column, splits: RandomSplits, seed: int) -> None:
        self.splits, self.seed = splits, seed
        lengths = column.lengths()
        self._longest = int(lengths.max(initial=0))
        ends = np.cumsum(lengths, dtype=np.int64)
        tokens = column.tokens(0, int(ends[-1]) if len(ends) else 0)
        first = np.flatnonzero(self._starts(tokens, ends - lengths))
        bounds = [*first.tolist(), len(tokens)]
        known: dict[bytes, int] = {}
        self._words: list[NDArray[Any]] = []  # the usual sub-words of every different word
        self._word = np.empty(len(first), np.int32)  # the word at each place
        for place in range(len(first)):
            part = tokens[bounds[place] : bounds[place + 1]]
            number = self._word[place] = known.setdefault(part.tobytes(), len(known))
            if number == len(self._words):
                self._words.append(part)
        self._row_ends = np.concatenate([[0], np.searchsorted(first, ends)])  # words before the end of each row
        self._span = np.zeros(((VARIANTS + 1) * len(known), 2), np.int64)  # start and length of splits in `_made`
        self._made = np.zeros(0, tokens.dtype)

    def _starts(self, tokens: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where a word begins: at a space, at the beginning of a row, and at and after tokens that never merge."""
        pieces, merging = self.splits.pieces, self.splits.scores
        size = max(len(pieces), int(tokens.max(initial=0)) + 1)  # language tags come after the vocabulary
        alone = np.array([index not in merging for index in range(size)])[tokens]
        starts: NDArray[np.bool_] = np.array(
            [index >= len(pieces) or pieces[index].startswith("▁") for index in range(size)]
        )[tokens]
        starts |= alone
        starts[1:] |= alone[:-1]
        starts[rows[rows < len(tokens)]] = True
        return starts

    def epoch(self, epoch: int, side: int) -> MemoryColumn:
        """The rows of an epoch. Rows that would be longer than the longest of the column keep their usual split."""
        chosen = np.random.default_rng([self.seed, epoch, side]).integers(1, VARIANTS + 1, len(self._word))
        lengths = self._lengths(keys := self._word.astype(np.int64) * (VARIANTS + 1) + chosen)
        sums = np.concatenate([[0], np.cumsum(lengths)])[self._row_ends]
        if (too_long := np.diff(sums) > self._longest).any():
            keys -= chosen * np.repeat(too_long, np.diff(self._row_ends))
            lengths = self._lengths(keys)
            sums = np.concatenate([[0], np.cumsum(lengths)])[self._row_ends]
        before = np.repeat(np.cumsum(lengths) - lengths, lengths)  # tokens of the epoch before each word
        places = np.repeat(self._span[keys, 0], lengths) + np.arange(int(sums[-1])) - before
        return MemoryColumn(self._made[places], sums)

    def _lengths(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of splits, which are made where they are missing; split 0 of a word is the usual one."""
        missing = np.unique(keys[self._span[keys, 1] == 0])
        made, end = [self._made], len(self._made)
        for key in missing.tolist():
            split = self._split(*divmod(key, VARIANTS + 1))
            self._span[key] = end, len(split)
            made.append(split)
            end += len(split)
        self._made = np.concatenate(made)
        lengths: NDArray[np.int64] = self._span[keys, 1]
        return lengths

    def _split(self, number: int, variant: int) -> NDArray[Any]:
        usual = self._words[number]
        if not variant or int(usual[0]) not in self.splits.scores:
            return usual
        word = "".join(self.splits.pieces[index] for index in usual.tolist())
        if len(word) > MAX_CHARACTERS:
            return usual
        return np.array(self.splits.split(word, random.Random(f"{self.seed}/{variant}/{word}")), usual.dtype)


class SampledStore:
    """The training data with the sub-words of any epoch."""

    def __init__(self, store: TokenStore, readers: Sequence[Any], seed: int) -> None:
        self._store = store
        columns = zip(COLUMNS, readers, strict=True)
        self._columns = {
            side: SampledColumn(getattr(store, side), RandomSplits(reader.innermost), seed)
            for side, reader in columns
            if dropout_of(reader)
        }

    def epoch(self, epoch: int) -> TokenStore:
        out: Any = copy.copy(self._store)
        for side, column in self._columns.items():
            setattr(out, side, column.epoch(epoch, COLUMNS.index(side)))
        sampled: TokenStore = out
        return sampled


def dropout_of(reader: Any) -> float:
    """The BPE-dropout of a tokenizer; 0 for readers that have none."""
    return float(getattr(getattr(reader.innermost, "config", None), "dropout", 0.0))
