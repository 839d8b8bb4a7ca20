"""The interface of tokenizers, the special tokens, tokenizers that are a list of tokens, and those of text pairs."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from dragoman.base import ConfigError, DataError
from dragoman.data.source_reader import SourceReader, Span

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAD, UNK, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")
MAX_CACHED = 1 << 16  # words
UNKNOWN_SURFACE = "⁇"  # how `decode` writes <unk>
UNSEEN = (PAD, SOS, EOS)  # tokens that `decode` leaves out
VOCABULARY = "vocabulary.jsonl"  # the suffix of a file with one token per line: token id = line number from 0
Read = Callable[[str], bytes]  # the content of the file of a suffix
PAIR_DELIMITER = "\t"  # between the two texts of one string; the readers refuse tabs inside a text
SEPARATOR = "<sep>"


class NoTextError(DataError):
    """The training data hold no text, so there is no vocabulary to learn."""


class Tokenizer(SourceReader):
    """Text ↔ token ids: what `encode` makes of a text, `decode` turns back. Encoding never adds <sos> or <eos>.

    Labels and numbers have the same interface, so that every target has a tokenizer.
    """

    model_digest: str | None = None  # of the file of a SentencePiece model

    @classmethod
    def train(cls, config: Any, texts: Iterable[str]) -> Tokenizer:
        """Learn from texts; the same configuration and texts always give the same tokenizer."""
        raise ConfigError(
            f'tokenizer: found kind = "{config.kind}", which belongs to an imported model and is not learned from '
            'data; take it from that run: { kind = "run", run = "runs/imported" }'
        )

    @classmethod
    def from_files(cls, config: Any, read: Read) -> Tokenizer:
        """The tokenizer that was saved; `read` reads the file of a suffix, the one that says most comes last."""
        raise NotImplementedError


class VocabularyTokenizer(Tokenizer):
    """A tokenizer whose vocabulary is a list of tokens. A text that spells "<eos>" never becomes the special token."""

    suffixes: tuple[str, ...] = ("json", VOCABULARY)

    def __init__(self, config: DataclassInstance, tokens: Sequence[str]) -> None:
        self.config = config
        self._tokens = (*SPECIALS, *tokens)
        self._ids: Mapping[str, int] = {token: index for index, token in enumerate(tokens, len(SPECIALS))}
        self.space = self._ids.get(" ")

    def __len__(self) -> int:
        return len(self._tokens)

    @classmethod
    def from_files(cls, config: Any, read: Read) -> Tokenizer:
        return cls(config, read_vocabulary(read))

    def split(self, text: str) -> Sequence[str]:
        """The tokens of a text, known or not: one for each id of `encode`."""
        raise NotImplementedError

    def extended(self, tokens: Sequence[str]) -> Self:
        """This tokenizer with more tokens, whose ids follow its vocabulary; cheap, for the words of one source."""
        other = copy.copy(self)
        other._tokens = (*self._tokens, *tokens)
        other._ids = ChainMap({token: index for index, token in enumerate(tokens, len(self))}, self._ids)  # type: ignore[arg-type]
        return other

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens[index] for index in ids]

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id as `decode` writes it; <pad>, <sos> and <eos> are left out."""
        shown = (index for index in ids if index not in UNSEEN)
        return [UNKNOWN_SURFACE if index == UNK else self._tokens[index] for index in shown]

    def contents(self) -> list[str | bytes]:
        # Escaping what cannot be printed keeps line separators and controls harmless.
        lines = [json.dumps(token, ensure_ascii=not token.isprintable()) + "\n" for token in self._tokens]
        return [settings_json(self.kind, self.config, self.fingerprint()), "".join(lines)]

    def rules(self) -> dict[str, Any]:
        """What decides, besides the vocabulary, how a text is split."""
        return {"split": getattr(self.config, "split", "")}

    def fingerprint(self) -> str:
        return content_hash({"kind": self.kind, **self.rules(), "tokens": self._tokens})


