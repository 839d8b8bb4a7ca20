"""What examples of a task look like: how files become examples, and examples the rows of a store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers.conll import read_sentences, words_of
from dragoman.data.readers.pairs import read_pairs, read_running
from dragoman.data.tokenizers.labels import (
    Labels,
    Numbers,
    NumbersConfig,
    RunTokenizerConfig,
    UnknownLabelError,
    finite,
    tokenizer_of,
)
from dragoman.data.tokenizers.text_pair import BETWEEN, Joined
from dragoman.data.tokenizers.tokenizer import Tokenizer, learn
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.corpus import DataConfig, TokenizersConfig

Row = tuple[list[Any], list[Any]]  # what a store keeps of an example
Codecs = tuple[Tokenizer, Tokenizer]  # of sources and targets


class Examples(Protocol):
    """The training part of a corpus, read as often as needed."""

    def train(self, doing: str) -> Iterator[Example]:
        """The examples to learn from."""


class Shape(Protocol):
    """What examples of a task look like."""

    name: str  # known to the fingerprint of the data

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """Examples and faults of one entry of data.train; `several` references if the task knows such."""

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """What turns sources and targets into numbers."""

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """The rows of a store, or a fault where a target cannot be one."""

    def fits(self, row: Row, max_length: int) -> bool:
        """Whether a row is short enough to be kept."""

    def terms(self, row: Row) -> int:
        """How many tokens, labels or tags its target is."""

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Rows of sources to be answered, and of targets where the answer needs to be told something."""

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Types of the store's columns that a vocabulary does not bound."""

    def record(self, example: Example) -> dict[str, str]:
        """An example as a line of JSON, its fields in the order of columns."""


class PairsShape:
    """A source text and one or more target texts."""

    name = "pairs"

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """As readers.py does."""
        return read_pairs(
            entry,
            columns=config.columns,
            several_references=several,
            max_characters=config.max_characters,
            header=config.header,
        )

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """Vocabularies from the training part only; one for both sides unless the target has its own."""
        if tokenizers.target is None:
            texts = (
                text
                for example in examples.train("learning the vocabulary")
                for text in (example.source, example.references[0])
            )
            joint = learn_source(tokenizers.source, texts)
            return joint, joint
        return (
            learn_source(tokenizers.source, sources(examples, "learning source units")),
            learn_source(tokenizers.target, targets(examples, "learning target units")),
        )

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """Tokens of both texts."""
        left = source.encode_batch([example.tagged for example in examples])
        right = target.encode_batch([example.references[0] for example in examples])
        return list(zip(left, right, strict=True))

    def fits(self, row: Row, max_length: int) -> bool:
        """Both texts count."""
        return len(row[0]) <= max_length and len(row[1]) <= max_length

    def terms(self, row: Row) -> int:
        """Tokens."""
        return len(row[1])

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Tokens."""
        return source.encode_batch(texts), None

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Vocabularies bound them all."""
        return {}

    def record(self, example: Example) -> dict[str, str]:
        """Both texts."""
        return {"source": example.source, "target": example.references[0]}


def learn_source(config: Any, texts: Iterable[str]) -> Tokenizer:
    """A tokenizer, or the scale of numbers."""
    if isinstance(config, RunTokenizerConfig):
        return tokenizer_of(config)
    return Numbers.learn(config, texts) if isinstance(config, NumbersConfig) else learn(config, texts)


def sources(examples: Examples, doing: str) -> Iterator[str]:
    """Every source text; of two texts both, one after the other."""
    return (text for example in examples.train(doing) for text in example.source.split(BETWEEN))


def targets(examples: Examples, doing: str) -> Iterator[str]:
    """Every first reference."""
    return (example.references[0] for example in examples.train(doing))


