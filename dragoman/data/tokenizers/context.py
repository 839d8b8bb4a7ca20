"""Document context: a model reads the sentences before a source, each followed by <sep>.

Tiedemann and Scherrer 2017, "Neural Machine Translation with Extended Context". Sentences and source are one string
with tabs between them. Training, validation and prediction all encode such strings with the tokenizer here, so a model
never reads an input that is made in another way than those it learned from.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

from dragoman.data.source_reader import SourceReader, Span
from dragoman.data.tokenizers.base import PAIR_DELIMITER, TextPairTokenizer


def join_context(context: Sequence[str], text: str) -> str:
    """The text behind its context; a tab in front says that it has none, where others get that of the stream."""
    return PAIR_DELIMITER.join((*(context or ("",)), text))


def split_context(text: str) -> tuple[tuple[str, ...] | None, str]:
    """The context that a text brings along, None if it says nothing of it, and the text itself."""
    *context, own = text.split(PAIR_DELIMITER)
    return (tuple(part for part in context if part.strip()) if context else None), own


class Context:
    """The last texts of a document; an empty text ends it."""

    def __init__(self, size: int) -> None:
        self._before: deque[str] = deque(maxlen=size)

    def of(self, text: str) -> tuple[str, ...]:
        """The texts before this one, which is kept for the next."""
        if not text.strip():
            self.end()
            return ()
        before = tuple(self._before)
        self._before.append(text)
        return before

    def end(self) -> None:
        """The next text begins another document."""
        self._before.clear()


class ContextTokenizer(TextPairTokenizer):
    """Encodes a text and at most `context` sentences before it; above `limit` tokens it leaves out the first."""

    def __init__(self, inner: SourceReader, context: int, limit: int) -> None:
        super().__init__(inner)
        self.context, self.limit = context, limit
        self.extra = {"context": [context, limit]}

    def read(self, text: str) -> str:
        """The part of a text that is encoded."""
        context, own = split_context(text)
        parts = [*(context or ())[-self.context :], own]
        sizes = [len(row) for row in self.inner.encode_batch(parts)]
        while len(parts) > 1 and sum(sizes) + len(sizes) - 1 > self.limit:
            del parts[0], sizes[0]
        return PAIR_DELIMITER.join(parts)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode_batch([self.read(text) if PAIR_DELIMITER in text else text for text in texts])

    def spans(self, text: str) -> list[Span]:
        kept = self.read(text)
        start = len(text) - len(kept)  # what is left out stands in front
        return [(first + start, end + start) for first, end in super().spans(kept)]

    def fingerprint(self) -> str:
        content = f"{super().fingerprint()} {self.context} {self.limit}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
