"""Feature rows on disk, and batches of them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.collate import Collator, FrameCollator, PictureCollator
from dragoman.data.media.files import MediaError
from dragoman.data.store import FeatureColumn, MediaStore, StoreWriter, feature_statistics, write_features
from dragoman.data.tokenizers.base import EOS, PAD


class Raw:
    """A decoder without dependencies: bytes are frames of three numbers."""

    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 0.5
    features = 3

    def decode(self, data: bytes, path: str) -> NDArray[Any]:
        if len(data) % 3 or not data:
            raise MediaError(path, "unreadable-file", f"found {len(data)} bytes, expected threes")
        return np.frombuffer(data, np.uint8).reshape(-1, 3)


def content(number: int, frames: int) -> bytes:
    return np.random.default_rng(number).integers(1, 255, 3 * frames, np.uint8).tobytes()


@pytest.fixture
def lengths() -> list[int]:
    return np.random.default_rng(3).integers(1, 40, 60).tolist()


@pytest.fixture
def store(tmp_path: Path, lengths: list[int]) -> MediaStore:
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        for number in reversed(range(len(lengths))):  # another order than that of the rows
            member = tarfile.TarInfo(f"{number}.raw")
            data = content(number, lengths[number]) if number not in (7, 9) else b"xx"
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    paths = [f"{tmp_path}/all.tar.gz::{number}.raw" for number in range(len(lengths))]
    paths[11] = str(tmp_path / "gone.raw")
    faults = write_features(tmp_path / "features", paths, Raw())
    assert [fault.location for fault in faults] == [paths[7], paths[9], paths[11]]
    assert [fault.kind for fault in faults] == ["unreadable-file", "unreadable-file", "missing-file"]
    with StoreWriter(tmp_path / "tokens", 10, 10) as writer:
        usable = [number for number in range(len(lengths)) if number not in (7, 9, 11)]
        targets = [[4 + number % 5] * (1 + lengths[number] // 4) for number in usable]
        writer.add([[number] for number in usable], targets)
    return MediaStore(tmp_path / "tokens", FeatureColumn(tmp_path / "features"))


COLLATOR = Collator(FrameCollator(3, "uint8"))


def test_rows_come_back_as_they_were(store: MediaStore, lengths: list[int]) -> None:
    column = store.source.column
    found = column.lengths().tolist()
    assert [found[number] for number in (7, 9, 11)] == [0, 0, 0]
    assert [path.rpartition("::")[2] for path in column.paths()[:3]] == ["0.raw", "1.raw", "2.raw"]
    for number, row in enumerate(column.rows(range(len(column)))):
        if number not in (7, 9, 11):
            assert row.tobytes() == content(number, lengths[number])


def test_batches_are_padded_and_masked(store: MediaStore, lengths: list[int]) -> None:
    plan = BatchPlan(store, budget=200, seed=1, collator=COLLATOR)
    seen: list[int] = []
    epoch = plan.epoch(0)
    for number in range(len(epoch)):
        rows = epoch[number]
        batch = read_batch(store, rows, plan)
        assert batch.source.data.shape[0] * batch.source.data.shape[1] <= 200
        assert batch.source.data.dtype == torch.uint8
        for index, row in enumerate(store.source.numbers[rows].tolist()):
            seen.append(row)
            real = lengths[row]
            truth = np.frombuffer(content(row, real), np.uint8).reshape(-1, 3)
            np.testing.assert_array_equal(batch.source.data[index, :real].numpy(), truth)
            assert batch.source.data[index, real:].eq(0).all()
            assert batch.source.mask[index].tolist() == [True] * real + [False] * (batch.source.data.shape[1] - real)
            tokens = batch.target[index][batch.target[index] != PAD].tolist()
            assert tokens == [4 + row % 5] * (1 + real // 4) + [EOS]
        assert plan.tokens(rows) == int((batch.target != PAD).sum())
    assert sorted(seen) == [number for number in range(60) if number not in (7, 9, 11)]  # each once


def test_floats_are_padded_with_zeros() -> None:
    rows = [np.ones((2, 3), np.float32), np.zeros((4, 3), np.float32)]
    batch = Collator(FrameCollator(3, "float32")).collate(rows, [[5], [6]])
    assert batch.source.mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.source.data[0, 2:].eq(0).all()


def test_pictures_are_bytes_and_never_padded() -> None:
    rows = [np.full((4, 12), number, np.uint8) for number in (0, 255)]
    batch = Collator(PictureCollator(4, 12)).collate(rows, [[5], [6]])
    assert batch.source.data.dtype == torch.uint8
    assert batch.source.data.shape == (2, 4, 12)
    assert batch.source.mask.all()


def test_statistics_are_those_of_all_frames(store: MediaStore) -> None:
    column = store.source.column
    mean, deviation = feature_statistics(column)
    frames = np.concatenate(column.rows(range(len(column)))) * 0.5
    np.testing.assert_allclose(mean, frames.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, frames.std(0), rtol=1e-5)
    some = feature_statistics(column, [3, 5])[0]
    np.testing.assert_allclose(some, np.concatenate(column.rows([3, 5])).mean(0) * 0.5, rtol=1e-5)


def test_a_batch_from_memory() -> None:
    rows, collator = [np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)], Collator(FrameCollator(3, "float32"))
    batch = collator.collate(rows, [[5, 6], [7]])
    assert batch.source.data.shape == (2, 4, 3)
    assert batch.source.data[0, :2].eq(1).all()
    assert batch.source.mask.sum(1).tolist() == [2, 4]
    assert batch.target.tolist() == [[5, 6, EOS], [7, EOS, PAD]]
    assert collator.collate(rows).target.shape == (2, 0)
    assert batch.to(torch.device("cpu")).source.data.shape == (2, 4, 3)
