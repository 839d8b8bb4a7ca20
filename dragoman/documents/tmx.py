"""TMX translation memories as documents: each unit gets a variant in the target language where it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.base import DataError
from dragoman.data import same_language
from dragoman.documents.base import Edit, Reading, Unit, UnitTranslation
from dragoman.documents.content import Content, content_of, percent
from dragoman.documents.references import without_forbidden
from dragoman.documents.xml import XMLDocument, XMLToken, attributes_of, local, quoted
from dragoman.inference.segments import escape_text

AROUND = frozenset({"hi"})  # all others hold native code
FINDING = "x-dragoman-finding"  # the type of properties that say what is doubtful about a translation


@dataclass
class _Variant:
    language: str
    start: XMLToken
    segment: list[XMLToken] = field(default_factory=list)  # tokens of <seg>
    end: int = 0
    findings: list[tuple[int, int]] = field(default_factory=list)  # about an earlier translation


class TMXDocument(XMLDocument):
    """A unit for every <tu> with a variant in the source language."""

    units: list[Unit]

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        self.header = ""
        entries = self._read()
        source, self.target = self._languages(entries, reading)
        self.sources = [source]
        self.places: list[tuple[_Variant, _Variant | None, Content]] = []
        for number, variants in enumerate(entries, 1):
            first, other = (
                next((variant for variant in variants if same_language(variant.language, language)), None)
                for language in (source, self.target)
            )
            if first is None or len(first.segment) < 3:
                continue
            content = self.text[other.segment[0].end : other.segment[-1].start] if other and other.segment else ""
            inside = first.segment[0].end, first.segment[-1].start
            self.limits.add(self.text, *inside, f"unit {number}", "<")
            source_content = content_of(self.text, first.segment[1:-1], AROUND, len(self.units))
            self.places.append((first, other, source_content))
            done = bool(content.strip())
            self.units += [Unit(block, f"unit {number}", done) for block in source_content.blocks]

    def _read(self) -> list[list[_Variant]]:
        entries: list[list[_Variant]] = []
        inside, is_tmx = False, False
        property_start: int | None = None  # of a finding
        for token in self.tokens:
            name = local(token.name)
            variant = entries[-1][-1] if entries and entries[-1] else None
            if inside and variant is not None:
                variant.segment.append(token)
            if token.kind in ("open", "empty"):
                attributes = attributes_of(self.raw(token)) if name in ("tuv", "header") else {}
                if name == "tmx":
                    is_tmx = True
                elif name == "header":
                    self.header = attributes.get("srclang", "")
                elif name == "tu":
                    entries.append([])
                elif name == "tuv" and entries and token.kind == "open":
                    entries[-1].append(_Variant(attributes.get("xml:lang") or attributes.get("lang", ""), token))
                elif name == "prop" and attributes_of(self.raw(token)).get("type") == FINDING:
                    property_start = token.start
                elif name == "seg" and variant is not None:
                    variant.segment = [token]
                    inside = token.kind == "open"
            elif token.kind == "close" and name == "prop" and property_start is not None:
                if variant is not None and not variant.end:
                    variant.findings.append((property_start, token.end))
                property_start = None
            elif token.kind == "close" and name == "seg":
                inside = False
            elif token.kind == "close" and name == "tuv" and variant is not None:
                variant.end = token.end
        if not is_tmx:
            raise DataError("document: found no <tmx>, expected a translation memory")
        return entries

    def _languages(self, entries: list[list[_Variant]], reading: Reading) -> tuple[str, str]:
        """Source and target language: as asked for, or by the header and the only other language of the file."""
        counts = Counter(variant.language.lower() for variants in entries for variant in variants)
        source = reading.source or ("" if self.header.lower() == "*all*" else self.header)
        source = source or next((variant.language for variants in entries for variant in variants), "")
        if reading.target:
            return source, reading.target
        others = [code for code in counts if not same_language(code, source)]
        if len(others) != 1:
            languages = ", ".join(sorted(counts)) or "no language"
            raise DataError(f"document: found {languages}; name the target language with --to")
        return source, others[0]

    def further_edits(self, outputs: Sequence[UnitTranslation | None]) -> Iterable[Edit]:
        for first, other, content in self.places:
            translation = content.written(outputs)
            if translation is None:
                continue
            markup, _, confidence = translation
            findings = "".join(
                f'<prop type="{FINDING}">{escape_text(without_forbidden(str(finding)))}</prop>'
                for finding in content.findings(outputs)
            )
            if other is not None and other.segment:
                for start, end in other.findings:
                    yield Edit(start, end, "")
                yield Edit(other.segment[0].start, other.segment[-1].end, f"{findings}<seg>{markup}</seg>")
                continue
            space = self.text[self.text.rfind(">", 0, first.start.start) + 1 : first.start.start]
            space = "" if space.strip() else space
            quality = ""
            if confidence is not None:
                quality = f'<prop type="x-match-quality">{percent(confidence):.0f}</prop>'
            name = "lang" if " lang=" in self.raw(first.start) else "xml:lang"
            variant = f"<tuv {name}={quoted(self.target)}>{quality}{findings}<seg>{markup}</seg></tuv>"
            yield Edit(first.end, first.end, space + variant)
