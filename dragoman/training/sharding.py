"""Fully sharded training (FSDP2): every process keeps a part of each weight, its gradient and its optimiser state.

A step gathers the weights of a unit, such as an encoder block, just before it needs them. For a checkpoint every
process writes its own parts. Any number of processes can resume from them, also one.
"""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dragoman.errors import ConfigError
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
