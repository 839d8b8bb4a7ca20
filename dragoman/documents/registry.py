"""The document formats, by the suffix of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from dragoman.base import DataError, hint
from dragoman.base.config import Table
from dragoman.data import language_name, normal_code, same_language
from dragoman.documents.base import Document, PlainDocument, Reading
from dragoman.documents.epub import BookDocument
from dragoman.documents.html import HTMLDocument, XHTMLDocument
from dragoman.documents.markdown import MarkdownDocument
from dragoman.documents.odt import OpenDocument
from dragoman.documents.office import PresentationDocument, WordDocument
from dragoman.documents.po import PODocument
from dragoman.documents.subtitles import SRTDocument, WebVTTDocument
from dragoman.documents.tmx import TMXDocument
from dragoman.documents.xliff import XLIFFDocument


@dataclass(frozen=True)
class DocumentFormat:
    """A file format whose texts can be translated in place."""

    suffixes: tuple[str, ...]
    open: Callable[[bytes, Reading], Document]


FORMATS = Table(
    "document format",
    lambda document: document.suffixes,
    (
        DocumentFormat((".txt",), PlainDocument),
        DocumentFormat((".md", ".markdown"), MarkdownDocument),
        DocumentFormat((".html", ".htm"), HTMLDocument),
        DocumentFormat((".xhtml",), XHTMLDocument),
        DocumentFormat((".srt",), SRTDocument),
        DocumentFormat((".vtt",), WebVTTDocument),
        DocumentFormat((".po", ".pot"), PODocument),
        DocumentFormat((".xlf", ".xliff"), XLIFFDocument),
        DocumentFormat((".tmx",), TMXDocument),
        DocumentFormat((".docx",), WordDocument),
        DocumentFormat((".pptx",), PresentationDocument),
        DocumentFormat((".odt", ".odp"), OpenDocument),
        DocumentFormat((".epub",), BookDocument),
    ),
)


def open_document(name: str, data: bytes, reading: Reading | None = None) -> Document:
    """The document in some bytes; the suffix of `name` decides the format. A faulty one raises DataError with name."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        raise DataError(f"{name}: found {suffix or 'no suffix'!r}. {hint(suffix, FORMATS)}")
    reading = reading or Reading()
    try:
        document = FORMATS[suffix].open(data, reading)
    except DataError as error:
        raise DataError(str(error).replace("document", name, 1)) from None
    sides = (("source", "--from", document.sources), ("target", "--to", document.targets))
    for (side, flag, named), expected in zip(sides, reading.expected, strict=True):
        for code in map(normal_code, named):
            if expected and code and not same_language(code, normal_code(expected)):
                raise DataError(
                    f"{name}: found the {side} language {code} ({language_name(code)}), expected {expected} of the "
                    f"run; choose another run, or say with {flag} which it is"
                )
    return document
