"""Text pairs ↔ token ids, of one vocabulary for all pairs or of one that each source extends (See et al. 2017).

A pointer-generator copies source tokens that the target vocabulary lacks. Section 2.2 of the paper gives each of them
an id of its own after the V ids of the vocabulary, for this one source: "copy j" is V + j, and the first different
token that the vocabulary lacks is copy 0. A target token that the vocabulary lacks has the id of the equal source
token if there is one. So the loss and the search tell two unknown words of a source apart.

A model needs the number of the copy at every source position: the rows of such a codec are `TokensWithCopies`, and a
batch has them as `Batch.copies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.data.rows import TokensWithCopies
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import SPECIALS, UNK, Tokenizer, VocabularyTokenizer
from dragoman.data.tokenizers.language_tags import split_tag

MAX_COPIES = 64  # different tokens of one source; further ones stay <unk>
COPYABLE = ("words", "characters")  # tokenizers whose tokens are the same text on both sides


class PairCodec:
    """Encodes sources and targets each by its tokenizer."""

    copies = False  # whether outputs may have ids after the target vocabulary

    def __init__(self, source: SourceReader, target: Tokenizer) -> None:
        self.source, self.target = source, target

    def encode_sources(self, texts: Sequence[str]) -> list[list[Any]]:
        return self.source.encode_batch(texts)

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[Any]], list[list[Any]]]:
        return self.encode_sources(sources), self.target.encode_batch(targets)

    def target_of(self, source: str | None) -> Tokenizer:
        """The tokenizer of the targets and outputs of one source, None: of any."""
        return self.target


class CopyingCodec(PairCodec):
    """Gives source tokens that the target vocabulary lacks ids of their own."""

    copies = True

    def __init__(self, source: SourceReader, target: Tokenizer) -> None:
        super().__init__(source, target)
        units = source.innermost
        assert isinstance(units, VocabularyTokenizer)
        assert isinstance(target, VocabularyTokenizer)
        self._split, self._target = units.split, target
        self._known = {*target.pieces(range(len(SPECIALS), len(target)))}
        pieces = units.pieces(range(len(units)))
        self._missing = {UNK, *(id_ for id_, piece in enumerate(pieces) if piece not in self._known)}
        self._missing -= {*range(len(SPECIALS))} - {UNK}

    def _copies(self, tokens: Iterable[str]) -> dict[str, int]:
        missing = dict.fromkeys(token for token in tokens if token not in self._known)
        return {token: copy for copy, token in enumerate(missing) if copy < MAX_COPIES}

    def _with_copies(self, text: str, row: list[int]) -> tuple[TokensWithCopies, dict[str, int]]:
        """The row of a source with its copies, and the number of each."""
        numbers = [0] * len(row)
        if self._missing.isdisjoint(row):
            return TokensWithCopies(row, numbers), {}
        tokens = self._split(split_tag(text, self.source.tags)[1])
        copies, first = self._copies(tokens), len(row) - len(tokens)  # 1 after a language tag
        for place, token in enumerate(tokens, first):
            numbers[place] = 1 + copies.get(token, -1)
        return TokensWithCopies(row, numbers), copies

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        rows = zip(texts, super().encode_sources(texts), strict=True)
        return [self._with_copies(text, row)[0] for text, row in rows]

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Source rows with their copies, and target rows in which unknown tokens are copies where they can be."""
        rows, target_rows = self.source.encode_batch(sources), self.target.encode_batch(targets)
        for index, (source, row, target_row) in enumerate(zip(sources, rows, target_rows, strict=True)):
            rows[index], copies = self._with_copies(source, row)
            if copies and UNK in target_row:
                ids = {token: len(self.target) + copy for token, copy in copies.items()}
                tokens = self._target.split(targets[index])
                target_rows[index] = [
                    ids.get(token, UNK) if id_ == UNK else id_ for token, id_ in zip(tokens, target_row, strict=True)
                ]
        return rows, target_rows

    def target_of(self, source: str | None) -> Tokenizer:
        """The target tokenizer with the source's own tokens; without a source each copy is written as its number."""
        if source is None:
            return self._target.extended([f"⁇{copy + 1}" for copy in range(MAX_COPIES)])
        copies = self._copies(self._split(split_tag(source, self.source.tags)[1]))
        return self._target.extended(list(copies)) if copies else self._target


def copying_codec(source: SourceReader, target: Tokenizer) -> PairCodec:
    """A codec that copies, for tokenizers whose tokens can be compared."""
    same = source.kind == target.kind and source.kind in COPYABLE
    return (CopyingCodec if same else PairCodec)(source, target)
