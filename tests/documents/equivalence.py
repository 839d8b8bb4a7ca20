"""What other programs read in a document: two files with the same reading differ in nothing that counts."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

import html5lib
import polib
import srt
import webvtt
from lxml import etree
from markdown_it import MarkdownIt

XLIFF = ("{urn:oasis:names:tc:xliff:document:1.2}", "{urn:oasis:names:tc:xliff:document:2.0}", "")
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_NO_TEXT = (f"{WORD}proofErr", f"{WORD}lastRenderedPageBreak")


def _spaces(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "")


def html_tree(data: bytes, encoding: str = "") -> str:
    """The tree that a browser makes of a page; white space counts once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = html5lib.parse(data, treebuilder="etree", **({"transport_encoding": encoding} if encoding else {}))

    def lines(element: object, depth: int) -> Iterator[str]:
        yield f"{depth} {element.tag} {sorted(map(str, element.attrib.items()))} {_spaces(element.text)!r}"  # type: ignore[attr-defined]
        for child in element:  # type: ignore[attr-defined]
            yield from lines(child, depth + 1)
            yield f"{depth} … {_spaces(child.tail)!r}"

    return "\n".join(lines(tree, 0))


def xml_tree(data: bytes) -> str:
    """The names, attributes and texts of an XML document (lxml's C14N fails where a namespace has a relative name)."""
    root = etree.fromstring(data)
    return f"{root.tag} {sorted(root.attrib.items())} {_content(root)}"


def markdown_page(data: bytes) -> str:
    """The page that a CommonMark program makes of a text, with tables and deleted text."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return _spaces(parser.render(data.decode("utf-8-sig")))


def po_messages(data: bytes, path: Path) -> str:
    """The messages that polib reads."""
    path.write_bytes(data)
    return repr([(one.msgctxt, one.msgid, one.msgid_plural, one.occurrences) for one in polib.pofile(str(path))])


def xliff_without_targets(data: bytes) -> str:
    """Everything but the translations and the quality that a tool adds."""
    root = etree.fromstring(data)
    for element in list(root.iter(etree.Element)):
        name = etree.QName(element).localname
        if name in ("target", "alt-trans", "matches"):
            _remove(element)
    for element in root.iter(etree.Element):
        for attribute in ("target-language", "trgLang", *(("id",) if element.tag.endswith("segment") else ())):
            element.attrib.pop(attribute, None)
    return re.sub(r">\s+<", "><", f"<{root.tag} {sorted(root.attrib.items())}>{_content(root)}")


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    before = element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + (element.tail or "")
    else:
        parent.text = (parent.text or "") + (element.tail or "")
    parent.remove(element)


def xliff_pairs(data: bytes) -> dict[int, tuple[str, str]]:
    """The content of source and target of every unit that has both, as one string."""
    pairs = {}
    for number, element in enumerate(etree.fromstring(data).iter("{*}trans-unit", "{*}segment")):
        children = {etree.QName(child).localname: child for child in element.iterchildren(etree.Element)}
        if {"source", "target"} <= set(children):
            pairs[number] = (_content(children["source"]), _content(children["target"]))
    return pairs


def _content(element: etree._Element) -> str:
    parts = [element.text or ""]
    for child in element:
        name = child.tag if isinstance(child.tag, str) else "?"
        parts.append(f"<{name} {sorted(child.attrib.items())}>{_content(child)}</{name}>{child.tail or ''}")
    return "".join(parts)


def word_text(data: bytes) -> str:
    """Every part of a package; text is a list of characters with the properties of their runs."""
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        for name in package.namelist():
            content = package.read(name)
            if re.fullmatch(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml", name):
                found.append((name, list(_word_lines(etree.fromstring(content)))))
            else:
                found.append((name, content))
    return repr(found)


def _word_lines(element: etree._Element) -> Iterator[str]:
    """Tags in order, runs as characters with properties: where a run ends does not count."""
    if element.tag in _NO_TEXT or not isinstance(element.tag, str):
        return
    if element.tag != f"{WORD}r":
        attributes = {name: value for name, value in element.attrib.items() if "rsid" not in name}
        yield f"<{element.tag} {sorted(attributes.items())} {(element.text or '').strip()}"
        for child in element:
            yield from _word_lines(child)
        yield ">"
        return
    style = element.find(f"{WORD}rPr")
    properties = "" if style is None else _content(style)
    for child in element:
        if child.tag == f"{WORD}t":
            yield from (f"{letter}{properties}" for letter in child.text or "")
        elif child.tag != f"{WORD}rPr" and child.tag not in _NO_TEXT:
            yield properties
            yield from _word_lines(child)


def web_captions(data: bytes) -> str:
    """The cues that webvtt-py reads; of a file that it refuses, all words."""
    text = data.decode("utf-8-sig")
    try:
        cues = webvtt.from_string(text)
    except webvtt.errors.MalformedFileError:
        return _spaces(text)
    return repr([(one.identifier, one.start, one.end, _spaces(one.raw_text)) for one in cues])


def subtitles(data: bytes, encoding: str = "") -> str:
    """The cues that the srt package reads."""
    cues = srt.parse(data.decode(encoding or "utf-8-sig"), ignore_errors=True)
    return repr([(one.index, one.start, one.end, _spaces(one.content)) for one in cues])


def reading(name: str, data: bytes, folder: Path, encoding: str = "") -> str:
    """What an independent program reads in a file."""
    readers: dict[str, Callable[[], str]] = {
        ".html": lambda: html_tree(data, encoding),
        ".xhtml": lambda: xml_tree(data),
        ".md": lambda: markdown_page(data),
        ".po": lambda: po_messages(data, folder / "a.po"),
        ".xlf": lambda: xliff_without_targets(data),
        ".docx": lambda: word_text(data),
        ".vtt": lambda: web_captions(data),
        ".srt": lambda: subtitles(data, encoding),
        ".txt": lambda: data.decode(encoding or "utf-8-sig"),
    }
    return readers[PurePath(name).suffix]()
