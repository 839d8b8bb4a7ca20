"""Every parser in linear time: each reads inputs of n and 2n characters made of parts that parsers dislike.

The size grows until a parser takes a measurable time; then twice the size may take at most three times as long. A text
document that is opened may take twenty times its size in memory: its texts are made when they are asked for. A case is
one parser with one repeated part. A parser may refuse an input with an error for users.

python benchmarks/campaign/linear_time.py [--milliseconds M] [--only PATTERN] [--processes P] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import gc
import io
import re
import sys
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.base.config.loader import read_toml
from dragoman.base.errors import DragomanError
from dragoman.base.terminal import visible
from dragoman.classical.arpa import arpa_orders
from dragoman.data.languages import languages_of_name
from dragoman.data.media.files import members
from dragoman.data.protected import find_placeholders
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.conll import read_conll
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.sentences import split_fields, split_long, split_sentences
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.word_piece import WordPieceConfig, WordPieceTokenizer
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer
from dragoman.decoding.constraints.regex import PatternParser
from dragoman.decoding.constraints.source import Terminology
from dragoman.documents.base import Reading, UnitTranslation
from dragoman.documents.registry import open_document
from dragoman.inference.segments import Parsing, parts_of_text, sentence_links
from dragoman.inference.segments.markup import Aligned, place_markup, words_of

MAX_SIZE = 1 << 20  # characters
FIRST_SIZE = 1 << 11
MAX_RATIO = 3.0
MAX_MEMORY = 20.0  # bytes for each character of a text document
LEAN = (".txt", ".md", ".html", ".srt", ".vtt")
DOUBTFUL = 2.5
Parse = Callable[[str, Path], object]


class Case(NamedTuple):
    """A parser, and inputs of any size for it."""

    parser: str
    part: str  # repeated; "{}" in it becomes a number
    parse: Parse
    before: str = ""
    after: str = ""

    @property
    def name(self) -> str:
        return f"{self.parser} {self.part[:60]!r}"

    def text(self, size: int) -> str:
        """An input of about so many characters."""
        count = max(1, size // len(self.part))
        if "{}" in self.part:
            return self.before + "".join(self.part.replace("{}", str(number)) for number in range(count)) + self.after
        return self.before + self.part * count + self.after


def file_parser(name: str, read: Callable[[Path], object]) -> Parse:
    """A parser of files."""

    def parse(text: str, folder: Path) -> object:
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="")
        return read(path)

    return parse


def document_parser(suffix: str) -> Parse:
    """Read a document, translate each word into itself, and write the document."""

    def parse(text: str, folder: Path) -> object:
        document = open_document(
            f"a{suffix}", packed(text) if suffix == ".docx" else text.encode(), Reading("en", "de")
        )
        outputs: list[UnitTranslation | None] = []
        for unit in document.units:
            words = list(range(len(words_of(unit.block.text))))
            outputs.append(
                UnitTranslation(place_markup(unit.block, Aligned(unit.block.text, words, words)), unit.block.text, 0.5)
            )
        return document.render(outputs)

    return parse


def packed(text: str) -> bytes:
    """A Word file with this text."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr("word/document.xml", text)
    return out.getvalue()


def archive(text: str, folder: Path) -> object:
    """List a package with a member for each line."""
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in text.split():
            file.writestr(zipfile.ZipInfo(name), b"")
    return members(str(path))


