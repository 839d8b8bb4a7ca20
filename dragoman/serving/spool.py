"""Translated files that wait to be fetched, and glossaries, in folders that the workers of a server share."""

from __future__ import annotations

import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

KEPT = 3600.0  # seconds
MAX_FILES = 200
_ID = re.compile(r"[0-9a-f]{32}")


class Spool:
    """Stores files under random names that this class makes; a name of another form is never looked for."""

    def __init__(self, folder: str | Path, kept: float = KEPT) -> None:
        self.folder, self.kept = Path(folder), kept
        self.folder.mkdir(exist_ok=True, parents=True)

    def add(self, data: bytes) -> str:
        """Store a file; returns its id."""
        self.clean()
        key = secrets.token_hex(16)
        path = self.folder / key
        path.touch(mode=0o600)
        path.write_bytes(data)
        return key

    def replace(self, key: str, data: bytes) -> None:
        """Store other data under an id; whoever reads it meanwhile sees the old or the new."""
        assert _ID.fullmatch(key), "an id that `add` returned"
        part = self.folder / f"{key}.{secrets.token_hex(4)}"
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(self.folder / key)

    def get(self, key: str) -> bytes | None:
        """A stored file; None: there is none of this id, or its time is over.

        Whoever knows the id may have the file: it is 128 random bits, which only the answer to its request has.
        """
        if not _ID.fullmatch(key):
            return None
        path = self.folder / key
        try:
            return None if time.time() - path.stat().st_mtime > self.kept else path.read_bytes()
        except OSError:
            return None

    def ids(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if _ID.fullmatch(path.name)]

    @property
    def full(self) -> bool:
        """Whether another file would push out the oldest."""
        return len(self.ids()) >= MAX_FILES - 1

    def remove(self, key: str) -> None:
        if _ID.fullmatch(key):
            with suppress(OSError):
                (self.folder / key).unlink()

    def clean(self) -> None:
        """Delete files that are old, and the oldest if there are too many."""
        files = []
        for key in self.ids():
            with suppress(OSError):
                files.append(((self.folder / key).stat().st_mtime, self.folder / key))
        files.sort(reverse=True)
        for number, (changed, path) in enumerate(files, 1):
            if number >= MAX_FILES or time.time() - changed > self.kept:
                with suppress(OSError):
                    path.unlink()
