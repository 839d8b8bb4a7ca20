"""Crash-safe checkpoints: written to a temporary folder, synced to disk, then renamed; a hash protects each file.

Of a job with train.shard every process writes its own rows of each tensor: weights-00001-of-00008.safetensors and so
on. state.json names all files with their hashes. Any number of processes can read them, one tensor at a time.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from dragoman.base import RunError, digest, make_folder, move, remove_folder, sync, write_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_PART = re.compile(r"(.+)-(\d{5}-of-\d{5})(\.safetensors)")
KEPT = 2  # checkpoints of a run
SUMS = "crc32"  # the key of the checksums of all tensors, in the header of a file
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
    pauses: float = 0.0  # seconds of validations and checkpoints
    validation: float = 0.0  # seconds of the last validation
    starting: float = 0.0  # seconds that the first steps of a process took beyond those of its fastest one

    @property
    def elapsed(self) -> float:
        """Seconds of training steps, validations and checkpoints."""
        return self.seconds + self.pauses

    def is_out_of_patience(self, patience: int) -> bool:
        """Whether so many validations in a row brought no better score; with a patience of 0 never."""
        return bool(patience) and self.validations_since_best >= patience


def checksum(content: Mapping[str, Any]) -> str:
    """A hash of a JSON object that does not depend on its formatting."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def unfinished(path: Path) -> Path:
    """The folder in which `write_tensors` writes a file before it is moved to its place."""
    return path.with_name(f".{path.name}.part")


