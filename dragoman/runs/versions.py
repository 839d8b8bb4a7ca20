"""The versions of a run: weights that corrections made, each with what it was judged by.

`versions/` holds the weights of every version and `versions.json`. Which version is in use follows from the hash of
`weights.safetensors` and is stored nowhere, so a killed process cannot leave a list that contradicts the weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.base import RunError, copy_into, digest, make_folder, move, sync, write_text
from dragoman.runs.folder import Run, locked
from dragoman.training import parts_of

FOLDER, LIST = "versions", "versions.json"


@dataclass(frozen=True)
class Version:
    """One entry of the list. An adaptation that was no better has an entry, too, but no weights."""

    number: int  # 0: the weights were not kept
    made: str  # time in UTC, ISO 8601
    origin: str  # "training", or what it was adapted to
    digest: str  # of its weights
    kept: bool = True
    details: dict[str, Any] = field(default_factory=dict)  # corrections, method, scores before and after


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def versions_folder(run: Run) -> Path:
    return run.folder / FOLDER


def list_versions(run: Run) -> list[Version]:
    """All entries, oldest first; none for a run that was never adapted."""
    path = versions_folder(run) / LIST
    if not path.is_file():
        return []
    try:
        return [Version(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["versions"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None


def current_version(run: Run) -> Version | None:
    """The version whose weights predictions use; None: the run was never adapted, or was trained further since."""
    versions = [version for version in list_versions(run) if version.kept]
    if not versions:
        return None
    used = digest(run.weights_path())
    return next((version for version in reversed(versions) if version.digest == used), None)


def weights_of(run: Run, number: int) -> Path:
    return versions_folder(run) / f"{number:04d}.safetensors"


def add_version(run: Run, weights: Path | None, origin: str, details: dict[str, Any]) -> Version:
    """Enter an adaptation. With `weights` it becomes the version in use, and the old weights stay as a version."""
    make_folder(versions_folder(run))
    versions = list_versions(run)
    if weights is None:
        entry = Version(0, now(), origin, "", kept=False, details=details)
        _write(run, [*versions, entry])
        return entry
    if current_version(run) is None:
        if parts_of(run.weights_path()):
            raise RunError(f"{run.folder}: not validated yet; its checkpoint is in parts. Train it further first")
        versions.append(_store(run, versions, run.weights_path(), "training", {}))
        _write(run, versions)
    entry = _store(run, versions, weights, origin, details)
    _write(run, [*versions, entry])
    _use(run, entry)
    return entry


def roll_back(folder: str | Path, number: int | None = None) -> Version:
    """Use the weights of an earlier version again, by default of the one before; no version is lost."""
    run = Run(folder)
    with locked(run.folder):
        versions = {version.number: version for version in list_versions(run) if version.kept}
        if not versions:
            raise RunError(f"{run.folder}: found no versions; the run was never adapted")
        current = current_version(run)
        if number is None:
            earlier = [known for known in versions if current is None or known < current.number]
            if not earlier:
                raise RunError(f"{run.folder}: version {min(versions)} is in use, and there is none before it")
            number = max(earlier)
        if number not in versions:
            raise RunError(f"{run.folder}: found no version {number}, expected one of {', '.join(map(str, versions))}")
        if not weights_of(run, number).is_file() or digest(weights_of(run, number)) != versions[number].digest:
            raise RunError(f"{weights_of(run, number)}: missing or damaged; version {number} cannot be used")
        _use(run, versions[number])
        return versions[number]


def _store(run: Run, versions: list[Version], weights: Path, origin: str, details: dict[str, Any]) -> Version:
    number = 1 + max((version.number for version in versions), default=0)
    copy_into(weights, weights_of(run, number))
    sync(weights_of(run, number))
    return Version(number, now(), origin, digest(weights_of(run, number)), details=details)


def _write(run: Run, versions: list[Version]) -> None:
    text = json.dumps({"versions": [asdict(version) for version in versions]}, indent=1)
    write_text(versions_folder(run) / LIST, text)


def _use(run: Run, version: Version) -> None:
    beside = run.folder / ".weights.next.part"
    copy_into(weights_of(run, version.number), beside)
    sync(beside)  # before it takes the place of the old weights
    move(beside, run.folder / "weights.safetensors")
    sync(run.folder)


def check_original(run: Run) -> None:
    """Refuse to train a run further that predicts with adapted weights: training would overwrite them."""
    current = current_version(run)
    if current is not None and current.number > 1:
        raise RunError(
            f"{run.folder}: predicts with version {current.number}, adapted to corrections; training goes on with "
            f"version 1 and would replace it. Go back first: dragoman adapt {run.folder} --rollback 1; or start a new "
            f"run from these weights: --run NEW train.start_from={run.folder}"
        )
