"""Where a run trains: its device, precision, processes and the display for its messages."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from dragoman.errors import ConfigError, DragomanError
from dragoman.files import set_compiler_caches
from dragoman.training.display import Display
from dragoman.training.distributed import ProcessGroup


@dataclass(frozen=True)
class Runtime:
    """The device of this process, the process group of the job, and where messages go."""

    device: torch.device
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    display: Display = field(default_factory=lambda: Display(quiet=True))


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that a setting names; "auto" prefers a GPU, and each local process has its own."""
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: found {name!r}, expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device: found {name!r}, but no GPU can be used here; expected auto or cpu")
        if device.index is None:
            device = torch.device("cuda", local_rank)
        if device.index >= torch.cuda.device_count():
            raise ConfigError(f"device: found {name!r}, but there are {torch.cuda.device_count()} GPUs")
        set_compiler_caches()  # Triton kernels too
    elif device.type != "cpu":
        raise ConfigError(f"device: found {name!r}, expected auto, cpu, cuda or cuda:N")
    return device


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether training autocasts to bfloat16. CPUs never do: most have no hardware for it and would be very slow."""
    if device.type != "cuda":
        if precision == "bfloat16":
            raise DragomanError(
                f"train.precision: found bfloat16 on device '{device}', expected float32 or auto: "
                "half precision needs a GPU"
            )
        return False
    return precision == "bfloat16" or (precision == "auto" and torch.cuda.is_bf16_supported(including_emulation=False))


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """A CUDA stream beside the default one, because CUDA graphs cannot be captured on the default stream."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