def tensor_sum(tensor: Any) -> int:
    """A checksum of the bytes of a tensor or array. It finds damage; CRC-32 is four times as fast as BLAKE2."""
    flat = tensor.reshape(-1)
    if hasattr(flat, "numpy"):
        import torch

        if flat.stride(0) != 1:  # a single number that was expanded once
            flat = flat.clone(memory_format=torch.contiguous_format)
        flat = flat.view(torch.uint8).numpy()
    return zlib.crc32(flat.view("uint8"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically, with checksums of its tensors in the header.

    safetensors writes to a file of a random name beside the one it was given, which would stay if the process were
    killed. So both are in a folder of their own, which the next process removes.
    """
    import safetensors.torch

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    folder = unfinished(path)
    temporary = folder / path.name
    try:
        remove_folder(folder)
        make_folder(folder)
        sums = {name: tensor_sum(plain[name]) for name in sorted(plain)}
        safetensors.torch.save_file(plain, temporary, {SUMS: json.dumps(sums)})
        temporary.chmod(0o644)  # safetensors creates files that only their owner can read
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error})") from None
    sync(temporary)
    move(temporary, path)
    folder.rmdir()
    sync(path.parent)


def part_name(name: str, rank: int, processes: int) -> str:
    """The file in which a process keeps its rows of the tensors of a file."""
    path = Path(name)
    return f"{path.stem}-{rank + 1:05d}-of-{processes:05d}{path.suffix}"


def whole_name(name: str) -> str:
    """The file that has the tensors of a file and of all that belong to it."""
    return _PART.sub(r"\1\3", name)


def parts_of(path: Path) -> list[Path]:
    """The files with the rows of this one's tensors, in order; none for an ordinary file. RunError if one is missing.

    `path` is one of them, or what `whole_name` gives.
    """
    if path.exists() and not _PART.fullmatch(path.name):
        return []
    whole = path.with_name(whole_name(path.name))
    found = sorted(other for other in path.parent.glob(f"{whole.stem}-*-of-*{whole.suffix}") if _PART.match(other.name))
    for rank, other in enumerate(found):
        expected = part_name(whole.name, rank, int(other.stem[-5:]))
        if other.name != expected or len(found) != int(other.stem[-5:]):
            raise RunError(f"{path.parent}: found {len(found)} files {whole.stem}-…, expected {int(other.stem[-5:])}")
    return found


class CheckedTensors:
    """The tensors of one safetensors file. Each is compared with its checksum, which files of others do not have."""

    def __init__(self, path: Path, framework: str) -> None:
        file: Any = safe_open(path, framework)
        self._path, self._file = path, file
        self.names: list[str] = file.keys()
        try:
            self._sums: dict[str, int] = dict(json.loads((file.metadata() or {}).get(SUMS, "{}")))
        except (ValueError, TypeError, RecursionError):
            raise RunError(f"{path}: damaged (its checksums cannot be read)") from None

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> Any:
        tensor = self._file.get_tensor(name)
        if self._sums and self._sums.get(name) != tensor_sum(tensor):
            raise RunError(f"{self._path}: damaged (the numbers of {name} are not those that were written)")
        return tensor


class ShardedTensors(Mapping[str, "Tensor"]):
    """Tensors whose rows are in several files. Each is put together when it is asked for, so few are in memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folder, self.shapes = paths[0].parent, dict[str, tuple[int, ...]]()
        self._files: dict[str, list[CheckedTensors]] = {}
        with self._damage():
            for path in paths:
                file = CheckedTensors(path, "pt")
                for name in file.names:
                    shape = file.shape(name)
                    before = self.shapes.get(name)
                    self.shapes[name] = shape if before is None else (before[0] + shape[0], *shape[1:])
                    self._files.setdefault(name, []).append(file)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError, RuntimeError, IndexError) as error:
            raise RunError(f"{self._folder}: damaged ({error})") from None

    def __getitem__(self, name: str) -> Tensor:
        import torch

        with self._damage():
            parts = [file[name] for file in self._files[name]]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def open_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a safetensors file, or of all that have their rows."""
    parts = parts_of(path)
    return ShardedTensors(parts) if parts else read_tensors(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of all that have their rows, in memory."""
    if parts := parts_of(path):
        return dict(ShardedTensors(parts))
    return _read(path, "pt")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The same as NumPy arrays, without torch."""
    return _read(path, "np")


def _read(path: Path, framework: str) -> dict[str, Any]:
    for again in range(READS, 0, -1):
        try:
            file = CheckedTensors(path, framework)
            return {name: file[name] for name in file.names}
        except FileNotFoundError:
            raise RunError(f"{path}: no such file") from None
        except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
            # RuntimeError: torch opens the file, too. TypeError: NumPy has no such numbers.
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
        self.begin(state.step)
        self.commit(state, self.write(state.step, files))

    def _temporary(self, step: int) -> Path:
        return self.folder / f".{self.path(step).name}.part"

    def begin(self, step: int) -> None:
        """Make an empty folder, into which all processes of a job may write."""
        make_folder(self.folder)
        remove_folder(self._temporary(step))
        make_folder(self._temporary(step))

    def write(self, step: int, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
        """Write tensor files of a checkpoint that is begun; returns their hashes."""
        digests = {}
        for name, tensors in files.items():
            write_tensors(self._temporary(step) / name, tensors)
            digests[name] = digest(self._temporary(step) / name)
        return digests

    def commit(self, state: TrainingState, digests: Mapping[str, str]) -> None:
        """Make the files that were written the checkpoint of a step, and delete all but the newest ones."""
        final, temporary = self.path(state.step), self._temporary(state.step)
        content = dataclasses.asdict(state) | {"files": dict(digests)}
        content["checksum"] = checksum(content)
        write_text(temporary / "state.json", json.dumps(content, indent=2))
        old = self.folder / f".{final.name}.old"
        if final.exists():  # the same step is saved again after its validation
            remove_folder(old)
            move(final, old)
        move(temporary, final)
        remove_folder(old)  # `prune` tries again what could not be removed
        sync(self.folder)
        self.prune()

    def prune(self) -> None:
        """Delete what a newer checkpoint replaces."""
        self.clear_unfinished()
        for step in self.steps()[:-KEPT]:
            remove_folder(self.path(step))

    def load(self, step: int) -> tuple[TrainingState, dict[str, Mapping[str, Tensor]]]:
        """Read one checkpoint; RunError if a file of it is missing or damaged."""
        state, digests = self.read_state(step)
        for name, expected in digests.items():
            path = self.path(step) / name
            if not path.exists() or digest(path) != expected:
                raise RunError(f"{path}: {'damaged' if path.exists() else 'missing'}")
        return state, {name: open_tensors(self.path(step) / name) for name in dict.fromkeys(map(whole_name, digests))}

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
                move(path, final)
        for path in self.folder.glob(".*.part"):
            remove_folder(path)
