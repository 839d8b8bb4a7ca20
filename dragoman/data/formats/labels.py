"""Classification examples: one or two texts and a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, sources, targets
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import PAIR_DELIMITER, TextPairTokenizer, Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary, UnknownLabelError
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler
from dragoman.errors import ConfigError, DataError


class LabelFormat(ExampleFormat):
    """One or two texts and a label. Two texts are one source with a tab between them."""

    name = "labels"
    target = "label"
    fields: ClassVar[tuple[str, ...]] = ("text1", "text2")

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
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
                yield Fault(item.location, "empty-side", f"the {self.target} is empty, expected text")
            else:
                source = PAIR_DELIMITER.join((item.source, *item.references[:-1]))
                yield self.validate(item._replace(source=source, references=(item.references[-1].strip(),)))

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        source = train_tokenizer(tokenizers.source, sources(examples, "learning source units"))
        if len(config.columns) > 2:
            source = TextPairTokenizer(source)
        return source, self.train_target(tokenizers, examples)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        return LabelVocabulary.of(targets(examples, "learning labels"))

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        out: list[Row | Fault] = []
        source_rows = source.encode_batch([example.source for example in examples])
        for example, row in zip(examples, source_rows, strict=True):
            try:
                out.append((row, self.encode_target(example.references[0], target)))
            except UnknownLabelError as error:
                out.append(Fault(example.location, "unknown-label", str(error)))
        return out

    def encode_target(self, text: str, target: Any) -> list[Any]:
        return [target.label_id(text)]

    def fits(self, row: Row, max_length: int) -> bool:
        return len(row[0]) <= max_length

    def target_count(self, row: Row) -> int:
        return 1

    def encode_inputs(
        self, texts: Sequence[str], source: SourceReader, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """The tokens of one text, or of two texts with a tab between them; a wrong number of texts is a DataError."""
        expected = 1 if source.separator is None else 2
        for number, text in enumerate(texts, first):
            parts = text.split(PAIR_DELIMITER)
            if len(parts) != expected or not all(part.strip() for part in parts):
                raise DataError(f"input {number}: {_count_error(len(parts), expected)}")
        return source.encode_batch(texts), None

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        columns = (("source", source), ("target", target))
        return {column: "float32" for column, tokenizer in columns if isinstance(tokenizer, NumberScaler)}

    def to_record(self, example: Example) -> dict[str, str]:
        texts = zip(self.fields, example.source.split(PAIR_DELIMITER), strict=False)
        return {**dict(texts), "target": example.references[0]}


def _count_error(count: int, expected: int) -> str:
    """Found and expected number of texts of an input."""
    found = f"{count} texts with tabs between them" if count > 1 else "1 text"
    if count == expected:
        found = "an empty text"
    wanted = ("one text without a tab", "two texts with a tab between them")[expected - 1]
    return f"found {found}, expected {wanted}"
