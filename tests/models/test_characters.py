"""Character-aware word encoder: word splitting, pooling, every inner encoder, and end to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dragoman
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.inference.align.attention import attention_map
from dragoman.models.config import TransformerConfig
from dragoman.models.convs2s import ConvS2SEncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig, CharacterWordsEncoder, split_words
from dragoman.models.encoders.dense import DenseEncoderConfig
from dragoman.models.encoders.kalchbrenner import KalchbrennerConfig
from dragoman.models.encoders.multi_kernel import MultiKernelConfig
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SEQUENCE_ENCODERS, SequenceEncoderConfig
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.layers.embeddings import TokenEmbedding, WordDropout
from dragoman.runs.tasks import config as configuration
from tests.conftest import call, write_rows
from tests.models.layers.test_convolution import plain_word

CLOSE = {"rtol": 0.0, "atol": 1e-10}
SPACE = 5


@pytest.fixture(autouse=True)
def in_float64(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests but the one end to end."""
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float32 if "cached" in request.fixturenames else torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- cutting ----------------------------------------------------------------------------------------------------------

ROWS = [
    [6, 7, SPACE, 8],
    [SPACE, SPACE, 6, 7, 8, 9, 10, SPACE, SPACE, SPACE, 11, SPACE],
    [SPACE, SPACE],
    [],
    [1, SPACE, 6],  # <unk> is a character like any other
    [6, SPACE, 7, SPACE, 8, SPACE, 9, SPACE, 10],
]


def plain_words(row: list[int], space: int | None, longest: int) -> list[list[int]]:
    words: list[list[int]] = [[]]
    for token in row:
        if token == space:
            words.append([])
        else:
            words[-1].append(token)
    return [word[:longest] for word in words if word] + [[EOS]]


@pytest.mark.parametrize("longest", [1, 3, 64])
@pytest.mark.parametrize("space", [SPACE, None])
def test_rows_are_split_at_spaces(longest: int, space: int | None) -> None:
    batch = batch_of(ROWS)
    found = split_words(batch.source.data, batch.source.mask, space, longest)
    words = [plain_words(row, space, longest) for row in ROWS]
    assert found.shape == (6, max(map(len, words)), max(len(word) for row in words for word in row))
    for row, expected in zip(found.tolist(), words, strict=True):
        kept = [[token for token in word if token != PAD] for word in row]
        assert kept == expected + [[]] * (len(kept) - len(expected))
        assert all(word[len(real) :] == [PAD] * (len(word) - len(real)) for word, real in zip(row, kept, strict=True))


def test_an_empty_row_gives_finite_outputs() -> None:
    source = torch.full((2, 3), PAD)
    assert split_words(source, source != PAD, SPACE, 4).shape == (2, 1, 1)
    memory = encoder_of(INNER["gru"])(source, source != PAD)
    assert not memory.mask.any()
    assert torch.isfinite(memory.final[0]).all()


# --- every inner encoder ----------------------------------------------------------------------------------------------

INNER: dict[str, SequenceEncoderConfig] = {
    "transformer": TransformerConfig(layers=1, width=6, heads=2, feedforward=8, dropout=0.0),
    "gru": RecurrentEncoderConfig(cell=GRUConfig(), embedding=5, width=6, dropout=0.0),
    "convolutional": ConvS2SEncoderConfig(layers=1, embedding=5, width=4, dropout=0.0),
    "kalchbrenner": KalchbrennerConfig(width=5, max_positions=7, dropout=0.0),
    "multi-kernel": MultiKernelConfig(kernels=(1, 3), layers=1, embedding=5, width=4, dropout=0.0),
    "dense": DenseEncoderConfig(max_positions=7, embedding=3, hidden=6, width=4, dropout=0.0),
}
for entry in SEQUENCE_ENCODERS.values():
    if entry.config not in map(type, INNER.values()):
        INNER[entry.example.kind] = entry.example


def encoder_of(inner: SequenceEncoderConfig) -> CharacterWordsEncoder:
    config = CharacterWordsConfig(
        embedding=3, kernels=(1, 2, 4), filters=(2, 2, 3), highways=1, longest_word=4, inner=inner
    )
    encoder = CharacterWordsEncoder(config, TokenEmbedding(13, 3, PAD, SPACE)).eval()
    with torch.no_grad():
        for part in encoder.parameters():
            part.add_(0.2 * torch.randn_like(part))
    return encoder