CUE = "00:00:01.000 --> 00:00:02.000\n"
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
# Of each document format: what stands before and after the parts, and the parts.
DOCUMENTS: dict[str, list[tuple[str, str, list[str]]]] = {
    ".txt": [("", "", ["a. ", "\n", " ", "x", "a\r\n", "\f"])],
    ".po": [
        ("", "", ['msgid "a{}"\nmsgstr ""\n', '#, fuzzy\nmsgid "a"\nmsgstr "b"\n', '#~ msgid "a"\n', "#", "\n", '"',
             "\\"]),
        ('msgid ""\n', 'msgstr ""\n', ['"a"\n', '"a"', '"\\303"\n', '"\\n"\n', '"%s {x} "\n', '"\t"\n']),
        ('msgid "', '"\nmsgstr ""', ["a", "a\\n", "\\\\", "\\", "a. ", "<b>"]),
    ],
    ".srt": [
        ("", "", [f"1\n{CUE}a\n\n", f"1\n{CUE}a\n", CUE, "1\n", "-->"]),
        (CUE, "", ["a b\n", "- a\n", "<i>", "<i>a</i> ", "<", "{\\an8}", "a ", "字", "字\n", "</i>", "1\n"]),
    ],
    ".vtt": [
        ("WEBVTT\n\n", "", [f"{CUE}a\n\n", f"id\n{CUE}a\n", "NOTE a\n\n", "-->\n"]),
        (f"WEBVTT\n\n{CUE}", "", ["a b\n", "<c.x>", "<v a>b</v> ", "<00:00:01.000>a ", "<", "&", "&amp; ", "&#",
             "> ", "< a "]),
    ],
    ".xlf": [
        (
            '<xliff version="1.2"><file>', "</file></xliff>",
            ["<trans-unit><source>a</source></trans-unit>", "<group/>", "<!--a-->", "<?a?>",
             "<trans-unit><source>a</source><target>b</target><alt-trans origin='dragoman'/></trans-unit>"],
        ),
        (
            '<xliff version="1.2"><file><trans-unit><source>', "</source></trans-unit></file></xliff>",
            ["a", "a. ", "<x/>a ", '<g id="{}">a</g> ', "&lt;b&gt;a", "&lt;b&gt;a&lt;/b&gt; ", "&#13;", "<!--a-->a",
                 "&lt;p&gt;a",
             "<![CDATA[<b>]]>", "<ph>a</ph>b ", '<bpt id="{}">a</bpt>b ', '<bx id="{}"/>a ', '<ex rid="{}"/>a ',
             "&amp;", "&lt;a "],
        ),
        (
            '<xliff version="1.2"><file><trans-unit><source>a</source><seg-source>',
                 "</seg-source></trans-unit></file></xliff>",
            ['<mrk mtype="seg" mid="{}">a</mrk> ', '<g id="{}"><mrk mtype="seg" mid="{}">a</mrk></g>'],
        ),
        (
            '<xliff version="1.2"><file><trans-unit', "><source>a</source></trans-unit></file></xliff>",
            [' a{}="b"', "\n"],
        ),
        (
            '<xliff version="2.0"><file><unit>', "</unit></file></xliff>",
            ["<segment><source>a</source></segment>", '<segment id="{}"><source>a<sc id="{}"/></source></segment>'],
        ),
    ],
    ".tmx": [
        (
            '<tmx><header srclang="en"/><body>', "</body></tmx>",
            ['<tu><tuv lang="en"><seg>a</seg></tuv></tu>', "<tu/>", '<tu><prop type="x">a</prop></tu>'],
        ),
        ('<tmx><header srclang="en"/><body><tu>', "</tu></body></tmx>", ['<tuv lang="en"><seg>a</seg></tuv>',
             '<tuv lang="l{}"/>']),
        (
            '<tmx><header srclang="en"/><body><tu><tuv lang="en"><seg>', "</seg></tuv></tu></body></tmx>",
            ["a ", "<hi>a</hi> ", '<bpt i="{}">x</bpt>a ', '<ept i="{}">x</ept>a ', "<ph/>a "],
        ),
    ],
    ".html": [
        (
            "<body>", "</body>",
            ["<p>a</p>", "<p>a", "<script></script>", "<style>", "<b>", "<b>a</b> ", "a<br>", "</b>", "<!--",
                 "<!---->", "<a ", "<a '",
             '<a title="a">', "&", "&#", "&amp;", "İ<script>", "<", "</", "<table><tr><td>", "<i>a</b>", "<pre>",
             "<textarea>", "a ",
             "<div>", "</div>", "<svg>", "<ruby>a<rt>b</rt></ruby>", '<img alt="a">', "字<b>字</b>", "<p ", "<p a=",
             "]]>"],
        ),
    ],
    ".md": [
        (
            "", "",
            ["a\n\n", "a\n", "a  \n", "*", "*a_", "**a** ", "*a* ", "_a", "[", "[a](b) ", "![a](b) ", "](", "`a",
                 "`a` ", "``", "> ", "> a\n",
             "- ", "- a\n", "1. a\n", "|", "|a|b|\n|-|-|\n", "$x*y$ ", "$", "<!--", "<!-- a\n\n", "<b>", "<b>a</b> ",
             "\\", "~~~\n", "    a\n",
             "# a\n", "a\n=\n", "[a]: b\n", "&amp;", "---\n", "<a ", "\n", "***", "[^a] ", "~~a~~ ", "<div>\n", "![",
             "[a][b] ", "*_*_", "[[[", "((", "{{{", "%(", "- a\n  - b\n", "<b><i>", "`` `"],
        ),
    ],
    ".docx": [
        (
            f"<w:document {WORD}><w:body>", "</w:body></w:document>",
            ["<w:p><w:r><w:t>a</w:t></w:r></w:p>", "<w:p/>", "<w:sectPr/>"],
        ),
        (
            f"<w:document {WORD}><w:body><w:p>", "</w:p></w:body></w:document>",
            ["<w:r><w:t>a </w:t></w:r>", "<w:r><w:rPr><w:b/></w:rPr><w:t>a </w:t></w:r>", "<w:r><w:tab/></w:r>",
                 "<w:proofErr/>",
             '<w:r><w:fldChar w:fldCharType="begin"/></w:r>', "<w:hyperlink><w:r><w:t>a </w:t></w:r></w:hyperlink>"],
        ),
    ],
}  # fmt: skip
TEXTS = [
    "a. ",
    "Dr. ",
    ".",
    "...a",
    "\n",
    " ",
    "\t",
    ". (",
    '."',
    "。",
    "!? ",
    "a, ",
    "x",
    "A. \n",
    "3. ",
    "a\u2028",
    "\r\n",
]
PLACES = [
    "{a} ",
    "{",
    "}",
    "{{",
    "{n{}} ",
    "%s ",
    "%",
    "%(a",
    "<a ",
    "<b>",
    "<",
    "http://a ",
    "http://.",
    "a@b.c ",
    "a@",
    "@",
    "a.",
    "$",
]


