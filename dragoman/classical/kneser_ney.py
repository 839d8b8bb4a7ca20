"""Counting of n-grams and modified Kneser-Ney smoothing (Chen and Goodman 1998), by passes over sorted arrays.

An n-gram is stored as a number: its place among the sorted n-grams of its order. Its key is the place of its first
n − 1 tokens times the size of the vocabulary plus its last token, so that all continuations of a context are
neighbours. Unigrams are token ids themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Ragged
from dragoman.data.tokenizers.base import EOS, PAD, SOS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FALLBACK = (0.5, 1.0, 1.5)  # discounts where the counts are too few to estimate them
MAX_ORDER = 6
CHUNK = 1 << 21  # tokens read at a time


class Level(NamedTuple):
    """The n-grams of one order, sorted by key."""

    keys: Ints  # (M,); of unigrams the token ids
    log_probabilities: NDArray[Any]  # (M,) of the last token after the others
    backoffs: NDArray[Any]  # (M,) log-weights of the next lower order after this n-gram as a context


class Counted(NamedTuple):
    """The n-grams of one order as they were counted."""

    keys: Ints
    counts: NDArray[Any]  # occurrences, or in lower orders the number of different tokens before the n-gram
    suffixes: NDArray[Any]  # the place of the last n − 1 tokens in the order below


def token_stream(rows: Ragged) -> NDArray[np.int32]:
    """All rows as <sos> … <eos>, joined."""
    lengths = rows.lengths
    stream = np.empty(len(rows.flat) + 2 * len(rows), np.int32)
    starts = rows.offsets[:-1] + 2 * np.arange(len(rows))
    ends = starts + lengths + 1
    inside = np.ones(len(stream), bool)
    inside[starts] = inside[ends] = False
    stream[inside] = rows.flat
    stream[starts], stream[ends] = SOS, EOS
    return stream


def merged(left: tuple[Ints, NDArray[Any]], right: tuple[Ints, NDArray[Any]]) -> tuple[Ints, NDArray[Any]]:
    """Two sorted lists of different keys with their counts as one; the counts of `left` are changed."""
    keys, counts = left
    places = np.searchsorted(keys, right[0])
    known = keys[np.minimum(places, len(keys) - 1)] == right[0]
    counts[places[known]] += right[1][known]
    new = ~known
    return np.insert(keys, places[new], right[0][new]), np.insert(counts, places[new], right[1][new])


def count_ngrams(stream: NDArray[np.int32], vocabulary: int, order: int) -> list[Counted]:
    """The n-grams up to an order. No n-gram spans two rows: <sos> stands only at its start.

    Lower orders count the different tokens before an n-gram; n-grams at the start of a row have none, and keep the
    number of their occurrences. The text is read in chunks, so that memory beside the n-grams stays small.
    """
    ids = np.arange(vocabulary, dtype=np.int64)
    counted = [Counted(ids, np.bincount(stream, minlength=vocabulary), np.empty(0, np.int32))]
    places = stream  # of the n-gram that ends at each position; −1: it would span two rows
    for n in range(2, order + 1):
        found = _count_keys(stream, places, vocabulary)
        suffixes = np.empty(len(found[0]), np.int32)
        new = np.full(len(stream), -1, np.int32)
        for ends, keys in _chunks_of_keys(stream, places, vocabulary):
            own, inverse = np.unique(keys, return_inverse=True)  # sorted lookups are fast
            new[ends] = np.searchsorted(found[0], own)[inverse]
            suffixes[new[ends]] = places[ends]
        left = np.bincount(suffixes, minlength=len(counted[-1].keys))
        counted[-1] = counted[-1]._replace(counts=np.where(left > 0, left, counted[-1].counts).astype(np.int32))
        counted.append(Counted(*found, suffixes))
        places = new
        if n == 2:  # the first token of a row has no n-gram of two tokens before it
            counted[0].counts[SOS] = 0
    counted[0].counts[[PAD, SOS]] = 0
    return counted


def _chunks_of_keys(
    stream: NDArray[np.int32], places: NDArray[np.int32], vocabulary: int
) -> Iterator[tuple[Ints, Ints]]:
    """The positions where an n-gram ends and its key, some at a time; `places` are those of one token less."""
    for first in range(0, len(stream), CHUNK):
        tokens = stream[first : first + CHUNK]
        before = np.empty(len(tokens), np.int64)
        before[0] = places[first - 1] if first else -1
        before[1:] = places[first : first + len(tokens) - 1]
        ends = np.flatnonzero((before >= 0) & (tokens != SOS))
        yield ends + first, before[ends] * vocabulary + tokens[ends]


def _count_keys(stream: NDArray[np.int32], places: NDArray[np.int32], vocabulary: int) -> tuple[Ints, NDArray[Any]]:
    """All different keys, sorted, and how often each occurs; parts of like sizes are merged, as in a merge sort."""
    parts: list[tuple[Ints, NDArray[Any]]] = []
    for _, keys in _chunks_of_keys(stream, places, vocabulary):
        if not len(keys):
            continue
        own, counts = np.unique(keys, return_counts=True)
        parts.append((own, counts.astype(np.int32)))
        while len(parts) > 1 and len(parts[-1][0]) * 2 > len(parts[-2][0]):
            parts[-2:] = [merged(parts[-2], parts[-1])]
    while len(parts) > 1:
        parts[-2:] = [merged(parts[-2], parts[-1])]
    return parts[0] if parts else (np.empty(0, np.int64), np.empty(0, np.int32))


def discounts_of(counts: Ints) -> Floats:
    """D₁, D₂ and D₃₊ by counts of counts: D_k = k − (k + 1) · Y · t_{k+1} / t_k with Y = t₁ / (t₁ + 2 t₂)."""
    times = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(np.float64)  # t₁ … t₄
    if not (times > 0).all():
        return np.array([0.0, *FALLBACK])
    y = times[0] / (times[0] + 2 * times[1])
    found = np.array([k - (k + 1) * y * times[k] / times[k - 1] for k in (1, 2, 3)])
    if (found < 0).any() or (found > [1, 2, 3]).any():
        return np.array([0.0, *FALLBACK])
    return np.concatenate([[0.0], found])


def smooth(counted: list[Counted], vocabulary: int) -> list[Level]:
    """Interpolated probabilities of all n-grams, and the back-off weights of all contexts.

    p(w | h) = (c(hw) − D(c(hw))) / c(h·) + γ(h) · p(w | h'), where h' is h without its first token and γ(h) the mass
    that the discounts leave. Below the unigrams all tokens but <pad> and <sos> are equally probable.
    """
    counts = counted[0].counts
    discounts = discounts_of(counts)
    total = counts.sum()
    taken = discounts[np.minimum(counts, 3)]
    uniform = np.full(vocabulary, 1 / (vocabulary - 2))
    uniform[[PAD, SOS]] = 0.0
    share = (counts - taken) / total + taken.sum() / total * uniform
    levels = [Level(counted[0].keys, log(share), np.zeros(vocabulary))]
    for n in range(1, len(counted)):
        keys, counts, suffixes = counted[n]
        counted[n] = Counted(keys, *(np.empty(0, np.int32),) * 2)  # the caller needs them no more
        below = levels[-1]
        discounts = discounts_of(counts)
        totals, left = np.zeros((2, len(below.keys)))
        for some, parents in _chunks_of_parents(keys, vocabulary):  # parents are sorted
            first, last = int(parents[0]), int(parents[-1]) + 1
            totals[first:last] += np.bincount(parents - first, counts[some])
            left[first:last] += np.bincount(parents - first, discounts[np.minimum(counts[some], 3)])
        weights = np.divide(left, totals, out=np.ones(len(below.keys)), where=totals > 0)
        logs = np.empty(len(keys), np.float32)
        for some, parents in _chunks_of_parents(keys, vocabulary):
            lower = np.exp(below.log_probabilities[suffixes[some]].astype(np.float64))
            own = counts[some] - discounts[np.minimum(counts[some], 3)]
            logs[some] = log(own / totals[parents] + weights[parents] * lower)
        levels[-1] = below._replace(backoffs=log(weights).astype(np.float32))
        levels.append(Level(keys, logs, np.zeros(len(keys), np.float32)))
    return levels


def _chunks_of_parents(keys: Ints, vocabulary: int) -> Iterator[tuple[slice, Ints]]:
    """Some n-grams at a time, and the places of their contexts."""
    for first in range(0, len(keys), CHUNK):
        some = slice(first, first + CHUNK)
        yield some, keys[some] // vocabulary


def log(probabilities: Floats) -> Floats:
    """Natural logarithms; −∞ for 0."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def find(keys: Ints, wanted: Ints) -> Ints:
    """The places of keys in a sorted array; −1 for those that are not there."""
    if not len(keys):
        return np.full(wanted.shape, -1, np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def gather(values: Floats, places: Ints) -> Floats:
    """The values at places; 0 at −1."""
    out = np.zeros(places.shape)
    known = places >= 0
    out[known] = values[places[known]]
    return out


def extend(levels: list[Level], n: int, contexts: Ints, tokens: Ints, vocabulary: int) -> Ints:
    """The places of n-grams, given those of their first n − 1 tokens (−1: unknown) and their last tokens."""
    found = find(levels[n - 1].keys, contexts * vocabulary + tokens)
    return np.where(contexts >= 0, found, -1)


def suffix_links(levels: list[Level], vocabulary: int) -> list[Ints]:
    """For every n-gram of every order the place of its last n − 1 tokens; −1: pruned."""
    links = [np.full(len(levels[0].keys), -1, np.int64)]
    for n in range(2, len(levels) + 1):
        parents, tokens = levels[n - 1].keys // vocabulary, levels[n - 1].keys % vocabulary
        links.append(tokens if n == 2 else extend(levels, n - 1, links[-1][parents], tokens, vocabulary))
    return links


def backed_off(levels: list[Level], links: list[Ints], n: int, vocabulary: int) -> Floats:
    """For every n-gram of order n the log-probability of its last token after the context without its first token."""
    parents, tokens = levels[n - 1].keys // vocabulary, levels[n - 1].keys % vocabulary
    out = np.zeros(len(parents))
    pending = np.ones(len(parents), bool)
    contexts, places = links[n - 2][parents] if n > 2 else parents, links[n - 1]  # of h', and of h'w
    for m in range(n - 1, 0, -1):
        known = pending & (places >= 0)
        out[known] += levels[m - 1].log_probabilities[places[known]]
        pending &= ~known
        if m == 1 or not pending.any():
            break
        has_context = pending & (contexts >= 0)
        out[has_context] += levels[m - 2].backoffs[contexts[has_context]]
        shorter = np.full(len(parents), -1, np.int64)
        if m > 2:
            shorter[has_context] = links[m - 2][contexts[has_context]]
        contexts = shorter
        places = tokens if m == 2 else extend(levels, m - 1, contexts, tokens, vocabulary)
    return out


def prune(levels: list[Level], vocabulary: int, threshold: float) -> list[Level]:
    """Drop n-grams whose loss raises the perplexity by less than a share `threshold` (Stolcke 1998).

    Contexts of n-grams that stay are kept. The back-off weights are computed anew.
    """
    levels = [Level(one.keys, one.log_probabilities.astype(float), one.backoffs.astype(float)) for one in levels]
    for n in range(len(levels), 1, -1):
        links = suffix_links(levels, vocabulary)
        level, below = levels[n - 1], levels[n - 2]
        parents = level.keys // vocabulary
        lower = backed_off(levels, links, n, vocabulary)
        own = level.log_probabilities
        seen = np.bincount(parents, np.exp(own), minlength=len(below.keys))
        seen_lower = np.bincount(parents, np.exp(lower), minlength=len(below.keys))
        numerator = np.maximum(1 - seen, 1e-12)[parents]
        denominator = np.maximum(1 - seen_lower, 1e-12)[parents]
        new = np.log(numerator + np.exp(own)) - np.log(denominator + np.exp(lower))  # back-off without this n-gram
        old = np.log(numerator) - np.log(denominator)
        joint = np.exp(joint_log_probabilities(levels, n - 1, vocabulary))[parents]
        change = -joint * (np.exp(own) * (lower + new - own) + numerator * (new - old))
        keep = np.expm1(change) >= threshold
        if n < len(levels):
            contexts = np.unique(levels[n].keys // vocabulary)
            keep[contexts] = True
        levels = keep_ngrams(levels, n, keep, vocabulary)
        kept, kept_parents = levels[n - 1], levels[n - 1].keys // vocabulary
        lower = lower[keep]
        seen = np.bincount(kept_parents, np.exp(kept.log_probabilities), minlength=len(below.keys))
        seen_lower = np.bincount(kept_parents, np.exp(lower), minlength=len(below.keys))
        weights = log(np.maximum(1 - seen, 1e-12)) - log(np.maximum(1 - seen_lower, 1e-12))
        levels[n - 2] = below._replace(backoffs=np.where(seen > 0, weights, 0.0))
    return levels


def joint_log_probabilities(levels: list[Level], n: int, vocabulary: int) -> Floats:
    """The log-probability of every n-gram of order n as a whole; <sos> is as probable as <eos>."""
    joint = levels[0].log_probabilities.copy()
    joint[SOS] = joint[EOS]
    for level in levels[1:n]:
        joint = joint[level.keys // vocabulary] + level.log_probabilities
    return joint


def keep_ngrams(levels: list[Level], n: int, keep: NDArray[np.bool_], vocabulary: int) -> list[Level]:
    """The levels without some n-grams of order n, contexts of none; keys of the order above are renumbered."""
    out = list(levels)
    level = levels[n - 1]
    out[n - 1] = Level(level.keys[keep], level.log_probabilities[keep], level.backoffs[keep])
    if n < len(levels):
        above = levels[n]
        places = np.cumsum(keep) - 1
        parents = above.keys // vocabulary
        out[n] = above._replace(keys=places[parents] * vocabulary + above.keys % vocabulary)
    return out
