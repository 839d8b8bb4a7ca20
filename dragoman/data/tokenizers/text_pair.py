"""Two texts as one row: a tokenizer that puts a separator of its own between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.data.tokenizers.tokenizer import Tokenizer

BETWEEN = "\t"  # parts two texts in one string: readers let no tab into a text
SEPARATOR = "<sep>"


class Joined:
    """Reads "first<tab>second" as the tokens of both with <sep> between; its id stands after the vocabulary."""

    tags: tuple[str, ...] = ()

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner
        self.separator = len(inner)

    @property
    def kind(self) -> str:
        """The kind of the units of either text."""
        return self.inner.kind

    @property
    def space(self) -> int | None:
        """The id of a token that is one space, where the inner tokenizer has one."""
        return self.inner.space

    def __len__(self) -> int:
        return len(self.inner) + 1

    def encode(self, text: str) -> list[int]:
        """The token ids of two texts."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several pairs of texts."""
        parts = [text.split(BETWEEN) for text in texts]
        rows = iter(self.inner.encode_batch([part for several in parts for part in several]))
        out = []
        for several in parts:
            row = next(rows)
            for _ in several[1:]:
                row = [*row, self.separator, *next(rows)]
            out.append(row)
        return out

    def decode(self, ids: Sequence[int]) -> str:
        """Both texts, a tab between them."""
        parts: list[list[int]] = [[]]
        for index in ids:
            if index == self.separator:
                parts.append([])
            else:
                parts[-1].append(index)
        return BETWEEN.join(self.inner.decode(part) for part in parts)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable unit for each id."""
        return [SEPARATOR if index == self.separator else self.inner.pieces([index])[0] for index in ids]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Which characters each token stands for; the separator is the tab."""
        spans: list[tuple[int, int]] = []
        start = 0
        for number, part in enumerate(text.split(BETWEEN)):
            if number:
                spans.append((start - 1, start))
            spans += [(first + start, end + start) for first, end in self.inner.spans(part)]
            start += len(part) + 1
        return spans

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The files that `save` writes: those of the inner tokenizer."""
        return self.inner.files(folder, name)

    def save(self, folder: Path, name: str) -> None:
        """Write the inner tokenizer, and among its settings that there is a separator."""
        self.inner.save(folder, name)
        path = self.files(folder, name)[0]
        table = json.loads(path.read_bytes()) | {"separator": True, "fingerprint": self.fingerprint()}
        path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        """A hash of the inner tokenizer, other than its own."""
        return hashlib.blake2b(f"{self.inner.fingerprint()}{SEPARATOR}".encode(), digest_size=16).hexdigest()
