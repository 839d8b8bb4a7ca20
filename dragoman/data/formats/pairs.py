"""Text pairs: a source text and one or more target texts; and made-up pairs for training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, sources, targets
from dragoman.data.readers.base import LineSpan
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.rows import FlatRows, TokensWithCopies
from dragoman.data.source_reader import SourceReader
from dragoman.data.store import COPIES
from dragoman.data.tokenizers.base import UNK, Tokenizer
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer, split_features
from dragoman.data.tokenizers.context import Context
from dragoman.data.tokenizers.load import RunTokenizerConfig, train_tokenizer
from dragoman.data.tokenizers.pair_codec import COPYABLE, MAX_COPIES, PairCodec, copying_codec

SHORTEST = 3  # letters of a run that is taken for a piece of the stem
SharedRun = tuple[int, int, int]  # beginning in the stem, beginning in the target, length


def with_context(items: Iterable[Example | Fault], size: int) -> Iterator[Example | Fault]:
    """The examples of one file, each with the sources before it; a blank line or another document name ends these."""
    context, document = Context(size), ""
    for item in items:
        if isinstance(item, Fault) and item.kind == "blank-line":
            context.end()
            continue
        if isinstance(item, Fault):
            yield item
            continue
        if item.document != document:
            context.end()
            document = item.document
        yield item._replace(context=context.of(item.source))


class PairFormat(ExampleFormat):
    """A source text and one or more target texts."""

    name = "pairs"
    cuttable = True

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        items = read_pairs(entry, replace(config.reading, several_references=several_references))
        return with_context(items, config.context) if config.context else items

    def read_lines(
        self, config: DataConfig, entry: str | Pairs, spans: tuple[LineSpan, ...]
    ) -> Iterator[Example | Fault]:
        return read_pairs(entry, replace(config.reading, spans=spans)) if spans else self.read(config, entry, False)

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        """One joint vocabulary, unless the target has a tokenizer of its own."""
        source = tokenizers.source
        if tokenizers.target is None and isinstance(source, CharactersConfig) and source.features:
            texts = sources(examples, "learning source units"), targets(examples, "learning target units")
            characters = CharacterTokenizer.train(source, *texts)
            return characters, characters.without_features()
        if tokenizers.target is None:
            joint = train_tokenizer(source, examples.texts("learning the vocabulary", ("source", "target")))
            return joint, joint
        return super().train_tokenizers(config, tokenizers, examples)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        assert tokenizers.target is not None, "otherwise both share one vocabulary"
        return train_tokenizer(tokenizers.target, targets(examples, "learning target units"))

    def fits(self, row: Row, max_length: int) -> bool:
        return len(row[0]) <= max_length and len(row[1]) <= max_length

    def encode_flat(
        self, examples: Sequence[Example], source: SourceReader, target: Tokenizer, dtypes: Mapping[str, str]
    ) -> dict[str, FlatRows] | None:
        if self.codec(source, target).copies:
            return None
        inputs = source.encode_flat([example.model_input for example in examples], dtypes["source"])
        texts = target.encode_flat([example.references[0] for example in examples], dtypes["target"])
        return {"source": inputs, "target": texts}

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """The tokens of the source, its language tag included, and of the first reference."""
        inputs = [example.model_input for example in examples]
        texts = [example.references[0] for example in examples]
        return list(zip(*self.codec(source, target).encode_pairs(inputs, texts), strict=True))


class CopyFormat(PairFormat):
    """Pairs for models that copy source tokens which the target vocabulary lacks."""

    name = "copied pairs"
    store_version = "column of copies"

    def codec(self, source: SourceReader, target: Tokenizer) -> PairCodec:
        return copying_codec(source, target)

    def unknown_count(self, row: Sequence[Any]) -> int:
        copies = row.copies if isinstance(row, TokensWithCopies) else [0] * len(row)
        return sum(token == UNK and not copy for token, copy in zip(row, copies, strict=True))

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        target_ids = len(target) + MAX_COPIES
        dtypes = {"target": "uint16" if target_ids <= 1 << 16 else "uint32"}
        return dtypes | ({COPIES: "uint8"} if self.codec(source, target).copies else {})


PAIR_FORMAT: ExampleFormat = PairFormat()
COPY_FORMAT: ExampleFormat = CopyFormat()


def pair_format(tokenizers: TokenizersConfig, copies: bool) -> ExampleFormat:
    """The format of pairs for these tokenizers; `copies`: for a model that copies words."""
    kinds = {side.kind for side in (tokenizers.source, tokenizers.target) if side is not None}
    return COPY_FORMAT if copies and kinds <= {*COPYABLE, RunTokenizerConfig.kind} else PAIR_FORMAT


def shared_runs(stem: str, target: str) -> list[SharedRun]:
    """The runs of `SHORTEST` or more letters that both texts have, in the same order."""
    blocks = SequenceMatcher(None, stem, target, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in blocks if block.size >= SHORTEST]


def hallucinate(examples: Iterable[Example], count: int, marks: str = "") -> Iterator[Example]:
    """`count` made-up examples, each from a random one of these; none if no example has a stem.

    Data hallucination (Anastasopoulos and Neubig 2019): a run of three or more letters that source and target share is
    taken for a piece of the stem. Random letters replace it on both sides, which keeps the affixes and the features:
    "sehen V;PTCP → gesehen" gives "kofbn V;PTCP → gekofbn". A model of few pairs so learns to copy stems.
    `marks` describes the layout of features at the end of the sources (see `split_features`).
    """
    usable = []
    letters: dict[bool, set[str]] = {False: set(), True: set()}  # small and capital ones
    for example in examples:
        stem = split_features(example.source, marks)[0] if marks else example.source
        if runs := shared_runs(stem, example.references[0]):
            usable.append((example, runs))
            for start, _, size in runs:
                for letter in filter(str.isalpha, stem[start : start + size]):
                    letters[letter.isupper()].add(letter)
    alphabets = {case: sorted(seen) for case, seen in letters.items()}
    draw = random.Random(1)
    for _ in range(count if usable else 0):
        example, runs = draw.choice(usable)
        source, target = list(example.source), list(example.references[0])
        for start, other, size in runs:
            for offset in range(size):
                letter = source[start + offset]
                if letter.isalpha():
                    source[start + offset] = target[other + offset] = draw.choice(alphabets[letter.isupper()])
        yield example._replace(source="".join(source), references=("".join(target),))
