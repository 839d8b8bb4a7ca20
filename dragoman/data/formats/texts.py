"""Plain text: lines in the order of the file for causal language models, texts for masked language models.

In an example of a masked language model, the target is the text that follows the source, or empty. A text that is too
long is cut into several rows; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, DataError
from dragoman.data.config import DataConfig, TokenizersConfig, paths_of
from dragoman.data.examples import Example, Fault, Pairs, check_text, file_of
from dragoman.data.formats.base import ExampleFormat, InputRows, Row, TokenizerPair, TrainingExamples, targets
from dragoman.data.readers.base import READERS, ReadOptions
from dragoman.data.readers.lines import check_file, parse_lines
from dragoman.data.readers.pairs import read_pairs, read_plain_text
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import EOS, PAIR_DELIMITER, SOS, Tokenizer
from dragoman.data.tokenizers.load import train_tokenizer

MASK = "[MASK]"  # as users write it
MASK_ID = SOS  # its token id: <sos> occurs in no text
FIELDS = ("text", "next")
# References of an example that no text follows: it is alone in its document, or it is the last of several.
ALONE, LAST = ("",), ("", "last")


class LanguageModelFormat(ExampleFormat):
    """The lines of a text as targets; sources are empty."""

    name = "running"
    ordered = True
    unit = "line"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        path = file_of(entry)
        if path is None:
            files = " and ".join(paths_of(entry))
            raise ConfigError(f"data: found two files ({files}), expected one file of plain text")
        return read_plain_text(path, config.max_characters)

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        tokenizer = train_tokenizer(tokenizers.source, targets(examples, "learning the vocabulary"))
        return tokenizer, tokenizer

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        return [([], row) for row in target.encode_batch([example.references[0] for example in examples])]

    def fits(self, row: Row, max_length: int) -> bool:
        return True

    def target_count(self, row: Row) -> int:
        return len(row[1]) + 1

    def to_record(self, example: Example) -> dict[str, str]:
        return {"text": example.references[0]}


def read_texts(entry: str | Pairs, options: ReadOptions) -> Iterator[Example | Fault | None]:
    """The texts and faults of a file, in order, and None where a blank line ends a document.

    Without columns every line of a plain file is a text; otherwise a row has one or two texts.
    """
    path, columns = file_of(entry), options.columns
    if path is None:
        raise ConfigError(
            f"data.train: found two parallel files ({', '.join(paths_of(entry))}), expected files of texts"
        )
    if len(columns) > 2:
        raise ConfigError(f"data.columns: found {len(columns)}, expected one or two texts")
    reader = READERS.of(path)
    if not columns and reader.delimiter:
        if options.header or (reader.table and reader.delimiter == "\t"):
            raise ConfigError(f'data.columns: missing for {path}, expected which hold texts, such as ["sentence"]')
        check_file(path)
        return _read_lines(path, options.max_characters)
    named = columns or (FIELDS[0],)
    return _split_columns(read_pairs(path, replace(options, columns=(named[0], named[-1]))), len(named))


def _read_lines(path: Path, max_characters: int) -> Iterator[Example | Fault | None]:
    def parse(line: str, number: int) -> Example | None:
        text = line.strip()
        if not text:
            return None
        check_text(text, "text", max_characters)
        return Example(text, ("",), str(path), number)

    return parse_lines(path, parse)


def _split_columns(items: Iterable[Example | Fault], count: int) -> Iterator[Example | Fault | None]:
    """The texts of the first `count` columns one by one; two columns are a document."""
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        for text in (item.source, *item.references)[:count]:
            yield item._replace(source=text.strip(), references=("",))
        if count > 1:
            yield None


class MaskedTextFormat(ExampleFormat):
    """Texts of any length; with `pairs` every text with the one that follows it (next-sentence prediction)."""

    unit = "text"

    def __init__(self, max_length: int, pairs: bool = False) -> None:
        self.pairs = pairs
        self.max_length = max(1, max_length // 2) if pairs else max_length  # tokens of one text in a row
        self.name = f"text-{'pairs-in-order' if pairs else 'rows'}-{self.max_length}"
        # An example also holds the next text: with randomly chosen validation examples nearly all of their texts would
        # be training texts too.
        self.ordered = self.overlapping = pairs

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        items = read_texts(entry, config.reading)
        return pair_with_next(items) if self.pairs else (item for item in items if item is not None)

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        texts = (example.source for example in examples.train("learning the vocabulary"))
        tokenizer = train_tokenizer(tokenizers.source, texts)
        return tokenizer, tokenizer

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """Chunks of at most `max_length` tokens; with `pairs` each chunk with the next one."""
        out: list[Row | Fault] = []
        first_rows = source.encode_batch([example.source for example in examples])
        if not self.pairs:
            for row in first_rows:
                out += [(chunk, []) for chunk in split_evenly(row, self.max_length)]
            return out
        second_rows = source.encode_batch([example.references[0] for example in examples])
        for example, first, second in zip(examples, first_rows, second_rows, strict=True):
            chunks = split_evenly(first, self.max_length)
            if second:
                chunks.append(second[: self.max_length])  # its other chunks come with its own example
            elif len(chunks) == 1 and example.references == ALONE:
                chunks = split_evenly(first, -(-len(first) // 2))
            out += list(pairwise(chunks))
        return out

    def fits(self, row: Row, max_length: int) -> bool:
        return bool(row[0])

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        """The tokens, with <sos> for each [MASK]; a tab separates two texts."""
        out = []
        for text in texts:
            if MASK not in text:
                raise DataError(f"{name}: found no {MASK}, expected one or more to fill in")
            parts = text.split(PAIR_DELIMITER)
            if len(parts) > 2 or not all(part.strip() for part in parts):
                raise DataError(f"{name}: found {len(parts)} texts, expected one, or two with a tab between them")
            rows = [encode_masked(part.strip(), source) for part in parts]
            out.append([*rows[0], *(token for row in rows[1:] for token in (EOS, *row))])
        return out, None

    def to_record(self, example: Example) -> dict[str, str]:
        """One text or two; with `pairs` a text that no other follows is followed by itself."""
        texts = (example.source, example.references[0] or example.source) if self.pairs else (example.source,)
        return dict(zip(FIELDS, texts, strict=False))


def split_evenly(row: list[Any], max_length: int) -> list[list[Any]]:
    """Chunks of about the same length, none longer than `max_length`."""
    count = max(1, -(-len(row) // max_length))
    bounds = [index * len(row) // count for index in range(count + 1)]
    return [row[start:end] for start, end in pairwise(bounds)]


def pair_with_next(items: Iterable[Example | Fault | None]) -> Iterator[Example | Fault]:
    """Every text with the next one of its document as its reference; the last one gets LAST or ALONE."""
    previous: Example | None = None
    alone = True
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        if previous is not None:
            references = (ALONE if alone else LAST) if item is None else (item.source,)
            yield previous._replace(references=references)
        alone = previous is None or item is None
        previous = item
    if previous is not None:
        yield previous._replace(references=ALONE if alone else LAST)


def encode_masked(text: str, tokenizer: SourceReader) -> list[int]:
    """The tokens of a text, MASK_ID for each [MASK]; unless a space belongs to tokens, spaces around it are dropped."""
    row: list[int] = []
    for index, part in enumerate(text.split(MASK)):
        if tokenizer.space is None:
            part = part.rstrip() if tokenizer.keeps_white_space else part.strip()
        if index:
            row.append(MASK_ID)
        if part:
            row += tokenizer.encode(part)
    return row
