"""Remote files that a user's own configuration names: downloaded once into the cache, keyed by their content.

Web addresses are read by Python itself, other schemes such as s3:// by fsspec. A run folder names only the local
copies, so that opening the run of a stranger never asks a server for anything.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dragoman.base import ConfigError, DataError, cache_home, digest, is_silent, lock, progress, sync, write_text

PLACES = ("train", "valid", "general")  # settings of data that may name remote files
REMOTE = "remote"  # subfolder of the cache
TIMEOUT = 60.0  # seconds without an answer
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # one letter would be a drive of Windows
_VERSION = ("ETag", "etag", "Last-Modified", "LastModified", "mtime", "created", "md5", "generation")
_BLOCK = 1 << 20


def is_remote(path: str) -> bool:
    return bool(_ADDRESS.match(path))


class Stream(NamedTuple):
    """A remote file that is open for reading."""

    version: dict[str, str]  # what the server says to tell versions apart; may be empty
    size: int | None
    start: int  # the byte at which `file` stands
    file: Any


@contextmanager
def _open_web(url: str, start: int, version: Mapping[str, str]) -> Iterator[Stream]:
    from urllib.error import HTTPError  # only where a file is remote
    from urllib.request import Request, urlopen

    headers = {"Accept-Encoding": "identity", "User-Agent": "dragoman"}
    known = version.get("ETag") or version.get("Last-Modified")
    if start and known and not known.startswith("W/"):
        headers |= {"Range": f"bytes={start}-", "If-Range": known}  # another version is sent from its beginning
    try:
        answer = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()  # it holds the connection
        if error.code != 416:  # nothing is left to send
            raise
        answer = urlopen(Request(url, headers={"Accept-Encoding": "identity"}), timeout=TIMEOUT)
    with answer:
        found = {name: answer.headers[name] for name in ("ETag", "Last-Modified") if answer.headers[name]}
        start = start if answer.status == 206 else 0
        length = answer.headers["Content-Length"]
        yield Stream(found, start + int(length) if length else None, start, answer)


@contextmanager
def _open_other(url: str, start: int, version: Mapping[str, str]) -> Iterator[Stream]:
    system, path = _file_system(url)
    info = system.info(path)
    found = {name: str(info[name]) for name in _VERSION if info.get(name)}
    with system.open(path, "rb") as file:
        if start and found and found == version:
            file.seek(start)
        else:
            start = 0
        yield Stream(found, info.get("size"), start, file)


def _file_system(url: str) -> tuple[Any, str]:
    if "::" in url:
        raise ConfigError(f"{url}: found a chain of addresses, expected one")
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except ImportError as error:  # of fsspec, or of what it needs for this scheme
        raise ConfigError(
            f"{url}: this address needs another package ({error}); install it, with `pip install fsspec` if that is "
            "missing, or download the file"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{url}: found an unknown scheme ({error}), expected such as https:// or s3://") from None
    return system, path


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    """Turn every failure of a server into one line for the user."""
    from http.client import HTTPException

    try:
        yield
    except (HTTPException, OSError) as error:
        code = getattr(error, "code", None)  # of an answer
        if isinstance(error, FileNotFoundError) or code in (404, 410):
            raise DataError(f"{url}: no such file on the server") from None
        if code is not None:
            raise DataError(f"{url}: the server refuses ({error})") from None
        reason = getattr(error, "reason", None) or error
        raise UnreachableError(
            f"{url}: cannot be read ({reason}); run the same command again: it goes on where it stopped"
        ) from None


class UnreachableError(DataError):
    """A server does not answer, or stopped doing so."""


def matching_addresses(pattern: str) -> list[str]:
    """The addresses that a pattern such as s3://bucket/*.tsv.gz matches, in alphabetical order."""
    is_web = _is_web(pattern)
    if not any(sign in (urlsplit(pattern).path if is_web else pattern) for sign in "*[" + ("" if is_web else "?")):
        return [pattern]
    if is_web:
        raise ConfigError(f"{pattern}: found a pattern, expected the address of one file: web servers list no files")
    system, path = _file_system(pattern)
    with _server_errors(pattern):
        found = sorted(system.unstrip_protocol(match) for match in system.glob(path))
    if not found:
        raise DataError(f"{pattern}: no file matches")
    return found


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def local_copy(url: str, cache: Path) -> Path:
    """The file of an address in the cache; it is downloaded unless the cache has the version that the server has."""
    folder = cache / REMOTE
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    record, part = folder / f"{key}.json", folder / f"{key}.part"
    with (folder / f"{key}.lock").open("ab") as held:
        lock(held.fileno(), wait=True)  # the other processes of a job wait for the first
        known, begun = _read(record), _read(part.with_suffix(".part.json"))
        copy: Path | None = folder / known["digest"] / known["name"] if known else None
        opener = _open_web if _is_web(url) else _open_other
        start = part.stat().st_size if begun and part.exists() else 0
        try:
            with _server_errors(url), opener(url, start, begun.get("version", {})) as stream:
                if copy is not None and copy.is_file() and stream.version and stream.version == known["version"]:
                    return copy
                _download(url, stream, part)
                version = stream.version
        except UnreachableError as error:
            if copy is None or not copy.is_file() or part.exists():
                raise
            print(f"warning: {error}; training takes the copy of {known['version'] or 'before'}", file=sys.stderr)
            return copy
        return _keep(url, part, record, version)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _download(url: str, stream: Stream, part: Path) -> None:
    write_text(part.with_suffix(".part.json"), json.dumps({"url": url, "version": stream.version}))
    amount = "" if stream.size is None else f" ({stream.size / 1e6:,.1f} MB{' in all' if stream.start else ''})"
    if not is_silent():
        print(f"downloading {url}{amount}", file=sys.stderr)
    with part.open("r+b" if stream.start else "wb") as file:
        file.seek(stream.start)
        with progress("bytes", stream.size, start=stream.start) as done:
            while block := stream.file.read(_BLOCK):
                file.write(block)
                done(len(block))
        size = file.tell()
    if stream.size is not None and size != stream.size:
        raise OSError(f"found {size:,} of {stream.size:,} bytes")


