"""Word vectors of every usual file format, and files that are none."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from dragoman.base.errors import DataError
from dragoman.data.word_vectors import read_word_vectors

WORDS = {"der": (0.5, -1.0, 2.0), "Hund": (1e-3, 4.0, 0.25), "é": (-0.125, 0.0, 7.5), "…": (3.0, 2.0, 1.0)}


def numbers(vector: tuple[float, ...]) -> str:
    return " ".join(map(repr, vector))


TEXT = "".join(f"{word} {numbers(vector)}\n" for word, vector in WORDS.items()).encode()
# As word2vec's own C program writes it: "%s ", the floats, "\n"; gensim leaves the last newline out.
BINARY = [(word.encode() + b" ", struct.pack("<3f", *vector)) for word, vector in WORDS.items()]
FILES = {
    "glove.txt": TEXT,
    "glove-with-spaces.txt": TEXT + f". . . {numbers((1.0, 1.0, 1.0))}\n".encode(),
    "no-last-newline.txt": TEXT[:-1],
    "windows.txt": TEXT.replace(b"\n", b"\r\n"),
    "word2vec.txt": b"4 3\n" + TEXT,
    "fasttext.vec": b"4 3\n" + TEXT.replace(b"\n", b" \n"),
    "word2vec.bin": b"4 3\n" + b"".join(word + vector + b"\n" for word, vector in BINARY),
    "gensim.bin": b"4 3\n" + b"".join(word + vector for word, vector in BINARY),
    "fasttext.vec.gz": gzip.compress(b"4 3\n" + TEXT),
    "word2vec.bin.gz": gzip.compress(b"4 3\n" + b"".join(word + vector for word, vector in BINARY)),
}


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_vectors(
    name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.data.word_vectors.BLOCK", block)
    path = tmp_path / name
    path.write_bytes(FILES[name])
    found = read_word_vectors(path, ["Hund", "hund", "é", "…", "Der", "Katze"], 3)
    expected = {word: WORDS[word] for word in ("Hund", "é", "…")} | {"Der": WORDS["der"]}
    assert {word: tuple(vector.tolist()) for word, vector in found.vectors.items()} == {
        word: tuple(np.array(vector, np.float32).tolist()) for word, vector in expected.items()
    }
    assert found.lower == {"Der"}  # and "hund" takes nothing of "Hund"
    assert found.read == 4 + (name == "glove-with-spaces.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"PK\x03\x04", "unzip it first"),
        (bytes.fromhex("ba164f2f") + b"\0" * 40, "fastText, expected its vectors"),
        (b"der Hund\n", "v.vec:1: found 'der Hund', expected a word and its numbers"),
        (b"4 4\n" + TEXT, "vectors of 4 numbers, expected 3"),
        (b"der 1 2\n", "vectors of 2 numbers, expected 3"),
        (TEXT + b"Katze 1 2\n", "v.vec:5: found 2 numbers after 'Katze', expected 3"),
        (TEXT + b"Katze 1 x 2\n", "v.vec:5: found text among the numbers of 'Katze'"),
        (TEXT + b"Katze 1 nan 2\n", "v.vec:5: the vector of 'Katze' has a number that is not finite"),
        (TEXT + b"Hund 1 2 3\n", "v.vec:5: found 'Hund' a second time with other numbers"),
        (b"9 3\n" + TEXT, "found 4 vectors, but its first line says 9"),
        (FILES["word2vec.bin"][:-9], "vector 4 of 4: the file ends here"),
        (b"3" + FILES["word2vec.bin"][1:], "found more after 3 vectors"),
    ],
)
def test_files_that_are_broken_are_refused_with_their_place(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_word_vectors(path, ["Hund", "Katze"], 3)
    assert message in str(error.value)
    assert str(path) in str(error.value)