class LabelledShape:
    """One or two texts (or a series of numbers) and a label."""

    name = "labels"
    target = "label"
    fields: ClassVar[tuple[str, ...]] = ("text1", "text2")

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """The last of the columns is the label, the others are texts."""
        texts = max(1, len(config.columns) - 1)
        if texts > 2:
            found = len(config.columns)
            raise ConfigError(f"data.columns: found {found}, expected one or two texts and a {self.target}")
        items = read_pairs(
            entry,
            columns=config.columns,
            several_references=texts > 1,
            max_characters=config.max_characters,
            header=config.header,
            numbers=True,
        )
        for item in items:
            if isinstance(item, Fault):
                yield item
            elif len(item.references) != texts:
                yield Fault(item.place, "empty-side", f"the {self.target} is empty, expected text")
            else:
                whole = BETWEEN.join((item.source, *item.references[:-1]))
                yield self.checked(item._replace(source=whole, references=(item.references[-1].strip(),)))

    def checked(self, example: Example) -> Example | Fault:
        """The example, or what is wrong with it."""
        return example

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """A vocabulary, with a separator where there are two texts, and the labels."""
        source = learn_source(tokenizers.source, sources(examples, "learning source units"))
        if len(config.columns) > 2:
            source = Joined(source)
        return source, self.learn_targets(tokenizers, examples)

    def learn_targets(self, tokenizers: TokenizersConfig, examples: Examples) -> Tokenizer:
        """All labels."""
        return Labels.learn(targets(examples, "learning labels"))

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """Tokens, and one label or number."""
        out: list[Row | Fault] = []
        left = source.encode_batch([example.source for example in examples])
        for example, row in zip(examples, left, strict=True):
            try:
                out.append((row, self.target_row(example.references[0], target)))
            except UnknownLabelError as error:
                out.append(Fault(example.place, "unknown-label", str(error)))
        return out

    def target_row(self, text: str, target: Any) -> list[Any]:
        """The number of a label."""
        return [target.number(text)]

    def fits(self, row: Row, max_length: int) -> bool:
        """The source alone counts."""
        return len(row[0]) <= max_length

    def terms(self, row: Row) -> int:
        """One."""
        return 1

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Tokens; two texts come with a tab between them."""
        wanted = 2 if isinstance(source, Joined) else 1
        for number, text in enumerate(texts, first):
            parts = text.split(BETWEEN) if wanted == 2 or not isinstance(source, Numbers) else [text]
            if len(parts) != wanted or not all(part.strip() for part in parts):
                count = f"{len(parts)} text{'s' * (len(parts) > 1)}"
                found = f"{count} with tabs between them" if len(parts) > 1 else count
                if len(parts) == wanted:
                    found = "an empty text"
                expected = ("one text without a tab", "two texts with a tab between them")[wanted - 1]
                raise DataError(f"input {number}: found {found}, expected {expected}")
            if isinstance(source, Numbers) and (wrong := not_numbers(text)):
                raise DataError(f"input {number}: {wrong}")
        return source.encode_batch(texts), None

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Numbers of a series are no tokens."""
        sides = (("source", source), ("target", target))
        return {side: "float32" for side, codec in sides if isinstance(codec, Numbers)}

    def record(self, example: Example) -> dict[str, str]:
        """Every text, then the target."""
        texts = zip(self.fields, example.source.split(BETWEEN), strict=False)
        return {**dict(texts), "target": example.references[0]}


def not_numbers(text: str) -> str:
    """What is wrong with a text that should be numbers; empty if nothing is."""
    for part in text.split():
        try:
            finite(part)
        except ValueError:
            return f"found '{part}', expected a number"
    return "" if text.split() else "found nothing, expected numbers"


class NumberedShape(LabelledShape):
    """One or two texts, or a series of numbers, and a number."""

    name = "numbers"
    target = "number"

    def checked(self, example: Example) -> Example | Fault:
        """The target must be one number."""
        text = example.references[0]
        wrong = not_numbers(text) or ("" if len(text.split()) == 1 else f"found '{text}', expected one number")
        return Fault(example.place, "not-a-number", f"{wrong} as the target") if wrong else example

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """As for labels; a series that foretells itself has one scale for both sides."""
        if isinstance(tokenizers.source, NumbersConfig) and tokenizers.target is None:
            both = (f"{one.source} {one.references[0]}" for one in examples.train("learning the scale of numbers"))
            scale: Tokenizer = Numbers.learn(tokenizers.source, both)
            return scale, scale
        return super().learn(config, tokenizers, examples)

    def learn_targets(self, tokenizers: TokenizersConfig, examples: Examples) -> Tokenizer:
        """The scale of the targets."""
        config = tokenizers.target if isinstance(tokenizers.target, NumbersConfig) else NumbersConfig()
        return Numbers.learn(config, targets(examples, "learning the scale of numbers"))

    def target_row(self, text: str, target: Any) -> list[Any]:
        """The scaled number."""
        row: list[Any] = target.encode(text)
        return row


