"""Label vocabulary: the fixed set of classes or tags of a classifier or tagger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.base import DataError, suggestion
from dragoman.data.tokenizers.base import Tokenizer, content_hash


class FewLabelsError(DataError):
    """The training data hold fewer than two different labels."""


class UnknownLabelError(DataError):
    """A label that is not in the training data."""


class LabelVocabulary(Tokenizer):
    """A fixed set of labels, numbered from 0 in sorted order; there are no special tokens."""

    kind = "labels"
    is_text = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ids = {name: index for index, name in enumerate(self.names)}

    @classmethod
    def of(cls, labels: Iterable[str]) -> LabelVocabulary:
        """All different labels of the training data, sorted."""
        names = sorted(set(labels))
        if len(names) < 2:
            raise FewLabelsError(f"found {len(names)} label ({', '.join(names)}), expected at least two different ones")
        return cls(names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> str:
        return f"{len(self):,} labels"

    def label_id(self, label: str) -> int:
        """The id of a label; raises UnknownLabelError for a label that the training data do not have."""
        index = self._ids.get(label)
        if index is None:
            shown = ", ".join(self.names[:12]) + (", …" if len(self.names) > 12 else "")
            known = f"expected one of the training data ({shown}){suggestion(label, self.names)}"
            raise UnknownLabelError(f"found the label '{label}', {known}")
        return index

    def encode(self, text: str) -> list[int]:
        """The ids of space-separated labels; a text that is itself a label with spaces is that one label."""
        return [self._ids[text]] if text in self._ids else [self.label_id(label) for label in text.split(" ")]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.names[index] for index in ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.names[index] for index in ids]

    def contents(self) -> list[str | bytes]:
        table = {"kind": self.kind, "labels": self.names, "fingerprint": self.fingerprint()}
        return [json.dumps(table, indent=2, ensure_ascii=False) + "\n"]

    def fingerprint(self) -> str:
        return content_hash({"kind": self.kind, "labels": self.names})

    @classmethod
    def load(cls, table: dict[str, Any]) -> LabelVocabulary:
        if not all(isinstance(label, str) for label in table["labels"]):
            raise ValueError("labels: expected texts")
        return cls(table["labels"])
