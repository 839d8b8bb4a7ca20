"""Word documents (.docx) and presentations (.pptx): the members of the package that have text."""

from __future__ import annotations

import re
from typing import ClassVar

from dragoman.documents.base import Reading
from dragoman.documents.package import Package, PackageDocument
from dragoman.documents.paragraphs import PackagePart
from dragoman.documents.runs import RunParagraph
from dragoman.documents.xml import start_tags
from dragoman.errors import DataError

TYPES = "[Content_Types].xml"
KINDS = {"w:p": RunParagraph, "a:p": RunParagraph}
_DRAWINGS = r"drawingml\.(?:chart|diagramData|diagramDrawing)\+xml$"


class OfficeDocument(PackageDocument):
    """A package of Office Open XML. The types of its members say which have text; without a type, names do."""

    suffix: ClassVar[str]
    main: ClassVar[str]  # the member that every document of this kind has, in the files of Office
    kinds: ClassVar[re.Pattern[str]]  # types of members with text
    names: ClassVar[re.Pattern[str]]

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(Package(data, self.suffix))
        types = {}  # of each member that has one of its own
        for tag in start_tags(self.package.read(TYPES), TYPES) if TYPES in self.package else ():
            if tag.name == "Override":
                types[tag.attributes.get("PartName", "").removeprefix("/")] = tag.attributes.get("ContentType", "")
        required = re.compile(r"\.main\+xml$")
        if self.main not in self.package and not any(required.search(kind) for kind in types.values()):
            raise DataError(f"document: found no {self.main} in the package, expected {self.suffix}")
        for name in sorted(self.package.members, key=_in_order):
            kind = types.get(name)
            if self.names.fullmatch(name) if kind is None else self.kinds.search(kind):
                masters = "slideMaster" in name or "slideLayout" in name
                self.add(name, PackagePart(name, self.package.read(name), KINDS, masters=masters))


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts slide2 before slide10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class WordDocument(OfficeDocument):
    """Paragraphs in the text, in headers, footers, notes and comments, and in charts and diagrams."""

    suffix, main = ".docx", "word/document.xml"
    kinds = re.compile(
        r"wordprocessingml\.(?:document\.main|header|footer|footnotes|endnotes|comments)\+xml$"
        rf"|word\.(?:document|template)\.macroEnabled\.main\+xml$|{_DRAWINGS}"
    )
    names = re.compile(
        r"word/(?:(?:document|header\d*|footer\d*|footnotes|endnotes|comments)|charts/chart\d+|diagrams/(?:data|drawing)\d+)\.xml"
    )


class PresentationDocument(OfficeDocument):
    """Paragraphs on slides and notes pages, in charts and diagrams; of masters, those that every slide shows."""

    suffix, main = ".pptx", "ppt/presentation.xml"
    kinds = re.compile(rf"presentationml\.(?:slide|notesSlide|slideMaster|slideLayout)\+xml$|{_DRAWINGS}")
    names = re.compile(
        r"ppt/(?:slides/slide|notesSlides/notesSlide|slideMasters/slideMaster|slideLayouts/slideLayout|charts/chart"
        r"|diagrams/(?:data|drawing))\d+\.xml"
    )
