"""Where a run trains: device, precision, the processes that torchrun starts, and the display for messages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dragoman.base import ConfigError, DragomanError, Interrupted, brief, set_compiler_caches
from dragoman.training.display import Display


class ProcessLostError(DragomanError):
    """Another process of the job died."""

    abrupt = True  # threads of the broken group would wait for the lost process


def read_environment(name: str, default: int) -> int:
    """Read an integer that torchrun set in the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} in the environment: found {text!r}, expected a whole number as torchrun sets it")
    return int(text)


class ProcessGroup:
    """The processes that torchrun started, seen from this one; a group of one without torchrun."""

    def __init__(self) -> None:
        self.world_size = read_environment("WORLD_SIZE", 1)
        self.rank = read_environment("RANK", 0)
        self.local_rank = read_environment("LOCAL_RANK", 0)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    @contextmanager
    def initialized(self, device: torch.device) -> Iterator[None]:
        """Initialise torch.distributed inside the block; the loss of a process becomes one ProcessLostError."""
        if not self.is_distributed:
            yield
            return
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        error_marker().unlink(missing_ok=True)  # left by an earlier job; no process passes the next line alone
        connected = False
        try:
            dist.init_process_group(backend, timeout=timedelta(hours=4))
            connected = True
            yield
        except (DragomanError, Interrupted) as error:
            # Every process sees the same error, or sees that another one left: only one of them reports it.
            if not first_to_report():
                os._exit(error.code if isinstance(error, Interrupted) else 2)
            raise
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            if not first_to_report():
                os._exit(2)
            if not connected:
                raise ProcessLostError(
                    f"process {self.rank + 1} of {self.world_size} found no connection to the first one "
                    f"({brief(error)}); check the address and the port that torchrun was given"
                ) from error
            raise ProcessLostError(
                f"a process of this job was lost (seen by process {self.rank + 1} of {self.world_size}); "
                "the last checkpoint is intact: run the same command again to resume"
            ) from error
        dist.destroy_process_group()

    def data_parallel(self, model: nn.Module, device: torch.device, has_unused_parameters: bool) -> nn.Module:
        """The model in DistributedDataParallel, which averages gradients over processes; alone the model itself."""
        if not self.is_distributed:
            return model
        # No buffer is trained, and a process may grow its own (position tables): DDP must not synchronise any.
        buffers = [name for name, _ in model.named_buffers(remove_duplicate=False)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=has_unused_parameters,
        )

    def all_reduce_max(self, value: int) -> int:
        if not self.is_distributed:
            return value
        tensor = torch.tensor([value], dtype=torch.long)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def all_reduce_sum_tensor(self, tensor: Tensor) -> Tensor:
        """Sum of a CPU tensor over all processes, in place."""
        if self.is_distributed:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over all processes, in float64."""
        return list(self.all_reduce_sum_tensor(torch.tensor(values, dtype=torch.float64)).tolist())

    def gather_texts(self, text: str) -> list[str]:
        """The texts of all processes, in the order of their ranks."""
        texts = []
        for rank in range(self.world_size):
            encoded = text.encode() if rank == self.rank else b""  # the others add zeros
            size = self.all_reduce_max(len(encoded))
            content = torch.tensor([*encoded, *bytes(size - len(encoded))], dtype=torch.long)
            texts.append(bytes(self.all_reduce_sum_tensor(content).tolist()).decode())
        return texts

    def barrier(self) -> None:
        self.all_reduce_max(0)


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error reports a broken connection between processes."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("connection closed", "connection reset", "gloo", "nccl", "peer")
    )


def error_marker() -> Path:
    """The file that the first process of this job to report an error creates."""
    job = "-".join(
        os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    )
    return Path(tempfile.gettempdir()) / f"dragoman-lost-{os.getppid()}-{job}"


def first_to_report() -> bool:
    """Whether no other process of this job has reported an error yet."""
    with suppress(OSError):
        error_marker().touch(exist_ok=False)
        return True
    return False


@dataclass(frozen=True)
class Runtime:
    """The device of this process, the process group of the job, and where messages go."""

    device: torch.device
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    display: Display = field(default_factory=lambda: Display(quiet=True))


DEVICES = "auto, cpu, cuda, cuda:N or mps"


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that a setting names; "auto" prefers an NVIDIA GPU, and each local process has its own."""
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: found {name!r}, expected {DEVICES}") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device: found {name!r}, but no GPU can be used here; expected auto or cpu")
        if device.index is None:
            device = torch.device("cuda", local_rank)
        if device.index >= torch.cuda.device_count():
            raise ConfigError(f"device: found {name!r}, but there are {torch.cuda.device_count()} GPUs")
        set_compiler_caches()  # Triton kernels too
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(f"device: found {name!r}, but no Apple GPU can be used here; expected auto or cpu")
    elif device.type != "cpu":
        raise ConfigError(f"device: found {name!r}, expected {DEVICES}")
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
