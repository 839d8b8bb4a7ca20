"""Remote files that a user's own configuration names: downloaded once into the cache, keyed by their content.

Web addresses are read by Python itself, other schemes such as s3:// by fsspec. A run folder names only the local
copies, so that opening the run of a stranger never asks a server for anything.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dragoman.base import (
    ConfigError,
    DataError,
    cache_home,
    digest,
    is_silent,
    lock,
    progress,
    sync,
    write_text,
)

PLACES = ("train", "valid", "general")  # settings of data that may name remote files
REMOTE = "remote"  # subfolder of the cache
TIMEOUT = 60.0  # seconds without an answer
MOST_UNTOLD = 16 << 30  # bytes of a file whose length the server does not tell: its stream may never end
LONGEST_NAME = 200  # bytes of a file name; the names beside it are longer, and file systems end at 255
SETTLED = 60  # seconds after which a Last-Modified names one version: it counts seconds (RFC 7232, 2.2.2)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # one letter would be a drive of Windows
_VERSION = ("ETag", "etag", "Last-Modified", "LastModified", "mtime", "created", "md5", "generation")
_BLOCK = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_IN_URLS = "%/:=&?~#+!$,;'@()*[]"  # what an address has besides letters and digits


def is_remote(path: str) -> bool:
    return bool(_ADDRESS.match(path))


class Begun(NamedTuple):
    """What an earlier process has of a file."""

    start: int = 0  # bytes
    version: Mapping[str, str] = {}
    validator: str = ""  # what names exactly this version to the server; without it the download begins anew
    size: int | None = None  # of the whole file


class Stream(NamedTuple):
    """A remote file that is open for reading."""

    version: dict[str, str]  # what the server says to tell versions apart; may be empty
    validator: str
    size: int | None
    start: int  # the byte at which `file` stands
    file: Any
    is_unchanged: Callable[[], bool] = lambda: True  # whether it is the same version at the end


def _ask(url: str, headers: Mapping[str, str]) -> Any:
    """The answer of a web server; also 416 (nothing is left to send), which is no error for who asked for a rest."""
    from urllib.error import HTTPError  # only where a file is remote
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    own = {"Accept-Encoding": "identity", "User-Agent": "dragoman"}
    try:
        return urlopen(Request(quote(url, _IN_URLS), headers=own | dict(headers)), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and headers:
            return error
        error.close()  # it holds the connection
        raise


@contextmanager
def _open_web(url: str, begun: Begun) -> Iterator[Stream]:
    rest = {"Range": f"bytes={begun.start}-", "If-Range": begun.validator} if begun.start and begun.validator else {}
    answer = _ask(url, rest)  # another version is sent from its beginning
    total = _total(answer, begun) if rest else None
    if rest and answer.status != 200 and total is None:
        answer.close()
        answer = _ask(url, {})
    with answer:
        if answer.status != 200 and total is None:
            raise DataError(f"{url}: the server answers {answer.status} {answer.reason}, expected 200 and the file")
        found = {name: answer.headers[name] for name in ("ETag", "Last-Modified") if answer.headers[name]}
        size, start = (_length(url, answer), 0) if total is None else (total, begun.start)
        yield Stream(found, _validator(answer.headers), size, start, answer)


def _total(answer: Any, begun: Begun) -> int | None:
    """The bytes of the whole file, if an answer is the rest of exactly the version that was begun."""
    said = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or said is None or _validator(answer.headers) != begun.validator:
        return None
    first, last, total = map(int, said.groups())
    length = answer.headers.get("Content-Length", str(last + 1 - first))
    fits = first == begun.start and begun.size in (None, total) and length == str(last + 1 - first)
    return total if fits else None


def _length(url: str, answer: Any) -> int | None:
    """The bytes that follow; None where their end is marked (chunks)."""
    if answer.chunked:
        return None
    said = sorted(set(answer.headers.get_all("Content-Length", ())))
    if len(said) == 1 and _NUMBER.fullmatch(said[0]):
        return int(said[0])
    if not said:
        raise DataError(
            f"{url}: the server does not say where the file ends, so a cut one would look whole; download it yourself "
            "and name the local file"
        )
    raise DataError(f"{url}: the server answers Content-Length: {', '.join(said)[:40]}, expected one number of bytes")


def _validator(headers: Any) -> str:
    """The name of exactly one version: a strong ETag, or the time of a change that was long over; else empty."""
    from email.utils import parsedate_to_datetime

    if tag := headers.get("ETag", ""):
        return "" if tag.startswith("W/") else str(tag)
    changed = headers.get("Last-Modified", "")
    try:
        age = parsedate_to_datetime(headers.get("Date", "")) - parsedate_to_datetime(changed)
    except (TypeError, ValueError):
        return ""
    return str(changed) if age.total_seconds() >= SETTLED else ""


@contextmanager
def _open_other(url: str, begun: Begun) -> Iterator[Stream]:
    system, path = _file_system(url)

    def state() -> tuple[dict[str, str], int | None]:
        system.invalidate_cache()  # of its listings
        info = system.info(path)
        return {name: str(info[name]) for name in _VERSION if info.get(name)}, info.get("size")

    found, size = state()
    start = begun.start if found and (found, size) == (begun.version, begun.size) else 0
    with system.open(path, "rb") as file:
        file.seek(start)
        yield Stream(found, "", size, start, file, lambda: state() == (found, size))


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
    except ValueError as error:
        raise DataError(f"{url}: not a valid address ({error})") from None


class UnreachableError(DataError):
    """A server does not answer, or stopped doing so."""


def matching_addresses(pattern: str) -> list[str]:
    """The addresses that a pattern such as s3://bucket/*.tsv.gz matches, in alphabetical order."""
    is_web = _is_web(pattern)
    if not any(sign in _path(pattern) for sign in "*[" + ("" if is_web else "?")):
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


