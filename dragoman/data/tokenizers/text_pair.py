"""Text pairs for classification: two texts as one token row with <sep> between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dragoman.data.source_reader import SourceReader, Span
from dragoman.data.tokenizers.base import WrappedTokenizer

PAIR_DELIMITER = "\t"  # between the two texts of one string; the readers refuse tabs inside a text
SEPARATOR = "<sep>"


class TextPairTokenizer(WrappedTokenizer):
    """Encodes "first<tab>second" as the tokens of both texts with <sep> between; its id follows the vocabulary."""

    separator: int

    def __init__(self, inner: SourceReader) -> None:
        super().__init__(inner)
        self.separator, self.extra = len(inner), {"separator": True}

    def __len__(self) -> int:
        return len(self.inner) + 1

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several pairs, which the inner tokenizer encodes in one batch."""
        pairs = [text.split(PAIR_DELIMITER) for text in texts]
        rows = iter(self.inner.encode_batch([text for pair in pairs for text in pair]))
        out = []
        for pair in pairs:
            row = next(rows)
            for _ in pair[1:]:
                row = [*row, self.separator, *next(rows)]
            out.append(row)
        return out

    def decode(self, ids: Sequence[int]) -> str:
        texts: list[list[int]] = [[]]
        for index in ids:
            if index == self.separator:
                texts.append([])
            else:
                texts[-1].append(index)
        return PAIR_DELIMITER.join(self.inner.decode(row) for row in texts)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [SEPARATOR if index == self.separator else self.inner.pieces([index])[0] for index in ids]

    def spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        start = 0
        for number, part in enumerate(text.split(PAIR_DELIMITER)):
            if number:
                spans.append((start - 1, start))
            spans += [(first + start, end + start) for first, end in self.inner.spans(part)]
            start += len(part) + 1
        return spans

    def fingerprint(self) -> str:
        return hashlib.blake2b(f"{self.inner.fingerprint()}{SEPARATOR}".encode(), digest_size=16).hexdigest()
