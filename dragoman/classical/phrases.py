"""Phrase pairs that are consistent with a word alignment (Koehn, Och and Marcu 2003)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

Span = tuple[int, int]  # first word, and the one behind the last
Link = tuple[int, int]


def phrase_spans(source: int, target: int, links: Collection[Link], max_length: int) -> Iterator[tuple[Span, Span]]:
    """All pairs of spans of at most `max_length` words that have links, and no link that leaves one of them alone.

    Unaligned words at the borders of the target may belong to a phrase or not: all ways are given.
    """
    rows: list[list[int]] = [[] for _ in range(source)]
    columns: list[list[int]] = [[] for _ in range(target)]
    for i, j in links:
        rows[i].append(j)
        columns[j].append(i)
    lowest = [min(row, default=source) for row in columns]
    highest = [max(row, default=-1) for row in columns]
    row_lowest = [min(row, default=target) for row in rows]
    row_highest = [max(row, default=-1) for row in rows]
    for first in range(source):
        left, right = target, -1
        for last in range(first, min(source, first + max_length)):
            left, right = min(left, row_lowest[last]), max(right, row_highest[last])
            if right < 0:
                continue
            if right - left >= max_length:
                break
            inside = range(left, right + 1)
            if any(highest[j] > last for j in inside) or any(-1 < lowest[j] < first for j in inside if highest[j] >= 0):
                continue
            begin = left
            while begin >= 0 and right - begin < max_length and (begin == left or highest[begin] < 0):
                end = right
                while end < target and end - begin < max_length and (end == right or highest[end] < 0):
                    yield (first, last + 1), (begin, end + 1)
                    end += 1
                begin -= 1
