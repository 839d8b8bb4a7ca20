"""XLIFF 1.2 and 2.x: the exchange format of translation tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.documents.base import Edit, Output, Reading, TextDocument, Unit, declared_encoding
from dragoman.documents.inline import inline_block
from dragoman.documents.markup import escape_text
from dragoman.documents.xml import (
    XMLToken,
    attributes_of,
    check_xml,
    element_ends,
    local,
    quoted,
    with_attribute,
    xml_tokens,
)
from dragoman.errors import DataError

AROUND = frozenset({"g", "mrk", "pc"})  # inline elements with text inside; those of native code are kept whole
MATCHES = "urn:oasis:names:tc:xliff:matches:2.0"


@dataclass
class _Segment:
    """A source and the place of its target."""

    location: str
    start: XMLToken  # of the element that holds source and target
    unit: XMLToken  # of the element that holds the segment: the same in XLIFF 1.2
    sources: list[XMLToken] = field(default_factory=list)  # tokens of the source element
    targets: list[XMLToken] = field(default_factory=list)
    segmented: XMLToken | None = None  # the end of <seg-source>


class XLIFFDocument(TextDocument):
    """A unit for every <trans-unit> (1.2) or <segment> (2.x) that may be translated."""

    escape_unknown = True

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading, declared_encoding(data))
        check_xml(self.text, "document")
        self.reading = reading
        self.segments: list[_Segment] = []
        self.roots: list[XMLToken] = []  # tags that name the languages
        self.version2 = False
        self._read(list(xml_tokens(self.text, "document")))
        if not self.roots:
            raise DataError("document: found no <xliff> with a <file> inside, expected XLIFF")
        for segment in self.segments:
            block = inline_block(self.text, segment.sources[1:-1], AROUND)
            content = self.text[segment.targets[0].end : segment.targets[-1].start] if segment.targets else ""
            self.units.append(Unit(block, segment.location, bool(content.strip())))

    def _read(self, tokens: list[XMLToken]) -> None:
        """Find the segments that may be translated, and the tags that name languages."""
        ends = element_ends(tokens)
        flags: list[bool] = [True]  # whether the content of each open element is translated
        unit: XMLToken | None = None
        for index, token in enumerate(tokens):
            name = local(token.name)
            if token.kind == "close":
                flags.pop()
            if token.kind not in ("open", "empty"):
                continue
            attributes = attributes_of(self.text[token.start : token.end])
            wanted = flags[-1] if "translate" not in attributes else attributes["translate"] != "no"
            if name == "xliff":
                self.version2 = attributes.get("version", "1.2").startswith("2")
            if name == ("xliff" if self.version2 else "file"):
                self.roots.append(token)
            if name in ("unit", "trans-unit"):
                unit = token
            if token.kind == "open":
                flags.append(wanted)
                if name in ("trans-unit", "segment") and wanted and unit is not None:
                    identity = attributes.get("id") or str(len(self.segments) + 1)
                    segment = _Segment(f"unit {identity}", token, unit)
                    if self._fill(segment, tokens, index + 1, ends):
                        self.segments.append(segment)

    def _fill(self, segment: _Segment, tokens: list[XMLToken], index: int, ends: dict[int, int]) -> bool:
        """Find source and target among the children of a segment; returns whether there is text to translate."""
        while tokens[index].kind != "close":
            name, last = local(tokens[index].name), ends.get(index, index)
            if name == "source":
                segment.sources = tokens[index : last + 1]
            elif name == "target":
                segment.targets = tokens[index : last + 1]
            elif name == "seg-source":
                segment.segmented = tokens[last]
            index = last + 1
        return len(segment.sources) > 2

    def edits(self, index: int, output: Output) -> Iterable[Edit]:
        """See TextDocument."""
        segment = self.segments[index]
        first = segment.sources[0]
        prefix = first.name.removesuffix("source")  # of the namespace
        tag = f"<{prefix}target>"
        if segment.targets:
            tag = self.text[segment.targets[0].start : segment.targets[0].end].replace("/>", ">")
        space = self.text[self.text.rfind(">", 0, first.start) + 1 : first.start]
        candidate = ""
        if not self.version2:
            tag = with_attribute(tag, "state", "needs-review-translation")
            tag = with_attribute(tag, "state-qualifier", "mt-suggestion")
            if output.confidence is not None:
                candidate = (
                    f'{space}<{prefix}alt-trans match-quality="{output.confidence:.0%}" origin="dragoman">'
                    f"<{prefix}target>{output.markup}</{prefix}target></{prefix}alt-trans>"
                )
        written = f"{tag}{output.markup}</{prefix}target>{candidate}"
        if segment.targets:
            yield Edit(segment.targets[0].start, segment.targets[-1].end, written)
        else:
            end = (segment.segmented or segment.sources[-1]).end
            yield Edit(end, end, space + written)

    def further_edits(self, outputs: Sequence[Output | None]) -> Iterable[Edit]:
        """The target language and, in XLIFF 2, the candidates with their quality at the start of each unit."""
        name = "trgLang" if self.version2 else "target-language"
        for root in self.roots if self.reading.target else ():
            tag = self.text[root.start : root.end]
            if not attributes_of(tag).get(name):
                yield Edit(root.start, root.end, with_attribute(tag, name, self.reading.target))
        if not self.version2:
            return
        matches: dict[XMLToken, list[str]] = {}
        for index, output in enumerate(outputs):
            if output is None or output.confidence is None:
                continue
            segment = self.segments[index]
            tag = self.text[segment.start.start : segment.start.end]
            identity = attributes_of(tag).get("id")
            if identity is None:
                identity = f"dragoman{index + 1}"
                yield Edit(segment.start.start, segment.start.end, with_attribute(tag, "id", identity))
            matches.setdefault(segment.unit, []).append(
                f'<mtc:match ref={quoted("#" + identity)} origin="dragoman" type="mt" '
                f'matchQuality="{100 * output.confidence:.1f}"><source>{escape_text(self.units[index].block.text)}'
                f"</source><target>{escape_text(output.text)}</target></mtc:match>"
            )
        for unit, several in matches.items():
            added = f"<mtc:matches xmlns:mtc={quoted(MATCHES)}>{''.join(several)}</mtc:matches>"
            yield Edit(unit.end, unit.end, added)