def _path(url: str) -> str:
    """The part of an address that names the file."""
    try:
        url.encode()
        return urlsplit(url).path if _is_web(url) else url
    except ValueError as error:
        raise DataError(f"{url}: not a valid address ({error})") from None


def _file_name(url: str) -> str:
    """The name of the local copy; its suffix says how the file is read."""
    name = PurePosixPath(unquote(_path(url)).replace("\\", "/")).name or "data"
    if name == ".." or not name.isprintable():
        raise DataError(f"{url}: found the file name {name!r}, expected one that a file can have")
    if len(name.encode()) > LONGEST_NAME:
        found = f"{len(name.encode()):,} bytes"
        raise DataError(f"{url}: found a file name of {found}, expected at most {LONGEST_NAME}; download it yourself")
    return name


def local_copy(url: str, cache: Path) -> Path:
    """The file of an address in the cache; it is downloaded unless the cache has the version that the server has."""
    name = _file_name(url)
    folder = cache / REMOTE
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    record, part = folder / f"{key}.json", folder / f"{key}.part"
    with (folder / f"{key}.lock").open("ab") as held:
        lock(held.fileno(), wait=True)  # the other processes of a job wait for the first
        known = _read(record, "version", "digest", "name")
        copy: Path | None = folder / str(known["digest"]) / str(known["name"]) if known else None
        opener = _open_web if _is_web(url) else _open_other
        try:
            with _server_errors(url), opener(url, _begun(part)) as stream:
                if copy is not None and copy.is_file() and stream.version and stream.version == known["version"]:
                    return copy
                _download(url, stream, part)
                version = stream.version
        except UnreachableError as error:
            if copy is None or not copy.is_file() or part.exists():
                raise
            print(f"warning: {error}; training takes the copy of {known['version'] or 'before'}", file=sys.stderr)
            return copy
        return _keep(url, name, part, record, version)


def _read(path: Path, *names: str) -> dict[str, Any]:
    """The table of a JSON file; empty if it lacks one of these names."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.keys() >= set(names) else {}


def _begun(part: Path) -> Begun:
    note = _read(part.with_suffix(".part.json"), "version", "validator", "size")
    if not note or not part.exists():
        return Begun()
    return Begun(part.stat().st_size, note["version"], note["validator"], note["size"])


def _download(url: str, stream: Stream, part: Path) -> None:
    """Write a file, or the rest of it, to `part`.

    `part` has bytes of no other version than the one that the note beside it names, wherever the process is killed: the
    bytes of the one before go first, then comes the note, then the new bytes.
    """
    if not stream.start:
        part.unlink(missing_ok=True)
        note = {"url": url, "version": stream.version, "validator": stream.validator, "size": stream.size}
        write_text(part.with_suffix(".part.json"), json.dumps(note))
    free, missing = shutil.disk_usage(part.parent).free, (stream.size or 0) - stream.start
    if missing > free:
        raise DataError(f"{url}: needs {missing / 1e9:,.1f} GB, but {part.parent} has {free / 1e9:,.1f} GB left")
    amount = "" if stream.size is None else f" ({stream.size / 1e6:,.1f} MB{' in all' if stream.start else ''})"
    if not is_silent():
        print(f"downloading {url}{amount}", file=sys.stderr)
    most = MOST_UNTOLD if stream.size is None else stream.size
    with part.open("ab") as file, progress("bytes", stream.size, start=stream.start) as done:
        size = stream.start
        while size <= most and (block := stream.file.read(_BLOCK)):
            file.write(block)
            size += len(block)
            done(len(block))
    if size <= most and stream.size not in (None, size):
        raise OSError(f"found {size:,} of {stream.size:,} bytes")
    if part.stat().st_size != size:  # on a file system without locks
        raise OSError("another process is downloading it, too")
    if size > most or not stream.is_unchanged():
        part.unlink()
        found = f"more than {most:,} bytes" if size > most else "another version at the end than at the beginning"
        raise DataError(f"{url}: found {found}; download it yourself and name the local file")


def _keep(url: str, name: str, part: Path, record: Path, version: Mapping[str, str]) -> Path:
    """Move a complete download to the folder of its content."""
    sync(part)
    content = digest(part)
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
        source = (
            _read(path.with_name(f"{path.name}.source.json"), "url", "digest")
            if path.parent.parent.name == REMOTE
            else {}
        )
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
