"""Files of word vectors: GloVe text, word2vec text and binary, fastText .vec; also compressed (.gz, .zst).

Memory holds the vectors of the words that are asked for and one block of the file, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.data.readers.lines import check_file, open_bytes

BLOCK = 1 << 20
FASTTEXT_MODEL = (793712314).to_bytes(4, "little")  # how a .bin of fastText begins
MAX_WORD, MAX_LINE = 1 << 16, 1 << 20  # bytes

Vector = NDArray[np.float32]


class Wanted(Protocol):
    """The words whose vectors are wanted."""

    def __contains__(self, word: object, /) -> bool: ...


class WordVectors(NamedTuple):
    """The vectors of some words."""

    vectors: dict[str, Vector]  # by word as it was asked for
    lower: frozenset[str]  # of these the ones whose lower-case form has the vector
    read: int  # words of the file
    width: int


class _Stream:
    """A file read by lines or by so many bytes."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self.read, self.name, self.buffer, self.start = read, name, b"", 0

    def _more(self) -> bool:
        block = self.read(BLOCK)
        self.buffer, self.start = self.buffer[self.start :] + block, 0
        return bool(block)

    def until(self, mark: bytes, limit: int | None = None) -> bytes:
        """The bytes before the next `mark`, which is skipped; at the end of the file all that is left."""
        searched = self.start
        while (end := self.buffer.find(mark, searched)) < 0:
            length = len(self.buffer) - self.start
            if limit is not None and length > limit:
                raise DataError(f"{self.name}: found {limit:,} bytes without {mark!r}, expected word vectors")
            if not self._more():
                end = len(self.buffer)
                break
            searched = length
        found, self.start = self.buffer[self.start : end], end + 1
        return found

    def take(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end of the file."""
        while len(self.buffer) - self.start < size and self._more():
            pass
        found, self.start = self.buffer[self.start : self.start + size], self.start + size
        return found

    def peek(self, size: int) -> bytes:
        found = self.take(size)
        self.start -= size
        return found

    @property
    def at_end(self) -> bool:
        return not self.peek(1)


def read_word_vectors(path: str | Path, words: Sequence[str], expected: int | None = None) -> WordVectors:
    """The vectors of these words, of a file that is read once; a word without one takes that of its lower-case form.

    `expected` is the number that a vector must have; with another one DataError is raised before the file is read on.
    """
    path = Path(path)
    check_file(path)
    asked = {word.encode("utf-8", "surrogatepass"): word for word in words}
    folded: dict[bytes, list[str]] = {}
    for word in words:
        if word.lower() != word:
            folded.setdefault(word.lower().encode("utf-8", "surrogatepass"), []).append(word)
    exact: dict[str, Vector] = {}
    by_case: dict[str, Vector] = {}
    count = width = 0
    with open_bytes(path) as read:
        for place, entry, vector in _entries(_Stream(read, str(path)), asked.keys() | folded.keys(), expected):
            count += 1
            if vector is None:
                continue
            width = len(vector)
            if not np.isfinite(vector).all():
                raise DataError(f"{place}: the vector of {_shown(entry)} has a number that is not finite")
            if (name := asked.get(entry)) is not None:
                if name in exact and not np.array_equal(exact[name], vector):
                    raise DataError(f"{place}: found {name!r} a second time with other numbers, expected one vector")
                exact[name] = vector
            for name in folded.get(entry, ()):
                by_case[name] = vector
    lower = frozenset(by_case.keys() - exact.keys())
    return WordVectors({**by_case, **exact}, lower, count, width)


class _Everything:
    """Contains every word."""

    def __contains__(self, word: object) -> bool:
        return True


def all_word_vectors(path: str | Path) -> tuple[list[str], NDArray[np.float32]]:
    """All words of a file, and their vectors (V, D)."""
    path, words, vectors = Path(path), list[str](), list[Vector]()
    check_file(path)
    with open_bytes(path) as read:
        for _, word, vector in _entries(_Stream(read, str(path)), _Everything(), None):
            assert vector is not None
            words.append(word.decode("utf-8", "replace"))
            vectors.append(vector)
    if not words:
        raise DataError(f"{path}: found no vectors, expected some")
    return words, np.stack(vectors)


def _entries(stream: _Stream, wanted: Wanted, expected: int | None) -> Iterator[tuple[str, bytes, Vector | None]]:
    """Place, word and vector of every entry; no vector for a word that is not wanted."""
    name, beginning = stream.name, stream.peek(4)
    if beginning == FASTTEXT_MODEL:
        raise DataError(f"{name}: found a model of fastText, expected its vectors: take the file .vec beside it")
    if beginning[:2] == b"PK":
        raise DataError(f"{name}: found a zip archive, expected the file inside it; unzip it first")
    if not beginning:
        raise DataError(f"{name}: found an empty file, expected word vectors")
    first = stream.until(b"\n", MAX_LINE)
    header = first.split()
    if len(header) == 2 and all(part.isdigit() for part in header):
        entries, width = int(header[0]), int(header[1])
        _check_width(name, width, expected)
        if _is_binary(stream.peek(4 * width + 64)):
            yield from _binary(stream, wanted, entries, width)
            return
        number = 1
    else:
        entries, width, number = None, len(header) - 1, 1
        if width < 1 or _numbers(b" ".join(header[1:]), width) is None:
            raise DataError(
                f"{name}:1: found {_shown(first[:40])}, expected a word and its numbers, or the two counts of word2vec"
            )
        _check_width(name, width, expected)
        yield _text_entry(f"{name}:1", first, wanted, width)
    read = int(entries is None)
    while not stream.at_end:
        number += 1
        line = stream.until(b"\n")
        if line.strip():
            read += 1
            yield _text_entry(f"{name}:{number}", line, wanted, width)
    if entries is not None and read != entries:
        raise DataError(f"{name}: found {read:,} vectors, but its first line says {entries:,}; the file is not whole")


def _check_width(name: str, width: int, expected: int | None) -> None:
    if expected is not None and width != expected:
        raise DataError(f"{name}: found vectors of {width} numbers, expected {expected}, the size of the embeddings")


def _is_binary(beginning: bytes) -> bool:
    """Whether what follows the header is no text: floats have control characters and bytes that UTF-8 cannot have."""
    try:
        text = beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(beginning) - 3:  # else a character that the end cuts in two
            return True
        text = beginning[: error.start].decode("utf-8")
    return any(character < "\t" for character in text)


def _text_entry(place: str, line: bytes, wanted: Wanted, width: int) -> tuple[str, bytes, Vector | None]:
    line = line.strip(b" \r")  # fastText ends its lines with a space
    if line.count(b" ") == width:
        word, _, numbers = line.partition(b" ")
    else:
        word, *parts = line.rsplit(b" ", width)  # GloVe has words with spaces inside
        if len(parts) != width or not word:
            raise DataError(
                f"{place}: found {len(line.split()) - 1} numbers after {_shown(line.split()[0])}, expected {width}"
            )
        numbers = b" ".join(parts)
    if word not in wanted:
        return place, word, None
    vector = _numbers(numbers, width)
    if vector is None:
        raise DataError(f"{place}: found text among the numbers of {_shown(word)}, expected {width} numbers")
    return place, word, vector


def _numbers(text: bytes, width: int) -> Vector | None:
    try:
        vector = np.array(text.split(), dtype=np.float32)
    except ValueError:
        return None
    return vector if len(vector) == width else None


def _binary(stream: _Stream, wanted: Wanted, entries: int, width: int) -> Iterator[tuple[str, bytes, Vector | None]]:
    for number in range(1, entries + 1):
        place = f"{stream.name}: vector {number:,}"
        word = stream.until(b" ", MAX_WORD).lstrip(b"\n")  # word2vec ends a vector with a newline, others do not
        numbers = stream.take(4 * width)
        if len(numbers) < 4 * width:
            raise DataError(f"{place} of {entries:,}: the file ends here; it is not whole")
        yield place, word, np.frombuffer(numbers, "<f4").astype(np.float32) if word in wanted else None
    if stream.take(2).strip(b"\n"):
        raise DataError(f"{stream.name}: found more after {entries:,} vectors, the number on its first line")


def _shown(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace"))