def number_of(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


def restored(text: str, folder: Path) -> object:
    parts = parts_of_text(text, Parsing(True))
    segments = [part.segment for part in parts if part.segment is not None]
    return [one.restored(sentence_links(None, one.block.text, "a " * 10), one.block) for one in segments]


def all_cases() -> list[Case]:
    """Every parser with every part."""
    texts: dict[str, tuple[Parse, list[str]]] = {
        "split_sentences": (lambda text, folder: split_sentences(text), TEXTS),
        "split_fields": (lambda text, folder: split_fields(text), TEXTS),
        "split_long": (lambda text, folder: split_long(text, lambda part: len(part) < 50), TEXTS),
        "find_placeholders": (lambda text, folder: find_placeholders(text), PLACES),
        "restored segments": (restored, PLACES),
        "visible": (lambda text, folder: visible(text), ["a", "\x1b", "\x1b[31m"]),
        "languages_of_name": (lambda text, folder: languages_of_name(text), ["a", "en_", "en-de", "."]),
        "pattern": (lambda text, folder: PatternParser(text[:20_000]).parse(), ["a", "a*", "[a]", "(a)", "(a|b)",
             "a{1,2}", "\\d", "[a", "("]),
        "read_pairs .tsv": (file_parser("a.tsv", lambda path: number_of(read_pairs(path))), ["a\tb\n", "\t", "a",
             "\n", "a\tb\tc\n", "\x85"]),
        "read_pairs .csv": (file_parser("a.csv", lambda path: number_of(read_pairs(path))), ["a,b\n",
             '"a,""b""",c\n', '"', ",", ";", "\n"]),
        "read_pairs .jsonl": (
            file_parser("a.jsonl", lambda path: number_of(read_pairs(path))),
            ['{"source": "a", "target": "b"}\n', "[", "{", '{"a":', "\n", '"', "1"],
        ),
        "read_pairs .tmx": (
            file_parser("a.tmx", lambda path: number_of(read_pairs(path, ReadOptions(columns=("en", "de"))))),
            ['<tu><tuv lang="en"><seg>a</seg></tuv></tu>', "<tu/>", "<!--a-->"],
        ),
        "read_conll": (
            file_parser("a.conllu", lambda path: number_of(read_conll(str(path)))),
            ["1\ta\ta\tX\t_\t_\t_\t_\t_\t_\n", "# a\n", "\n", "\t", "a"],
        ),
        "read_arpa": (file_parser("a.arpa", lambda path: number_of(arpa_orders(path))), ["-1 a\n", "ngram 1=1\n",
             "\\1-grams:\n", "a "]),
        "read_toml": (file_parser("a.toml", read_toml), ["k{} = 1\n", "[t{}]\n", "[[t]]\n", '"', "a.", "'a'.",
             "a = [\n", "\n", "#"]),
        "terminology": (file_parser("terms.tsv", Terminology.read), ["a{}\tb\n", "\n", "a b{}\tc\n"]),
        "archive": (archive, ["a{} ", "b/{} "]),
    }  # fmt: skip
    around = {
        "read_pairs .tmx": ('<tmx><header srclang="en"/><body>', "</body></tmx>"),
        "read_arpa": ("\\data\\\nngram 1=1\n\\1-grams:\n", "\\end\\\n"),
    }
    for tokenizer in (
        WordTokenizer.train(WordsConfig(), ["a b c"]),
        CharacterTokenizer.train(CharactersConfig(), ["a b c"]),
        WordPieceTokenizer.train(WordPieceConfig(vocab_size=50), ["a b abc ab"] * 3),
    ):
        texts[type(tokenizer).__name__] = (
            lambda text, folder, own=tokenizer: own.encode(text),
            ["a", "a ", "字", "￭", "a-", "  ", "\u0301"],
        )  # type: ignore[misc]
    cases = [
        Case(f"document {suffix}", part, document_parser(suffix), before, after)
        for suffix, groups in DOCUMENTS.items()
        for before, after, parts in groups
        for part in parts
    ]
    return cases + [
        Case(name, part, parse, *around.get(name, ())) for name, (parse, parts) in texts.items() for part in parts
    ]


def seconds(case: Case, text: str, folder: Path) -> float:
    """The time of a parser for an input; it may refuse it."""
    gc.disable()
    try:
        started = time.process_time()
        with suppress(DragomanError):
            case.parse(text, folder)
        return time.process_time() - started
    finally:
        gc.enable()


def ratio(case: Case, folder: Path, least: float = 0.05) -> tuple[float, int, float]:
    """How many times longer twice the size takes, at the first size that takes `least` seconds; size and seconds."""
    size = FIRST_SIZE
    spent = seconds(case, case.text(size), folder)
    while spent < least and size < MAX_SIZE:
        size *= 2
        spent = seconds(case, case.text(size), folder)
    if spent < least:
        return 1.0, size, spent
    times, slow = doubled(case, size, folder)
    while times >= DOUBTFUL and slow < 2:  # larger sizes show whether it was chance, or hidden by what is linear
        size *= 2
        times, slow = doubled(case, size, folder)
    return times, size, slow


def doubled(case: Case, size: int, folder: Path) -> tuple[float, float]:
    """How many times longer an input takes than half of it, and its seconds: the least of several tries."""
    single, double = case.text(size // 2), case.text(size)
    fast, slow = seconds(case, single, folder), seconds(case, double, folder)
    for _ in range(4):  # another process may have taken time from either
        if slow < MAX_RATIO * fast:
            break
        fast, slow = min(fast, seconds(case, single, folder)), min(slow, seconds(case, double, folder))
    return slow / max(fast, 1e-9), slow


def memory(case: Case) -> float:
    """The bytes that opening a text document takes for each further character."""
    suffix, peaks = case.parser.removeprefix("document "), []
    if suffix not in LEAN:
        return 0.0
    for size in (1 << 13, 1 << 16):
        data = case.text(size).encode()
        tracemalloc.start()
        with suppress(DragomanError):
            open_document(f"a{suffix}", data, Reading("en", "de"))
        peaks.append((len(data), tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
    return (peaks[1][1] - peaks[0][1]) / (peaks[1][0] - peaks[0][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=50.0, help="the time from which on sizes are compared")
    parser.add_argument("--only", default="", help="a regular expression for the names of cases")
    add_options(parser)
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if re.search(arguments.only, case.name)]

    def run(number: int, folder: Path) -> Outcome:
        case = cases[number]
        times, size, spent = ratio(case, folder, arguments.milliseconds / 1000)
        slow = times >= MAX_RATIO
        failure = f"{case.name}: {size:,} characters took {spent:.2f} s, {times:.1f} times as long as half of them"
        if not slow and (taken := memory(case)) > MAX_MEMORY:
            slow, failure = True, f"{case.name}: {taken:.0f} bytes of memory for each character"
        return Outcome(Counter({case.parser: 1}), failure if slow else "")

    with scratch("linear-time") as folder:
        report = Lanes("linear time", Path(folder), arguments, 600).run(len(cases), run)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
