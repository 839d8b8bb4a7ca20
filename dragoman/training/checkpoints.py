"""Checkpoints that always load: written beside, synced to disk, renamed; each file's hash is kept with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dragoman.errors import RunError
from dragoman.files import create_empty, digest, make_folder, remove_folder, sync, write_text


@dataclass
class TrainingState:
    """How far a run has come; with weights and optimiser state all that exact resume needs."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of the epoch already used
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0  # spent in training steps
    validated: int = 0  # last step that was validated
    best: list[tuple[float, int]] = field(default_factory=list)  # (score, step), best first; higher is better
    waited: int = 0  # validations since the best one
    finished: bool = False
    loss_total: float = 0.0  # since the last logged line
    loss_count: int = 0


def checksum(content: Mapping[str, Any]) -> str:
    """A hash of what a JSON object says, however it is written."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace a safetensors file in one step."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        beside = create_empty(path.with_name(f".{path.name}.part"))
        safetensors.torch.save_file(plain, beside)
        beside.chmod(0o644)  # safetensors makes files that only their owner may read
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error})") from None
    sync(beside)
    beside.replace(path)
    sync(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged ({error})") from None


class Checkpoints:
    """The numbered checkpoints of a run, of which the newest few are kept."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.folder = run / "checkpoints"
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def path(self, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.folder / f"{step:08d}"

    def save(self, progress: TrainingState, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write a checkpoint of several tensor files; older ones beyond `keep` go."""
        final = self.path(progress.step)
        beside = self.folder / f".{final.name}.part"
        make_folder(self.folder)
        remove_folder(beside)
        beside.mkdir()
        digests = {}
        for name, tensors in files.items():
            write_tensors(beside / name, tensors)
            digests[name] = digest(beside / name)
        content = dataclasses.asdict(progress) | {"files": digests}
        content["checksum"] = checksum(content)
        write_text(beside / "progress.json", json.dumps(content, indent=2))
        if final.exists():  # a validation may be added to a step that was saved before
            old = self.folder / f".{final.name}.old"
            remove_folder(old)
            final.rename(old)
            beside.rename(final)
            remove_folder(old)
        else:
            beside.rename(final)
        sync(self.folder)
        for step in self.steps()[: -self.keep]:
            remove_folder(self.path(step))

    def load(self, step: int) -> tuple[TrainingState, dict[str, dict[str, Tensor]]]:
        """One checkpoint; a RunError if any of its files is missing or damaged."""
        folder = self.path(step)
        try:
            content: dict[str, Any] = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
            if content.pop("checksum") != checksum(content):
                raise ValueError("its checksum does not fit")
            digests = content.pop("files")
            content["best"] = [(float(score), int(step)) for score, step in content["best"]]
            progress = TrainingState(**content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{folder}/progress.json: damaged ({error})") from None
        files = {}
        for name, expected in digests.items():
            path = folder / name
            if not path.exists() or digest(path) != expected:
                raise RunError(f"{path}: {'damaged' if path.exists() else 'missing'}")
            files[name] = read_tensors(path)
        return progress, files

    def clear_unfinished(self) -> None:
        """Remove what a killed process was writing; a replaced checkpoint that was set aside comes back."""
        if not self.folder.is_dir():
            return
        make_folder(self.folder)  # refuses a link, behind which nothing may be removed
        for path in self.folder.glob(".*.old"):
            home = self.folder / path.name.removeprefix(".").removesuffix(".old")
            if home.exists():
                remove_folder(path)
            else:
                path.rename(home)
        for path in self.folder.glob(".*.part"):
            remove_folder(path)
