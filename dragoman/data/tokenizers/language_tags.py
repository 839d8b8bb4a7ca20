"""Several language pairs in one model (FIELD G10): a tag such as <2de> before the source says what to write.

Johnson et al. 2017, "Google's Multilingual Neural Machine Translation System". A tag is one token whatever the
tokenizer, with an id after the learned vocabulary; the target side knows no tags, so none can ever be written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from dragoman.data.tokenizers.tokenizer import Tokenizer

NAME = re.compile(r"[A-Za-z0-9._-]+")
_FRONT = re.compile(rf"<2({NAME.pattern})> ")


def token(tag: str) -> str:
    """The token of a tag: "<2de>"."""
    return f"<2{tag}>"


def tagged(text: str, tag: str) -> str:
    """A source text with its tag in front."""
    return f"{token(tag)} {text}"


def untagged(text: str, known: Sequence[str]) -> tuple[str, str]:
    """The known tag at the very front of a text ("" if there is none) and the text without it."""
    found = _FRONT.match(text)
    return (found[1], text[found.end() :]) if found and found[1] in known else ("", text)


def check_tag(tag: str, known: Sequence[str]) -> None:
    """Refuse a tag that a model was not trained with."""
    if not known:
        raise ConfigError(f"tag: found '{tag}', but this run was trained without tags; leave it out")
    if tag not in known:
        raise ConfigError(f"tag: found '{tag}', {_expected(tag, known)}")


def asked(text: str, tag: str | None, known: Sequence[str], place: str) -> str:
    """A text as a model with these tags reads it; a tag of its own goes before `tag`, and there must be one."""
    if not known or untagged(text, known)[0]:
        return text
    if tag is not None:
        return tagged(text, tag)
    if found := _FRONT.match(text):
        raise DataError(f"{place}: found the tag '{found[1]}', {_expected(found[1], known)}")
    raise DataError(
        f"{place}: found no tag, {_expected('', known)}: name it with --tag (from Python tag=…), or begin the text "
        f'with "{tagged("", known[0])}"'
    )


def _expected(tag: str, known: Sequence[str]) -> str:
    match = nearest(str(tag), known)
    one = "one of " if len(known) > 1 else ""
    return f"expected {one}{', '.join(known)}" + (f". Did you mean '{match}'?" if match else "")


class Tagged:
    """A source tokenizer that also knows tags: a known one at the very front of a text is a single token."""

    def __init__(self, inner: Tokenizer, tags: Sequence[str]) -> None:
        assert tags, "a tokenizer without tags needs no wrapping"
        self.inner = inner
        self.tags = tuple(tags)
        self._ids = {tag: index for index, tag in enumerate(tags, len(inner))}

    @property
    def kind(self) -> str:
        """The kind of the units behind the tag."""
        return self.inner.kind

    @property
    def space(self) -> int | None:
        """The id of a token that is one space, where the inner tokenizer has one."""
        return self.inner.space

    def __len__(self) -> int:
        return len(self.inner) + len(self.tags)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts, the fast way."""
        parts = [untagged(text, self.tags) for text in texts]
        rows = self.inner.encode_batch([rest for _, rest in parts])
        return [[self._ids[tag], *row] if tag else row for (tag, _), row in zip(parts, rows, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; a tag stands only in front, as it was read."""
        first = len(self.inner)
        text = self.inner.decode([index for index in ids if index < first])
        tag = next((self.tags[index - first] for index in ids if index >= first), "")
        return tagged(text, tag) if tag else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable unit for each id."""
        first = len(self.inner)
        return [token(self.tags[id_ - first]) if id_ >= first else self.inner.pieces([id_])[0] for id_ in ids]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Which characters of a text each token stands for."""
        tag, rest = untagged(text, self.tags)
        front = len(text) - len(rest)
        spans = [(first + front, end + front) for first, end in self.inner.spans(rest)]
        return [(0, front), *spans] if tag else spans

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The files that `save` writes: those of the inner tokenizer."""
        return self.inner.files(folder, name)

    def save(self, folder: Path, name: str) -> None:
        """Write the inner tokenizer, the tags among its settings."""
        self.inner.save(folder, name)
        path = self.files(folder, name)[0]
        table = json.loads(path.read_bytes()) | {"tags": self.tags, "fingerprint": self.fingerprint()}
        path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        """A hash of the inner tokenizer and the tags."""
        content = json.dumps([self.inner.fingerprint(), self.tags])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
