"""Plain text for causal language models: every line, empty ones too, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, targets
from dragoman.data.readers.pairs import read_plain_text
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.errors import ConfigError


class LanguageModelFormat(ExampleFormat):
    """The lines of a text as targets; sources are empty."""

    name = "running"
    ordered = True
    unit = "line"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        if isinstance(entry, Pairs) and entry.file is None:
            raise ConfigError(f"data: found two files ({' and '.join(entry.paths)}), expected one file of plain text")
        path = entry.paths[0] if isinstance(entry, Pairs) else entry
        return read_plain_text(path, max_characters=config.max_characters)

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
