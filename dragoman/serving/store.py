"""What a server keeps between requests, in an SQLite database that its workers share: files, glossaries and styles.

A change reads and writes in one transaction, so changes of many clients at once follow each other.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.base import RunError, refuse_links

KEPT = 3600.0  # seconds that a file waits to be fetched
TOGETHER = 20  # times what one client may keep: what all clients may
PATIENCE = 10.0  # seconds to wait for a change of another worker
_ID = re.compile(r"[0-9a-f]{32}")
_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, client TEXT NOT NULL, changed REAL NOT NULL, about TEXT NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_of_clients ON files (client, changed);
CREATE TABLE IF NOT EXISTS glossaries (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, created TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS glossaries_of_owners ON glossaries (owner);
CREATE TABLE IF NOT EXISTS dictionaries (
    glossary TEXT NOT NULL REFERENCES glossaries (id) ON DELETE CASCADE, source TEXT NOT NULL, target TEXT NOT NULL,
    number INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL, entries TEXT NOT NULL,
    PRIMARY KEY (glossary, source, target)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS styles (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created TEXT NOT NULL, about TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS styles_of_owners ON styles (owner);
"""


class Store:
    """A database; `glossaries.py` and `styles.py` read and write their tables.

    A client may keep `files` files of `size` bytes together; another one pushes out its oldest.
    """

    def __init__(self, folder: str | Path, files: int, size: int) -> None:
        self.path, self.files, self.size = Path(folder) / "server.sqlite", files, size
        self.path.parent.mkdir(exist_ok=True, parents=True)
        refuse_links(*(self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm")))
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # the other files of SQLite get the same mode
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            with self.change() as rows:
                for statement in _TABLES.split(";"):
                    rows.execute(statement)
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: found no database of a server ({error}); move the file away") from None

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """The rows for one change: all of it is written, or after an exception nothing."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def read(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # --- files

    def add(self, client: str, about: str = "", data: bytes = b"") -> str:
        """Keep a file of a client, what is known about it and its bytes; returns its id."""
        key, now = secrets.token_hex(16), time.time()
        with self.change() as rows:
            rows.execute("DELETE FROM files WHERE changed < ?", (now - KEPT,))
            rows.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", (key, client, now, about, data))
            self._make_room(rows, client)
        return key

    def replace(self, key: str, about: str, data: bytes = b"") -> None:
        """Keep something else under an id; one that is gone stays gone."""
        with self.change() as rows:
            found = rows.execute("SELECT client FROM files WHERE id = ?", (key,)).fetchone()
            if found is not None:
                values = (time.time(), about, data, key)
                rows.execute("UPDATE files SET changed = ?, about = ?, data = ? WHERE id = ?", values)
                self._make_room(rows, found[0])

    def _make_room(self, rows: sqlite3.Connection, client: str) -> None:
        """Delete the oldest files of a client that has too many, or of the one with most where all have too many."""
        by_client = "SELECT client, sum(length(data)) AS size FROM files GROUP BY client ORDER BY size"
        sizes = rows.execute(by_client).fetchall()
        over = sum(size for _, size in sizes) - TOGETHER * self.size
        for name, most in ((client, self.size), *(((sizes[-1][0], sizes[-1][1] - over),) if over > 0 else ())):
            own = "SELECT id, length(data) FROM files WHERE client = ? ORDER BY changed DESC, id"
            size = 0
            for number, (key, length) in enumerate(rows.execute(own, (name,)).fetchall(), 1):
                size += length
                if number > self.files or (size > most and number > 1):
                    rows.execute("DELETE FROM files WHERE id = ?", (key,))

    def about(self, key: str) -> str | None:
        """What is known about a file; None: there is none of this id, or its time is over.

        Whoever knows the id may have the file: it is 128 random bits, which only the answer to its request has.
        """
        about: str | None = self._of_file("about", key)
        return about

    def data(self, key: str) -> bytes | None:
        """The bytes of a file; None as for `about`."""
        data: bytes | None = self._of_file("data", key)
        return data

    def _of_file(self, column: str, key: str) -> Any:
        if not _ID.fullmatch(key):
            return None
        found = self.read(f"SELECT {column} FROM files WHERE id = ? AND changed >= ?", key, time.time() - KEPT)
        return found[0][0] if found else None

    def take(self, key: str) -> bytes | None:
        """The bytes of a file, which is forgotten: of two that ask, one gets them."""
        with self.change() as rows:
            found = rows.execute("SELECT data FROM files WHERE id = ?", (key,)).fetchone()
            rows.execute("DELETE FROM files WHERE id = ?", (key,))
        return found[0] if found else None
