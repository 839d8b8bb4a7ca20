"""XLIFF 1.2 and 2.x: the exchange format of translation tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman.base import DataError
from dragoman.data import normal_code, same_language
from dragoman.documents.base import Edit, Reading, Unit, UnitTranslation
from dragoman.documents.content import Content, content_of, percent
from dragoman.documents.references import without_forbidden
from dragoman.documents.xml import XMLDocument, XMLToken, attributes_of, element_ends, local, quoted, with_attribute
from dragoman.inference.segments import escape_text

if TYPE_CHECKING:
    from dragoman.inference import Finding

AROUND = frozenset({"g", "mrk", "pc"})  # inline elements with text inside; those of native code are kept whole
MATCHES = "urn:oasis:names:tc:xliff:matches:2.0"
ORIGIN = "dragoman"
DONE = frozenset({None, "translated", "signed-off", "final"})  # states of XLIFF 1.2 that need no more work
UNTRANSLATED = frozenset({"new", "needs-translation", "initial"})  # states of a target that is no translation yet


@dataclass
class _Segment:
    """A source and the place of its target."""

    location: str
    start: XMLToken  # of the element that holds source and target
    unit: XMLToken  # of the element that holds the segment: the same in XLIFF 1.2
    preserve: bool  # xml:space
    maxwidth: int | None = None
    sources: list[XMLToken] = field(default_factory=list)  # tokens of the source element
    targets: list[XMLToken] = field(default_factory=list)
    segmented: list[XMLToken] = field(default_factory=list)  # tokens of <seg-source>
    candidates: list[tuple[int, int]] = field(default_factory=list)  # spans of our own <alt-trans> and <note>
    # All of its text, or what each <mrk mtype="seg"> of <seg-source> has inside; and the tags between.
    pieces: list[str | Content] = field(default_factory=list)


@dataclass
class _Notes:
    """The <notes> of a unit of XLIFF 2."""

    place: int  # where they may be put
    holder: XMLToken | None = None
    own: list[tuple[int, int]] = field(default_factory=list)  # spans of our own notes
    others: int = 0  # notes of others
    end: int = 0  # of the holder


def _line(finding: Finding) -> str:
    return escape_text(without_forbidden(str(finding)))


class XLIFFDocument(XMLDocument):
    """Units for every <trans-unit> (1.2) or <segment> (2.x) that may be translated."""

    units: list[Unit]

    marks_refused = True

    def __init__(self, data: bytes, reading: Reading) -> None:
        super().__init__(data, reading)
        self.segments: list[_Segment] = []
        self.roots: list[XMLToken] = []  # tags that name the languages
        self.matches: dict[XMLToken, XMLToken] = {}  # the <mtc:matches> of each unit that has one
        self.own: dict[XMLToken, list[tuple[int, int, str]]] = {}  # spans and references of our own matches
        self.notes: dict[XMLToken, _Notes] = {}
        self.version2 = False
        self._read(self.tokens)
        if not self.roots:
            raise DataError("document: found no <xliff> with a <file> inside, expected XLIFF")
        names = ("srcLang", "trgLang") if self.version2 else ("source-language", "target-language")
        self.sources, self.targets = (
            [code for root in self.roots if (code := attributes_of(self.raw(root)).get(name))] for name in names
        )
        for segment in self.segments:
            self._add(segment)

    def _read(self, tokens: Sequence[XMLToken]) -> None:
        """Find the segments that may be translated, the tags that name languages, and matches."""
        ends = element_ends(tokens)
        inherited = [(True, False)]  # of each open element: whether its content is translated, whether it keeps spaces
        unit: XMLToken | None = None
        for index, token in enumerate(tokens):
            name = local(token.name)
            if token.kind == "close":
                inherited.pop()
            if token.kind not in ("open", "empty"):
                continue
            attributes = attributes_of(self.raw(token))
            wanted, preserve = inherited[-1]
            wanted = attributes["translate"] != "no" if "translate" in attributes else wanted
            preserve = attributes["xml:space"] == "preserve" if "xml:space" in attributes else preserve
            if name == "xliff":
                self.version2 = attributes.get("version", "1.2").startswith("2")
            if name == ("xliff" if self.version2 else "file"):
                self.roots.append(token)
            if name in ("unit", "trans-unit"):
                unit = token
            elif name in ("segment", "ignorable", "originalData", "notes") and unit is not None and self.version2:
                notes = self.notes.setdefault(unit, _Notes(token.start))
                if name == "notes" and notes.place == token.start:
                    notes.holder, notes.end = token, tokens[ends.get(index, index)].end
            elif name == "note" and unit in self.notes:
                if attributes.get("category") == ORIGIN:
                    self.notes[unit].own.append((token.start, tokens[ends.get(index, index)].end))
                else:
                    self.notes[unit].others += 1
            elif name == "matches" and unit is not None:
                self.matches[unit] = token
            elif name == "match" and unit is not None and attributes.get("origin") == ORIGIN:
                span = (token.start, tokens[ends.get(index, index)].end, attributes.get("ref", ""))
                self.own.setdefault(unit, []).append(span)
            if token.kind == "open":
                inherited.append((wanted, preserve))
                if name in ("trans-unit", "segment") and wanted and unit is not None:
                    identity = attributes.get("id") or str(len(self.segments) + 1)
                    segment = _Segment(f"unit {identity}", token, unit, preserve, width_of(attributes))
                    if self._fill(segment, tokens, index + 1, ends):
                        self.segments.append(segment)

    def _fill(self, segment: _Segment, tokens: Sequence[XMLToken], index: int, ends: dict[int, int]) -> bool:
        """Find source and target among the children of a segment; returns whether there is text to translate."""
        fields = {"source": "sources", "target": "targets", "seg-source": "segmented"}
        while tokens[index].kind != "close":
            name, last = local(tokens[index].name), ends.get(index, index)
            if name in fields:
                setattr(segment, fields[name], tokens[index : last + 1])
            elif self._is_own(tokens[index]):
                start = self.text.rfind(">", 0, tokens[index].start) + 1  # with the white space before it
                segment.candidates.append((start, tokens[last].end))
            index = last + 1
        return len(segment.sources) > 2

    def _is_own(self, token: XMLToken) -> bool:
        """Whether an element of XLIFF 1.2 is a candidate or a note of ours."""
        name = {"alt-trans": "origin", "note": "from"}.get(local(token.name), "")
        return bool(name) and attributes_of(self.raw(token)).get(name) == ORIGIN

    def _add(self, segment: _Segment) -> None:
        space = attributes_of(self.raw(segment.sources[0])).get("xml:space")
        preserve = segment.preserve if space is None else space == "preserve"
        existing = {mid: self._inside(tokens) for mid, tokens in self._marked(segment.targets)}
        if segment.targets:
            existing[""] = self._inside(segment.targets)
        attributes = attributes_of(self.raw(segment.start))
        state = attributes.get("state") if self.version2 else None
        if segment.targets and not self.version2 and attributes.get("approved") != "yes":
            state = attributes_of(self.raw(segment.targets[0])).get("state")
        marked = list(self._marked(segment.segmented))
        whole = segment.segmented if marked else segment.sources
        place = whole[0].end
        for mid, tokens in marked or [("", segment.sources)]:
            self.limits.add(self.text, tokens[0].end, tokens[-1].start, segment.location, "<")
            content = content_of(self.text, tokens[1:-1], AROUND, len(self.units), preserve)
            content.existing = existing.get(mid, "")
            done = bool(content.existing.strip()) and state not in UNTRANSLATED
            # The limit is that of the whole target: of a segment in several blocks it holds for none alone.
            width = segment.maxwidth if len(marked) < 2 and len(content.blocks) == 1 else None
            self.units += [Unit(block, segment.location, done, width) for block in content.blocks]
            segment.pieces += [self.text[place : tokens[0].end], content]
            place = tokens[-1].start
        segment.pieces.append(self.text[place : whole[-1].start])

    def _inside(self, tokens: Sequence[XMLToken]) -> str:
        return self.text[tokens[0].end : tokens[-1].start]

    def _marked(self, tokens: Sequence[XMLToken]) -> Iterator[tuple[str, Sequence[XMLToken]]]:
        """Each <mrk mtype="seg">, with its `mid`."""
        waiting: list[tuple[str, int]] = []  # open elements
        for index, token in enumerate(tokens):
            if token.kind == "open":
                attributes = attributes_of(self.raw(token)) if local(token.name) == "mrk" else {}
                inside = any(mid for mid, _ in waiting)
                waiting.append(("" if inside or attributes.get("mtype") != "seg" else attributes.get("mid", ""), index))
            elif token.kind == "close":
                mid, first = waiting.pop()
                if mid:
                    yield mid, tokens[first : index + 1]

    def confirmed(self) -> Iterator[tuple[str, str, str]]:
        return self._translated(self._is_confirmed)

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        return self._translated(lambda segment: True)

    def _translated(self, wanted: Callable[[_Segment], bool]) -> Iterator[tuple[str, str, str]]:
        for segment in self.segments:
            if len(segment.targets) > 2 and wanted(segment):
                source, target = (
                    " ".join(block.text for block in content_of(self.text, tokens[1:-1], AROUND, 0).blocks)
                    for tokens in (segment.sources, segment.targets)
                )
                yield source, target, segment.location

    def _is_confirmed(self, segment: _Segment) -> bool:
        """Whether a person answers for the target; the output of a machine has a mark or a match of ours beside it."""
        attributes = attributes_of(self.raw(segment.start))
        if self.version2:
            state = attributes.get("state")
            return state in ("reviewed", "final") or (state == "translated" and segment.unit not in self.own)
        target = attributes_of(self.raw(segment.targets[0]))
        by_machine = target.get("state-qualifier", "").startswith("mt-")
        return attributes.get("approved") == "yes" or (target.get("state") in DONE and not by_machine)

    def further_edits(self, outputs: Sequence[UnitTranslation | None]) -> Iterable[Edit]:
        """All edits: a target depends on all units of its segment, the matches of XLIFF 2 on all segments of a unit."""
        name = "trgLang" if self.version2 else "target-language"
        for root in self.roots if self.reading.target else ():
            if not same_language(normal_code(attributes_of(self.raw(root)).get(name, "")), self.reading.target):
                yield Edit(root.start, root.end, with_attribute(self.raw(root), name, self.reading.target))
        notes: dict[XMLToken, list[Finding]] = {}
        matches: dict[XMLToken, dict[str, str]] = {}  # of each unit, by what they refer to
        for number, segment in enumerate(self.segments, 1):
            contents = [piece for piece in segment.pieces if isinstance(piece, Content)]
            if any(output is not None and output.refused for piece in contents for output in piece.own(outputs)):
                yield from self._refuse(segment)
                continue
            written = [piece.written(outputs) for piece in contents]
            fresh = [translation for translation in written if translation is not None]
            if not fresh:
                continue
            known = [confidence for _, _, confidence in fresh if confidence is not None]
            quality = percent(min(known)) if len(known) == len(fresh) else None
            results = iter(written)
            markup = "".join(
                piece if isinstance(piece, str) else new[0] if (new := next(results)) else piece.existing
                for piece in segment.pieces
            )
            remembered = all(
                output is None or output.from_memory for piece in contents for output in piece.own(outputs)
            )
            findings = [finding for piece in contents for finding in piece.findings(outputs)]
            yield from self._target(
                segment, markup, quality, qualifier="exact-match" if remembered else "mt-suggestion", findings=findings
            )
            tag = self._start_tag(segment, findings)
            if findings:
                notes.setdefault(segment.unit, []).extend(findings)
            elif segment.unit in self.notes:
                notes.setdefault(segment.unit, [])
            if self.version2 and quality is not None:
                identity = attributes_of(tag).get("id")
                if identity is None:
                    identity = f"{ORIGIN}{number}"
                    tag = with_attribute(tag, "id", identity)
                text = "".join(text for _, text, _ in fresh)
                reference = "#" + identity
                matches.setdefault(segment.unit, {})[reference] = self._match(segment, reference, quality, text)
            if tag != self.raw(segment.start):
                yield Edit(segment.start.start, segment.start.end, tag)
        for unit, several in matches.items():
            yield from self._add_matches(unit, several)
        for unit, findings in notes.items() if self.version2 else ():
            yield from self._add_notes(unit, findings)

    def _start_tag(self, segment: _Segment, findings: Sequence[Finding] = ()) -> str:
        """The tag of a segment, in a state that says no more than that there is a translation."""
        tag = self.raw(segment.start)
        attributes = attributes_of(tag)
        doubtful = next((finding for finding in findings if finding.hard), None)
        review = self.reading.review or doubtful is not None
        if not self.version2:
            return with_attribute(tag, "approved", "no") if review and attributes.get("approved") == "yes" else tag
        if doubtful is not None:
            return with_attribute(with_attribute(tag, "state", "translated"), "subState", f"{ORIGIN}:{doubtful.kind}")
        own = attributes.get("subState", "").startswith(f"{ORIGIN}:")
        done = attributes.get("state") in ("reviewed", "final") if review else attributes.get("state") != "translated"
        if done or own:
            return with_attribute(with_attribute(tag, "state", "translated"), "subState", None)
        return tag

    def _refuse(self, segment: _Segment) -> Iterator[Edit]:
        """Mark a segment whose translation was too uncertain: it still needs one."""
        if not self.version2:
            existing = self._inside(segment.targets) if segment.targets else ""
            yield from self._target(segment, existing, None, "needs-translation", "rejected-inaccurate")
            return
        tag = with_attribute(self.raw(segment.start), "state", "initial")
        yield Edit(segment.start.start, segment.start.end, with_attribute(tag, "subState", f"{ORIGIN}:refused"))

    def _target(
        self,
        segment: _Segment,
        markup: str,
        quality: float | None,
        state: str = "",
        qualifier: str = "mt-suggestion",
        findings: Sequence[Finding] = (),
    ) -> Iterator[Edit]:
        first = segment.sources[0]
        prefix = first.name.removesuffix("source")  # of the namespace
        tag = f"<{prefix}target>"
        if segment.targets:
            tag = self.raw(segment.targets[0])
            tag = tag[:-2].rstrip() + ">" if tag.endswith("/>") else tag
            code, target = attributes_of(tag).get("xml:lang"), self.reading.target
            if code and target and not same_language(normal_code(code), target):
                tag = with_attribute(tag, "xml:lang", target)
        elif space := attributes_of(self.raw(first)).get("xml:space"):
            tag = with_attribute(tag, "xml:space", space)
        between = self.text[self.text.rfind(">", 0, first.start) + 1 : first.start]
        candidate = ""
        if not self.version2:
            review = self.reading.review or any(finding.hard for finding in findings)
            state = state or ("needs-review-translation" if review else "translated")
            tag = with_attribute(with_attribute(tag, "state", state), "state-qualifier", qualifier)
            if quality is not None:
                candidate = (
                    f'{between}<{prefix}alt-trans match-quality="{quality:.0f}%" origin="{ORIGIN}">'
                    f"<{prefix}target>{markup}</{prefix}target></{prefix}alt-trans>"
                )
            for finding in findings:
                candidate += f'{between}<{prefix}note from="{ORIGIN}">{_line(finding)}</{prefix}note>'
        written = f"{tag}{markup}</{prefix}target>{candidate}"
        if segment.targets:
            yield Edit(segment.targets[0].start, segment.targets[-1].end, written)
        else:
            end = (segment.segmented or segment.sources)[-1].end
            yield Edit(end, end, between + written)
        yield from (Edit(start, end, "") for start, end in segment.candidates)

    def _add_notes(self, unit: XMLToken, findings: Sequence[Finding]) -> Iterator[Edit]:
        """Put notes with findings into a unit of XLIFF 2, in place of those about an earlier translation."""
        notes = self.notes.get(unit, _Notes(unit.end))
        prefix = unit.name.removesuffix("unit")
        lines = dict.fromkeys(map(_line, findings))
        several = "".join(f'<{prefix}note category="{ORIGIN}">{line}</{prefix}note>' for line in lines)
        if notes.own and not notes.others:  # the holder is ours, too
            yield Edit(notes.place, notes.end, f"<{prefix}notes>{several}</{prefix}notes>" if several else "")
            return
        yield from (Edit(start, end, "") for start, end in notes.own)
        if notes.holder is None:
            if several:
                yield Edit(notes.place, notes.place, f"<{prefix}notes>{several}</{prefix}notes>")
        elif notes.holder.kind == "empty":
            if several:
                tag = self.raw(notes.holder)[:-2].rstrip()
                yield Edit(notes.holder.start, notes.holder.end, f"{tag}>{several}</{notes.holder.name}>")
        elif several:
            yield Edit(notes.holder.end, notes.holder.end, several)

    def _match(self, segment: _Segment, reference: str, quality: float, text: str) -> str:
        """A match of XLIFF 2 as a string; its tags have no prefix yet."""
        prefix = segment.sources[0].name.removesuffix("source")
        contents = [piece for piece in segment.pieces if isinstance(piece, Content)]
        source = "".join(block.text for content in contents for block in content.blocks)
        both = "".join(
            f"<{prefix}{name}>{escape_text(without_forbidden(content))}</{prefix}{name}>"
            for name, content in (("source", source), ("target", text))
        )
        return f'match ref={quoted(reference)} origin="{ORIGIN}" type="mt" matchQuality="{quality:.1f}">{both}</'

    def _add_matches(self, unit: XMLToken, matches: dict[str, str]) -> Iterator[Edit]:
        """Put matches into a unit, in place of those that an earlier translation left."""
        own = self.own.get(unit, [])
        yield from (Edit(start, end, "") for start, end, reference in own if reference in matches)
        holder = self.matches.get(unit)
        prefix = "mtc:" if holder is None else holder.name.removesuffix("matches")
        several = "".join(f"<{prefix}{match}{prefix}match>" for match in matches.values())
        if holder is None:
            yield Edit(unit.end, unit.end, f"<mtc:matches xmlns:mtc={quoted(MATCHES)}>{several}</mtc:matches>")
        elif holder.kind == "empty":
            tag = self.raw(holder)[:-2].rstrip()
            yield Edit(holder.start, holder.end, f"{tag}>{several}</{holder.name}>")
        else:
            yield Edit(holder.end, holder.end, several)


def width_of(attributes: Mapping[str, str]) -> int | None:
    """The characters that a target may have at most; a limit in pixels or bytes is none.

    Where `maxwidth` has no unit the standard means pixels, but files that say nothing mean characters.
    """
    width = attributes.get("maxwidth", "")
    counts = attributes.get("size-unit", "char") == "char"
    return int(width) if counts and width.isascii() and width.isdecimal() and len(width) < 10 else None
