"""Several processes that train one model: who am I, and what must we agree on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dragoman.errors import ConfigError, DragomanError
from dragoman.training.signals import Stopped


class RankLostError(DragomanError):
    """Another process of the job died."""

    abrupt = True  # the broken group's threads would wait for the lost peer


def number_in(name: str, default: int) -> int:
    """A whole number that torchrun left in the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} in the environment: found {text!r}, expected a whole number as torchrun sets it")
    return int(text)


class Ranks:
    """This process among those torchrun started; alone if it started none."""

    def __init__(self) -> None:
        self.world = number_in("WORLD_SIZE", 1)
        self.rank = number_in("RANK", 0)
        self.local = number_in("LOCAL_RANK", 0)

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.world == 1

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Join the group for the time of the block; a lost peer becomes one clear error."""
        if self.alone:
            yield
            return
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        voice().unlink(missing_ok=True)  # of an earlier job with the same ids; nobody passes the next line alone
        dist.init_process_group(backend, timeout=timedelta(hours=4))
        try:
            yield
        except (DragomanError, Stopped) as error:
            # Whoever leaves first is lost to the others, or all leave for the same reason: it is told once.
            if not first_to_speak():
                os._exit(error.code if isinstance(error, Stopped) else 2)
            raise
        except RuntimeError as error:
            if not speaks_of_peers(error):
                raise
            if not first_to_speak():
                os._exit(2)
            raise RankLostError(
                f"a process of this job was lost (seen by process {self.rank + 1} of {self.world}); "
                "the run stands at its last checkpoint: start the same command again to go on"
            ) from error
        dist.destroy_process_group()

    def agree(self, value: int) -> int:
        """The largest value any process brought."""
        if self.alone:
            return value
        tensor = torch.tensor([value], dtype=torch.long)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def sum(self, values: list[float]) -> list[float]:
        """Each place summed over all processes."""
        if self.alone:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return list(tensor.tolist())

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the memory of the host summed over all processes."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Until everybody is here."""
        if not self.alone:
            self.agree(0)


def speaks_of_peers(error: RuntimeError) -> bool:
    """Whether an error tells of a broken connection between processes."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("connection closed", "connection reset", "gloo", "nccl", "peer")
    )


def voice() -> Path:
    """A file that the first process of this job with bad news makes."""
    job = "-".join(
        os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    )
    return Path(tempfile.gettempdir()) / f"dragoman-lost-{os.getppid()}-{job}"


def first_to_speak() -> bool:
    """Whether no other process of this job has told the user yet; every survivor sees the same loss."""
    try:
        voice().touch(exist_ok=False)
    except OSError:
        return False
    return True
