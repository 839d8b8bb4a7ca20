"""Every tensor of a batch moves with it: to a device, into page-locked memory, into the buffers of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.data.batch import (
    STAYS,
    Batch,
    Frames,
    Numbers,
    Pictures,
    Source,
    TensorRecord,
    Tokens,
    batch_of,
    tensors_of,
)
from dragoman.data.bptt import Segment
from dragoman.data.rows import TokensWithCopies
from dragoman.data.tokenizers.base import EOS, PAD

META = torch.device("meta")


def full_batch() -> Batch:
    """A batch with something in every field."""
    return Batch(
        source=Tokens.from_padded(torch.tensor([[5, EOS, PAD], [6, 7, EOS]])),
        target=torch.tensor([[8, EOS], [9, EOS]]),
        copies=torch.tensor([[1, 0, 0], [0, 2, 0]]),
        words=torch.tensor([4, 5, 8]),
    )


@dataclass(frozen=True)
class Extended(Batch):
    """A batch with a field that nobody knew when `TensorRecord` was written."""

    newcomer: tuple[Tensor, ...] = ()


def records() -> list[TensorRecord]:
    segment = Segment(Tokens.from_padded(torch.tensor([[5, 6]])), torch.tensor([[6, EOS]]), fresh=False)
    batch = full_batch()
    extended = Extended(*(getattr(batch, one.name) for one in fields(batch)), newcomer=(torch.ones(2), torch.zeros(3)))
    return [batch, extended, segment]


def in_fields(record: Any) -> int:
    """How many tensors the fields of a record hold, counted without the code under test."""
    if isinstance(record, Tensor):
        return 1
    if isinstance(record, tuple):
        return sum(in_fields(part) for part in record)
    names = getattr(record, "__dataclass_fields__", {})
    return sum(in_fields(getattr(record, name)) for name in names)


def test_the_full_batch_has_every_field() -> None:
    batch = full_batch()
    assert all(getattr(batch, one.name) is not None for one in fields(batch)), "fill a new field of Batch here"


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_every_tensor_moves_to_a_device(record: TensorRecord) -> None:
    moved = record.to(META)
    assert type(moved) is type(record)
    tensors = list(tensors_of(moved))
    assert len(tensors) == in_fields(record)
    assert all(tensor.device == META for tensor in tensors)


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_every_tensor_is_pinned(record: TensorRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(id(tensor)) or tensor)
    record.pin()
    assert pinned == [id(tensor) for tensor in tensors_of(record)]


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_buffers_take_over_every_tensor_of_the_next_batch(record: TensorRecord) -> None:
    buffers = record.buffers(torch.device("cpu"))
    memory = [tensor.data_ptr() for tensor in tensors_of(buffers)]
    assert not {*memory} & {tensor.data_ptr() for tensor in tensors_of(record)}, "a graph needs memory of its own"
    following = record.map(lambda tensor: ~tensor if tensor.dtype == torch.bool else tensor + 1)
    assert following.graph_key == record.graph_key
    buffers.fill(following)
    assert [tensor.data_ptr() for tensor in tensors_of(buffers)] == memory
    for own, new in zip(tensors_of(buffers), tensors_of(following), strict=True):
        assert torch.equal(own, new)


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: replace(batch, words=None),
        lambda batch: replace(batch, words=torch.tensor([4])),
        lambda batch: replace(batch, source=Frames(batch.source.data, batch.source.mask)),
        lambda batch: replace(batch, target=batch.target.int()),
    ],
)
def test_a_graph_serves_batches_of_one_structure_alone(change: Callable[[Batch], Batch]) -> None:
    batch = full_batch()
    assert change(batch).graph_key != batch.graph_key


def test_what_a_record_does_not_know_cannot_be_forgotten() -> None:
    @dataclass(frozen=True)
    class WithDict(TensorRecord):
        tensors: dict[str, Tensor]

    with pytest.raises(TypeError, match="found dict"):
        WithDict({"one": torch.ones(1)}).to(META)
    with pytest.raises(TypeError, match="found dict"):
        list(tensors_of(WithDict({"one": torch.ones(1)})))


def test_carried_state_stays_with_its_owner() -> None:
    carried = (torch.ones(2, 3),)
    segment = Segment(Tokens.from_padded(torch.tensor([[5]])), torch.tensor([[EOS]]), carried)
    assert segment.to(META).carried is carried
    assert segment.buffers(torch.device("cpu")).carried is carried
    assert {one.name for one in fields(Segment) if one.metadata == STAYS} == {"carried"}
    assert not [one.name for one in fields(Batch) if one.metadata], "all of a batch moves"
    assert field(metadata=STAYS).metadata["stays"]


@pytest.mark.parametrize("kind", [Frames, Numbers, Pictures])
def test_sources_say_what_they_are(kind: type[Source]) -> None:
    source = kind.without_padding(torch.zeros(2, 3, 4))
    assert source.mask.shape == (2, 3)
    assert source.mask.all()
    assert type(source.to(META)) is kind
    assert len(source) == 2


def test_copies_come_from_the_rows() -> None:
    rows = [TokensWithCopies([1, 9], [1, 0]), TokensWithCopies([1, 1, 1], [1, 2, 1])]
    batch = batch_of(rows)
    assert batch.source.data.tolist() == [[1, 9, EOS, PAD], [1, 1, 1, EOS]]
    assert batch.copies is not None
    assert batch.copies.tolist() == [[1, 0, 0, 0], [1, 2, 1, 0]]
    assert batch_of([[1, 9]]).copies is None
    with pytest.raises(AssertionError, match="either all rows"):
        batch_of([rows[0], [5]])


def test_a_padded_batch_keeps_source_mask_and_copies() -> None:
    batch = full_batch().padded(4, 5)
    assert batch.source.data.tolist() == [[5, EOS, 0, 0, 0], [6, 7, EOS, 0, 0], *[[5, EOS, 0, 0, 0]] * 2]
    assert torch.equal(batch.source.mask, batch.source.data != PAD)
    assert batch.copies is not None
    assert batch.copies.tolist() == [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], *[[1, 0, 0, 0, 0]] * 2]
    assert batch.target.shape == (4, 0)
