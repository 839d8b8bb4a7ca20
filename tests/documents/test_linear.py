"""Documents made of parts that parsers dislike take time and memory in proportion to their size, or are refused."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from dragoman.base import Abandoned, DataError
from dragoman.base.long_work import interruptible
from dragoman.documents import Limits, Reading, open_document

XLIFF = '<xliff version="1.2"><file><trans-unit><source>', "</source></trans-unit></file></xliff>"
TMX = '<tmx><header srclang="en"/><body><tu><tuv lang="en"><seg>', "</seg></tuv></tu></body></tmx>"
CUE = "00:00:01.000 --> 00:00:02.000\n"
# Suffix, what stands before and after, and parts that are repeated.
CASES = [
    (
        ".md",
        "",
        "",
        ["*_*_", "[[[", "a\n\n", "`` `", "> ", "- a\n  - b\n", "{{{", "%(", "((", "&amp;", "<b><i>", "a\n"],
    ),
    (".html", "<body>", "</body>", ["<b><i>", "<p>a", "&amp;", "<code>", '<a title="a">']),
    (".txt", "", "", ["a\n", "{{{ ", "%( "]),
    (".srt", CUE, "", ["<i>", "- a\n", "a b\n", "{\\an8}"]),
    (".vtt", f"WEBVTT\n\n{CUE}", "", ["<c.x>", "&amp; ", f"a\n\n{CUE}"]),
    (".po", 'msgid "', '"\nmsgstr ""\n', ["%( ", "\\n", "{{{"]),
    (".xlf", *XLIFF, ["&lt;b&gt;a", "<x/>", "&amp;", '<g id="1">a</g>']),
    (".tmx", *TMX, ["<hi>a</hi> ", "&amp;", "<ph/>"]),
]
ALL = [(suffix, before, after, part) for suffix, before, after, parts in CASES for part in parts]
# A document keeps a place for each of its texts; they are made one by one when they are asked for.
LEAN = [case for case in ALL if case[0] in (".md", ".html", ".txt", ".srt", ".vtt")]
SIZE = 1_500  # characters
NAMES = [f"{suffix} {part!r}" for suffix, _, _, part in ALL]


def opened(suffix: str, text: str) -> Callable[[], None]:
    """Reads a document and all of its texts; it may be refused."""

    def work() -> None:
        with suppress(DataError):
            for unit in open_document(f"a{suffix}", text.encode(), Reading("en", "de")).units:
                assert unit.block is not None

    return work


def seconds(work: Callable[[], None], tries: int = 2) -> float:
    """The least time of this thread alone in some tries, whatever other processes do."""
    gc.disable()
    try:
        times = []
        for _ in range(tries):
            begun = time.thread_time()
            work()
            times.append(time.thread_time() - begun)
        return min(times)
    finally:
        gc.enable()


@pytest.mark.parametrize(("suffix", "before", "after", "part"), ALL, ids=NAMES)
def test_time_is_linear(suffix: str, before: str, after: str, part: str) -> None:
    """A quadratic parser takes 16 times as long for four times the size."""
    small, large = (opened(suffix, before + part * (size // len(part)) + after) for size in (SIZE, 4 * SIZE))
    for _ in range(3):
        short, long = seconds(small), seconds(large)
        if long <= max(8 * short, 0.02):
            return
    pytest.fail(f"{SIZE:,} characters take {short:.3f} s, four times as many {long:.3f} s")


@pytest.mark.parametrize(
    ("suffix", "before", "after", "part"), LEAN, ids=[f"{suffix} {part!r}" for suffix, _, _, part in LEAN]
)
def test_a_document_takes_twenty_times_its_size(suffix: str, before: str, after: str, part: str) -> None:
    peaks = []
    for size in (SIZE, 4 * SIZE):
        data = (before + part * (size // len(part)) + after).encode()
        tracemalloc.start()
        try:
            with suppress(DataError):
                open_document(f"a{suffix}", data, Reading("en", "de"))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] - peaks[0] <= 20 * 3 * SIZE


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", "*_*_" * 300, "marks or tags in texts"),
        ("a.md", "a\n\n" * 2_000, "texts"),
        ("a.html", "<p>a" * 2_000, "texts"),
        ("a.html", "<p>a" + "<b>b</b>" * 600, "marks or tags in texts"),
        ("a.txt", "a\n" * 2_000, "texts"),
        ("a.po", 'msgid "a"\nmsgstr ""\n' * 2_000, "texts"),
        ("a.xlf", XLIFF[0] + "<x/>a" * 2_000 + XLIFF[1], "marks or tags in texts"),
        ("a.srt", f"{CUE}a\n\n" * 2_000, "texts"),
    ],
)
def test_a_document_beyond_the_limits_is_refused_while_it_is_read(name: str, text: str, found: str) -> None:
    with pytest.raises(DataError, match=f"found more than 1,000 {found}; split the file"):
        open_document(name, text.encode(), Reading("en", "de", limits=Limits(1_000)))


@pytest.mark.parametrize("name", ["a.md", "a.html", "a.txt", "a.srt", "a.xlf"])
def test_reading_stops_when_nobody_needs_the_document(name: str) -> None:
    texts = {"a.md": "a\n\n", "a.html": "<p>a", "a.txt": "a\n", "a.srt": f"{CUE}a\n\n", "a.xlf": ""}
    text = texts[name] * 2_000 or XLIFF[0] + "<x/>a" * 2_000 + XLIFF[1]
    given_up = threading.Event()
    given_up.set()
    with interruptible(given_up.is_set), pytest.raises(Abandoned):
        open_document(name, text.encode(), Reading("en", "de"))
