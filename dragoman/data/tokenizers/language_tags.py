"""Multilingual models: a tag such as <2de> in front of the source names the target language.

Johnson et al. 2017, "Google's Multilingual Neural Machine Translation System". A tag is one token, whatever the
tokenizer; its id follows the learned vocabulary. The target vocabulary has no tags, so a model never generates one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.base import ConfigError, DataError, suggestion
from dragoman.data.source_reader import SourceReader, Span
from dragoman.data.tokenizers.base import WrappedTokenizer, content_hash

TAG_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LEADING_TAG = re.compile(rf"<2({TAG_NAME.pattern})> ")


def tag_token(tag: str) -> str:
    return f"<2{tag}>"


def add_tag(text: str, tag: str) -> str:
    return f"{tag_token(tag)} {text}"


def split_tag(text: str, tags: Sequence[str]) -> tuple[str, str]:
    """The tag in front of a text and the rest of the text; the tag is "" unless it is one of `tags`."""
    match = _LEADING_TAG.match(text)
    return (match[1], text[match.end() :]) if match and match[1] in tags else ("", text)


def check_tag(tag: str, tags: Sequence[str]) -> None:
    """Raise ConfigError for a tag that the model was not trained with."""
    if not tags:
        raise ConfigError(f"tag: found '{tag}', but this run was trained without tags; leave it out")
    if tag not in tags:
        raise ConfigError(f"tag: found '{tag}', {_expected(tag, tags)}")


def ensure_tag(text: str, tag: str | None, tags: Sequence[str], location: str) -> str:
    """The text as a model trained with `tags` reads it: with its own tag, or else with `tag`; it must have one.

    A model without tags reads the text as it is. `location` is the start of the error message.
    """
    if not tags or split_tag(text, tags)[0]:
        return text
    if tag is not None:
        return add_tag(text, tag)
    if match := _LEADING_TAG.match(text):
        raise DataError(f"{location}: found the tag '{match[1]}', {_expected(match[1], tags)}")
    raise DataError(
        f"{location}: found no tag, {_expected('', tags)}: name it with --tag (from Python tag=…), or begin the text "
        f'with "{add_tag("", tags[0])}"'
    )


def _expected(tag: str, tags: Sequence[str]) -> str:
    return f"expected {'one of ' if len(tags) > 1 else ''}{', '.join(tags)}{suggestion(str(tag), tags)}"


class LanguageTagTokenizer(WrappedTokenizer):
    """A source tokenizer that encodes a known tag at the very front of a text as a single token."""

    def __init__(self, inner: SourceReader, tags: Sequence[str]) -> None:
        assert tags, "a tokenizer without tags needs no wrapper"
        super().__init__(inner)
        self.tags = tuple(tags)
        self.extra, self.context, self.separator = {"tags": self.tags}, inner.context, inner.separator
        self._ids = {tag: index for index, tag in enumerate(tags, len(inner))}

    def __len__(self) -> int:
        return len(self.inner) + len(self.tags)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [split_tag(text, self.tags) for text in texts]
        rows = self.inner.encode_batch([rest for _, rest in parts])
        return [[self._ids[tag], *row] if tag else row for (tag, _), row in zip(parts, rows, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        first = len(self.inner)
        text = self.inner.decode([index for index in ids if index < first])
        tag = next((self.tags[index - first] for index in ids if index >= first), "")
        return add_tag(text, tag) if tag else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        first = len(self.inner)
        return [tag_token(self.tags[id_ - first]) if id_ >= first else self.inner.pieces([id_])[0] for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """The characters of each token; a tag covers the space after it too."""
        tag, rest = split_tag(text, self.tags)
        front = len(text) - len(rest)
        spans = [(first + front, end + front) for first, end in self.inner.spans(rest)]
        return [(0, front), *spans] if tag else spans

    def fingerprint(self) -> str:
        return content_hash([self.inner.fingerprint(), self.tags])
