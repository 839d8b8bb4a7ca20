"""Whether a model can fit into memory, before it is built."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dragoman.base import DragomanError

UNUSUAL, DEEP = 4096, 65  # a model of smaller sizes and fewer layers fits into any machine's memory, or nearly so
COPIES = 4  # weights, gradients and two moments
UNCOUNTABLE = 1 << 62  # parameters of a model whose sizes overflow


class _TooLargeError(Exception):
    """A model with more parameters than could ever fit."""


def count_parameters(build: Callable[[], nn.Module], limit: float = math.inf) -> int:
    """The number of parameters of a model that is built without memory for them; 0 if it cannot be built so.

    Building stops at twice the limit, so that a model of many layers is not built to its end. Shared parameters are
    counted several times meanwhile.
    """
    registered = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal registered
        registered += parameter.numel() if parameter is not None else 0
        if registered > 2 * limit:
            raise _TooLargeError

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build().parameters())
    except _TooLargeError:
        return registered
    except (RuntimeError, NotImplementedError, TypeError, ValueError, OverflowError) as error:
        if "overflow" in str(error).lower() or "invalid size" in str(error).lower():
            return UNCOUNTABLE
        return 0  # a constructor that computes with its tensors
    finally:
        hook.remove()


def is_unusual(table: Mapping[str, Any]) -> bool:
    """Whether some setting, at any depth, is so large that the model may not fit into memory."""
    for name, value in table.items():
        if isinstance(value, list | tuple):  # of widths or kernels
            value = {str(number): size for number, size in enumerate(value)}
        limit = DEEP if name in ("layers", "blocks") else UNUSUAL
        if is_unusual(value) if isinstance(value, Mapping) else isinstance(value, int) and value >= limit:
            return True
    return False


def check_capacity(build: Callable[[], nn.Module], sizes: Mapping[str, Any], device: torch.device) -> None:
    """Raise DragomanError if the device has no memory to train a model; `sizes` are the settings of the model.

    Counting takes seconds when it is done first, so models whose settings are all of usual size are not counted.
    """
    if not is_unusual(sizes):
        return
    available = available_memory(device)
    parameters = count_parameters(build, available / (4 * COPIES) if available else math.inf)
    needed = 4 * COPIES * parameters
    if available and needed > available:
        size, count = "far more", "more parameters than can be counted"
        if parameters < UNCOUNTABLE:
            at_least = "at least " if needed > 2 * available else ""
            size, count = f"{needed / 2**30:,.1f} GiB", f"{at_least}{parameters:,} parameters"
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
