"""What this machine has, and what torch is doing with the model."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from typing import Any

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


# On Arm torch hands products with transposed weights, which is what a linear layer computes, to oneDNN. For up to 256
# rows that takes 2 to 10 times as long as OpenBLAS, and a training step of a small model 1.1 to 1.18 times as long. It
# is turned off here, before any product: a process that changed it later would no longer round the same way.
_mkldnn: Any = torch.backends.mkldnn
if _mkldnn.is_available() and getattr(_mkldnn, "is_acl_available", bool)():
    with suppress(RuntimeError):  # someone has frozen the flags
        _mkldnn.enabled = False
