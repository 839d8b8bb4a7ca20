"""Feature rows on disk and batches of them: nothing lost, few shapes, an order that follows from (seed, epoch)."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.data.features import (
    FeatureColumn,
    FeatureStore,
    FramePlan,
    feature_batch,
    feature_statistics,
    gather_features,
    write_features,
)
from dragoman.data.media import MediaError
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers import EOS, PAD


class Raw:
    """Bytes as frames of three numbers, so that no package is needed."""

    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 0.5
    features = 3

    def decode(self, data: bytes, place: str) -> NDArray[Any]:
        if len(data) % 3 or not data:
            raise MediaError(place, "unreadable-file", f"found {len(data)} bytes, expected threes")
        return np.frombuffer(data, np.uint8).reshape(-1, 3)


def content(number: int, frames: int) -> bytes:
    return np.random.default_rng(number).integers(1, 255, 3 * frames, np.uint8).tobytes()


@pytest.fixture
def lengths() -> list[int]:
    return np.random.default_rng(3).integers(1, 40, 60).tolist()


@pytest.fixture
def store(tmp_path: Path, lengths: list[int]) -> FeatureStore:
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        for number in reversed(range(len(lengths))):  # another order than that of the rows
            about = tarfile.TarInfo(f"{number}.raw")
            data = content(number, lengths[number]) if number not in (7, 9) else b"xx"
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    places = [f"{tmp_path}/all.tar.gz::{number}.raw" for number in range(len(lengths))]
    places[11] = str(tmp_path / "gone.raw")
    faults = write_features(tmp_path / "features", places, Raw())
    assert [fault.place for fault in faults] == [places[7], places[9], places[11]]
    assert [fault.kind for fault in faults] == ["unreadable-file", "unreadable-file", "missing-file"]
    with StoreWriter(tmp_path / "tokens", 10, 10) as writer:
        targets = [[4 + number % 5] * (1 + lengths[number] // 4) for number in range(len(lengths))]
        writer.add(targets, targets)
    return FeatureStore(FeatureColumn(tmp_path / "features"), TokenStore(tmp_path / "tokens").target)


def test_rows_come_back_as_they_were(store: FeatureStore, lengths: list[int]) -> None:
    found = store.source.lengths().tolist()
    assert [found[number] for number in (7, 9, 11)] == [0, 0, 0]
    for number, row in enumerate(store.source.rows(range(len(store)))):
        if number not in (7, 9, 11):
            assert row.tobytes() == content(number, lengths[number])


def test_batches_are_padded_masked_and_scaled(store: FeatureStore, lengths: list[int]) -> None:
    plan = FramePlan(store, budget=200, seed=1)
    seen: list[int] = []
    shapes = set()
    epoch = plan.epoch(0)
    for number in range(len(epoch)):
        rows = epoch[number]
        batch = gather_features(store, rows, plan)
        seen += rows.tolist()
        shapes.add(batch.source.shape[1])
        assert batch.source.shape[0] * batch.source.shape[1] <= 200
        assert batch.source.dtype == torch.float32
        for place, row in enumerate(rows.tolist()):
            real = lengths[row]
            truth = np.frombuffer(content(row, real), np.uint8).reshape(-1, 3) * 0.5
            np.testing.assert_array_equal(batch.source[place, :real].numpy(), truth)
            assert not batch.source[place, real:].any()
            assert batch.source_mask[place].tolist() == [True] * real + [False] * (batch.source.shape[1] - real)
            tokens = batch.target[place][batch.target[place] != PAD].tolist()
            assert tokens == [4 + row % 5] * (1 + real // 4) + [EOS]
        assert plan.tokens(rows) == int((batch.target != PAD).sum())
    assert sorted(seen) == [number for number in range(60) if number not in (7, 9, 11)]  # each once
    assert len(shapes) < 16
    rows_, frames, tokens_ = plan.largest()
    assert frames == max(lengths)
    assert rows_ * frames <= 200
    assert tokens_ >= 1 + max(lengths) // 4 + 1


def test_the_order_follows_from_seed_and_epoch(store: FeatureStore) -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        found = FramePlan(store, 200, seed).epoch(epoch)
        return [found[number].tolist() for number in range(len(found))]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_rows_of_one_size_are_not_padded(tmp_path: Path) -> None:
    places = []
    for number in range(5):
        (tmp_path / str(number)).write_bytes(content(number, 81))
        places.append(str(tmp_path / str(number)))
    assert write_features(tmp_path / "features", places, Raw()) == []
    with StoreWriter(tmp_path / "tokens", 10, 10) as writer:
        writer.add([[4]] * 5, [[4]] * 5)
    store = FeatureStore(FeatureColumn(tmp_path / "features"), TokenStore(tmp_path / "tokens").target)
    plan = FramePlan(store, 1000, 0)
    batch = gather_features(store, plan.epoch(0)[0], plan)
    assert batch.source.shape[1] == 81
    assert batch.source_mask.all()


def test_statistics_are_those_of_all_frames(store: FeatureStore) -> None:
    mean, deviation = feature_statistics(store.source)
    frames = np.concatenate(store.source.rows(range(len(store)))) * 0.5
    np.testing.assert_allclose(mean.numpy(), frames.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation.numpy(), frames.std(0), rtol=1e-5)


def test_a_batch_from_memory() -> None:
    rows = [np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)]
    batch = feature_batch(rows, [[5, 6], [7]], step=2.0)
    assert batch.source.shape == (2, 4, 3)
    assert batch.source[0, :2].eq(2).all()
    assert batch.source_mask.sum(1).tolist() == [2, 4]
    assert batch.target.tolist() == [[5, 6, EOS], [7, EOS, PAD]]
    assert feature_batch(rows).target.shape == (2, 0)
    assert batch.to(torch.device("cpu")).source.shape == (2, 4, 3)
