"""Fully sharded training (FSDP2): every process keeps a part of each weight, its gradient and its optimiser state.

A step gathers the weights of a unit, such as an encoder block, just before it needs them. For a checkpoint every
process writes its own parts. Any number of processes can resume from them, also one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.base import ConfigError
from dragoman.training.config import MovingAverageConfig, TrainConfig


def check_sharding(config: TrainConfig, processes: int) -> None:
    """Refuse what does not go with train.shard, and name all reasons."""
    blockers = (
        "one process trains, start several with torchrun" if processes == 1 else "",
        'train.average.kind = "ema" keeps a second copy of the weights; take "best" or "last"'
        if isinstance(config.average, MovingAverageConfig)
        else "",
        config.objective.shard_blocker,
        'train.compile = "graphs": a CUDA graph cannot wait for other processes' if config.compile == "graphs" else "",
    )
    if config.shard == "on" and (reasons := [reason for reason in blockers if reason]):
        raise ConfigError(f'train.shard: found "on", expected "off": {"; ".join(reasons)}')


def units(model: nn.Module) -> list[nn.Module]:
    """The modules of all encoders and decoders whose weights nobody reads outside of their own call."""
    return [unit for part in model.modules() for unit in getattr(part, "units", ())]


def checkpoint_activations(model: nn.Module) -> None:
    """Let the backward pass compute the activations inside every unit again, with the same dropout."""
    found = units(model)
    if not found:
        raise ConfigError(
            "train.checkpoint_activations: found true, expected false: this model has no Transformer blocks"
        )
    for unit in found:
        if hasattr(unit, "defers"):  # its output is kept: one tensor, not two
            setattr(unit, "defers", False)  # noqa: B010  mypy takes attributes of modules for tensors
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)


def shard(loss_module: nn.Module, model: nn.Module, device: torch.device, processes: int) -> nn.Module:
    """Shard the weights of a model over all processes; the rest of them, such as embeddings, are one unit."""
    from torch.distributed.device_mesh import init_device_mesh  # seconds, for those who need it
    from torch.distributed.fsdp import fully_shard

    # Sums are written as x + y everywhere, so it does not matter that a unit returns a view.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (processes,))
    for unit in (*units(model), loss_module):
        fully_shard(unit, mesh=mesh)
    return loss_module


# Tensors of which every process has a part: gather them, and cut whole ones into parts


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