@pytest.mark.parametrize("name", INNER)
def test_words_are_pooled_one_by_one_and_neighbours_change_nothing(name: str) -> None:
    encoder = encoder_of(INNER[name])
    batch = batch_of(ROWS)
    longer = nn.functional.pad(batch.source.data, (0, 6), value=PAD)
    memory = encoder(longer, longer != PAD)
    ours, theirs = torch.zeros(()), torch.zeros(())
    for row, tokens in enumerate(ROWS):
        words = plain_words(tokens, SPACE, 4)
        vectors = [plain_word(encoder.characters, encoder.embedding.weight[torch.tensor(word)]) for word in words]
        projected = torch.stack([encoder.project.weight @ vector + encoder.project.bias for vector in vectors])
        alone = encoder.inner(projected[None], torch.ones(1, len(words), dtype=torch.bool))
        real = memory.mask[row]
        assert int(real.sum()) == (len(words) if name != "dense" else 7)
        for left, right in ((memory.keys, alone.keys), (memory.values, alone.values)):
            torch.testing.assert_close(left[row, real], right[0], **CLOSE)
        torch.testing.assert_close(memory.final[0][row], alone.final[0][0], **CLOSE)
        ours, theirs = ours + memory.values[row, real].square().sum(), theirs + alone.values.square().sum()
    parts = [encoder.embedding.weight, *encoder.characters.parameters(), encoder.project.weight]
    pairs = zip(torch.autograd.grad(ours, parts), torch.autograd.grad(theirs, parts), strict=True)
    for left, right in pairs:
        assert float(right.abs().max()) > 1e-3
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_the_inner_encoder_is_a_table_of_its_own() -> None:
    built = settings.build(CharacterWordsConfig, {"inner": {"kind": "transformer", "layers": 2}})
    assert built.inner == TransformerConfig(layers=2)
    assert settings.build(CharacterWordsConfig, settings.as_table(built)) == built
    assert settings.build(CharacterWordsConfig, {"inner": "dense"}).inner == DenseEncoderConfig()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"inner": "character-words"}, 'inner.kind: found "character-words", expected one of'),
        ({"filters": [3]}, "filters: found 1 numbers, expected one for each of 6 kernels"),
        ({"kernels": [], "filters": []}, "kernels: found none"),
    ],
)
def test_wrong_settings_are_reported(table: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        settings.build(CharacterWordsConfig, table)


@pytest.mark.parametrize("kind", ["words", "subwords"])
def test_other_tokens_than_characters_are_refused(kind: str) -> None:
    table: dict[str, Any] = {
        "data": {"train": "pairs.tsv"},
        "tokenizer": {"source": {"kind": kind}},
        "model": {"encoder": "character-words"},
    }
    with pytest.raises(ConfigError, match=f"model.encoder: 'character-words' reads characters, found .*'{kind}'"):
        configuration.build(table)
    table["tokenizer"] = {"source": "characters"}
    configuration.build(table)


def test_tokenizers_know_their_space() -> None:
    texts = ["a b a", "a"]
    characters = train_tokenizer(CharactersConfig(), texts)
    assert characters.space is not None
    assert characters.pieces([characters.space]) == [" "]
    assert train_tokenizer(CharactersConfig(), ["ab"]).space is None
    assert train_tokenizer(WordsConfig(), texts).space is None
    assert train_tokenizer(SubwordsConfig(vocab_size=270), texts).space is None


# --- the road ---------------------------------------------------------------------------------------------------------

NOUNS = {"cat": "Katze", "dog": "Hund", "house": "Haus", "tree": "Baum", "fish": "Fisch"}
COLOURS = {"red": "rot", "blue": "blau", "green": "grün", "old": "alt"}


def test_training_and_prediction_end_to_end(cached: Path, tmp_path: Path) -> None:
    """Trained on a few pairs, it reads words it has never seen, rows of spaces, and characters it does not know."""
    pairs = [(f"{a} {n}", f"{COLOURS[a]} {NOUNS[n]}") for a in COLOURS for n in NOUNS] * 4
    write_rows(tmp_path / "pairs.tsv", pairs)
    write_rows(tmp_path / "valid.tsv", pairs[:20])
    table: dict[str, Any] = {
        "data": {"train": str(tmp_path / "pairs.tsv"), "valid": str(tmp_path / "valid.tsv")},
        "tokenizer": {"source": "characters", "target": {"kind": "words"}},
        "model": {
            "label_smoothing": 0.0,
            "encoder": {
                "kind": "character-words", "kernels": [1, 3], "filters": [8, 24],
                "inner": {"kind": "recurrent", "cell": "gru", "embedding": 16, "width": 16, "dropout": 0.0},
            },
            "decoder": {
                "kind": "recurrent", "cell": "gru", "embedding": 16, "width": 16, "attention": {"width": 16},
                "dropout": 0.0,
            },
        },
        "train": {
            "steps": 120, "validate_every": 120, "device": "cpu", "average": "none", "batch_tokens": 600,
            "optimizer": {"learning_rate": 0.02, "warmup": 5},
        },
    }  # fmt: skip
    predictor = dragoman.train(table, tmp_path / "run", quiet=True)
    known = [source for source, _ in pairs[:20]]
    right = sum(one.text == target for one, (_, target) in zip(predictor.predict(known), pairs[:20], strict=True))
    assert right >= 18
    unseen = ["cats", "  red   cats ", "§ red", "red cathouse doghouse " * 10, "    "]
    texts = [one.text for one in predictor.predict(unseen)]
    assert all(word in {*NOUNS.values(), *COLOURS.values(), ""} for text in texts for word in text.split(" "))
    assert [one.text for one in dragoman.load(tmp_path / "run", "cpu").predict(unseen)] == texts
    assert texts == [one.text for text in unseen for one in predictor.predict([text])]
    seen = attention_map(predictor, "red  cats")
    assert seen.source == ("red", "cats", "<eos>")
    assert seen.mean().shape == (len(seen.target), 3)
    assert call("info", tmp_path / "run").code == 0


def test_a_tag_is_a_word_of_its_own() -> None:
    source = torch.tensor([[20, 4, 5, 7, 6, EOS]])  # <2de> a b ␣ c <eos>
    words = split_words(source, source != PAD, 7, 9, first_tag=20)
    assert words.tolist() == [[[20, PAD], [4, 5], [6, PAD], [EOS, PAD]]]


def test_word_dropout_spares_the_spaces() -> None:
    tokens = torch.full((20, 50), 7)
    tokens[:, ::2] = 5
    dropped = WordDropout(0.5, keep=7)(tokens)
    assert (dropped[:, 1::2] == 7).all()
    assert (dropped[:, ::2] == 1).any()
