"""The interface of an example format: how a task's files become examples, and examples rows of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.readers.base import LineSpan
from dragoman.data.rows import FlatRows
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import PAIR_DELIMITER, UNK, Tokenizer
from dragoman.data.tokenizers.labels import UnknownLabelError
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler
from dragoman.data.tokenizers.pair_codec import PairCodec

if TYPE_CHECKING:
    from dragoman.data.collate import ColumnCollator

Row = tuple[list[Any], list[Any]]  # source and target of an example as a store keeps them
TokenizerPair = tuple[SourceReader, Tokenizer]  # of source and target
InputRows = tuple[list[list[Any]], list[list[Any]] | None]  # of sources, and of targets if the model needs some


class TrainingExamples(Protocol):
    """The training examples of a corpus, which can be read several times."""

    def train(self, doing: str) -> Iterator[Example]:
        """Iterate over the training examples; `doing` is shown as progress."""

    def texts(self, doing: str, columns: Sequence[str]) -> Iterable[str]:
        """The texts of these columns of every training example, one example after the other."""


class ExampleFormat(ABC):
    """What the examples of a task look like: a source, and a target that `train_target` and `encode_target` define."""

    name: str  # part of the fingerprint of the data
    store_version = ""  # change it when stores of older code must not be read, though the data are the same
    unit = "pair"  # what error messages call an example
    ordered = False  # True: the last examples become validation data, not randomly chosen ones
    overlapping = False  # True: an example also holds the text of the next one
    cuttable = False  # True: `read` may be asked for some lines of a file, and several processes may share the work

    @abstractmethod
    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        """The examples and faults of one entry of data.train.

        With `several_references`, formats that have references keep all of them.
        """

    def read_lines(
        self, config: DataConfig, entry: str | Pairs, spans: tuple[LineSpan, ...]
    ) -> Iterator[Example | Fault]:
        """The examples and faults of some lines of each file of an entry; without spans of all."""
        assert not spans
        return self.read(config, entry, False)

    def validate(self, example: Example) -> Example | Fault:
        """The example, or what is wrong with it."""
        return example

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        source = train_tokenizer(tokenizers.source, sources(examples, "learning source units"))
        return source, self.train_target(tokenizers, examples)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        raise NotImplementedError

    def source_rows(self, examples: Sequence[Example], source: SourceReader) -> list[Any]:
        return source.encode_batch([example.model_input for example in examples])

    def encode_target(self, example: Example, row: Any, source: Any, target: Any) -> list[Any] | Fault:
        """The target of an example whose source has this row; a label that training does not have is a fault."""
        raise NotImplementedError

    def encode_flat(
        self, examples: Sequence[Example], source: SourceReader, target: Tokenizer, dtypes: Mapping[str, str]
    ) -> dict[str, FlatRows] | None:
        """The columns of a store as arrays, for a format whose examples all have a row; None: see `encode`."""
        return None

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """The rows of a store, or a fault for an example whose target cannot be encoded."""
        out: list[Row | Fault] = []
        for example, row in zip(examples, self.source_rows(examples, source), strict=True):
            try:
                encoded = self.encode_target(example, row, source, target)
            except UnknownLabelError as error:
                encoded = Fault(example.location, "unknown-label", str(error))
            out.append(encoded if isinstance(encoded, Fault) else (row, encoded))
        return out

    def codec(self, source: SourceReader, target: Tokenizer) -> PairCodec:
        """How texts become the rows of these tokenizers, and outputs become text."""
        return PairCodec(source, target)

    @property
    def target_collator(self) -> ColumnCollator:
        """How target rows become a tensor."""
        from dragoman.data.collate import TokenCollator  # torch

        return TokenCollator()

    def fits(self, row: Row, max_length: int) -> bool:
        return len(row[0]) <= max_length

    def target_count(self, row: Row) -> int:
        """The number of target tokens, labels or tags of a row."""
        return len(row[1])

    def unknown_count(self, row: Sequence[Any]) -> int:
        """How many tokens of a source or target row a model cannot know."""
        return list(row).count(UNK)

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        """Source rows for prediction, and target rows if the model needs some (a tagger: the positions of words).

        `name` names the texts in error messages.
        """
        return source.encode_batch(texts), None

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        """The dtypes of the store's columns whose values are not token ids."""
        columns = (("source", source), ("target", target))
        return {column: "float32" for column, tokenizer in columns if isinstance(tokenizer, NumberScaler)}

    def to_record(self, example: Example) -> dict[str, Any]:
        """An example as a JSON object, its fields in the order of columns."""
        return {"source": example.source, "target": example.references[0]}


def sources(examples: TrainingExamples, doing: str) -> Iterator[str]:
    """All source texts; a text pair gives both texts."""
    return (text for example in examples.train(doing) for text in example.source.split(PAIR_DELIMITER))


def targets(examples: TrainingExamples, doing: str) -> Iterable[str]:
    return examples.texts(doing, ("target",))
