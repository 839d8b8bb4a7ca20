"""Character tokenizer: every Unicode code point is a token; features at the end of a text may be whole tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Annotated, ClassVar

from dragoman.config.settings import Range, setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import SPECIALS, UNK, VocabularyTokenizer, content_hash, most_frequent
from dragoman.data.tokenizers.features import split_features


@dataclass(frozen=True)
class CharactersConfig:
    """Every Unicode code point is a token, the space included."""

    kind: ClassVar[str] = "characters"
    vocab_size: Annotated[int, Range(5)] = setting(
        10_000, help="maximum number of tokens, the 4 special tokens included"
    )
    min_count: Annotated[int, Range(1)] = setting(1, help="characters that occur less often become <unk>")
    features: str = setting(
        "",
        help="source texts end in features that are whole tokens: the character before the features and the one "
        'between them; " ;" reads "sehen V;PST;SG" as s, e, h, e, n, V, PST, SG',
    )

    def problems(self) -> Iterator[str]:
        if len(self.features) > 2 or self.features.isalnum():
            yield (
                f'features: found "{self.features}", expected one or two characters that are no letters, such as " ;"'
            )


class CharacterTokenizer(VocabularyTokenizer):
    """Splits a text into its code points, and features into whole tokens."""

    kind = CharactersConfig.kind
    config: CharactersConfig

    @classmethod
    def train(cls, config: CharactersConfig, texts: Iterable[str], targets: Iterable[str] = ()) -> CharacterTokenizer:
        """Learn the vocabulary: the most frequent characters and features; `targets` are texts without features."""
        tokens = chain((_split(text, config.features) for text in texts), targets)
        return cls(config, most_frequent(tokens, config.vocab_size, config.min_count, config.kind))

    def without_features(self) -> CharacterTokenizer:
        """The tokenizer of targets, which have no features: the same vocabulary, one id per code point."""
        return type(self)(replace(self.config, features=""), self._tokens[len(SPECIALS) :])

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(token, UNK) for token in self.split(text)]

    def split(self, text: str) -> Sequence[str]:
        return _split(text, self.config.features)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.surfaces(ids))

    def spans(self, text: str) -> list[Span]:
        """One character per token; a feature covers the mark before it, too."""
        ends = accumulate(map(len, self.split(text)), initial=0)
        return list(pairwise(ends))

    def fingerprint(self) -> str:
        """A hash of the tokens in their order and of the layout of features."""
        plain = super().fingerprint()
        return content_hash({"tokens": plain, "features": self.config.features}) if self.config.features else plain


def _split(text: str, marks: str) -> Sequence[str]:
    if not marks:
        return text
    stem, features = split_features(text, marks)
    return [*stem, *features]
