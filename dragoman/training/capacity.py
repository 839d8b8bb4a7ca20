"""Whether a model can fit into memory, before it is built."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.errors import DragomanError

UNUSUAL = 4096  # a model without a larger size or number of layers fits into any machine's memory, or nearly so
COPIES = 4  # weights, gradients and two moments


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """The number of parameters of a model that is built without memory for them; 0 if it cannot be built so."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build().parameters())
    except (RuntimeError, NotImplementedError, TypeError, ValueError, OverflowError) as error:
        if "overflow" in str(error).lower() or "invalid size" in str(error).lower():
            return 1 << 62
        return 0  # a constructor that computes with its tensors


def largest_number(table: Mapping[str, Any]) -> int:
    """The largest whole number among settings, at any depth."""
    values = (largest_number(value) if isinstance(value, Mapping) else value for value in table.values())
    return max((value for value in values if isinstance(value, int)), default=0)


def check_capacity(build: Callable[[], nn.Module], sizes: Mapping[str, Any], device: torch.device) -> None:
    """Raise DragomanError if the device has no memory to train a model; `sizes` are the settings of the model.

    Counting takes seconds when it is done first, so models whose settings are all of usual size are not counted.
    """
    if largest_number(sizes) < UNUSUAL:
        return
    parameters = count_parameters(build)
    needed, available = 4 * COPIES * parameters, available_memory(device)
    if available and needed > available:
        size = f"{needed / 2**30:,.1f} GiB" if parameters < 1 << 62 else "far more"
        count = f"{parameters:,} parameters" if parameters < 1 << 62 else "more parameters than can be counted"
        raise DragomanError(
            f"the model has {count}; training needs {size} for weights, gradients and optimiser, and "
            f"{available / 2**30:,.1f} GiB are free on {device}; lower model sizes such as model.encoder.width"
        )


def available_memory(device: torch.device) -> int:
    """Free bytes on a device that this process may use; 0 if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = []
    with suppress(OSError, StopIteration, ValueError):  # memory that the system would release counts as free
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # the limit of a container; "max" without one
        control = Path("/sys/fs/cgroup")
        limit, used = (int((control / f"memory.{name}").read_text(encoding="utf-8")) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)", (control / "memory.stat").read_text(encoding="utf-8"), re.MULTILINE)
        limits.append(limit - used + (int(cached[1]) if cached else 0))
    with suppress(ValueError, OSError, AttributeError):
        if not limits:
            limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return max(0, min(limits, default=0))
