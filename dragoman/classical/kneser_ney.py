"""Modified Kneser-Ney smoothing (Chen and Goodman 1998) and pruning, by passes over sorted arrays.

`ngram_counts` says how an n-gram is numbered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.ngram_counts import Counted
from dragoman.classical.rows import Bools, Floats, Ints
from dragoman.data.tokenizers import EOS, PAD, SOS

FALLBACK = (0.5, 1.0, 1.5)  # discounts where the counts are too few to estimate them
MAX_ORDER = 6
CHUNK = 1 << 21  # n-grams smoothed at a time


class Level(NamedTuple):
    """The n-grams of one order, sorted by key."""

    keys: Ints  # (M,); of unigrams the token ids
    log_probabilities: NDArray[Any]  # (M,) of the last token after the others
    backoffs: NDArray[Any]  # (M,) log-weights of the next lower order after this n-gram as a context


def discounts_of(counts: Iterable[NDArray[Any]]) -> Floats:
    """D₁, D₂ and D₃₊ by counts of counts: D_k = k − (k + 1) · Y · t_{k+1} / t_k with Y = t₁ / (t₁ + 2 t₂)."""
    times = np.zeros(6, np.int64)
    for block in counts:
        times += np.bincount(np.minimum(block, 5), minlength=6)
    times = times[1:5].astype(np.float64)  # t₁ … t₄
    if not (times > 0).all():
        return np.array([0.0, *FALLBACK])
    y = times[0] / (times[0] + 2 * times[1])
    discounts = np.array([k - (k + 1) * y * times[k] / times[k - 1] for k in (1, 2, 3)])
    if (discounts < 0).any() or (discounts > [1, 2, 3]).any():
        return np.array([0.0, *FALLBACK])
    return np.concatenate([[0.0], discounts])


def smooth(counted: list[Counted], vocabulary: int) -> list[Level]:
    """Interpolated probabilities of all n-grams, and the back-off weights of all contexts; frees the counts.

    p(w | h) = (c(hw) − D(c(hw))) / c(h·) + γ(h) · p(w | h'), where h' is h without its first token and γ(h) the mass
    that the discounts leave. Below the unigrams all tokens but <pad> and <sos> are equally probable.
    """
    counts = counted[0].counts.read(0, vocabulary)
    discounts = discounts_of([counts])
    total = counts.sum()
    taken = discounts[np.minimum(counts, 3)]
    uniform = np.full(vocabulary, 1 / (vocabulary - 2))
    uniform[[PAD, SOS]] = 0.0
    share = (counts - taken) / total + taken.sum() / total * uniform
    levels = [Level(counted[0].keys.read(0, vocabulary), log(share), np.zeros(vocabulary))]
    for order in counted[1:]:
        below, size = levels[-1], len(order.keys)
        keys, logs = np.empty(size, np.int64), np.empty(size, np.float32)
        backoffs = np.zeros(len(below.keys), np.float32)
        discounts = discounts_of(order.counts.blocks())
        start = 0
        while start < size:
            # A context has fewer n-grams than there are tokens: whole contexts follow the first CHUNK n-grams.
            block = [spool.read(start, start + CHUNK + vocabulary) for spool in order]
            contexts = block[0] // vocabulary
            end = int(np.searchsorted(contexts, contexts[:CHUNK][-1], "right"))
            own, counts, suffixes = (column[:end] for column in block)
            first, inside = int(contexts[0]), contexts[:end] - contexts[0]
            taken = discounts[np.minimum(counts, 3)]
            totals, left = np.bincount(inside, counts), np.bincount(inside, taken)
            weights = np.divide(left, totals, out=np.ones(len(left)), where=totals > 0)
            lower = np.exp(below.log_probabilities[suffixes].astype(np.float64))
            keys[start : start + end] = own
            logs[start : start + end] = log((counts - taken) / totals[inside] + weights[inside] * lower)
            backoffs[first : first + len(weights)] = log(weights)
            start += end
        levels[-1] = below._replace(backoffs=backoffs)
        levels.append(Level(keys, logs, np.zeros(size, np.float32)))
        order.close()
    return levels


def log(probabilities: Floats) -> Floats:
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
    places = find(levels[n - 1].keys, contexts * vocabulary + tokens)
    return np.where(contexts >= 0, places, -1)


def ngram_words(levels: list[Level], n: int, places: Ints, vocabulary: int) -> Ints:
    """The tokens (M, n) of the n-grams at some places (M,) of an order."""
    columns: list[Ints] = []
    for level in reversed(levels[1:n]):
        places, tokens = np.divmod(level.keys[places], vocabulary)
        columns.append(tokens)
    return np.stack([places, *reversed(columns)], 1)


def suffix_links(levels: list[Level], vocabulary: int) -> list[Ints]:
    """For every n-gram of every order the place of its last n − 1 tokens; −1: it is not there."""
    links = [np.full(len(levels[0].keys), -1, np.int64)]
    for n in range(2, len(levels) + 1):
        parents, tokens = levels[n - 1].keys // vocabulary, levels[n - 1].keys % vocabulary
        links.append(tokens if n == 2 else extend(levels, n - 1, links[-1][parents], tokens, vocabulary))
    return links


def masses(level: Level, below: Level, suffixes: Ints, vocabulary: int) -> tuple[Floats, Floats, Floats]:
    """Of every context the probability of the tokens that it has n-grams for, and what all other tokens have.

    The latter after the context, and after the one that is one token shorter; `suffixes` are the places of the last
    n − 1 tokens of the n-grams.
    """
    logs = level.log_probabilities, below.log_probabilities[suffixes]
    parents, size = level.keys // vocabulary, len(below.keys)
    own, lower = (np.bincount(parents, np.exp(part), minlength=size).astype(np.float64) for part in logs)
    return own, np.maximum(1 - own, 1e-12), np.maximum(1 - lower, 1e-12)


def prune(levels: list[Level], vocabulary: int, threshold: float) -> list[Level]:
    """Drop n-grams whose loss raises the perplexity by less than a share `threshold` (Stolcke 1998).

    What an n-gram that stays begins with and ends with stays too. The probability p(w | h') that a context h backs off
    to is therefore always that of an n-gram, whatever else is dropped, and the back-off weights, computed anew, make
    the probabilities after every context sum to one.
    """
    levels = [Level(keys, logs.astype(float), backoffs.astype(float)) for keys, logs, backoffs in levels]
    links = suffix_links(levels, vocabulary)
    for n in range(len(levels), 1, -1):
        level, below = levels[n - 1], levels[n - 2]
        parents = level.keys // vocabulary
        own, lower = level.log_probabilities, below.log_probabilities[links[n - 1]]
        _, numerator, denominator = (mass[parents] for mass in masses(level, below, links[n - 1], vocabulary))
        new = np.log(numerator + np.exp(own)) - np.log(denominator + np.exp(lower))  # back-off without this n-gram
        old = np.log(numerator) - np.log(denominator)
        joint = np.exp(joint_log_probabilities(levels, n - 1, vocabulary))[parents]
        change = -joint * (np.exp(own) * (lower + new - own) + numerator * (new - old))
        keep = np.expm1(change) >= threshold  # the perplexity is the exponential of the loss
        if n < len(levels):
            keep[levels[n].keys // vocabulary] = True
            keep[links[n]] = True
            links[n] = (np.cumsum(keep) - 1)[links[n]]
        levels, links[n - 1] = keep_ngrams(levels, n, keep, vocabulary), links[n - 1][keep]
    for n in range(2, len(levels) + 1):
        own, numerator, denominator = masses(levels[n - 1], levels[n - 2], links[n - 1], vocabulary)
        weights = np.where(own > 0, log(numerator) - log(denominator), 0.0)
        levels[n - 2] = levels[n - 2]._replace(backoffs=weights)
    return levels


def joint_log_probabilities(levels: list[Level], n: int, vocabulary: int) -> Floats:
    """The log-probability of every n-gram of order n as a whole; <sos> is as probable as <eos>."""
    joint = levels[0].log_probabilities.copy()
    joint[SOS] = joint[EOS]
    for level in levels[1:n]:
        joint = joint[level.keys // vocabulary] + level.log_probabilities
    return joint


def keep_ngrams(levels: list[Level], n: int, keep: Bools, vocabulary: int) -> list[Level]:
    """The levels without some n-grams of order n, contexts of none; keys of the order above are renumbered."""
    out = list(levels)
    out[n - 1] = Level(*(column[keep] for column in levels[n - 1]))
    if n < len(levels):
        parents, tokens = np.divmod(levels[n].keys, vocabulary)
        out[n] = levels[n]._replace(keys=(np.cumsum(keep) - 1)[parents] * vocabulary + tokens)
    return out