class SeriesShape(NumberedShape):
    """A series of numbers and a number."""

    name = "series"

    def checked(self, example: Example) -> Example | Fault:
        """All must be numbers."""
        if wrong := not_numbers(example.source):
            return Fault(example.place, "not-a-number", f"{wrong} in the series")
        return super().checked(example)


class TaggedShape:
    """Words and as many tags."""

    name = "tags"

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """As sentences.py does."""
        limit = config.max_characters
        return read_sentences(entry, columns=config.columns, header=config.header, max_characters=limit)

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """A vocabulary and the tags."""
        source = learn_source(tokenizers.source, sources(examples, "learning source units"))
        tags = (tag for text in targets(examples, "learning tags") for tag in text.split(" "))
        return source, Labels.learn(tags)

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """Tokens; and tags, followed by where each word begins."""
        assert isinstance(target, Labels)
        out: list[Row | Fault] = []
        left = source.encode_batch([example.source for example in examples])
        for example, row in zip(examples, left, strict=True):
            tags: list[int] = []
            try:
                for tag in example.references[0].split(" "):
                    tags.append(target.number(tag))
            except UnknownLabelError as error:
                out.append(Fault(example.place_of_word(len(tags)), "unknown-label", str(error)))
                continue
            out.append((row, [*tags, *word_places(example.source, source)]))
        return out

    def fits(self, row: Row, max_length: int) -> bool:
        """The source alone counts."""
        return len(row[0]) <= max_length

    def terms(self, row: Row) -> int:
        """Words."""
        return len(row[1]) // 2

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Tokens, and where each word begins."""
        texts = [" ".join(words_of(text)) for text in texts]
        places = [word_places(text, source) for text in texts]
        return source.encode_batch(texts), [[*[0] * len(row), *row] for row in places]

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """Places may be larger than tags."""
        return {"target": "uint16" if max(max_length, len(target)) < 1 << 16 else "uint32"}

    def record(self, example: Example) -> dict[str, str]:
        """Words and tags, with spaces between them."""
        return {"source": example.source, "target": example.references[0]}


def word_places(text: str, tokenizer: Tokenizer) -> list[int]:
    """The first token of every word, where single spaces stand between words: that with its first character."""
    words = text.split(" ")
    begins = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    places: list[int] = []
    for place, (first, end) in enumerate(tokenizer.spans(text)):
        while first < end and text[first] == " ":
            first += 1
        if first < end and bisect_right(begins, first) - 1 >= len(places):
            places.append(place)
    assert len(places) == len(words), f"found the places of {len(places)} words in {len(words)}"
    return places


class RunningShape:
    """Lines of running text, of which nothing is left out: sources are empty, targets the lines."""

    name = "running"
    ordered = True  # the last lines are set aside for validation, not any
    unit = "line"

    def read(self, config: DataConfig, entry: str | Pairs, several: bool) -> Iterator[Example | Fault]:
        """As readers.py does."""
        if isinstance(entry, Pairs) and entry.file is None:
            raise ConfigError(f"data: found two files ({' and '.join(entry.paths)}), expected one of running text")
        path = entry.paths[0] if isinstance(entry, Pairs) else entry
        return read_running(path, max_characters=config.max_characters)

    def learn(self, config: DataConfig, tokenizers: TokenizersConfig, examples: Examples) -> Codecs:
        """One vocabulary."""
        only = learn_source(tokenizers.source, targets(examples, "learning the vocabulary"))
        return only, only

    def rows(self, examples: Sequence[Example], source: Tokenizer, target: Tokenizer) -> list[Row | Fault]:
        """Tokens of the lines."""
        return [([], row) for row in target.encode_batch([example.references[0] for example in examples])]

    def fits(self, row: Row, max_length: int) -> bool:
        """Lines are cut into segments, so none is too long."""
        return True

    def terms(self, row: Row) -> int:
        """Tokens and the end of the line."""
        return len(row[1]) + 1

    def inputs(
        self, texts: Sequence[str], source: Tokenizer, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """Tokens."""
        return source.encode_batch(texts), None

    def dtypes(self, source: Tokenizer, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """The vocabulary bounds them."""
        return {}

    def record(self, example: Example) -> dict[str, str]:
        """The line."""
        return {"text": example.references[0]}


PAIRS_SHAPE: Shape = PairsShape()
