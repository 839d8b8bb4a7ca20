"""The phrase table of phrase-based translation: phrase pairs, counted and scored (Koehn, Och and Marcu 2003)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.model import Note, Tokens, row_arrays
from dragoman.classical.rows import Floats, Ints, KeyIndex, Ragged
from dragoman.scoring import Link, LinkRows

Span = tuple[int, int]  # first word, and the one behind the last
DISCOUNT = 0.5  # of phrase counts: what was seen once may be chance
UNLIKELY = 1e-7  # lexical probability of a token that no token of the other side was linked with
NOTED = 16384  # sentence pairs between two reports of progress
CHUNK = 65536  # phrase pairs scored at a time


class WordTable(NamedTuple):
    """Relative frequencies of linked tokens, sorted by key: source token · width + target token."""

    keys: Ints
    width: int
    ahead: Floats  # w(target | source)
    back: Floats  # w(source | target)

    @classmethod
    def of(cls, left: Ragged, right: Ragged, links: LinkRows) -> WordTable:
        sources = left.flat[left.offsets[links.pairs] + links.sources].astype(np.int64)
        targets = right.flat[right.offsets[links.pairs] + links.targets].astype(np.int64)
        width = int(right.flat.max(initial=0)) + 1
        keys, counts = np.unique(sources * width + targets, return_counts=True)
        sources, targets = np.divmod(keys, width)
        totals = (np.bincount(side, counts) for side in (sources, targets))
        ahead, back = (counts / total[side] for total, side in zip(totals, (sources, targets), strict=True))
        return cls(keys, width, ahead, back)


class PhraseCounts(NamedTuple):
    """All phrase pairs with their counts; phrases of a side are numbered."""

    sources: list[Tokens]
    targets: list[Tokens]
    pairs: tuple[Ints, Ints]  # numbers of the source and of the target of every pair
    counts: Ints


def phrase_spans(source: int, target: int, links: Collection[Link], max_length: int) -> Iterator[tuple[Span, Span]]:
    """All pairs of spans of at most `max_length` words that have links, and no link that leaves one of them alone.

    Unaligned words at the borders of the target may belong to a phrase or not: all ways are given.
    """
    lowest, highest = [source] * target, [-1] * target  # linked source words of every target word
    row_lowest, row_highest = [target] * source, [-1] * source  # linked target words of every source word
    for i, j in links:
        lowest[j], highest[j] = min(lowest[j], i), max(highest[j], i)
        row_lowest[i], row_highest[i] = min(row_lowest[i], j), max(row_highest[i], j)
    for first in range(source):
        left, right = target, -1
        for last in range(first, min(source, first + max_length)):
            left, right = min(left, row_lowest[last]), max(right, row_highest[last])
            if right < 0:
                continue
            if right - left >= max_length:
                break
            if any(highest[j] > last or lowest[j] < first for j in range(left, right + 1)):
                continue
            begin = left
            while begin >= 0 and right - begin < max_length and (begin == left or highest[begin] < 0):
                end = right
                while end < target and end - begin < max_length and (end == right or highest[end] < 0):
                    yield (first, last + 1), (begin, end + 1)
                    end += 1
                begin -= 1


def extract_phrases(left: Ragged, right: Ragged, links: LinkRows, max_length: int, note: Note) -> PhraseCounts:
    sources, targets, pairs = dict[Tokens, int](), dict[Tokens, int](), array("q")
    for index, own in enumerate(links.rows(len(left))):
        if index % NOTED == 0:
            note("extracting phrases", index)
        source, target = left[index], right[index]
        for (a, b), (c, d) in phrase_spans(len(source), len(target), own, max_length):
            number = sources.setdefault(source[a:b], len(sources))
            pairs.append(number << 32 | targets.setdefault(target[c:d], len(targets)))
    keys, counts = np.unique(np.frombuffer(pairs, np.int64), return_counts=True)
    return PhraseCounts(list(sources), list(targets), (keys >> 32, keys & 0xFFFFFFFF), counts)


def phrase_arrays(phrases: PhraseCounts, keep: int, words: WordTable) -> dict[str, NDArray[Any]]:
    """The `keep` most frequent translations of every source phrase, sorted by source, with their four features."""
    (left, right), counts = phrases.pairs, phrases.counts
    ranks = [ranks_of(side) for side in (phrases.sources, phrases.targets)]
    order = np.lexsort((ranks[1][right], -counts, ranks[0][left]))
    place = np.arange(len(order)) - np.searchsorted(ranks[0][left[order]], ranks[0][left[order]])
    order = order[place < keep]
    seen = np.log(counts[order] - DISCOUNT)
    totals = np.bincount(left, counts), np.bincount(right, counts)
    left, right = left[order], right[order]
    features = np.stack([
        seen - np.log(totals[0][left]), seen - np.log(totals[1][right]),
        *lexical_weights(Ragged.of(phrases.sources), Ragged.of(phrases.targets), left, right, words),
    ], 1)  # fmt: skip
    sources = Ragged.of(sorted(phrases.sources))
    targets = Ragged.of([phrases.targets[number] for number in right.tolist()])
    entries = np.concatenate([[0], np.cumsum(np.bincount(ranks[0][left], minlength=len(sources)))])
    return {
        **row_arrays("sources", "source_offsets", sources),
        "entries": entries,
        **row_arrays("targets", "target_offsets", targets),
        "features": features.astype(np.float32),
    }


def ranks_of(phrases: list[Tokens]) -> Ints:
    ranks = np.empty(len(phrases), np.int64)
    ranks[sorted(range(len(phrases)), key=phrases.__getitem__)] = np.arange(len(phrases))
    return ranks


def lexical_weights(
    sources: Ragged, targets: Ragged, left: Ints, right: Ints, words: WordTable
) -> tuple[Floats, Floats]:
    """log Π over target tokens of the mean of w(target token | source token) over source tokens, and the same back.

    `left` and `right` are the numbers of the phrases of every pair.
    """
    index, both = KeyIndex(words.keys), (np.empty(len(left)), np.empty(len(left)))
    weights = [np.append(side, 0.0) for side in (words.ahead, words.back)]  # the last for tokens never linked
    for first in range(0, len(left), CHUNK):
        part = slice(first, first + CHUNK)
        rows, columns = sources.take(left[part]).padded(), targets.take(right[part]).padded()  # (N, S), (N, T)
        real = (rows >= 0)[:, :, None] & (columns >= 0)[:, None]
        numbers = index.find(np.where(real, rows[:, :, None] * words.width + columns[:, None], -1))
        sides = zip(both, weights, (rows, columns), (columns, rows), strict=True)
        for axis, (out, weight, here, there) in enumerate(sides, 1):
            means = weight[numbers].sum(axis) / (here >= 0).sum(1)[:, None]
            out[part] = np.where(there >= 0, np.log(np.maximum(means, UNLIKELY)), 0.0).sum(1)
    return both
