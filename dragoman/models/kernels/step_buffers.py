"""What the kernels of one training step share: half-precision copies of weights, and the seeds of dropout.

A layer that converts its own weights and draws its own seed launches kernels of two microseconds that do next to
nothing; a small Transformer has two hundred of them. Here one kernel converts all weights and one draws all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

SEEDS = 512  # of one draw; a step that needs more draws again


class StepBuffers:
    """For a model on a GPU whose steps run in half precision."""

    def __init__(self, weights: Iterable[Tensor], half: torch.dtype) -> None:
        self.copies = {weight: torch.empty_like(weight, dtype=half) for weight in weights}
        self._seeds: Iterator[Tensor] = iter(())

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights as they are now; the next step draws seeds of its own."""
        if self.copies:
            torch._foreach_copy_(list(self.copies.values()), list(self.copies))
        self._seeds = iter(())

    def seed(self, device: torch.device) -> Tensor:
        seed = next(self._seeds, None)
        if seed is None:
            self._seeds = iter(torch.split(_drawn(SEEDS, device), 1))
            seed = next(self._seeds)
        return seed


_buffers: ContextVar[StepBuffers | None] = ContextVar("step_buffers", default=None)


@contextmanager
def shared(buffers: StepBuffers | None) -> Iterator[None]:
    """Kernels inside read these buffers."""
    token = _buffers.set(buffers)
    try:
        yield
    finally:
        _buffers.reset(token)


def dropout_seed(device: torch.device) -> Tensor:
    """(1,) drawn from torch's generator, so that a CUDA graph draws a new one at every replay."""
    buffers = _buffers.get()
    return _drawn(1, device) if buffers is None else buffers.seed(device)


def half_copy(weight: Tensor, half: torch.dtype) -> Tensor:
    """A weight in half precision."""
    buffers = _buffers.get()
    copy = None if buffers is None else buffers.copies.get(weight)
    return weight.to(half) if copy is None or copy.dtype != half else copy


def _drawn(count: int, device: torch.device) -> Tensor:
    return torch.randint(2**31, (count,), device=device)
