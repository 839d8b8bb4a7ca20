"""What this machine has, and what torch is doing with the model."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def is_exporting() -> bool:
    """Whether torch.export traces the model; torch 2.11 also says so inside torch.compile."""
    # torch 2.6 has no is_exporting; there is_compiling is true in an export as well.
    tracing = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(tracing()) and not torch.compiler.is_dynamo_compiling()


HAS_TRITON = find_spec("triton") is not None
WITHOUT_FLOAT64 = {"mps"}


def wide(device: torch.device) -> torch.dtype:
    """The type for long sums and cumulative probabilities: float64, where the device has it."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
