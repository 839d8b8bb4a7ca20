"""Random segments with tags, variables, addresses and ICU messages, through every route and several file formats.

Models that copy, turn words around or write rubbish must leave each protected span in the output exactly once, and
tags nested. The formats write the segment as text; the file that comes back is read by its own rules.

python benchmarks/campaign/segments.py [SEGMENTS] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import html
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import polib
from lxml import etree

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.data import icu_messages
from dragoman.data.protected import GRAMMAR
from dragoman.documents.registry import open_document
from dragoman.documents.translation import finished, translate_units
from dragoman.inference.prediction import Prediction
from dragoman.inference.segments import Parsing
from tests.documents.model import ChangingEngine
from tests.inference.segments.test_segments import (
    Model,
    check_segment,
    identity,
    kept,
    nests,
    random_segment,
    reverse,
    rubbish,
    translated,
)

SEGMENTS = 10  # of a case
_TAG = re.compile(GRAMMAR["tag"])
_HTML = re.compile(r"</?(?:a|b|br|i)\b")
XLIFF = (
    '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en" '
    'target-language="de" datatype="plaintext"><body>{}</body></file></xliff>'
)


class SegmentEngine(ChangingEngine):
    """One of the models behind the steps of the pipeline that keep spans."""

    def __init__(self, model: Model, draw: random.Random) -> None:
        super().__init__()
        self.model, self.draw = model, draw

    async def predict(self, texts: Sequence[str]) -> Sequence[Prediction | Exception]:
        outputs = [translated(text, self.model, Parsing(True), self.draw) for text in texts]
        return [Prediction(output, 0.0, (), (-0.1,)) for output in outputs]


def po_file(texts: Sequence[str]) -> bytes:
    file = polib.POFile()
    file.extend(polib.POEntry(msgid=f"{number} {text}") for number, text in enumerate(texts))
    return str(file).encode()


def xliff_file(texts: Sequence[str]) -> bytes:
    units = (
        f'<trans-unit id="{number}"><source>{html.escape(text)}</source></trans-unit>'
        for number, text in enumerate(texts)
    )
    return XLIFF.format("".join(units)).encode()


def targets(data: bytes) -> list[str]:
    units = etree.fromstring(data).iter("{*}trans-unit")
    return ["".join(unit.find("{*}target").itertext()) for unit in units]


def paragraphs(data: bytes) -> list[str]:
    return [html.unescape(part) for part in data.decode().removesuffix("</p>").removeprefix("<p>").split("</p><p>")]


def bare(counts: Counter[str]) -> Counter[str]:
    return Counter({text: count for text, count in counts.items() if not text.startswith("<")})


FORMATS: dict[str, tuple[Callable[[Sequence[str]], bytes], Callable[[bytes], list[str]]]] = {
    "txt": (lambda texts: "\n".join(texts).encode(), lambda data: data.decode().split("\n")),
    "html": (
        lambda texts: "".join(f"<p>{html.escape(text, quote=False)}</p>" for text in texts).encode(),
        paragraphs,
    ),
    "po": (po_file, lambda data: [entry.msgstr for entry in polib.pofile(data.decode())]),
    "xlf": (xliff_file, targets),
}


def fault_of(name: str, draw: random.Random) -> str:
    """What a file of random segments has lost or gained; empty: nothing."""
    texts = [f"a {random_segment(draw).strip()}" for _ in range(SEGMENTS)]
    write, read = FORMATS[name]
    for model in (identity, reverse, rubbish):
        document = open_document(f"file.{name}", write(texts))
        translation = finished(translate_units(document, SegmentEngine(model, draw), everything=True))
        if translation.faults:
            return f"{name}, {model.__name__}: {translation.faults[0]}"
        for text, output in zip(texts, read(translation.data), strict=True):
            if name == "xlf" and _HTML.search(text) and not icu_messages(text):
                # Entities of HTML are characters, and what tags alone keep apart may be one address without them.
                text, output = html.unescape(text), html.unescape(output)
                if bare(kept(text)) != bare(kept(_TAG.sub("", text))):
                    continue
            if kept(output) != kept(text) or (nests(text) and not nests(output)):
                return f"{name}, {model.__name__}: {text!r} became {output!r}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("segments", nargs="?", type=int, default=100_000)
    add_options(parser)
    arguments = parser.parse_args()
    names = ["text", *FORMATS]

    def case(number: int, folder: Path) -> Outcome:
        name = names[number % len(names)]
        fault = ""
        if name == "text":
            try:
                for seed in range(SEGMENTS):
                    check_segment(1_000_000 + arguments.seed * 10_000_000 + number * SEGMENTS + seed)
            except AssertionError as error:
                fault = str(error)[:500]
        else:
            fault = fault_of(name, random.Random(f"{arguments.seed} {number}"))
        return Outcome(Counter({f"segments of {name}": SEGMENTS}), fault)

    with scratch("segments") as folder:
        report = Lanes("segments", Path(folder), arguments, 120).run(-(-arguments.segments // SEGMENTS), case)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
