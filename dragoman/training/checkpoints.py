"""Crash-safe checkpoints: written to a temporary folder, synced to disk, then renamed; a hash protects each file."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dragoman.errors import RunError
from dragoman.files import digest, make_folder, remove_folder, sync, write_text

KEPT = 2  # checkpoints of a run
READS = 5  # how often a file is opened if signals interrupt it: Python tries again by itself, torch does not


@dataclass
class TrainingState:
    """The counters of a run; with weights and optimiser state, all that an exact resume needs."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch that were used
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0  # spent in training steps
    validated_step: int = 0  # step of the last validation
    best: list[tuple[float, int]] = field(default_factory=list)  # (score, step), best first; a higher score is better
    validations_since_best: int = 0
    loss_total: float = 0.0  # since the last line of the metrics log
    loss_count: int = 0
    accumulate: int = 1  # train.accumulate and the number of processes: their product, the batches of a step,
    processes: int = 1  # must not change when the run resumes


def checksum(content: Mapping[str, Any]) -> str:
    """A hash of a JSON object that does not depend on its formatting."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def unfinished(path: Path) -> Path:
    """The folder in which `write_tensors` writes a file before it is moved to its place."""
    return path.with_name(f".{path.name}.part")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically.

    safetensors writes to a file of a random name beside the one it was given, which would stay if the process were
    killed. So both are in a folder of their own, which the next process removes.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    folder = unfinished(path)
    temporary = folder / path.name
    try:
        remove_folder(folder)
        folder.mkdir()
        safetensors.torch.save_file(plain, temporary)
        temporary.chmod(0o644)  # safetensors creates files that only their owner can read
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error})") from None
    sync(temporary)
    temporary.replace(path)
    folder.rmdir()
    sync(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    for again in range(READS, 0, -1):
        try:
            return safetensors.torch.load_file(path)
        except FileNotFoundError:
            raise RunError(f"{path}: no such file") from None
        except (SafetensorError, OSError, RuntimeError) as error:  # torch opens the file, too, and raises RuntimeError
            if again == 1 or os.strerror(errno.EINTR) not in str(error):
                raise RunError(f"{path}: damaged ({error})") from None
    raise AssertionError


class Checkpoints:
    """The checkpoints of a run, one folder per step; only the newest ones stay."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, state: TrainingState, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write a checkpoint of several tensor files and delete all but the newest ones."""
        final = self.path(state.step)
        temporary = self.folder / f".{final.name}.part"
        make_folder(self.folder)
        remove_folder(temporary)
        temporary.mkdir()
        digests = {}
        for name, tensors in files.items():
            write_tensors(temporary / name, tensors)
            digests[name] = digest(temporary / name)
        content = dataclasses.asdict(state) | {"files": digests}
        content["checksum"] = checksum(content)
        write_text(temporary / "state.json", json.dumps(content, indent=2))
        old = self.folder / f".{final.name}.old"
        if final.exists():  # the same step is saved again after its validation
            remove_folder(old)
            final.rename(old)
        temporary.rename(final)
        remove_folder(old)  # `prune` tries again what could not be removed
        sync(self.folder)
        self.prune()

    def prune(self) -> None:
        """Delete what a newer checkpoint replaces."""
        self.clear_unfinished()
        for step in self.steps()[:-KEPT]:
            remove_folder(self.path(step))

    def load(self, step: int) -> tuple[TrainingState, dict[str, dict[str, Tensor]]]:
        """Read one checkpoint; RunError if a file of it is missing or damaged."""
        state, digests = self.read_state(step)
        files = {}
        for name, expected in digests.items():
            path = self.path(step) / name
            if not path.exists() or digest(path) != expected:
                raise RunError(f"{path}: {'damaged' if path.exists() else 'missing'}")
            files[name] = read_tensors(path)
        return state, files

    def read_state(self, step: int) -> tuple[TrainingState, dict[str, str]]:
        """The counters of a checkpoint and the hash of each of its tensor files; RunError if they are damaged."""
        path = self.path(step) / "state.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("checksum") != checksum(content):
                raise ValueError("its checksum does not match")
            digests = content.pop("files")
            content["best"] = [(float(score), int(step)) for score, step in content["best"]]
            return TrainingState(**content), digests
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RunError(f"{path}: damaged ({error})") from None

    def clear_unfinished(self) -> None:
        """Remove the temporary folders of a killed process, and put a checkpoint back that it was replacing."""
        if not self.folder.is_dir():
            return
        make_folder(self.folder)  # refuses a symbolic link: nothing behind it may be removed
        for path in self.folder.glob(".*.old"):
            final = self.folder / path.name.removeprefix(".").removesuffix(".old")
            if final.exists():
                remove_folder(path)
            else:
                path.rename(final)
        for path in self.folder.glob(".*.part"):
            remove_folder(path)
