"""Tokenise examples into a store."""

from __future__ import annotations

import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import ConfigError
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import ExampleFormat, TokenizerPair
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.data.rows import FlatRows
from dragoman.data.store import COLUMNS, WEIGHTS, StoreWriter
from dragoman.data.tokenizers.base import UNK

CHUNK = 5_000
_SUMS = ("pairs", "source_tokens", "target_tokens", "too_long")


@dataclass
class StoreCounts:
    """What a store has; those of several stores can be added."""

    sums: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)  # of each column of text
    unknown: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)  # of targets
    # The characters of each column of text: predictions warn about any other.
    characters: dict[str, str] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        unknown = {column: self.unknown[column] / count for column, count in self.tokens.items() if count}
        return {name: self.sums[name] for name in _SUMS} | {"unknown": unknown}

    def __add__(self, other: StoreCounts) -> StoreCounts:
        columns = dict.fromkeys([*self.characters, *other.characters])
        return StoreCounts(
            self.sums + other.sums, self.tokens + other.tokens, self.unknown + other.unknown,
            self.faults + other.faults,
            {
                column: "".join(sorted({*self.characters.get(column, ""), *other.characters.get(column, "")}))
                for column in columns
            },
        )  # fmt: skip

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StoreCounts:
        counters = {name: Counter(content[name]) for name in ("sums", "tokens", "unknown")}
        return cls(**content | counters | {"faults": [Fault(*fault) for fault in content["faults"]]})


class CharacterSet:
    """The characters of texts, collected in a table: some times faster than a set."""

    def __init__(self) -> None:
        self._seen: NDArray[np.bool_] = np.zeros(0x110000, bool)

    def add(self, texts: Iterable[str]) -> None:
        self._seen[np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)] = True

    def __str__(self) -> str:
        return "".join(map(chr, np.flatnonzero(self._seen).tolist()))


def write_store(
    folder: Path,
    examples: Iterable[Example],
    tokenizers: TokenizerPair,
    max_length: int,
    example_format: ExampleFormat = PAIR_FORMAT,
    file_weights: Mapping[str, float] | None = None,
) -> StoreCounts:
    """Tokenise examples into a store.

    `file_weights`: how often an epoch has the examples of each file, by path; None or empty: all once.
    """
    counts = StoreCounts()
    source, target = tokenizers
    characters = {column: CharacterSet() for column, tokenizer in _text_columns(tokenizers)}
    weights = array("f")
    dtypes = example_format.column_dtypes(source, target, max_length)
    limit = max_length * source.channels
    with StoreWriter(folder, len(source), len(target), dtypes) as writer:
        iterator = iter(examples)
        while chunk := list(islice(iterator, CHUNK)):
            if "source" in characters:
                characters["source"].add(example.source for example in chunk)
            if "target" in characters:
                characters["target"].add(reference for example in chunk for reference in example.references)
            columns = example_format.encode_flat(chunk, source, target, writer.dtypes)
            if columns is not None:
                fitting = np.logical_and(columns["source"].lengths <= limit, columns["target"].lengths <= limit)
                if not fitting.all():
                    columns = {name: rows.select(fitting) for name, rows in columns.items()}
                kept = np.flatnonzero(fitting).tolist()
                _count_flat(counts, columns, tokenizers)
                writer.add_flat(columns)
                counts.sums["too_long"] += len(chunk) - len(kept)
            else:
                kept = _add_rows(counts, writer, chunk, tokenizers, limit, example_format, bool(file_weights))
            counts.sums["pairs"] += len(kept)
            if file_weights:
                weights.extend(file_weights.get(chunk[index].path, 1.0) for index in kept)
    if weights:
        (folder / WEIGHTS).write_bytes(weights.tobytes())
    counts.characters = {column: str(seen) for column, seen in characters.items()}
    return counts


def _text_columns(tokenizers: TokenizerPair) -> list[tuple[str, Any]]:
    return [(column, tokenizer) for column, tokenizer in zip(COLUMNS, tokenizers, strict=True) if tokenizer.is_text]


def _count_flat(counts: StoreCounts, columns: Mapping[str, FlatRows], tokenizers: TokenizerPair) -> None:
    for column in COLUMNS:
        counts.sums[f"{column}_tokens"] += len(columns[column].values)
    for column, _ in _text_columns(tokenizers):
        counts.tokens[column] += len(columns[column].values)
        counts.unknown[column] += int((columns[column].values == UNK).sum())


def _add_rows(
    counts: StoreCounts,
    writer: StoreWriter,
    chunk: Sequence[Example],
    tokenizers: TokenizerPair,
    limit: int,
    example_format: ExampleFormat,
    weighted: bool,
) -> list[int]:
    """Add the examples of a format that encodes row by row; returns which of them."""
    rows, kept = [], []
    encoded = example_format.encode(chunk, *tokenizers)
    if weighted and len(encoded) != len(chunk):
        raise ConfigError("data.train: found a weight, expected none for a format that cuts texts into rows")
    for index, row in enumerate(encoded):
        if isinstance(row, Fault):
            counts.faults.append(row)
        elif example_format.fits(row, limit):
            rows.append(row)
            kept.append(index)
        else:
            counts.sums["too_long"] += 1
    writer.add([row[0] for row in rows], [row[1] for row in rows])
    counts.sums["source_tokens"] += sum(len(row[0]) for row in rows)
    counts.sums["target_tokens"] += sum(example_format.target_count(row) for row in rows)
    for column, _ in _text_columns(tokenizers):
        index = COLUMNS.index(column)
        counts.tokens[column] += sum(len(row[index]) for row in rows)
        counts.unknown[column] += sum(map(example_format.unknown_count, (row[index] for row in rows)))
    return kept


def join_stores(folder: Path, parts: Sequence[Path]) -> None:
    """Write the rows of several stores one after the other."""
    folder.mkdir()
    for path in sorted(parts[0].iterdir()):
        with (folder / path.name).open("wb") as file:
            end = 0
            for number, part in enumerate(parts):
                if path.suffix == ".offsets":
                    offsets = np.fromfile(part / path.name, np.int64)
                    (offsets[min(number, 1) :] + end).tofile(file)
                    end += int(offsets[-1])
                elif path.name != "store.json" or not number:
                    with (part / path.name).open("rb") as rows:
                        shutil.copyfileobj(rows, file, 1 << 20)
