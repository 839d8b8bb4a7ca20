"""Records of tensors: every tensor of a batch moves in one call, so that no field can be left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

# A field with this metadata stays where it is: its owner keeps its tensors on the device and updates them in place.
STAYS = {"stays": True}
CONSTANTS = (type(None), bool, int, float, str)


def _moving(record: Any) -> list[Field[Any]]:
    return [field for field in fields(record) if not field.metadata.get("stays")]


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of nested tuples and dataclasses; plain constants stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple):
        branches = [map_tensors(branch, change) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{one.name: map_tensors(getattr(tree, one.name), change) for one in _moving(tree)})
    if isinstance(tree, CONSTANTS):
        return tree
    raise TypeError(f"found {type(tree).__name__}, expected tensors in tuples and dataclasses")


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples and dataclasses, always in the same order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from tensors_of(branch)
    elif is_dataclass(tree):
        for field in _moving(tree):
            yield from tensors_of(getattr(tree, field.name))
    elif not isinstance(tree, CONSTANTS):
        raise TypeError(f"found {type(tree).__name__}, expected tensors in tuples and dataclasses")


def shapes_of(tree: Any) -> Any:
    """The types, shapes and constants of nested tuples and dataclasses, as a value that can be a key."""
    if isinstance(tree, Tensor):
        return tree.dtype, tree.shape
    if isinstance(tree, tuple):
        return tuple(shapes_of(branch) for branch in tree)
    if is_dataclass(tree):
        return type(tree), *(shapes_of(getattr(tree, field.name)) for field in _moving(tree))
    return tree


class TensorRecord:
    """A base for frozen dataclasses of tensors. What moves follows from the fields, so a new field moves too."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same record with every tensor changed."""
        out: Self = map_tensors(self, change)
        return out

    def to(self, device: torch.device) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Self:
        """The same record in page-locked memory, from which copies to a GPU are asynchronous."""
        return self.map(Tensor.pin_memory)

    @property
    def graph_key(self) -> Any:
        """What records must have in common for one CUDA graph to serve them all."""
        return shapes_of(self)

    def buffers(self, device: torch.device) -> Self:
        """A copy on a device, whose memory a CUDA graph may keep reading."""
        return self.map(lambda tensor: tensor.to(device, copy=True))

    def fill(self, other: Self) -> None:
        """Overwrite these buffers with another record of the same `graph_key`."""
        for own, new in zip(tensors_of(self), tensors_of(other), strict=True):
            own.copy_(new.pin_memory() if own.is_cuda and not new.is_cuda else new, non_blocking=True)