def _keep(url: str, part: Path, record: Path, version: Mapping[str, str]) -> Path:
    """Move a complete download to the folder of its content."""
    sync(part)
    content = digest(part)
    path = urlsplit(url).path if _is_web(url) else url
    name = PurePosixPath(unquote(path).replace("\\", "/")).name or "data"
    folder = part.parent / content
    folder.mkdir(exist_ok=True)
    write_text(folder / f"{name}.source.json", json.dumps({"url": url, "version": version, "digest": content}))
    part.replace(folder / name)
    part.with_suffix(".part.json").unlink(missing_ok=True)
    sync(folder)
    write_text(record, json.dumps({"url": url, "version": version, "digest": content, "name": name}))
    return folder / name


def origins(paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Address and hash of each of these files that was downloaded."""
    found = {}
    for path in map(Path, paths):
        source = _read(path.with_name(f"{path.name}.source.json")) if path.parent.parent.name == REMOTE else {}
        if source:
            found[str(path)] = {"url": str(source["url"]), "digest": str(source["digest"])}
    return found


def remote_places(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings under data that name remote files, each with the first address."""
    data = table.get("data")
    found = []
    for place in PLACES if isinstance(data, Mapping) else ():
        if address := next((text for text in _texts(data.get(place)) if is_remote(text)), ""):  # type: ignore[union-attr]
            found.append((f"data.{place}", address))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for name in ("file", "source", "target") for text in _texts(value.get(name)))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def with_local_files(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of settings with the local copies of all remote files that it names."""
    if not remote_places(table):
        return dict(table)
    data: dict[str, Any] = dict(table["data"])
    cache = Path(data.get("cache") or cache_home()).absolute()

    def paths(text: str) -> list[str]:
        if not is_remote(text):
            return [text]
        return [str(local_copy(address, cache)) for address in matching_addresses(text)]

    def entries(value: Any) -> list[Any]:
        if isinstance(value, str):
            return list(paths(value))
        if isinstance(value, Mapping) and isinstance(value.get("file"), str):
            return [{**value, "file": path} for path in paths(value["file"])]
        if isinstance(value, Mapping) and all(isinstance(value.get(side), str) for side in ("source", "target")):
            sources, targets = paths(value["source"]), paths(value["target"])
            if len(sources) != len(targets):
                raise DataError(
                    f"{value['source']}, {value['target']}: found {len(sources)} files of sources and {len(targets)} "
                    "of targets, expected as many of each, in the same alphabetical order"
                )
            return [
                {**value, "source": source, "target": target} for source, target in zip(sources, targets, strict=True)
            ]
        if isinstance(value, list | tuple):
            return [entry for item in value for entry in entries(item)]
        return [value]

    for place, _ in remote_places(table):
        name = place.partition(".")[2]
        found = entries(data[name])
        data[name] = found[0] if len(found) == 1 and not isinstance(data[name], list | tuple) else found
    return {**table, "data": data}
