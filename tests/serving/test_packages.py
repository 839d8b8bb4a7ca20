"""Office documents and books through the route for files."""

from __future__ import annotations

import io
import zipfile

import pytest

from dragoman.documents.registry import open_document
from tests.documents.samples import package
from tests.documents.test_packages import book
from tests.serving.conftest import Live

DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
OPEN = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
SLIDE = {
    "ppt/presentation.xml": "<a/>",
    "ppt/slides/slide1.xml": f'<a:p xmlns:a="{DRAWING}"><a:r><a:t>ab</a:t></a:r></a:p>',
}
PAGE = {"content.xml": f'<text:p xmlns:text="{OPEN}">ab</text:p>'}


def zipped(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.docx", package()),
        ("a.pptx", zipped(SLIDE)),
        ("a.odt", zipped(PAGE)),
        ("a.odp", zipped(PAGE)),
        ("a.epub", book()),
    ],
)
def test_packages_as_files(live: Live, name: str, data: bytes) -> None:
    assert f".{name[2:]}" in live.client.get("/frontend/settings").json()["supportedFilesFormat"]
    sent = {"files": {"file": (name, data)}, "data": {"source": "ab", "target": "cd"}}
    answer = live.client.post("/translate_file", **sent)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    found = live.client.get(answer.json()["translatedFileUrl"]).content
    assert found != data
    before, after = (open_document(name, one).units for one in (data, found))
    assert [unit.location for unit in after] == [unit.location for unit in before]
    assert [unit.block.text for unit in after] != [unit.block.text for unit in before]
