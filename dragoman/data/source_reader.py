"""What reads the items of a column of a corpus: tokenizers of text, label sets, number scalers, feature extractors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.base import make_folder, write_bytes

if TYPE_CHECKING:
    from dragoman.data.rows import FlatRows

# Start and end of a token's characters in the text. Of the byte tokens of one character, only the last is not empty.
Span = tuple[int, int]


class SourceReader(ABC):
    """Items (texts, or paths of files) → rows of a store, and how to show these rows."""

    is_text = True  # False: labels, numbers, or features of files
    reads_files = False  # items are paths of recordings or pictures; the reader is a FeatureExtractor
    separator: int | None = None  # the id of the token between the two texts of an item; None: it has one text
    context = 0  # sentences before an item that it reads along with it
    unit = "tokens"  # what the entries of a row are called
    tags: tuple[str, ...] = ()  # language tags that it reads at the front of a text
    names: tuple[str, ...] = ()  # of a set of labels
    keeps_white_space = False  # byte-level BPE: a space belongs to the token after it, and line ends are in tokens
    space: int | None = None  # the id of the token that is a single space, if there is one
    suffixes: tuple[str, ...] = ("json",)  # of its files
    channels = 1  # entries of a row for one position: several series have several numbers for each step

    @property
    @abstractmethod
    def kind(self) -> str:
        """The `kind` of its configuration."""

    @abstractmethod
    def __len__(self) -> int:
        """The size of the vocabulary, or the number of labels or features."""

    @property
    def size(self) -> str:
        """The size in words."""
        return f"vocabulary {len(self):,}"

    def describe(self, side: str) -> str:
        """One line about what it reads; `side` is source or target."""
        return f"{side} vocabulary: {len(self):,} {self.kind}"

    @property
    def innermost(self) -> SourceReader:
        """The reader inside those that add tags or join pairs of texts."""
        return self

    @abstractmethod
    def encode(self, text: str) -> Any:
        """The row of an item: token ids, numbers or features."""

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        """The rows of several items. Faster than `encode` where the library encodes on all cores."""
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str], dtype: str) -> FlatRows:
        """The rows of several items as one array; a reader that need not make lists for it overrides this."""
        from dragoman.data.rows import FlatRows  # numpy: the help of the command line does without it

        return FlatRows.of(self.encode_batch(texts), dtype)

    @abstractmethod
    def decode(self, ids: Sequence[Any]) -> str:
        """A row as text, without <pad>, <sos> and <eos>; <unk> becomes ⁇."""

    @abstractmethod
    def pieces(self, ids: Sequence[Any]) -> list[str]:
        """Each entry of a row as text."""

    def spans(self, text: str) -> list[Span]:
        """The characters of a text that each token of `encode(text)` covers."""
        raise NotImplementedError

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The paths that `save` writes. The first is the JSON file with the settings."""
        return tuple(Path(folder) / f"{name}.{suffix}" for suffix in self.suffixes)

    def save(self, folder: Path, name: str) -> None:
        """Write the reader to `folder`, each file named `name` with its own suffix."""
        make_folder(Path(folder))
        for path, content in zip(self.files(folder, name), self.contents(), strict=True):
            # The same line ends on every system.
            write_bytes(path, content if isinstance(content, bytes) else content.encode("utf-8"))

    @abstractmethod
    def contents(self) -> list[str | bytes]:
        """The content of each file; the first is a JSON object with `kind` and `fingerprint`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the vocabulary and of the rules; it does not depend on where the reader is saved."""
