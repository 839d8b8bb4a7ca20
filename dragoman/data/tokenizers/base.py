"""The interface of tokenizers, the four special tokens, and tokenizers that are a list of tokens."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dragoman.data.source_reader import SourceReader
from dragoman.errors import DataError, RunError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAD, UNK, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")
MAX_CACHED = 1 << 16  # words
UNKNOWN_SURFACE = "⁇"  # how `decode` writes <unk>


class NoTextError(DataError):
    """The training data hold no text, so there is no vocabulary to learn."""


class Tokenizer(SourceReader):
    """Text ↔ token ids: what `encode` makes of a text, `decode` turns back. Encoding never adds <sos> or <eos>.

    Labels and numbers have the same interface, so that every target has a tokenizer.
    """


class VocabularyTokenizer(Tokenizer):
    """A tokenizer whose vocabulary is a list of tokens. A text that spells "<eos>" never becomes the special token."""

    suffixes: tuple[str, ...] = ("json", "vocabulary.jsonl")

    def __init__(self, config: DataclassInstance, tokens: Sequence[str]) -> None:
        self.config = config
        self._tokens = (*SPECIALS, *tokens)
        self._ids: Mapping[str, int] = {token: index for index, token in enumerate(tokens, len(SPECIALS))}
        self.space = self._ids.get(" ")

    def __len__(self) -> int:
        return len(self._tokens)

    def split(self, text: str) -> Sequence[str]:
        """The tokens of a text, known or not: one for each id of `encode`."""
        raise NotImplementedError

    def extended(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with more tokens, whose ids follow its vocabulary; cheap, for the words of one source."""
        other = copy.copy(self)
        other._tokens = (*self._tokens, *tokens)
        other._ids = ChainMap({token: index for index, token in enumerate(tokens, len(self))}, self._ids)  # type: ignore[arg-type]
        return other

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens[index] for index in ids]

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id as `decode` writes it; <pad>, <sos> and <eos> are left out."""
        shown = (index for index in ids if index not in (PAD, SOS, EOS))
        return [UNKNOWN_SURFACE if index == UNK else self._tokens[index] for index in shown]

    def contents(self) -> list[str | bytes]:
        """The settings, and the vocabulary with one token per line: token id = line number from 0."""
        return [settings_json(self.kind, self.config, self.fingerprint()), vocabulary_lines(self._tokens)]

    def fingerprint(self) -> str:
        """A hash of the tokens in their order and of the rule that splits text."""
        return content_hash({"kind": self.kind, "split": getattr(self.config, "split", ""), "tokens": self._tokens})


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


def paths(folder: Path, name: str, *suffixes: str) -> tuple[Path, ...]:
    """The path of each file of a saved tokenizer."""
    return tuple(Path(folder) / f"{name}.{suffix}" for suffix in suffixes)


def without_surrogates(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate, which only JSON or Python can produce, becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def vocabulary_lines(tokens: Iterable[str]) -> str:
    """One token per line as JSON. Escaping what cannot be printed keeps line separators and controls harmless."""
    return "\n".join(json.dumps(token, ensure_ascii=not token.isprintable()) for token in tokens) + "\n"


def read_bytes(path: Path) -> bytes:
    """The content of a tokenizer file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: tokenizer file cannot be read ({error.strerror})") from error


def settings_json(kind: str, config: DataclassInstance, fingerprint: str, **more: Any) -> str:
    """The JSON file of a tokenizer: its kind, its settings and its fingerprint."""
    return json.dumps({"kind": kind, **asdict(config), "fingerprint": fingerprint, **more}, indent=2) + "\n"


def content_hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode("ascii"), digest_size=16).hexdigest()
