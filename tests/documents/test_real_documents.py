"""Real files of every format: what a model copies comes back, and only letters change where it changes letters."""

from __future__ import annotations

import string
from collections import Counter
from pathlib import Path

import pytest

from dragoman.base.errors import DataError
from dragoman.documents.base import Reading
from dragoman.documents.registry import FORMATS, open_document
from tests.documents import equivalence
from tests.documents.model import translated

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "documents"
FILES = sorted(path for path in FOLDER.glob("*") if path.suffix in FORMATS and path.name != "PROVENANCE.txt")
ENCODINGS = {"txt-002-test_big5.txt": "big5", "srt-002-gb2312.srt": "gb2312"}  # --encoding, which a user would give
REFUSED = {"srt-005-invalid_format1.srt", "srt-010-invalid_format2.srt"}  # no line with times
SWAP = str.maketrans(string.ascii_letters, string.ascii_letters.swapcase())
pytestmark = pytest.mark.skipif(not FILES, reason="needs shared/data/documents")


def fault_of(path: Path, folder: Path) -> str:
    """What is wrong with the translations of a file; empty: nothing."""
    data, encoding = path.read_bytes(), ENCODINGS.get(path.name, "")
    try:
        document = open_document(path.name, data, Reading("en", "", encoding))
    except DataError as error:
        return "" if path.name in REFUSED else f"refused: {error}"
    same = translated(document)
    if same != data:
        if path.suffix == ".xlf" and (wrong := wrong_target(data, same)):
            return wrong
        before, after = (equivalence.reading(path.name, one, folder, encoding) for one in (data, same))
        if before != after:
            return f"copied: {difference(before, after)}"
    changed = translated(document, lambda text: text.translate(SWAP))
    before, after = (equivalence.reading(path.name, one, folder, encoding).lower() for one in (data, changed))
    return f"changed: {difference(before, after)}" if before != after else ""


def wrong_target(data: bytes, same: bytes) -> str:
    """A target that is no copy of its source, though the file had none; empty: there is none."""
    before = equivalence.xliff_pairs(data)
    for place, (source, target) in equivalence.xliff_pairs(same).items():
        if place not in before and source != target:
            return f"target: {source[:100]!r} became {target[:100]!r}"
    return ""


def difference(before: str, after: str) -> str:
    """Where two texts differ."""
    place = next((index for index, (one, two) in enumerate(zip(before, after, strict=False)) if one != two), -1)
    first = max(0, place - 30)
    return f"{before[first : place + 60]!r} became {after[first : place + 60]!r}"


def test_real_documents(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    faults = {}
    for path in FILES:
        counts[path.suffix] += 1
        if fault := fault_of(path, tmp_path):
            faults[path.name] = fault
    assert sum(counts.values()) >= 400, counts
    lines = [f"{name}: {fault}" for name, fault in faults.items()]
    assert not faults, "\n".join([f"{len(faults)} of {counts.total()}", *lines])
