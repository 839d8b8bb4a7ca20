"""BPE-dropout: the splits against sentencepiece and brute force, and rows that follow from (seed, epoch, place)."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.base.errors import ConfigError
from dragoman.data.bpe_dropout import RandomSplits, SampledStore
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import Corpus, _tokenizer_table, prepare_corpus
from dragoman.data.tokenizers.subwords import SubwordsConfig, SubwordTokenizer
from dragoman.runs import train
from dragoman.runs.tasks import config
from dragoman.training.checkpoints import read_tensors
from dragoman.training.display import Display

WORDS = [f"{stem}{end}" for stem in ("low", "slow", "hous", "warm", "walk") for end in ("er", "ing", "est", "es")]
ODD = ["the  wide   house", "naïve œuvre 漢字 house", "", "▁ of", "a" * 40]  # spaces, characters that become bytes


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(300)]
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    data = DataConfig(train=str(pairs), cache=str(tmp_path_factory.mktemp("cache")))
    return prepare_corpus(data, TokenizersConfig(SubwordsConfig(vocab_size=330, dropout=0.3)))


def splits_of(corpus: Corpus, dropout: float) -> RandomSplits:
    tokenizer = corpus.target_tokenizer.innermost
    assert isinstance(tokenizer, SubwordTokenizer)
    splits = RandomSplits(tokenizer)
    splits.probability = dropout
    return splits


def test_without_dropout_it_splits_as_sentencepiece(corpus: Corpus) -> None:
    splits = splits_of(corpus, 0.0)
    for word in WORDS:
        assert splits.split(f"▁{word}", random.Random(1)) == corpus.target_tokenizer.encode(word)
    splits.probability = 1.0
    pieces = corpus.target_tokenizer.pieces(splits.split("▁lower", random.Random(1)))
    assert pieces == list("▁lower")


def test_splits_are_as_frequent_as_the_paper_says(corpus: Corpus) -> None:
    """By brute force: every subset of the possible merges is left out with its probability (algorithm 1)."""
    splits, share = splits_of(corpus, 0.3), 0.3
    scores = {splits.pieces[index]: score for index, score in splits.scores.items()}
    expected: dict[tuple[str, ...], float] = defaultdict(float)

    def merge(symbols: tuple[str, ...], probability: float) -> None:
        merges = sorted((-scores[left + right], place) for place, (left, right)
                        in enumerate(pairwise(symbols)) if left + right in scores)  # fmt: skip
        for number, (_, place) in enumerate(merges):  # all better ones are left out, this one is not
            joined = (*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :])
            merge(joined, probability * share**number * (1 - share))
        expected[symbols] += probability * share ** len(merges)

    merge(tuple("▁lower"), 1.0)
    assert len(expected) > 3
    assert sum(expected.values()) == pytest.approx(1.0)
    draw, times = random.Random(3), 20_000
    found = Counter(tuple(corpus.target_tokenizer.pieces(splits.split("▁lower", draw))) for _ in range(times))
    for symbols, probability in expected.items():
        assert found[symbols] / times == pytest.approx(probability, abs=4 * (0.25 / times) ** 0.5)


def test_an_epoch_has_the_same_texts_in_other_pieces(corpus: Corpus) -> None:
    sampled = corpus.sampled(seed=1)
    assert sampled is not None
    rows = np.arange(len(corpus.train))
    epochs = [sampled.epoch(epoch) for epoch in (0, 1)]
    again = SampledStore(corpus.train, (corpus.source_tokenizer, corpus.target_tokenizer), 1).epoch(1)
    for side, tokenizer in (("source", corpus.source_tokenizer), ("target", corpus.target_tokenizer)):
        usual: Any = getattr(corpus.train, side)
        versions = [[row.tolist() for row in getattr(store, side).rows(rows)] for store in (*epochs, again)]
        assert versions[1] == versions[2]
        assert versions[0] != versions[1]
        for row, *others in zip(usual.rows(rows), *versions, strict=True):
            assert {tokenizer.decode(other) for other in others} == {tokenizer.decode(row.tolist())}
        lengths = getattr(epochs[0], side).lengths()
        assert lengths.tolist() == [len(row) for row in versions[0]]
        assert lengths.max() <= usual.lengths().max()
        assert lengths.sum() > 1.05 * usual.lengths().sum()
    with_tokens = [batch.target.numel() for epoch in (0, 1) for batch in corpus.batches(256, epoch=epoch)]
    assert with_tokens


def test_odd_texts_keep_their_content(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "odd.tsv"
    path.write_text("".join(f"{text or 'x'}\t{text or 'y'}\n" for text in ODD * 5), encoding="utf-8")
    data = DataConfig(train=str(path), valid=str(path), cache=str(tmp_path))
    odd = prepare_corpus(data, TokenizersConfig(SubwordsConfig(vocab_size=300, character_coverage=0.98, dropout=0.5)))
    sampled = odd.sampled(seed=1)
    assert sampled is not None
    store, rows = sampled.epoch(0), np.arange(len(odd.train))
    for row, usual in zip(store.source.rows(rows), odd.train.source.rows(rows), strict=True):
        assert odd.source_tokenizer.decode(row.tolist()) == odd.source_tokenizer.decode(usual.tolist())


def tiny(pairs: Path, cache: Path, *overrides: str) -> Any:
    table = {
        "preset": "transformer-tiny",
        "data": {"train": str(pairs), "cache": str(cache)},
        "tokenizer": {"source": {"kind": "subwords", "vocab_size": 330, "dropout": 0.3}},
        "train": {"batch_tokens": 512, "validate_every": 100, "save_every": 100, "decode": 2, "device": "cpu"},
    }
    small = [f"model.{side}.{size}" for side in ("encoder", "decoder") for size in ("layers=1", "width=8", "heads=1")]
    return config.build(table, [*small, *overrides])


def test_a_run_resumes_exactly_across_epochs(pairs: Path, tmp_path: Path) -> None:
    """A step of three batches may have batches of two epochs."""
    quiet, cache = Display(quiet=True), tmp_path / "cache"
    settings = "train.accumulate=3"
    train(tiny(pairs, cache, settings, "train.steps=6"), tmp_path / "whole", quiet)
    train(tiny(pairs, cache, settings, "train.steps=2"), tmp_path / "parts", quiet)
    train(tiny(pairs, cache, settings, "train.steps=6"), tmp_path / "parts", quiet)
    whole, parts = (read_tensors(tmp_path / run / "weights.safetensors") for run in ("whole", "parts"))
    assert all(bool((whole[name] == parts[name]).all()) for name in whole)


def test_stores_without_dropout_keep_their_name() -> None:
    plain = TokenizersConfig()
    assert "dropout" not in _tokenizer_table(plain)["source"]
    assert _tokenizer_table(replace(plain, source=SubwordsConfig(dropout=0.1)))["source"]["dropout"] == 0.1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("tokenizer.source.algorithm=unigram", 'tokenizer.source.dropout: found 0.3 with algorithm = "unigram"'),
        ("tokenizer.source.dropout=1", "tokenizer.source.dropout: found 1"),
        ("model.softmax.kind=partitioned", 'model.softmax = "partitioned"'),
    ],
)
def test_settings_that_do_not_go_together_are_refused(setting: str, said: str, pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        tiny(pairs, tmp_path, setting)
    assert said in str(error.value)
