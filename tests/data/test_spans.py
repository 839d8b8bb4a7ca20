"""The spans of tokens: one per token, in order, and together the whole text."""

from __future__ import annotations

import itertools
import random

import pytest

from dragoman.data.tokenizers.base import SPECIALS, Tokenizer
from dragoman.data.tokenizers.characters import BytesConfig, CharactersConfig
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.load import TokenizerConfig, train_tokenizer
from dragoman.data.tokenizers.subwords import (
    SentencePieceConfig,
    SentencePieceTokenizer,
    SubwordsConfig,
    SubwordTokenizer,
)
from dragoman.data.tokenizers.words import WordsConfig

TEXTS = ["hello world, the cat's hat!", "the  dog ran\tfast.", " a b ", "grüße … 東京", "x"] * 5
HARD = [
    "",
    " ",
    "  lead",
    "trail \u00a0 ",
    "zebra 💥x the",
    "東京 💥💥é",
    "a\nb",
    "o-o ￭ 'tis...",
    "▁ <0x41>",
    "\ud800 x",
]
CONFIGS: dict[str, TokenizerConfig] = {
    "words": WordsConfig(),
    "spaces": WordsConfig(split="spaces"),
    "characters": CharactersConfig(),
    "bytes": BytesConfig(),
    "bpe": SubwordsConfig(vocab_size=320),
    "unigram": SubwordsConfig(vocab_size=300, algorithm="unigram"),
}


@pytest.fixture(scope="module", params=CONFIGS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(CONFIGS[request.param], TEXTS)


def check(tokenizer: Tokenizer, text: str) -> None:
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text)), text
    covered = "".join(text[first:end] for first, end in spans)
    assert "".join(covered.split()) == "".join(text.split()), text
    assert all(0 <= first <= end <= len(text) for first, end in spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("text", [*TEXTS[:5], *HARD])
def test_spans_cover_the_whole_text(tokenizer: Tokenizer, text: str) -> None:
    check(tokenizer, text)


def test_spans_cover_any_text(tokenizer: Tokenizer) -> None:
    draw = random.Random(4)
    for _ in range(200):
        check(tokenizer, "".join(draw.choice("hel lo,  wç東💥\t.'") for _ in range(draw.randint(0, 20))))


@pytest.mark.parametrize("kind", ["words", "characters", "bpe"])
def test_a_known_token_covers_its_own_characters(kind: str) -> None:
    tokenizer, text = train_tokenizer(CONFIGS[kind], TEXTS), TEXTS[0]
    for piece, (first, end) in zip(tokenizer.pieces(tokenizer.encode(text)), tokenizer.spans(text), strict=True):
        assert piece.replace("▁", " ").strip("￭ ") == text[first:end].strip()


def test_a_tag_covers_itself(tokenizer: Tokenizer) -> None:
    tagged = LanguageTagTokenizer(tokenizer, ["de", "fr"])
    plain = tokenizer.spans("the cat")
    assert tagged.spans("<2fr> the cat") == [(0, 6), *((first + 6, end + 6) for first, end in plain)]
    assert tagged.spans("the cat") == plain


@pytest.mark.parametrize("text", TEXTS[:5])
def test_an_imported_model_covers_the_whole_text(text: str) -> None:
    learned = train_tokenizer(CONFIGS["bpe"], TEXTS)
    assert isinstance(learned, SubwordTokenizer)
    tokens = [">>fra<<", *learned.pieces(range(len(SPECIALS), len(learned)))]
    imported = SentencePieceTokenizer(SentencePieceConfig(), learned.model, tokens)
    check(imported, text)
    front = len(">>fra<< ")
    tagged = imported.spans(f">>fra<< {text.strip()}")
    assert tagged[0] == (0, front - 1)
    assert tagged[-1][1] == front + len(text.strip())
