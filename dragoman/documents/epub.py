"""Electronic books (.epub): their pages and tables of contents; metadata stay."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from dragoman.base import DataError
from dragoman.documents.base import PartsDocument, Reading
from dragoman.documents.content import inline_tokens
from dragoman.documents.html import XHTMLDocument
from dragoman.documents.package import Package, PackageDocument
from dragoman.documents.xml import XMLDocument, element_ends, local, start_tags, unescape_xml
from dragoman.inference.segments import block_of

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"
PAGE, CONTENTS = "application/xhtml+xml", "application/x-dtbncx+xml"


class ContentsDocument(XMLDocument, PartsDocument):
    """The labels of a table of contents (toc.ncx)."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        tokens, ends = self.tokens, element_ends(self.tokens)
        author = -1  # the end of an element with a name, which is no text to translate
        for index, end in sorted(ends.items()):
            inner = tokens[index + 1 : end]
            if local(tokens[index].name) == "docAuthor":
                author = end
            elif local(tokens[index].name) == "text" and index > author:
                block = block_of(inline_tokens(self.text, inner, ()), unescape_xml)
                if block.text.strip():
                    self.add(block, tokens[index].end, tokens[end].start)


class BookDocument(PackageDocument):
    """The pages that the package file names, in reading order, then other pages, then the table of contents."""

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(Package(data, ".epub"), reading)
        if CONTAINER not in self.package:
            raise DataError(f"document: found no {CONTAINER} in the package, expected .epub")
        tags = start_tags(self.package.read(CONTAINER), CONTAINER)
        roots = [attributes.get("full-path", "") for tag, attributes in tags if tag == "rootfile"]
        names = [name for name in roots if name in self.package]
        if not names:
            raise DataError(f"document: found no package file in {CONTAINER}, expected .epub")
        encryption = start_tags(self.package.read(ENCRYPTION), ENCRYPTION) if ENCRYPTION in self.package else ()
        # Fonts often are encrypted, pages must not be.
        locked = {unquote(attributes.get("URI", "")) for tag, attributes in encryption if tag == "CipherReference"}
        for root in names:
            for name, kind in self._items(root):
                if name in locked:
                    raise DataError(f"document: found the page {name[:60]!r} encrypted, expected it readable")
                if name in self.package and name not in self.parts:
                    try:
                        part = (XHTMLDocument if kind == PAGE else ContentsDocument)(self.package.read(name), reading)
                    except DataError as error:
                        raise DataError(str(error).replace("document:", f"document, {name}:", 1)) from None
                    self.add(name, part)

    def _items(self, root: str) -> list[tuple[str, str]]:
        """The pages and tables of contents of a package file, with their types."""
        folder = posixpath.dirname(root)
        items: dict[str, tuple[str, str]] = {}
        order: list[str] = []
        for name, attributes in start_tags(self.package.read(root), root):
            if name == "item":
                path = posixpath.normpath(posixpath.join(folder, unquote(attributes.get("href", ""))))
                items[attributes.get("id", path)] = path, attributes.get("media-type", "")
            elif name == "itemref":
                order.append(attributes.get("idref", ""))
        chosen = dict.fromkeys([*(items[identity] for identity in order if identity in items), *items.values()])
        return [item for kind in (PAGE, CONTENTS) for item in chosen if item[1] == kind]
