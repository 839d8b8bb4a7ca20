"""Subwords by sentencepiece: BPE or unigram pieces that we learn, and the SentencePiece files of imported models."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from dragoman.base import ConfigError, DataError
from dragoman.base.config import Range, setting
from dragoman.data.rows import FlatRows
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import (
    EOS,
    PAD,
    SOS,
    SPECIALS,
    UNK,
    UNKNOWN_SURFACE,
    UNSEEN,
    NoTextError,
    Read,
    Tokenizer,
    VocabularyTokenizer,
    content_hash,
    read_vocabulary,
    settings_json,
    without_surrogates,
)

# Sentencepiece writes a space as U+2581. A U+2581 of the text itself is replaced by a code point that is no character.
_SPACE_MARK, _MARK_REPLACEMENT = "\u2581", "\U0010fffe"
# The BPE trainer of sentencepiece aborts the whole process on a word of more than 65,535 characters.
_MAX_TRAINING_CHARACTERS = 10_000
_FEW_TEXTS = 100
_DRAWN = 1 << 20  # random numbers at a time
_MAX_WORDS = 1 << 18  # in the cache of `encode_flat`
_NAMES = {"pad": PAD, "unk": UNK, "bos": SOS, "eos": EOS}  # as sentencepiece calls the special tokens
_SPECIAL_IDS: dict[str, Any] = {f"{name}_id": index for name, index in _NAMES.items()}
_SPECIAL_IDS |= {f"{name}_piece": SPECIALS[index] for name, index in _NAMES.items()}
# Language codes of Marian (>>fra<<), M2M-100 (__fr__), NLLB (fra_Latn) and mBART (fr_XX).
TAG = re.compile(r">>[^<>\s]+<<|__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")


@dataclass(frozen=True)
class SubwordsConfig:
    """Pieces of words that sentencepiece learns. Characters without a piece become their bytes."""

    kind: ClassVar[str] = "subwords"
    vocab_size: Annotated[int, Range(261)] = setting(
        8_000, help="maximum number of pieces, the 4 special tokens and the 256 bytes included"
    )
    algorithm: Literal["bpe", "unigram"] = setting("bpe", help="byte-pair encoding or the unigram language model")
    sample: Annotated[int, Range(1)] = setting(
        500_000, help="maximum number of sentences to learn from, drawn at random"
    )
    character_coverage: Annotated[float, Range(0.98, 1)] = setting(
        1.0, help="share of the text's characters that get a piece of their own; the others become bytes"
    )
    dropout: Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)] = setting(
        0.0, help="BPE-dropout: probability that training leaves out a merge, anew in every epoch; 0.1 for few pairs"
    )

    def problems(self) -> Iterator[str]:
        if self.dropout and self.algorithm != "bpe":
            yield f'dropout: found {self.dropout:g} with algorithm = "{self.algorithm}", expected 0 or "bpe"'


class _WordBytes(dict[str, bytes]):
    """The ids of words as bytes of an array, each word with the space before it."""

    def __init__(self, processor: Any, dtype: np.dtype[Any]) -> None:
        self.processor, self.dtype = processor, dtype

    def __missing__(self, word: str) -> bytes:
        # Sentencepiece puts a space before a text, but leaves an empty one empty.
        ids = self.processor.encode(word) if word else self.processor.encode(" ")[:1]
        encoded = self[word] = np.array(ids, self.dtype).tobytes()
        return encoded


class SubwordTokenizer(Tokenizer):
    """Sentencepiece without normalisation and with byte fallback: decode(encode(text)) == text.

    The one exception is U+10FFFE, which is not a character: it decodes to U+2581, sentencepiece's own space.
    """

    kind = SubwordsConfig.kind
    suffixes = ("json", "model", "vocab")

    def __init__(self, config: SubwordsConfig, model: bytes) -> None:
        self.config = config
        self.model = model  # the SentencePiece file
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._words: dict[str, _WordBytes] = {}  # by dtype

    @classmethod
    def train(cls, config: SubwordsConfig, texts: Iterable[str]) -> SubwordTokenizer:
        step = _MAX_TRAINING_CHARACTERS
        drawn = texts.sample(config.sample) if isinstance(texts, SampledTexts) else _sample(texts, config.sample)
        sentences = map(_escape_mark, drawn)
        slices = (text[start : start + step] for text in sentences for start in range(0, len(text), step))
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=slices,
                model_writer=model,
                model_type=config.algorithm,
                vocab_size=config.vocab_size,
                hard_vocab_limit=False,
                character_coverage=config.character_coverage,
                required_chars=_SPACE_MARK,  # as bytes it would not decode to a space
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                max_sentence_length=8 * step,  # in bytes
                num_threads=16,  # a constant, because the number of threads changes the sums of unigram
                **_SPECIAL_IDS,
                unk_surface=UNKNOWN_SURFACE,
                minloglevel=3,
            )
        except RuntimeError as error:
            raise _training_error(config, str(error)) from error
        return cls(config, model.getvalue())

    @classmethod
    def from_files(cls, config: SubwordsConfig, read: Read) -> SubwordTokenizer:
        return cls(config, read("model"))

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(_escape_mark(text))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        threads = 1 if len(texts) < _FEW_TEXTS else -1  # starting threads takes longer than a few texts
        ids: list[list[int]] = self._processor.encode([_escape_mark(text) for text in texts], num_threads=threads)
        return ids

    def encode_flat(self, texts: Sequence[str], dtype: str) -> FlatRows:
        """Word by word, most of them from a cache: no piece of BPE reaches over a space.

        Unigram sums the scores of a whole text, and rounding could choose another one of two equal splits.
        """
        if self.config.algorithm != "bpe" or not all(texts):
            return super().encode_flat(texts, dtype)
        words = self._words.setdefault(dtype, _WordBytes(self._processor, np.dtype(dtype)))
        if len(words) > _MAX_WORDS:
            words.clear()
        split = [_escape_mark(text).split(" ") for text in texts]
        pieces = list(map(words.__getitem__, chain.from_iterable(split)))
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces)) // words.dtype.itemsize
        starts = np.concatenate([[0], np.cumsum([len(parts) for parts in split])[:-1]])
        return FlatRows(np.frombuffer(b"".join(pieces), dtype), np.add.reduceat(sizes, starts))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of piece ids; bytes that are no UTF-8 character become U+FFFD."""
        text: str = self._processor.decode([int(index) for index in ids if index not in UNSEEN])
        return text.replace(_MARK_REPLACEMENT, _SPACE_MARK)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, with ▁ for a space."""
        pieces: list[str] = self._processor.id_to_piece([int(index) for index in ids])
        return pieces

    def merge_scores(self) -> dict[int, float]:
        """The score of every piece by its id; BPE makes the piece of the highest score first."""
        processor = self._processor
        special = (processor.is_byte, processor.is_control, processor.is_unknown)
        return {
            index: processor.get_score(index)
            for index in range(len(self))
            if not any(is_kind(index) for is_kind in special)
        }

    def spans(self, text: str) -> list[Span]:
        """The characters of every piece, the space before a word included; the last byte of a character covers it."""
        ids = self.encode(text)
        spans, end = list[Span](), -1  # sentencepiece puts a space before the text
        missing = 0  # bytes until a character is complete
        for piece, index in zip(self.pieces(ids), ids, strict=True):
            first = end
            if not self._processor.is_byte(index):
                end += len(piece)
            else:
                byte = int(piece[3:5], 16)
                missing = missing - 1 if missing else (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
                end += not missing
            spans.append((max(0, first), max(0, end)))
        return spans

    def contents(self) -> list[str | bytes]:
        """Settings, model and, for people to read, the pieces with their scores."""
        shown = (
            (piece if piece.isprintable() else json.dumps(piece), score)
            for piece, score in _scored_pieces(self._processor)
        )
        return [
            settings_json(self.kind, self.config, self.fingerprint(), model_digest=self.model_digest),
            self.model,
            "".join(f"{piece}\t{score:g}\n" for piece, score in shown),
        ]

    @property
    def model_digest(self) -> str:  # type: ignore[override]
        """A hash of the model file, which has more than the pieces: how to normalise, split and decode."""
        return hashlib.blake2b(self.model, digest_size=16).hexdigest()

    def fingerprint(self) -> str:
        pieces = _scored_pieces(self._processor)
        return content_hash({"kind": self.kind, "algorithm": self.config.algorithm, "pieces": pieces})


def _scored_pieces(processor: Any) -> list[tuple[str, float]]:
    """The pieces of a SentencePiece file with their scores, in the order of its ids."""
    indices = list(range(processor.get_piece_size()))
    return list(zip(processor.id_to_piece(indices), processor.get_score(indices), strict=True))


def _training_error(config: SubwordsConfig, reason: str) -> DataError | ConfigError:
    """The error for the user behind a RuntimeError of sentencepiece."""
    if "sentences_.empty()" in reason:
        return NoTextError("no text to learn sub-words from")
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
        return ConfigError(
            f"vocab_size: found {config.vocab_size}, expected {needed[1]} or more for this many "
            "different characters, special tokens and bytes; or set character_coverage below 1"
        )
    return DataError(f"sub-words cannot be learned from this text ({reason})")


def _escape_mark(text: str) -> str:
    """The text as sentencepiece may read it: without U+2581 and without lone surrogates."""
    if not text.isascii():
        text = without_surrogates(text.replace(_SPACE_MARK, _MARK_REPLACEMENT))
    return text


@runtime_checkable
class SampledTexts(Protocol):
    """Texts none of which is empty, and of which several processes can draw a sample."""

    def sample(self, size: int) -> list[str]:
        """What `_sample` draws of them: those that `sampled_numbers` names."""


def sampled_numbers(count: int, size: int) -> NDArray[np.int64]:
    """The numbers of the texts that `_sample` draws of `count` texts, in the order in which it returns them."""
    drawn = np.arange(min(count, size))
    generator = np.random.RandomState()
    key = random.Random(0).getstate()[1]
    generator.set_state(("MT19937", np.array(key[:-1], np.uint32), key[-1], 0, 0.0))  # as `random` draws them
    for first in range(size, count, _DRAWN):
        numbers = np.arange(first, min(first + _DRAWN, count))
        places = (generator.random_sample(len(numbers)) * (numbers + 1)).astype(np.int64)
        chosen = places < size
        drawn[places[chosen]] = numbers[chosen]  # of equal places the last one stays
    return drawn


def _sample(texts: Iterable[str], size: int) -> list[str]:
    """At most `size` texts, by reservoir sampling with a fixed seed; empty texts are left out."""
    generator = random.Random(0)
    sample: list[str] = []
    for count, text in enumerate(text for text in texts if text):
        if count < size:
            sample.append(text)
        elif (index := int(generator.random() * (count + 1))) < size:
            sample[index] = text
    return sample


@dataclass(frozen=True)
class SentencePieceConfig:
    """The SentencePiece model of an imported run. It cannot be learned from data; `dragoman import` makes it."""

    kind: ClassVar[str] = "sentencepiece"
    prefix: str = setting("", help="the token that the tokenizer puts before every text, such as a language code")


class SentencePieceTokenizer(VocabularyTokenizer):
    """A SentencePiece model whose pieces have the ids of another vocabulary, as in Marian, M2M-100 and T5.

    A published model normalises its text (NFKC, spaces), so decoding gives the normalised text. A text may begin with a
    token of the vocabulary that is no piece, such as `>>fra<<`.
    """

    kind = SentencePieceConfig.kind
    config: SentencePieceConfig
    suffixes = (*VocabularyTokenizer.suffixes, "model")

    def __init__(self, config: SentencePieceConfig, model: bytes, tokens: Sequence[str]) -> None:
        """`tokens` are the texts of all ids after the special tokens; `model` is the SentencePiece file."""
        super().__init__(config, tokens)
        self.space, self.model = None, model
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        learned = {*self.model_pieces()}
        self.codes = {token for token in self._ids if TAG.fullmatch(token) and token not in learned}
        if config.prefix and config.prefix not in self._ids:
            raise ValueError(f"prefix: found {config.prefix!r}, which is not in the vocabulary")

    @classmethod
    def from_files(cls, config: SentencePieceConfig, read: Read) -> SentencePieceTokenizer:
        tokens = read_vocabulary(read)
        return cls(config, read("model"), tokens)

    def _without_tag(self, text: str) -> tuple[list[int], int]:
        """The id of a tag at the front of a text, and where the rest begins."""
        first = text.split(maxsplit=1)[:1]
        if first and first[0] in self.codes:
            return [self._ids[first[0]]], text.index(first[0]) + len(first[0])
        return ([self._ids[self.config.prefix]] if self.config.prefix else []), 0

    def encode(self, text: str) -> list[int]:
        """The ids of a text; pieces that the vocabulary lacks become <unk>."""
        tag, start = self._without_tag(text)
        pieces = self._processor.encode(without_surrogates(text[start:]), out_type=str)
        return tag + [self._ids.get(piece, UNK) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = []
        for index in ids:
            token = self._tokens[index]
            if index == UNK:
                pieces.append(_SPACE_MARK + UNKNOWN_SURFACE)
            elif index not in UNSEEN and token not in self.codes:
                pieces.append(token)
        text: str = self._processor.decode_pieces(pieces)
        return text.replace(_SPACE_MARK, " ").strip()

    def spans(self, text: str) -> list[Span]:
        """The characters of the text behind every piece; a prefix covers none."""
        tag, start = self._without_tag(text)
        clean = without_surrogates(text[start:])
        try:
            offsets = self._processor.encode(clean, return_type="offset_mapping")["offsets"]
        except (TypeError, ValueError):  # sentencepiece before 0.2.2
            pieces = self._processor.encode(clean, out_type="immutable_proto").pieces
            offsets = [(piece.begin, piece.end) for piece in pieces]
        return [(0, start)] * len(tag) + [(start + first, start + end) for first, end in offsets]

    def contents(self) -> list[str | bytes]:
        return [*super().contents(), self.model]

    def model_pieces(self) -> list[str]:
        return [piece for piece, _ in _scored_pieces(self._processor)]

    def rules(self) -> dict[str, Any]:
        return {"prefix": self.config.prefix, "pieces": _scored_pieces(self._processor)}
