"""Random documents of every format with random outputs and random alignments: what other programs read is as it was.

Each unit has random nested tags. Its output is random words, with a random alignment. The file must be well-formed,
each tag must be there once and inside the same tag as before, codes in two parts must keep their order, and the text
must be the output. With the source as output each unit must come back exactly. A case is one document.

python benchmarks/campaign/documents.py [UNITS] [--formats html,docx] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import io
import random
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import html5lib
import polib
from lxml import etree
from markdown_it import MarkdownIt
from markdown_it.token import Token as MarkdownToken

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.documents.base import Document, Reading, UnitTranslation
from dragoman.documents.registry import open_document
from dragoman.inference.segments.markup import Aligned, Block, place_markup, project, words_of

UNITS = 10  # of a document
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five.",
    "(six)",
    "seven,",
    "eight!",
    "nine",
    "ten",
    "漢字",
    "です。",
    "ไทย",
    "“x”",
]
OUTPUTS = [*WORDS, "&", "<", ">", "<b>", "&amp;", "a*b", "x_y", "[z]", "\\", "é", "l'eau", "--", "…", "7", "]]>"]
MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
Tree = tuple[str, tuple[Any, ...]]  # a tag and what is inside, in an order that does not depend on the file's


class Sample(NamedTuple):
    """A random document, and what of it another program must find again in a file."""

    name: str
    data: bytes
    read: Callable[[bytes], list[tuple[Any, str]]]  # skeleton and text of every unit
    exact: bool = True  # whether the source as output gives the very same markup
    words: list[str] = OUTPUTS


class Writer:
    """Random markup of one format."""

    def __init__(self, draw: random.Random, around: str, points: str, pairs: str = "") -> None:
        """Tags are templates with | between them: NUMBER is unique, … the content."""
        self.draw, self.number = draw, 0
        self.around, self.points, self.pairs = (one.split("|") if one else [] for one in (around, points, pairs))

    def unit(self, depth: int = 0) -> str:
        """A text with tags; codes in two parts begin and end anywhere, but in this order."""
        parts = [self.part(depth) for _ in range(self.draw.randint(1, 5))]
        if self.pairs and self.draw.random() < 0.5:
            self.number += 1
            begin, end = self.draw.choice(self.pairs).replace("NUMBER", str(self.number)).split("…")
            first, last = sorted(self.draw.randrange(len(parts) + 1) for _ in range(2))
            parts.insert(last, end)
            parts.insert(first, begin)
        text = "".join(parts)
        if depth == 0 and not re.sub(r"<code.*?</code>|<[^>]*>", "", text).strip():
            return self.unit()
        return text

    def part(self, depth: int) -> str:
        chance = self.draw.random()
        space = self.draw.choice([" ", " ", ""])
        if chance < 0.5 or depth > 4:
            return space + self.draw.choice(WORDS) + self.draw.choice([" ", ""])
        self.number += 1
        if chance < 0.65 and self.points:
            return space + self.draw.choice(self.points).replace("NUMBER", str(self.number))
        template = self.draw.choice(self.around).replace("NUMBER", str(self.number))
        return space + template.replace("…", self.unit(depth + 1))


def tree_of(element: Any, codes: tuple[str, ...] = ()) -> Tree:
    """An element of lxml or html5lib, with its attributes; the order of its children does not count."""
    if not isinstance(element.tag, str):
        return "comment", (element.text,)
    name = re.sub(r"\{.*\}", "", element.tag)
    if name in codes:
        return f"{name} {sorted(element.attrib.items())}", (element.text, len(element))
    children = sorted(tree_of(child, codes) for child in element)
    return f"{name} {sorted(element.attrib.items())}", tuple(children)


def text_of(element: Any, codes: tuple[str, ...] = ()) -> str:
    """The text of an element without that of its codes."""
    if not isinstance(element.tag, str) or re.sub(r"\{.*\}", "", element.tag) in codes:
        return ""
    return (element.text or "") + "".join(text_of(child, codes) + (child.tail or "") for child in element)


# --- formats


def page(draw: random.Random) -> Sample:
    """HTML, and XHTML with the same tags."""
    xml = draw.random() < 0.3
    slash = "/" if xml else ""
    around = "|".join(f'<{name} id="NUMBER">…</{name}>' for name in ("b", "i", "em", "span", "u", "bdi"))
    writer = Writer(
        draw, around, f'<img id="NUMBER"{slash}>|<wbr id="NUMBER"{slash}>|<!-- NUMBER --> |<code id="NUMBER">x</code>'
    )
    units = "\n".join(f"<p>{writer.unit()}</p>" for _ in range(UNITS))
    text = f'<html><head><meta charset="utf-8"{slash}></head><body>{units}</body></html>'

    def read(data: bytes) -> list[tuple[Any, str]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            root = etree.fromstring(data) if xml else html5lib.parse(data, namespaceHTMLElements=False)
        return [(tree_of(unit), text_of(unit, ("code",))) for unit in root.iter("p")]

    return Sample("a.xhtml" if xml else "a.html", text.encode(), read)


def exchange(draw: random.Random) -> Sample:
    """XLIFF 1.2 and 2."""
    second = draw.random() < 0.5
    if second:
        codes, space = ("ph", "sc", "ec", "sm", "em"), "urn:oasis:names:tc:xliff:document:2.0"
        pairs = '<sc id="NUMBER"/>…<ec startRef="NUMBER"/>|<sm id="mNUMBER"/>…<em startRef="mNUMBER"/>'
        around, points = '<pc id="NUMBER">…</pc>|<mrk id="mNUMBER">…</mrk>', '<ph id="NUMBER"/>'
        writer = Writer(draw, around, points, pairs)
        units = "".join(
            f'<unit id="u{n}"><segment id="s{n}"><source>{writer.unit()}</source></segment></unit>'
            for n in range(UNITS)
        )
        text = f'<xliff xmlns="{space}" version="2.0" srcLang="en"><file id="f">{units}</file></xliff>'
    else:
        codes, space = ("x", "ph", "bpt", "ept", "bx", "ex", "it"), "urn:oasis:names:tc:xliff:document:1.2"
        pairs = '<bpt id="NUMBER">b</bpt>…<ept id="NUMBER">e</ept>'
        pairs += '|<bx id="aNUMBER" rid="NUMBER"/>…<ex id="bNUMBER" rid="NUMBER"/>'
        around, points = '<g id="NUMBER">…</g>|<mrk mid="NUMBER">…</mrk>', '<x id="NUMBER"/>|<ph id="NUMBER">c</ph>'
        writer = Writer(draw, around, points, pairs)
        units = "".join(f'<trans-unit id="{n}"><source>{writer.unit()}</source></trans-unit>' for n in range(UNITS))
        text = f'<xliff xmlns="{space}" version="1.2"><file source-language="en"><body>{units}</body></file></xliff>'

    def read(data: bytes) -> list[tuple[Any, str]]:
        found = []
        for unit in etree.fromstring(data).iter("{*}trans-unit", "{*}segment"):
            target = unit.find("{*}target")
            content = target if target is not None else unit.find("{*}source")
            found.append(((tree_of(content, codes)[1], in_order(content, codes)), text_of(content, codes)))
        return found

    return Sample("a.xlf", text.encode(), read)


def in_order(element: Any, codes: tuple[str, ...]) -> list[str]:
    """Codes that end before they begin."""
    begun, wrong = set(), []
    for code in element.iter():
        name = re.sub(r"\{.*\}", "", code.tag) if isinstance(code.tag, str) else ""
        identity = code.get("startRef") or code.get("rid") or code.get("i") or code.get("id")
        if name in ("bpt", "bx", "sc", "sm"):
            begun.add(identity)
        elif name in ("ept", "ex", "ec", "em") and identity not in begun:
            wrong.append(f"{name} {identity}")
    return wrong


def memory(draw: random.Random) -> Sample:
    """TMX."""
    codes = ("ph", "bpt", "ept", "it")
    writer = Writer(draw, '<hi x="NUMBER">…</hi>', '<ph x="NUMBER">c</ph>|<it x="NUMBER" pos="begin">c</it>',
                    '<bpt i="NUMBER">b</bpt>…<ept i="NUMBER">e</ept>')  # fmt: skip
    units = "".join(f'<tu><tuv xml:lang="en"><seg>{writer.unit()}</seg></tuv></tu>' for _ in range(UNITS))
    text = f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>'

    def read(data: bytes) -> list[tuple[Any, str]]:
        segments = [list(unit.iter("seg"))[-1] for unit in etree.fromstring(data).iter("tu")]
        return [((tree_of(one, codes), in_order(one, codes)), text_of(one, codes)) for one in segments]

    return Sample("a.tmx", text.encode(), read)


def word(draw: random.Random) -> Sample:
    """Word documents: runs with properties, links, bookmarks."""

    def run(number: int) -> str:
        style = draw.choice(["", "", "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/></w:rPr>"])
        return f'<w:r>{style}<w:t xml:space="preserve">{draw.choice(WORDS)}{draw.choice([" ", ""])}</w:t></w:r>'

    number, paragraphs = 0, []
    for _ in range(UNITS):
        parts = [run(0)]
        for _ in range(draw.randint(0, 6)):
            number += 1
            inner = "".join(run(number) for _ in range(draw.randint(1, 3)))
            parts.append(draw.choice([
                inner, f'<w:hyperlink w:anchor="{number}">{inner}</w:hyperlink>',
                f'<w:ins w:id="{number}">{inner}</w:ins>',
                f'<w:bookmarkStart w:id="{number}"/>', f'<w:r><w:sym w:char="{number}"/></w:r>',
            ]))  # fmt: skip
        paragraphs.append(f"<w:p>{''.join(parts)}</w:p>")
    body = f'<w:document xmlns:w="{MAIN}"><w:body>{"".join(paragraphs)}</w:body></w:document>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        package.writestr("word/document.xml", body)

    def read(data: bytes) -> list[tuple[Any, str]]:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            root = etree.fromstring(package.read("word/document.xml"))
        found = []
        for paragraph in root.iter(f"{{{MAIN}}}p"):
            wrong = [one.tag for one in paragraph.iter(f"{{{MAIN}}}t") if one.getparent().tag != f"{{{MAIN}}}r"]
            wrong += [one.tag for one in paragraph.iter(f"{{{MAIN}}}r") if one.getparent().tag == one.tag]
            tags = [(one.tag, one.getparent().tag, *one.attrib.values()) for one in paragraph.iter() if one.attrib]
            kept = sorted(tag for tag in tags if not tag[0].endswith("}t"))
            found.append(((wrong, kept), "".join(one.text or "" for one in paragraph.iter(f"{{{MAIN}}}t"))))
        return found

    return Sample("a.docx", out.getvalue(), read, exact=False)


def captions(draw: random.Random) -> Sample:
    """WebVTT and SRT."""
    web = draw.random() < 0.5
    writer = Writer(draw, "<b>…</b>|<i>…</i>|<u>…</u>" + ("|<c.nNUMBER>…</c>" if web else ""), "")
    head, dot = ("WEBVTT\n\n", ".") if web else ("", ",")
    cues = [
        f"{n + 1}\n00:00:{n:02}{dot}000 --> 00:00:{n + 1:02}{dot}000\n{writer.unit().strip()}\n" for n in range(UNITS)
    ]
    text = head + "\n".join(cues)

    def read(data: bytes) -> list[tuple[Any, str]]:
        cues = re.findall(r"(?ms)^\d+\n\S+ --> \S+\n(.*?)(?:\n\n|\n?\Z)", data.decode())
        found = []
        for cue in cues:
            text = re.sub(r"<c\.(n\d+)>", r"<c class=\1>", cue)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                element = html5lib.parseFragment(text, namespaceHTMLElements=False)
            found.append((sorted(tree_of(child) for child in element), text_of(element)))
        return found

    # SRT cannot escape: what looks like a tag in an output is one.
    return Sample("a.vtt" if web else "a.srt", text.encode(), read, words=OUTPUTS if web else WORDS)


def messages(draw: random.Random) -> Sample:
    """PO files, which have no tags."""
    entries = [f'msgid "{n} {draw.choice(WORDS)} {draw.choice(WORDS)}\\n"\nmsgstr ""\n' for n in range(UNITS)]
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'

    def read(data: bytes) -> list[tuple[Any, str]]:
        return [(one.msgid, one.msgstr or one.msgid) for one in polib.pofile(data.decode())]

    return Sample("a.po", "\n".join([head, *entries]).encode(), read)


def markdown(draw: random.Random) -> Sample:
    """Markdown; one mark is never directly inside the same one."""

    def text(depth: int, used: str) -> str:
        parts = []
        for _ in range(draw.randint(1, 4)):
            kind = draw.choice(["word", "word", "word", "**", "*", "~~", "link", "code"])
            if kind == "word" or depth > 3 or kind in used:
                parts.append(draw.choice(WORDS[:10]))
            elif kind == "code":
                parts.append(f"`c{draw.randrange(10**6)}`")
            elif kind == "link":
                parts.append(f"[{text(depth + 1, used + ' link ** * ')}](u{draw.randrange(10**6)})")
            else:
                parts.append(f"{kind}{text(depth + 1, used + ' ** * ~~ link')}{kind}")
        return " ".join(parts)

    parser = MarkdownIt("commonmark").enable(["strikethrough"])

    def read(data: bytes) -> list[tuple[Any, str]]:
        return [inline(one.children or []) for one in parser.parse(data.decode()) if one.type == "inline"]

    def inline(tokens: list[MarkdownToken]) -> tuple[Any, str]:
        kept = sorted(one.content or str(one.attrs) for one in tokens if one.type in ("code_inline", "link_open"))
        return kept, " ".join(one.content for one in tokens if one.type in ("text", "softbreak"))

    units = [f"one {text(0, '')}" for _ in range(UNITS)]
    return Sample("a.md", "\n\n".join(units).encode(), read)


def lines(draw: random.Random) -> Sample:
    """Plain text."""
    text = "\n".join(f"{draw.choice(WORDS)} {draw.choice(WORDS)}" for _ in range(UNITS))
    return Sample("a.txt", text.encode(), lambda data: [("", line) for line in data.decode().split("\n")])


FORMATS: dict[str, Callable[[random.Random], Sample]] = {
    "html": page,
    "xliff": exchange,
    "tmx": memory,
    "docx": word,
    "captions": captions,
    "po": messages,
    "markdown": markdown,
    "text": lines,
}


# --- the check


def random_output(draw: random.Random, block: Block, vocabulary: list[str]) -> Aligned:
    """Words, most of them linked to source words, some to none and some to words that are not there."""
    words = [draw.choice(vocabulary) for _ in range(draw.randint(1, 12))]
    text = "".join(word + draw.choice([" ", " ", " ", ""]) for word in words).strip()
    count, others = len(words_of(block.text)), len(words_of(text))
    sources = [draw.randint(-1, count) for _ in range(draw.choice([others, others, others // 2]))]
    targets = [draw.randint(-1, others) for _ in range(draw.choice([count, 0]))]
    return Aligned(text, sources, targets)


def fault_of(sample: Sample, draw: random.Random) -> str:
    """What another program finds wrong in the translation; empty: nothing."""
    document: Document = open_document(sample.name, sample.data, Reading("en", "de"))
    before = sample.read(sample.data)
    outputs: list[UnitTranslation | None] = []
    texts = []
    for unit in document.units:
        block = unit.block
        aligned = random_output(draw, block, sample.words)
        outputs.append(UnitTranslation(place_markup(block, aligned), aligned.text))
        texts.append(aligned.text)
        words = range(len(words_of(block.text)))
        if block.raw and sample.exact and (same := project(block, Aligned(block.text, words, words))) != block.raw:
            return f"{block.raw!r} came back as {same!r}"
    if len(before) != len(texts):
        return f"{len(texts)} units, expected {len(before)}: {sample.data[:3000]!r}"
    data = document.render(outputs)
    try:
        after = sample.read(data)
    except (etree.XMLSyntaxError, OSError, UnicodeError) as error:
        return f"{error}: {data[:3000]!r}"
    for (one, _), (two, text), wanted, unit in zip(before, after, texts, document.units, strict=True):
        if one != two:
            return f"{one} became {two}: {unit.block.raw!r} with {wanted!r}"
        if "".join(text.split()) != "".join(wanted.split()):
            return f"the text is {text!r}, expected {wanted!r}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("units", nargs="?", type=int, default=100_000)
    parser.add_argument("--formats", default=",".join(FORMATS), help="some of " + ", ".join(FORMATS))
    add_options(parser)
    arguments = parser.parse_args()
    names = arguments.formats.split(",")

    def case(number: int, folder: Path) -> Outcome:
        name = names[number % len(names)]
        draw = random.Random(f"{arguments.seed} {number}")
        return Outcome(Counter({f"units of {name}": UNITS}), fault_of(FORMATS[name](draw), draw))

    with scratch("documents") as folder:
        report = Lanes("documents", Path(folder), arguments, 60).run(-(-arguments.units // UNITS), case)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
