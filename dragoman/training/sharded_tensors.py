"""Tensors of which every process has a part: gather them, and cut whole ones into parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def is_part(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose class takes seconds to import where nothing is sharded."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """The tensor of which this process may have only a part; all processes must ask together."""
    result: Tensor = tensor.full_tensor() if is_part(tensor) else tensor
    return result


def part_like(tensor: Tensor, other: Any) -> Tensor:
    """The part of a whole tensor that this process keeps, on the device of the other one."""
    tensor = tensor.to(other.device)
    if not is_part(other) or tensor.shape != other.shape:  # a step count has no parts
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every process has read the whole tensor: nothing is sent.
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Whole tensors, gathered one after the other into host memory by the processes that keep them."""

    def gather() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors.items():
            complete = whole(tensor.detach())
            if keep:
                yield name, complete.cpu() if is_part(tensor) else complete

    return dict(gather())


def own_parts(tensors: Mapping[str, Any], is_main: bool) -> dict[str, Tensor]:
    """The rows of each tensor that this process keeps; the main process also gives the tensors that have no parts."""
    return {
        name: tensor.detach().to_local() if is_part(tensor) else tensor
        for name, tensor in tensors.items()
        if is_part(tensor) or is_main
    }


def are_finite(model: nn.Module) -> bool:
    """Whether the weights that this process keeps are finite."""
    weights: list[Any] = list(model.parameters())
    parts = [weight.to_local() if is_part(weight) else weight for weight in weights]
    return bool(torch.stack([part.isfinite().all() for part in parts]).all())
