"""Learned WordPiece vocabularies against those of the tokenizers library."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.data.tokenizers.load import load_tokenizer, train_tokenizer
from dragoman.data.tokenizers.word_piece import WordPieceConfig, WordPieceTokenizer


def texts() -> list[str]:
    """Words and counts that leave one most frequent pair at every merge: the library breaks ties by chance."""
    counts = {"ab": 997, "abc": 541, "Bc": 401, "cab": 353, "abcd": 211, "dab!": 149, "caé": 101, "bcd": 83, "da": 59}
    return [f"{word} " * count for word, count in counts.items()]


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_pieces_are_those_of_tokenizers(lowercase: bool) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    size = 24 + 2 * (not lowercase)
    ours = train_tokenizer(WordPieceConfig(lowercase=lowercase, strip_accents=lowercase, vocab_size=size), texts())
    theirs = tokenizers.BertWordPieceTokenizer(lowercase=lowercase, strip_accents=lowercase)
    theirs.train_from_iterator(
        texts(), vocab_size=size, min_frequency=2, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    )
    mine, other = (
        set(ours.pieces(range(4, len(ours)))),
        set(theirs.get_vocab()) - {"[PAD]", "[UNK]", "[CLS]", "[SEP]"},
    )
    assert mine == other
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *ours.pieces(range(4, len(ours)))]
    again = tokenizers.BertWordPieceTokenizer(
        {piece: index for index, piece in enumerate(names)},
        lowercase=lowercase, strip_accents=lowercase,
    )  # fmt: skip
    for text in (one[:60] for one in texts()):
        assert ours.pieces(ours.encode(text)) == again.encode(text, add_special_tokens=False).tokens


def test_learning_repeats_itself_and_is_saved(tmp_path: Path) -> None:
    config = WordPieceConfig(vocab_size=22)
    first, second = (train_tokenizer(config, texts()) for _ in range(2))
    assert isinstance(first, WordPieceTokenizer)
    assert first.fingerprint() == second.fingerprint()
    assert len(first) == 22
    assert any(piece.startswith("##") for piece in first.pieces(range(22)))
    first.save(tmp_path, "source")
    text = texts()[0][:40]
    assert load_tokenizer(tmp_path, "source").encode(text) == first.encode(text)
    assert first.decode(first.encode("abc"[:0])) == ""