class WordCache:
    """For tokenizers that encode word by word: the pieces of words that were encoded before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._words_seen: dict[str, tuple[Any, ...]] = {}

    def _encode_word(self, word: str) -> tuple[Any, ...]:
        raise NotImplementedError

    def _cached(self, word: str) -> tuple[Any, ...]:
        cache = self._words_seen
        if (pieces := cache.get(word)) is None:
            if len(cache) >= MAX_CACHED:
                cache.clear()
            pieces = cache[word] = self._encode_word(word)
        return pieces


class WrappedTokenizer(Tokenizer):
    """A tokenizer around another one, with a few tokens of its own whose ids follow the vocabulary.

    It is saved as the inner one, with its own settings (`extra`) in the JSON file.
    """

    extra: dict[str, Any]

    def __init__(self, inner: SourceReader) -> None:
        self.inner, self.space, self.suffixes = inner, inner.space, inner.suffixes

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def innermost(self) -> SourceReader:
        return self.inner.innermost

    def encode(self, text: str) -> list[int]:
        row: list[int] = self.encode_batch([text])[0]
        return row

    def contents(self) -> list[str | bytes]:
        settings, *files = self.inner.contents()
        table = json.loads(settings) | self.extra | {"fingerprint": self.fingerprint()}
        return [json.dumps(table, indent=2) + "\n", *files]


class TextPairTokenizer(WrappedTokenizer):
    """Encodes "first<tab>second" as the tokens of both texts with <sep> between; its id follows the vocabulary."""

    separator: int

    def __init__(self, inner: SourceReader) -> None:
        super().__init__(inner)
        self.separator, self.extra = len(inner), {"separator": True}

    def __len__(self) -> int:
        return len(self.inner) + 1

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        pairs = [text.split(PAIR_DELIMITER) for text in texts]
        rows = iter(self.inner.encode_batch([text for pair in pairs for text in pair]))
        out = []
        for pair in pairs:
            row = next(rows)
            for _ in pair[1:]:
                row = [*row, self.separator, *next(rows)]
            out.append(row)
        return out

    def decode(self, ids: Sequence[int]) -> str:
        texts: list[list[int]] = [[]]
        for index in ids:
            if index == self.separator:
                texts.append([])
            else:
                texts[-1].append(index)
        return PAIR_DELIMITER.join(self.inner.decode(row) for row in texts)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [SEPARATOR if index == self.separator else self.inner.pieces([index])[0] for index in ids]

    def spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        start = 0
        for number, part in enumerate(text.split(PAIR_DELIMITER)):
            if number:
                spans.append((start - 1, start))
            spans += [(first + start, end + start) for first, end in self.inner.spans(part)]
            start += len(part) + 1
        return spans

    def fingerprint(self) -> str:
        return hashlib.blake2b(f"{self.inner.fingerprint()}{SEPARATOR}".encode(), digest_size=16).hexdigest()


def most_frequent(texts: Iterable[Iterable[str]], vocab_size: int, min_count: int, kind: str) -> list[str]:
    """The most frequent tokens of tokenised texts, so many that they and the special tokens fill `vocab_size`."""
    counts = count_tokens(texts)
    if not counts:
        raise NoTextError(f"no text to learn {kind} from")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    room = max(0, vocab_size - len(SPECIALS))
    return [token for token, count in ranked[:room] if count >= min_count]


def count_tokens(texts: Iterable[Iterable[str]], max_tokens: int = 1_000_000) -> Counter[str]:
    """Token counts in bounded memory: above `max_tokens` different tokens, the rarest so far are dropped."""
    counts: Counter[str] = Counter()
    threshold = 0
    for tokens in texts:
        counts.update(tokens)
        while len(counts) > max_tokens:
            threshold += 1
            counts = Counter({token: count for token, count in counts.items() if count > threshold})
    return counts


def without_surrogates(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate, which only JSON or Python can produce, becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def read_vocabulary(read: Read) -> list[str]:
    """The tokens in the file of a vocabulary without the special ones; ValueError where the file is damaged."""
    tokens = [json.loads(line) for line in read(VOCABULARY).decode("utf-8").removesuffix("\n").split("\n")]
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("found a line that is not a JSON string")
    return tokens[len(SPECIALS) :]


def settings_json(kind: str, config: DataclassInstance, fingerprint: str, **more: Any) -> str:
    return json.dumps({"kind": kind, **asdict(config), "fingerprint": fingerprint, **more}, indent=2) + "\n"


def content_hash(content: dict[str, Any] | list[Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode("ascii"), digest_size=16).hexdigest()
