"""Files with "source ||| target" on each line, as word aligners read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dragoman
from dragoman.extend import (
    Example,
    Fault,
    FaultError,
    Reader,
    ReadOptions,
    make_example,
    parse_lines,
)


class BitextReader(Reader):
    """Every line has two texts; `parse_lines` also decompresses .bitext.gz and reports bytes that are no UTF-8."""

    suffixes = (".bitext",)
    about = "lines of source ||| target"

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        def parse(line: str, number: int) -> Example:
            texts = [text.strip() for text in line.split("|||")]
            if len(texts) != 2:
                raise FaultError("wrong-columns", f"found {len(texts)} texts, expected source ||| target")
            return make_example(texts[0], texts[1:], str(path), number, options.max_characters)

        return parse_lines(path, parse)


dragoman.register(BitextReader())
