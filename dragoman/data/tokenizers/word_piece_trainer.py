"""Learn a WordPiece vocabulary: byte-pair merges of characters, where a piece inside a word begins with ##.

Pieces are learned as the tokenizers library does: the most frequent pair of neighbours is merged, until the vocabulary
is full (Sennrich et al. 2016). Among equally frequent pairs the one of earlier pieces comes first.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

Pair = tuple[int, int]


def learn_pieces(words: Mapping[str, int], size: int, min_count: int, prefix: str) -> list[str]:
    """At most `size` pieces of words with their counts: the characters first, then merges in their order."""
    pieces = characters_of(words, size, prefix)
    ids = {piece: index for index, piece in enumerate(pieces)}
    rows: list[list[int]] = []
    counts: list[int] = []
    for word, count in sorted(words.items()):
        row = [ids.get(letter if place == 0 else prefix + letter, -1) for place, letter in enumerate(word)]
        if -1 not in row:  # a rare character has no piece, so the word is unknown
            rows.append(row)
            counts.append(count)
    totals: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, row in enumerate(rows):
        for pair in itertools.pairwise(row):
            totals[pair] += counts[index]
            places[pair].add(index)
    queue = [(-total, pair) for pair, total in totals.items()]
    heapify(queue)
    while len(pieces) < size and queue:
        total, pair = heappop(queue)
        if -total != totals[pair]:  # the count has changed since
            if totals[pair] > 0:
                heappush(queue, (-totals[pair], pair))
            continue
        if -total < min_count:
            break
        merged = pieces[pair[0]] + pieces[pair[1]].removeprefix(prefix)
        new = ids.setdefault(merged, len(pieces))
        if new == len(pieces):
            pieces.append(merged)
        for changed in _merge(pair, new, rows, counts, totals, places):
            heappush(queue, (-totals[changed], changed))
    return pieces


def characters_of(words: Mapping[str, int], size: int, prefix: str) -> list[str]:
    """Every letter, and inner letters with the prefix too; the most frequent ones if there are too many."""
    letters: Counter[str] = Counter()
    for word, count in words.items():
        for place, letter in enumerate(word):
            letters[letter] += count
            if place:
                letters[prefix + letter] += count
    kept = sorted(letters, key=lambda piece: (-letters[piece], piece))[:size]
    return sorted(kept, key=lambda piece: (piece.startswith(prefix), piece))


def _merge(
    pair: Pair,
    new: int,
    rows: list[list[int]],
    counts: list[int],
    totals: Counter[Pair],
    places: defaultdict[Pair, set[int]],
) -> set[Pair]:
    """Replace a pair by its merged piece in all words; returns the pairs whose counts have grown."""
    grown: set[Pair] = set()
    for index in places.pop(pair):
        row, count = rows[index], counts[index]
        out: list[int] = []
        at = 0
        for old in itertools.pairwise(row):
            totals[old] -= count
        while at < len(row):
            if at + 1 < len(row) and (row[at], row[at + 1]) == pair:
                out.append(new)
                at += 2
            else:
                out.append(row[at])
                at += 1
        rows[index] = out
        for now in itertools.pairwise(out):
            totals[now] += count
            places[now].add(index)
            if new in now:
                grown.add(now)
    totals[pair] = 0
    return grown
