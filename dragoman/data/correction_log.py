"""Corrections that clients of a server send, and what a reviewer decides about them: JSON lines that are only appended.

A line is on disk before its sender reads that it was accepted. A process that is killed while it writes leaves a
line without an end: the next writer ends it, and readers pass over it. Several processes may write at once.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from dragoman.base import DataError, lock, open_handle, path_in_errors, sync
from dragoman.base.config import setting

State = Literal["pending", "accepted", "rejected"]
STATES: tuple[State, ...] = get_args(State)
DECISIONS: dict[str, State] = {"accept": "accepted", "reject": "rejected"}
FILE = "corrections.jsonl"
MOST_BYTES = 100_000_000  # of the file: strangers must not fill a disk


class FullError(DataError):
    """The log has as many bytes as it may have."""


@dataclass(frozen=True)
class Correction:
    """An output that somebody would write differently."""

    source: str
    correction: str
    output: str | None = None  # None: not known
    model: str = ""  # the name of the run on its server
    run: str = ""  # its folder
    version: int | None = None  # of the run (`dragoman info`); None: never adapted
    weights: str = ""  # hash of the weights that the server used
    source_language: str = ""
    target_language: str = ""
    tag: str = ""
    id: str = ""
    time: str = ""  # in UTC, ISO 8601
    state: State = "pending"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        languages = f"{self.source_language} → {self.target_language}" if self.target_language else ""
        version = f"version {self.version}" if self.version is not None else ""
        about = [self.id, self.state, self.time, self.model, version, languages, self.tag and f"tag {self.tag}"]
        yield "  ".join(filter(None, about))
        for label, text in (("source", self.source), ("output", self.output), ("better", self.correction)):
            if text is not None:
                yield f"  {label}  {' '.join(text.split())}"


STORED = {field.name for field in fields(Correction)} - {"state"}


class CorrectionLog:
    """The corrections in a folder."""

    def __init__(self, folder: str | Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = Path(folder), most_bytes
        self.path = self.folder / FILE

    def create(self) -> None:
        """Make folder and file unless they exist; an error tells before the first correction that none can be kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(write=True) as handle:
                os.fsync(handle)
            sync(self.folder)
        except OSError as error:
            raise DataError(f"{self.path}: corrections cannot be kept here ({error.strerror})") from None

    def add(self, correction: Correction) -> Correction:
        """Keep a correction; it is on disk when this returns. Raises FullError if the log may not grow."""
        kept = replace(correction, id=secrets.token_hex(6), time=now(), state="pending")
        self._append([{name: value for name, value in kept.as_dict().items() if name != "state"}])
        return kept

    def decide(self, ids: Sequence[str], state: State) -> list[Correction]:
        """Accept or reject corrections by their ids, or the beginnings of ids; all of them or, on an error, none."""
        known = {correction.id: correction for correction in self.read()}
        found = dict.fromkeys(self._whole_id(given, known) for given in ids)
        self._append([{"id": name, "state": state, "time": now()} for name in found])
        return [replace(known[name], state=state) for name in found]

    def read(self, state: State | None = None) -> list[Correction]:
        """All corrections, oldest first, or those of one state. Damaged lines are passed over."""
        found: dict[str, Correction] = {}
        for table in self._tables():
            name = table.get("id")
            if isinstance(name, str) and table.keys() == {"id", "state", "time"}:
                if name in found and table["state"] in STATES:
                    found[name] = replace(found[name], state=table["state"])
            elif (correction := as_correction(table)) is not None:
                found.setdefault(correction.id, correction)
        return [correction for correction in found.values() if state in (None, correction.state)]

    def _whole_id(self, given: str, known: Iterable[str]) -> str:
        matching = [name for name in known if given and name.startswith(given)]
        if len(matching) != 1:
            many = f"{len(matching)} corrections with ids that begin so" if matching else "no such correction"
            raise DataError(
                f"{self.path}: id '{given}': found {many}, expected one; `dragoman corrections list` shows the ids"
            )
        return matching[0]

    def _tables(self) -> Iterator[dict[str, Any]]:
        try:
            with self._locked(write=False) as handle, os.fdopen(handle, "rb", closefd=False) as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            raise DataError(
                f"{self.path}: not found; expected a folder of `dragoman serve --corrections FOLDER`"
            ) from None
        for line in lines:
            with suppress(ValueError, RecursionError):
                if isinstance(table := json.loads(line), dict):
                    yield table

    def _append(self, tables: Sequence[dict[str, Any]]) -> None:
        data = b"".join(json.dumps(table, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for table in tables)
        with path_in_errors(self.path), self._locked(write=True) as handle:
            size = os.lseek(handle, 0, os.SEEK_END)
            if size and (os.lseek(handle, -1, os.SEEK_END), os.read(handle, 1))[1] != b"\n":  # a writer was killed here
                data = b"\n" + data
            if size + len(data) > self.most_bytes:
                raise FullError(f"{self.path}: found {size:,} bytes, expected at most {self.most_bytes:,}")
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError:  # a full disk: what was not acknowledged goes
                os.ftruncate(handle, size)
                raise

    @contextmanager
    def _locked(self, write: bool) -> Iterator[int]:
        """A handle of the file while no other process writes to it; a symbolic link is never followed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
        handle = open_handle(self.path, flags, 0o600)
        try:
            lock(handle, wait=True, shared=not write)
            yield handle
        finally:
            os.close(handle)


@dataclass(frozen=True)
class ReviewOptions:
    """Which corrections a reviewer sees or decides about."""

    every: bool = setting(False, help="all corrections that wait for a decision", flag="--all")
    state: Literal["pending", "accepted", "rejected", "all"] = setting(
        "pending", help="which corrections `list` shows", flag="--state"
    )


def review(
    folder: str | Path,
    action: Literal["list", "accept", "reject"] = "list",
    ids: Sequence[str] = (),
    options: ReviewOptions | None = None,
) -> list[Correction]:
    """List the corrections that clients of a server have sent, or accept or reject some; returns those concerned."""
    log, options = CorrectionLog(folder), options or ReviewOptions()
    if action == "list":
        if ids or options.every:
            raise DataError("list takes no ids: found some, expected FOLDER alone; choose by --state")
        return log.read(None if options.state == "all" else options.state)
    if bool(ids) == options.every:
        raise DataError(f"found {'ids and --all' if ids else 'no id'}, expected ids or --all: what to {action}")
    chosen = [item.id for item in log.read("pending")] if options.every else ids
    return log.decide(chosen, DECISIONS[action])


def as_correction(table: dict[str, Any]) -> Correction | None:
    """The correction of a line; None for a line that has another form."""
    if not table.keys() >= {"id", "time", "source", "correction"} or not table.keys() <= STORED:
        return None
    optional = {name: table.pop(name) for name in ("output", "version") if table.get(name, 0) is None}
    wrong = [name for name, value in table.items() if not isinstance(value, int if name == "version" else str)]
    return None if wrong else Correction(**table, **optional)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
