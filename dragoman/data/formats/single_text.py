"""Texts that are their own target (FIELD A6): a text a line, for models that learn by telling what is hidden of it.

An example is a text and, for pairs, the one that follows it; otherwise its target is empty. Nothing of a long text is
left out: it is cut into rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.data.examples import Example, Fault, Pairs, check_side
from dragoman.data.formats.formats import Codecs, Examples, Row, learn_source
from dragoman.data.readers.lines import check_file, each_line, form_of
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.tokenizers.text_pair import BETWEEN
from dragoman.data.tokenizers.tokenizer import EOS, SOS, Tokenizer
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.corpus import DataConfig, TokenizersConfig

MASK = "[MASK]"  # as a person writes it
HIDDEN = SOS  # as a row has it: <sos> stands in no text
FIELDS = ("text", "next")
ALONE, LAST = ("",), ("", "last")  # what follows a text that nothing follows: it stands alone, or followed another


def read_texts(
    entry: str | Pairs, *, columns: tuple[str, ...] = (), header: bool = False, max_characters: int = 10_000
) -> Iterator[Example | Fault | None]:
    """The texts and faults of a file, in order, and None where a blank line ends what belongs together.

    Without columns every line of a plain file is a text; else a row has one or two of them.
    """
    if isinstance(entry, Pairs) and entry.file is None:
        raise ConfigError(f"data.train: found two parallel files ({', '.join(entry.paths)}), expected files of texts")
    path = Path(entry.paths[0] if isinstance(entry, Pairs) else entry)
    if len(columns) > 2:
        raise ConfigError(f"data.columns: found {len(columns)}, expected one or two texts")
    form = form_of(path)[0]
    if not columns and form == "columns":
        if header or ".tsv" in path.suffixes:
            raise ConfigError(f'data.columns: missing for {path}, expected which hold texts, such as ["sentence"]')
        check_file(path)
        return _lines(path, max_characters)
    named = columns or (FIELDS[0],)
    items = read_pairs(path, columns=(named[0], named[-1]), header=header, max_characters=max_characters)
    return _cells(items, len(named))


def _lines(path: Path, limit: int) -> Iterator[Example | Fault | None]:
    def checked(line: str, number: int) -> Example | None:
        text = line.strip()
        if not text:
            return None
        check_side(text, "text", limit)
        return Example(text, ("",), str(path), number)

    return each_line(path, checked)


def _cells(items: Iterable[Example | Fault], count: int) -> Iterator[Example | Fault | None]:
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        for text in (item.source, *item.references)[:count]:
            yield item._replace(source=text.strip(), references=("",))
        if count > 1:
            yield None


class TextShape:
    """Texts of any length; with `pairs` each with the one that follows it."""

    def __init__(self, longest: int, pairs: bool = False) -> None:
        self.pairs = pairs
        self.longest = max(1, longest // 2) if pairs else longest  # tokens of one text of a row
        self.name = f"text-{'pairs-in-order' if pairs else 'rows'}-{self.longest}"
        # An example holds the next one's text too: set aside by chance, nearly every text would be trained on as well.
        self.ordered = self.overlapping = pairs

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """Every text; for pairs a blank line parts what does not belong together."""
        items = read_texts(entry, columns=config.columns, header=config.header, max_characters=config.max_characters)
        return paired(items) if self.pairs else (item for item in items if item is not None)

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """One vocabulary; every text counts once."""
        texts = (example.source for example in examples.train("learning the vocabulary"))
        source = learn_source(tokenizers.source, texts)
        return source, source

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """Pieces of at most `longest` tokens; for pairs each with the next one."""
        out: list[Row | Fault] = []
        firsts = source.encode_batch([example.source for example in examples])
        if not self.pairs:
            for row in firsts:
                out += [(piece, []) for piece in cut(row, self.longest)]
            return out
        seconds = source.encode_batch([example.references[0] for example in examples])
        for example, first, second in zip(examples, firsts, seconds, strict=True):
            pieces = cut(first, self.longest)
            if second:
                pieces.append(second[: self.longest])  # its rest follows in a row of its own
            elif len(pieces) == 1 and example.references == ALONE:
                pieces = cut(first, -(-len(first) // 2))
            out += list(pairwise(pieces))
        return out

    def fits(self, row: Row, max_length: int) -> bool:
        """They are cut so that they do."""
        return bool(row[0])

    def terms(self, row: Row) -> int:
        """Tokens of the second text."""
        return len(row[1])

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Tokens, with <sos> in place of each [MASK]; a second text comes after a tab."""
        out = []
        for number, text in enumerate(texts, first):
            if MASK not in text:
                raise DataError(f"input {number}: found no {MASK}, expected one or more to fill in")
            parts = text.split(BETWEEN)
            if len(parts) > 2 or not all(part.strip() for part in parts):
                raise DataError(
                    f"input {number}: found {len(parts)} texts, expected one, or two with a tab between them"
                )
            rows = [masked_row(part.strip(), source) for part in parts]
            out.append([*rows[0], *(token for row in rows[1:] for token in (EOS, *row))])
        return out, None

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Vocabularies bound them all."""
        return {}

    def record(self, example: Example) -> dict[str, str]:
        """One text or two; one that stands alone is followed by itself."""
        texts = (example.source, example.references[0] or example.source) if self.pairs else (example.source,)
        return dict(zip(FIELDS, texts, strict=False))


def cut(row: list[Any], longest: int) -> list[list[Any]]:
    """Pieces of about the same length, none of them longer than `longest`."""
    count = max(1, -(-len(row) // longest))
    bounds = [place * len(row) // count for place in range(count + 1)]
    return [row[start:end] for start, end in pairwise(bounds)]


def paired(items: Iterable[Example | Fault | None]) -> Iterator[Example | Fault]:
    """Every text with the one after it; the last before a break has none, and is marked if it is the only one."""
    before: Example | None = None
    alone = True
    for item in items:
        if isinstance(item, Fault):
            yield item
            continue
        if before is not None:
            references = (ALONE if alone else LAST) if item is None else (item.source,)
            yield before._replace(references=references)
        alone = before is None or item is None
        before = item
    if before is not None:
        yield before._replace(references=ALONE if alone else LAST)


def masked_row(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text, each [MASK] one of them; spaces around it are those that part words."""
    row: list[int] = []
    parts = text.split(MASK)
    for place, part in enumerate(parts):
        if tokenizer.space is None:
            part = part.strip()
        if place:
            row.append(HIDDEN)
        if part:
            row += tokenizer.encode(part)
    return row
