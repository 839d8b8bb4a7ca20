"""The document formats, by the suffix of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from dragoman.documents.base import Document, Reading
from dragoman.documents.epub import BookDocument
from dragoman.documents.markdown import MarkdownDocument
from dragoman.documents.odt import OpenDocument
from dragoman.documents.office import PresentationDocument, WordDocument
from dragoman.documents.plain import PlainDocument
from dragoman.documents.po import PODocument
from dragoman.documents.subtitles import SRTDocument, WebVTTDocument
from dragoman.documents.tmx import TMXDocument
from dragoman.documents.web_page import HTMLDocument, XHTMLDocument
from dragoman.documents.xliff import XLIFFDocument
from dragoman.errors import DataError, hint

FORMATS: dict[str, Callable[[bytes, Reading], Document]] = {
    ".txt": PlainDocument,
    ".md": MarkdownDocument,
    ".markdown": MarkdownDocument,
    ".html": HTMLDocument,
    ".htm": HTMLDocument,
    ".xhtml": XHTMLDocument,
    ".srt": SRTDocument,
    ".vtt": WebVTTDocument,
    ".po": PODocument,
    ".pot": PODocument,
    ".xlf": XLIFFDocument,
    ".xliff": XLIFFDocument,
    ".tmx": TMXDocument,
    ".docx": WordDocument,
    ".pptx": PresentationDocument,
    ".odt": OpenDocument,
    ".odp": OpenDocument,
    ".epub": lambda data, reading: BookDocument(data, reading, FORMATS[".xhtml"]),
}


def open_document(name: str, data: bytes, reading: Reading | None = None) -> Document:
    """The document in some bytes; the suffix of `name` decides the format. A faulty one raises DataError with name."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        raise DataError(f"{name}: found {suffix or 'no suffix'!r}. {hint(suffix, FORMATS)}")
    try:
        return FORMATS[suffix](data, reading or Reading())
    except DataError as error:
        raise DataError(str(error).replace("document", name, 1)) from None
