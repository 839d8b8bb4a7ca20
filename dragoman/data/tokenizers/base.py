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
UNKNOWN_SURFACE = "⁇"  # how `decode` writes <unk>


class NoTextError(DataError):
    """The training data hold no text, so there is no vocabulary to learn."""


class Tokenizer(SourceReader):
    """Text ↔ token ids: what `encode` makes of a text, `decode` turns back. Encoding never adds <sos> or <eos>.

    Labels and numbers have the same interface, so that every target has a tokenizer.
    """


class VocabularyTokenizer(Tokenizer):
    """A tokenizer whose vocabulary is a list of tokens. A text that spells "<eos>" never becomes the special token."""

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

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        return paths(folder, name, "json", "vocabulary.jsonl")

    def save(self, folder: Path, name: str) -> None:
        """Write the settings, and the vocabulary with one token per line: token id = line number from 0."""
        table, vocabulary = self.files(folder, name)
        write_text(table, settings_json(self.kind, self.config, self.fingerprint()))
        write_vocabulary(vocabulary, self._tokens)

    def fingerprint(self) -> str:
        """A hash of the tokens in their order and of the rule that splits text."""
        return content_hash({"kind": self.kind, "split": getattr(self.config, "split", ""), "tokens": self._tokens})


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


def write_vocabulary(path: Path, tokens: Iterable[str]) -> None:
    """Write one token per line as JSON. Escaping what cannot be printed keeps line separators and controls harmless."""
    write_text(path, "\n".join(json.dumps(token, ensure_ascii=not token.isprintable()) for token in tokens) + "\n")


def read_bytes(path: Path) -> bytes:
    """The content of a tokenizer file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: tokenizer file cannot be read ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Write a tokenizer file, with the same line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))


def settings_json(kind: str, config: DataclassInstance, fingerprint: str) -> str:
    """The JSON file of a tokenizer: its kind, its settings and its fingerprint."""
    return json.dumps({"kind": kind, **asdict(config), "fingerprint": fingerprint}, indent=2) + "\n"


def content_hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode("ascii"), digest_size=16).hexdigest()
