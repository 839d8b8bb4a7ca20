"""WordPiece and byte-level BPE against the library `tokenizers`, on random text."""

from __future__ import annotations

import json
import pickle
import random
import time
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from dragoman.base.errors import ConfigError, RunError
from dragoman.data.formats.labels import word_positions
from dragoman.data.tokenizers.base import UNK
from dragoman.data.tokenizers.byte_level_bpe import ByteLevelBPEConfig, ByteLevelBPETokenizer, parse_merges
from dragoman.data.tokenizers.load import load_tokenizer, train_tokenizer
from dragoman.data.tokenizers.word_piece import WordPieceConfig, WordPieceTokenizer

CORPUS = [
    "The quick brown fox, it's jumping! don't you'll see 123 4567 über straße naïve 北京市 the lazy dog's",
    "Hello world   tabs\tand\nnewlines  ",
    "été À côté — «quotes» … ½ ²³ Ⅷ हिन्दी में",
] * 20
ALPHABET = "".join(CORPUS[:3]) + "\x00\x07\u200b\ufffd\u0301\x85\x0b\u2028\u3000İΣẞ😀$^`~_" + "abc '" * 5
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def random_texts(count: int) -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choice(ALPHABET) for _ in range(chance.randint(0, 30))) for _ in range(count)]


def word_piece(lower: bool) -> tuple[tokenizers.Tokenizer, WordPieceTokenizer]:
    theirs = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=lower)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=[*SPECIAL, "[MASK]"], show_progress=False)
    theirs.train_from_iterator(CORPUS, trainer)
    tokens = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    return theirs, WordPieceTokenizer(WordPieceConfig(lower, lower), [name for name in tokens if name not in SPECIAL])


def byte_level_bpe(prefix: bool) -> tuple[tokenizers.Tokenizer, ByteLevelBPETokenizer]:
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(theirs.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return theirs, ByteLevelBPETokenizer(
        ByteLevelBPEConfig(prefix), sorted(model["vocab"], key=model["vocab"].get), merges
    )


@pytest.mark.parametrize("lower", [True, False])
def test_word_piece_is_that_of_tokenizers(lower: bool) -> None:
    theirs, ours = word_piece(lower)
    for text in random_texts(500):
        expected, ids = theirs.encode(text), ours.encode(text)
        assert ["[UNK]" if index == UNK else ours.pieces([index])[0] for index in ids] == expected.tokens
        assert ours.spans(text) == [tuple(offsets) for offsets in expected.offsets]
    assert ours.decode(ours.encode("The lazy dog, it jumping!")).lower() == "the lazy dog, it jumping!"
    assert ours.encode("a" * 101) == [UNK]


@pytest.mark.parametrize("prefix", [False, True])
def test_byte_level_bpe_is_that_of_tokenizers(prefix: bool) -> None:
    theirs, ours = byte_level_bpe(prefix)
    for text in random_texts(500):
        ids = ours.encode(text)
        assert ours.pieces(ids) == theirs.encode(text).tokens
        if not prefix:
            assert ours.decode(ids) == text
        spans = ours.spans(text)
        assert len(spans) == len(ids)
        assert "".join(text[first:end] for first, end in spans) == text
    started = time.thread_time()
    ours.encode("x" * 100_000)  # one word
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("make", [word_piece, byte_level_bpe])
def test_imported_tokenizers_are_saved_and_guarded(tmp_path: Path, make: type) -> None:
    _, ours = make(True)
    ours.save(tmp_path, "source")
    loaded = load_tokenizer(tmp_path, "source")
    copied = pickle.loads(pickle.dumps(loaded))  # as worker processes get it
    for text in CORPUS[:3]:
        assert loaded.encode(text) == copied.encode(text) == ours.encode(text)
    if isinstance(ours, ByteLevelBPETokenizer):
        with pytest.raises(ConfigError, match="belongs to an imported model"):
            train_tokenizer(ours.config, CORPUS)
    last = ours.files(tmp_path, "source")[-1]
    last.write_text(last.read_text().replace("\n", "\n\n", 1) + "x\n")
    with pytest.raises(RunError, match="damaged"):
        load_tokenizer(tmp_path, "source")


def test_merges_are_pairs() -> None:
    assert parse_merges("#version: 0.2\n# a\nb c\n") == [("#", "a"), ("b", "c")]
    with pytest.raises(ValueError, match="line 1: found 'abc'"):
        parse_merges("abc\n")


def test_a_word_without_tokens_has_the_position_of_the_token_before() -> None:
    _, ours = word_piece(True)
    assert word_positions("the \x07 dog", ours) == [0, 0, 1]
    assert word_positions("\x07 the \x07", ours) == [0, 0, 0]
