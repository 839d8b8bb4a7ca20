"""Documents that are zip packages (.docx, .pptx, .odt, .epub): read with limits; members without text stay."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

from dragoman.base import DataError
from dragoman.documents.base import (
    MAX_BYTES,
    Document,
    Reading,
    Unit,
    UnitTranslation,
    declared_encoding,
    decode,
)

MAX_MEMBERS = 10_000
MAX_RATIO = 200  # of a large package to its compressed size
MAX_NODES = 2_000_000  # tags and attributes in the parts that are parsed: each takes far more memory than its bytes
CHUNK = 1 << 20
OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # a compound file: Office 97, or a package with a password
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OUTSIDE = re.compile(r"/|[A-Za-z]:|.*\\|(.*/)?\.\.(/|$)", re.DOTALL)


class Package:
    """The members of a package. Nothing is unpacked to disk, and only the members that are read take memory."""

    def __init__(self, data: bytes, suffix: str) -> None:
        self.data, self.suffix = data, suffix
        self._nodes = 0
        if data.startswith(OLD_OFFICE):
            raise DataError(f"document: found a password or an older format, expected {suffix} without a password")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            self.members = {info.filename: info for info in self._zip.infolist()}
            check_members(self._zip.infolist())
            for info in self._zip.infolist():  # a damaged picture is found before hours of work, not after
                with self._zip.open(info) as member:
                    while member.read(CHUNK):
                        pass
        except DAMAGE as error:
            raise DataError(f"document: found a damaged package ({error}), expected {suffix}") from None

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def read(self, name: str) -> bytes:
        """The content of a member that will be parsed. Those of one package together must not have too many nodes."""
        parts: list[bytes] = []
        with self._zip.open(self.members[name]) as member:
            while chunk := member.read(CHUNK):
                self._nodes += chunk.count(b"<") + chunk.count(b"=")  # no fewer than its tags and attributes
                if self._nodes > MAX_NODES:
                    limit = f"{MAX_NODES:,} tags and attributes"
                    raise DataError(f"document, {name}: found more than {limit}, expected fewer; split the file")
                parts.append(chunk)
        return b"".join(parts)

    def write(self, changed: Mapping[str, bytes]) -> bytes:
        """The package with some members replaced; all others keep their compressed bytes, order, names and times."""
        parts: list[bytes] = []
        directory: list[bytes] = []
        place = 0
        for info in sorted(self.members.values(), key=lambda member: member.header_offset):
            if info.filename in changed:
                content = changed[info.filename]
                size, check = len(content), zlib.crc32(content)
                packed = content if info.compress_type == zipfile.ZIP_STORED else _deflate(content)
            else:
                size, check, packed = info.file_size, info.CRC, self._packed(info)
            flags, encoding = info.flag_bits & ~8, "cp437"
            if flags & 0x800 or info.filename != info.orig_filename:  # the name of a field that we leave out
                flags, encoding = flags | 0x800, "utf-8"
            name = info.filename.encode(encoding)
            year, month, day, hour, minute, second = info.date_time
            # Sizes stand in the header itself: neither data descriptors (bit 3) nor zip64 fields are needed any more.
            header = struct.pack(
                "<HHHHHLLLHH",
                20,
                flags,
                info.compress_type,
                hour << 11 | minute << 5 | second >> 1,
                (year - 1980) << 9 | month << 5 | day,
                check,
                len(packed),
                size,
                len(name),
                0,
            )
            parts += [b"PK\3\4", header, name, packed]
            made_by = info.create_system << 8 | info.create_version
            attributes = (len(info.comment), 0, info.internal_attr, info.external_attr, place)
            directory += [b"PK\1\2", struct.pack("<H", made_by), header, struct.pack("<HHHLL", *attributes), name]
            directory.append(info.comment)
            place += 4 + len(header) + len(name) + len(packed)
        count, comment = len(self.members), self._zip.comment
        size = sum(map(len, directory))
        end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, size, place, len(comment))
        return b"".join([*parts, *directory, end, comment])

    def _packed(self, info: zipfile.ZipInfo) -> bytes:
        name, extra = struct.unpack_from("<HH", self.data, info.header_offset + 26)
        start = info.header_offset + 30 + name + extra
        return self.data[start : start + info.compress_size]


def _deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse packages that would take all memory, or whose names lead out of a folder."""
    if len(members) > MAX_MEMBERS:
        raise DataError(f"document: found {len(members):,} files in the package, expected at most {MAX_MEMBERS:,}")
    total = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if total > MAX_BYTES or (total > MAX_BYTES // 16 and total > MAX_RATIO * packed):
        raise DataError(f"document: found {total:,} bytes packed into {packed:,}, expected a document")
    names = Counter(member.filename for member in members)
    for name, count in names.items():
        if _OUTSIDE.match(name):
            raise DataError(f"document: found the name {name[:60]!r} in the package, expected one inside it")
        if count > 1:
            raise DataError(f"document: found {name[:60]!r} {count} times in the package, expected it once")
    if any(member.flag_bits & 1 for member in members):
        raise DataError("document: found an encrypted package, expected one without password")
    method = next((member.compress_type for member in members if member.compress_type not in METHODS), None)
    if method is not None:
        raise DataError(f"document: found compression method {method} in the package, expected deflate (8) or none (0)")


class PackageDocument(Document):
    """A package in which some members are documents of their own; their units follow each other."""

    labels: Sequence[str] = ()  # members beside the parts that name the language of texts

    def __init__(self, package: Package, reading: Reading) -> None:
        self.package, self.reading = package, reading
        self.units: list[Unit] = []
        self.parts: dict[str, tuple[Document, int]] = {}  # with the number of units before it

    def add(self, name: str, part: Document) -> None:
        self.parts[name] = part, len(self.units)
        self.units += [unit._replace(location=f"{name}, {unit.location}") for unit in part.units]

    def relabelled(self, text: str) -> str:
        """The text of a member that names the target language, where it named another."""
        return text

    def render(self, outputs: Sequence[UnitTranslation | None]) -> bytes:
        """See Document; without a translation these are the very same bytes."""
        changed = {}
        for name, (part, first) in self.parts.items():
            own = outputs[first : first + len(part.units)]
            if any(output is not None for output in own):
                changed[name] = part.render(own)
        for name in (*self.parts, *self.labels) if changed and self.reading.target else ():
            if name in changed or (name in self.labels and name in self.package):
                data = changed.get(name) or self.package.read(name)
                file = decode(data, declared_encoding(data))
                if (text := self.relabelled(file.text)) != file.text:
                    changed[name] = file.encode(text, references=True)
        return self.package.write(changed) if changed else self.package.data
