"""The plan of a sharded prediction: shards of an input file, and a manifest that all workers must agree on.

The folder of a job has a manifest and, for every shard that is done, part-00007.txt (or .jsonl), part-00007.json with
its counts and hashes, and part-00007.rejected.jsonl if rows failed. A shard is done when its .json exists, which is
written last.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from dragoman.data.readers.base import READERS, compression_of
from dragoman.data.readers.conll import sentence_layout
from dragoman.data.readers.lines import check_file
from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions
from dragoman.decoding.shortlist import NAME as SHORTLIST
from dragoman.errors import ConfigError, DataError
from dragoman.files import digest, write_text
from dragoman.inference.confidence import CALIBRATION
from dragoman.inference.open_inputs import FaultyInput, has_sentences, read_inputs, reads_files
from dragoman.runs import Run
from dragoman.runs.folder import MEMBERS_FILE, member_folders

FORMAT = 2
MANIFEST = "manifest.json"
WITHOUT_EFFECT = ("batch_size",)  # options that do not change outputs
# The files of a run folder that outputs depend on, beside its weights and tokenizers.
OUTPUT_FILES = ("config.toml", "data.json", MEMBERS_FILE, CALIBRATION, SHORTLIST)


class Shard(NamedTuple):
    """Lines that begin in the bytes start … end−1 of a text file, or row groups start … end−1 of a Parquet file."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Job:
    """A sharded prediction; it can be sent to another process or machine that sees the same files."""

    run: str
    file: str
    folder: str
    options: DecodingOptions
    columns: tuple[str, ...] = ()  # of the input: see DataConfig
    header: bool = False
    named_columns: bool = False  # the lines of the input are rows of columns, whatever its suffix
    as_json: bool = False
    device: str = "auto"
    shard_bytes: int = 8 << 20

    @cached_property
    def shards(self) -> list[Shard]:
        path = Path(self.file)
        return [Shard(number, *ends) for number, ends in enumerate(READERS.of(path).cut(path, self.shard_bytes))]

    def inputs(self, shard: Shard, run: Run) -> Iterator[ConstrainedInput | FaultyInput]:
        """The inputs of a shard; the place of one is its first byte, or the number of its row."""
        data = replace(run.config.data, columns=self.columns, header=self.header)
        return read_inputs(run, Path(self.file), data, self.named_columns, (shard.start, shard.end))

    @cached_property
    def stamp(self) -> tuple[int, ...]:
        """Size and times of the input before its content was hashed."""
        return file_stamp(Path(self.file))

    def check_unchanged(self) -> None:
        """Raise DataError if the input was edited since the manifest was made: shards would be of different texts."""
        if file_stamp(Path(self.file)) != self.stamp and digest(Path(self.file)) != self.manifest["input"]["hash"]:
            raise DataError(
                f"{self.file}: changed while its shards were predicted; name another folder and start again"
            )

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "input": {"name": Path(self.file).name, "bytes": self.stamp[0], "hash": digest(Path(self.file))},
            "run": run_digest(Path(self.run)),
            "options": described(self.options) | {"json": self.as_json},
            "reading": {"columns": self.columns, "header": self.header, "named_columns": self.named_columns},
            "shards": [[shard.start, shard.end] for shard in self.shards],
        }

    @cached_property
    def key(self) -> str:
        return hashlib.blake2b(json.dumps(self.manifest, sort_keys=True).encode(), digest_size=16).hexdigest()

    def part(self, shard: Shard, suffix: str) -> Path:
        width = max(5, len(str(len(self.shards))))
        return Path(self.folder) / f"part-{shard.number:0{width}}{suffix}"

    def output(self, shard: Shard) -> Path:
        return self.part(shard, ".jsonl" if self.as_json else ".txt")

    def record(self, shard: Shard) -> dict[str, Any] | None:
        """What the worker wrote down that did a shard; None: it is not done."""
        try:
            record: dict[str, Any] = json.loads(self.part(shard, ".json").read_text(encoding="utf-8"))
            size = self.output(shard).stat().st_size
        except (OSError, ValueError):
            return None
        return record if record.get("job") == self.key and record.get("bytes") == size else None

    def open(self) -> None:
        """Check the input and write the manifest, or compare it with the one that is there."""
        path, folder = Path(self.file), Path(self.folder)
        check_input(path)
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder}: found a file, expected a folder for the shards")
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / MANIFEST
        if not manifest.exists():
            if any(folder.glob("part-*")) and not manifest.exists():  # another worker may have begun just now
                raise DataError(
                    f"{folder}: found parts without {MANIFEST}, expected a new folder or one of the same job"
                )
            own = folder / f".{MANIFEST}.{uuid4().hex}"  # other workers may write it at the same moment
            write_text(own, json.dumps(self.manifest, indent=1) + "\n")
            own.replace(manifest)
        try:
            existing = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{manifest}: cannot be read ({error}); remove the folder to begin again") from None
        wanted = json.loads(json.dumps(self.manifest))
        if existing != wanted:
            names = [name for name in wanted if not isinstance(existing, dict) or existing.get(name) != wanted[name]]
            differ = f"{', '.join(names)} differ{'s' if len(names) == 1 else ''}"
            raise ConfigError(
                f"{folder}: found shards of another job ({differ}), expected those of {self.run} and {self.file}; "
                "name another folder"
            )


def check_run(run: Run, path: Path) -> None:
    """Raise DataError unless the inputs of a run are single lines or rows of a file."""
    if reads_files(run):
        raise DataError(f"--shards: {run.folder} reads recordings or pictures, expected a run that reads text")
    if run.config.data.context:
        raise DataError(f"--shards: {run.folder} reads the sentences before each source, which a shard may not have")
    if has_sentences(run, path) and sentence_layout(path) != "lines":
        raise DataError(f"--shards: {path} has a word on each line, expected a sentence on each line")


def check_input(path: Path) -> None:
    """Raise DataError unless a file can be cut into shards."""
    check_file(path)
    if compression_of(path):
        raise DataError(f"{path}: found a compressed file, which cannot be cut into shards; decompress it first")
    READERS.of(path).cut(path, 1 << 40)


def file_stamp(path: Path) -> tuple[int, ...]:
    """Size and times of a file. The time of the last change of its data or times cannot be set back."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def run_digest(folder: Path) -> str:
    """A hash of all files of a run that outputs depend on, also those of its members, wherever the run lies."""
    run = Run(folder)
    files = [run.weights_path(), *(folder / name for name in OUTPUT_FILES), *sorted((folder / "tokenizer").rglob("*"))]
    hashes = [(path.name, digest(path)) for path in files if path.is_file()]
    hashes += [("member", run_digest(member)) for member in member_folders(folder)]
    return hashlib.blake2b(json.dumps(hashes).encode(), digest_size=16).hexdigest()


def described(value: Any) -> Any:
    """Options as JSON; files and runs that they name by their content."""
    if isinstance(value, DecodingOptions):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in WITHOUT_EFFECT}
        return {name: described(item) for name, item in own.items() if item not in (None, (), False)}
    if isinstance(value, Terminology):
        return described(value.terms)
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {
            field.name: described(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, str | Path) and 0 < len(str(value)) < 4096 and "\0" not in str(value):
        if os.path.isfile(value):  # noqa: PTH113  (it may be any text)
            return digest(Path(value))
        if os.path.isfile(os.path.join(value, "config.toml")):  # noqa: PTH113, PTH118
            return run_digest(Path(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [described(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
