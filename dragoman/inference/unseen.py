"""Characters and words of inputs that training did not have: found in one place, whatever the tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from dragoman.base import UnseenTextWarning
from dragoman.data import SourceReader
from dragoman.data.tokenizers import PAIR_DELIMITER, SPECIALS, UNK, split_tag
from dragoman.inference.long_inputs import OnWarning, warn_caller
from dragoman.runs import Run

BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # the piece of a byte in SentencePiece
SPELLS_ANYTHING = ("subwords", "bytes", "byte-level-bpe")  # a character without a token of its own becomes its bytes


def unknown_surfaces(text: str, tokens: Sequence[int], tokenizer: SourceReader) -> list[str]:
    """The characters or words of a text that the tokenizer reads as <unk>."""
    if UNK not in tokens:
        return []
    spans = tokenizer.spans(text)
    return [text[slice(*span)] for span, token in zip(spans, tokens, strict=True) if token == UNK]


class UnseenText:
    """Finds what training did not have in the texts of one run.

    A character with no token of its own is <unk> for most tokenizers. Sub-words spell it by its bytes instead, so no
    token gives it away, and the model reads embeddings that it never learned. A model that copies words of its source
    writes those that no vocabulary has, so nothing is unseen to it.
    """

    def __init__(
        self, run: Run, tokenizer: SourceReader, side: Literal["source", "target"] = "source", copies: bool = False
    ) -> None:
        self.run, self.tokenizer, self.side, self.copies = run, tokenizer, side, copies
        self.inner = tokenizer.innermost

    @cached_property
    def characters(self) -> frozenset[str] | None:
        """The characters of the training texts, as data.json has them, or else of the vocabulary; None: not known.

        A run that started from another one has learned from more data than its own.
        """
        if not self.inner.is_text:
            return None
        record = self.run.data.get("characters")
        own = record.get(self.side) if isinstance(record, dict) and self.run.config.train.pretrained is None else None
        if isinstance(own, str):
            return frozenset(own) | {" "}
        if self.inner.kind in ("bytes", "byte-level-bpe"):
            return None
        pieces = (piece for piece in self.inner.pieces(range(len(self.inner))) if not BYTE.fullmatch(piece))
        return frozenset(char for piece in pieces if piece not in SPECIALS for char in piece) | {" "}

    def __call__(self, text: str, tokens: Sequence[Any] | None = None) -> list[str]:
        """The characters or words of a text, which may have a tag, that training did not have."""
        if not self.inner.is_text or self.copies:
            return []
        if self.inner.kind in SPELLS_ANYTHING:
            plain = split_tag(text, self.tokenizer.tags)[1]
            if self.characters is None or self.characters.issuperset(plain):
                return []
            apart = PAIR_DELIMITER if self.tokenizer.separator is not None else ""
            return [char for char in plain if char not in self.characters and char != apart]
        tokens = self.tokenizer.encode(text) if tokens is None else tokens
        try:
            return unknown_surfaces(text, tokens, self.tokenizer) or self._spelled_by_bytes(text, tokens)
        except NotImplementedError:  # a tokenizer that cannot say where its tokens stand
            return []

    def _spelled_by_bytes(self, text: str, tokens: Sequence[int]) -> list[str]:
        """The characters that an imported SentencePiece model spells by bytes."""
        if self.inner.kind != "sentencepiece":
            return []
        pieces = self.tokenizer.pieces(tokens)
        if not any(map(BYTE.fullmatch, pieces)):
            return []
        spans = zip(self.tokenizer.spans(text), pieces, strict=True)
        return [text[first:end] for (first, end), piece in spans if first < end and BYTE.fullmatch(piece)]

    def lacks_digit(self, text: str) -> bool:
        known = self.characters
        return known is not None and any(char.isdigit() and char not in known for char in text)


def ignore_unknown(number: int, surfaces: list[str]) -> None:
    """An `on_unknown` for callers that look for what training did not have themselves."""


class UnseenInputs:
    """Counts inputs with characters or words that training did not have, for one line at the end."""

    SHOWN = 10

    def __init__(self, unit: str = "input") -> None:
        self.unit = unit  # what the line calls an input
        self.inputs: dict[int | str, None] = {}  # numbers or names, in order
        self.surfaces: Counter[str] = Counter()

    def add(self, name: int | str, surfaces: Sequence[str]) -> None:
        """Count the unseen characters or words of one input; an input that is tried again counts once."""
        if name not in self.inputs:
            self.inputs[name] = None
            self.surfaces.update(surfaces)

    def message(self) -> str:
        """How many inputs had some, and which; empty if none had. Counting begins anew."""
        if not self.inputs:
            return ""
        shown = ", ".join(repr(surface)[:40] for surface, _ in self.surfaces.most_common(self.SHOWN))
        more = f" and {len(self.surfaces) - self.SHOWN:,} others" if len(self.surfaces) > self.SHOWN else ""
        count, first = len(self.inputs), next(iter(self.inputs))
        where = f"{self.unit} {first:,}" if isinstance(first, int) else repr(first[:40])
        self.inputs, self.surfaces = {}, Counter()
        return (
            f"{count:,} {self.unit}{'s have' if count > 1 else ' has'} characters or words that training did not have: "
            f"{shown}{more} (first in {where}); check these outputs"
        )

    def warn(self, on_warning: OnWarning | None) -> None:
        """Warn the caller of what was counted, if anything was."""
        if message := self.message():
            warn_caller(on_warning, message, UnseenTextWarning)
