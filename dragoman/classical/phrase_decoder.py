"""Stack decoding of phrase-based translation (Koehn 2004), with pruning before the language model is asked.

Stack n holds hypotheses that have translated n source tokens. All extensions of a stack are ranked by an estimate
first; the language model scores the best of them, as cube pruning does (Huang and Chiang 2007). All steps are array
operations over the hypotheses and phrases of one sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import check_interrupted
from dragoman.classical.model import Tokens
from dragoman.classical.ngram import NGramModel
from dragoman.classical.rows import Floats, Ints, join_rows, take_rows
from dragoman.data.tokenizers import EOS

MAX_TOKENS = 60  # coverage is a 64-bit number
FEATURES = ("p(t|s)", "p(s|t)", "lex(t|s)", "lex(s|t)", "phrases", "words", "distance", "language model")
TABLE = 4  # features that stand in the phrase table
PHRASES, WORDS, DISTANCE, LANGUAGE = 4, 5, 6, 7


class PhraseOptions(NamedTuple):
    """The phrases that match a sentence."""

    starts: Ints  # (O,)
    ends: Ints
    targets: Ints  # (O, L), −1 is padding
    features: Floats  # (O, 4)

    @property
    def lengths(self) -> Ints:
        return np.asarray((self.targets >= 0).sum(1))


class Derivation(NamedTuple):
    """One translation."""

    tokens: Tokens
    features: Floats  # (8,)
    score: float
    phrases: tuple[int, ...]  # the options used, in order of the target
    hypotheses: tuple[int, ...] = ()  # the numbers of the hypotheses on its path, from the empty one on


class Stack(NamedTuple):
    """Hypotheses as columns."""

    covered: NDArray[np.uint64]
    last: Ints  # the end of the last source phrase
    scores: Floats
    future: Floats  # estimate of the rest
    contexts: list[Ints]  # of the language model
    parents: Ints
    options: Ints
    features: Floats  # (H, 8)


class PhraseDecoder:
    """Translates one sentence after the other."""

    def __init__(
        self, model: NGramModel, weights: Floats, *, stack: int = 100, limit: int = 6, pool: int = 400
    ) -> None:
        """`stack` hypotheses per stack; `pool` extensions of a stack go to the language model; `limit` of jumps."""
        self.model, self.weights, self.stack, self.limit, self.pool = model, weights, stack, limit, pool

    def translate(self, length: int, options: PhraseOptions, n_best: int = 1) -> list[Derivation]:
        """The best translations of a sentence of `length` tokens; with n_best > 1 equal states are not merged."""
        assert length <= MAX_TOKENS
        self.options, self.length, self.merge = options, length, n_best == 1
        self.static = options.features @ self.weights[:TABLE]
        self.static += self.weights[PHRASES] + self.weights[WORDS] * options.lengths
        unknown = [np.full(len(options.targets), -1, np.int64) for _ in range(max(0, self.model.order - 1))]
        self.estimates = self.static + self.weights[LANGUAGE] * self.phrase_scores(unknown, options.targets)[0]
        self.costs = self.future_costs()
        self.masks = np.array(
            [sum(1 << place for place in range(a, b)) for a, b in zip(options.starts, options.ends, strict=True)],
            np.uint64,
        )
        start = Stack(
            np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1), self.costs[0, length : length + 1],
            self.model.first_contexts(1), np.full(1, -1), np.full(1, -1), np.zeros((1, len(FEATURES))),
        )  # fmt: skip
        waiting: list[list[Stack]] = [[] for _ in range(length + 1)]
        waiting[0].append(start)
        self.stacks: list[Stack] = []  # as they were extended; hypotheses are numbered through all of them
        self.generated: list[int] = []  # hypotheses of each stack before pruning
        count = 0
        final: Stack | None = None
        for covered in range(length + 1):
            check_interrupted()
            if not waiting[covered]:
                continue
            whole = join_rows(waiting[covered])
            stack = self.prune(whole)
            waiting[covered] = []
            self.stacks.append(stack)
            self.generated.append(len(whole.scores))
            numbers = count + np.arange(len(stack.scores))
            count += len(numbers)
            if covered == length:
                final = stack._replace(parents=numbers)
                break
            more = self.extend(stack, numbers)
            sizes = np.bitwise_count(more.covered).astype(np.int64)
            for size in np.unique(sizes).tolist():
                waiting[size].append(take_rows(more, np.flatnonzero(sizes == size)))
        assert final is not None, "single tokens can always be translated one after the other"
        return self.finish(final, n_best)

    def phrase_scores(self, contexts: list[Ints], targets: Ints) -> tuple[Floats, list[Ints]]:
        """log p of target phrases (N, L) after contexts, and the contexts after them."""
        total = np.zeros(len(targets))
        contexts = [context.copy() for context in contexts]
        for column in range(targets.shape[1]):
            rows = np.flatnonzero(targets[:, column] >= 0)
            if not len(rows):
                break
            logs, after = self.model.advance([context[rows] for context in contexts], targets[rows, column])
            total[rows] += logs
            for context, new in zip(contexts, after, strict=True):
                context[rows] = new
        return total, contexts

    def future_costs(self) -> Floats:
        """The best estimate of every span (S+1, S+1): of a phrase, or of two parts."""
        size = self.length
        # Without it, hypotheses that translate the easy words first would crowd out all others of their stack.
        costs = np.full((size + 1, size + 1), -np.inf)
        np.maximum.at(costs, (self.options.starts, self.options.ends), self.estimates)
        costs[np.arange(size + 1), np.arange(size + 1)] = 0.0
        for width in range(2, size + 1):
            for first in range(size + 1 - width):
                end = first + width
                best = (costs[first, first + 1 : end] + costs[first + 1 : end, end]).max()
                costs[first, end] = max(costs[first, end], best)
        return costs

    def gaps(self, covered: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
        """For every hypothesis and free place the borders of the gap around it (H, S), and the first gap (H,)."""
        places = np.arange(self.length)
        free = (covered[:, None] >> places.astype(np.uint64)) & np.uint64(1) == 0  # (H, S)
        begins = np.maximum.accumulate(np.where(free, 0, places + 1), 1)
        ends = np.minimum.accumulate(np.where(free, self.length, places)[:, ::-1], 1)[:, ::-1]
        return begins, ends, free.argmax(1)

    def extend(self, stack: Stack, numbers: Ints) -> Stack:
        """All extensions that the pool keeps, scored with the language model."""
        options = self.options
        begins, ends, first = self.gaps(stack.covered)
        fits = (stack.covered[:, None] & self.masks) == 0
        jump = np.abs(options.starts[None] - stack.last[:, None])
        fits &= jump <= self.limit
        # The first gap must stay within reach from the end of the phrase.
        fits &= (options.starts[None] == first[:, None]) | (options.ends[None] - first[:, None] <= self.limit)
        rows, columns = np.nonzero(fits)
        begin, end = begins[rows, options.starts[columns]], ends[rows, options.starts[columns]]
        future = (
            stack.future[rows] - self.costs[begin, end]
            + self.costs[begin, options.starts[columns]] + self.costs[options.ends[columns], end]
        )  # fmt: skip
        base = stack.scores[rows] - self.weights[DISTANCE] * jump[rows, columns]
        estimate = base + self.estimates[columns] + future
        kept = self.best_of_each_size(options.ends[columns] - options.starts[columns], estimate)
        rows, columns, future, base = rows[kept], columns[kept], future[kept], base[kept]
        logs, contexts = self.phrase_scores([context[rows] for context in stack.contexts], options.targets[columns])
        features = stack.features[rows].copy()
        features[:, :TABLE] += options.features[columns]
        features[:, PHRASES] += 1
        features[:, WORDS] += options.lengths[columns]
        features[:, DISTANCE] -= jump[rows, columns]
        features[:, LANGUAGE] += logs
        scores = base + self.static[columns] + self.weights[LANGUAGE] * logs
        covered = stack.covered[rows] | self.masks[columns]
        return Stack(covered, options.ends[columns], scores, future, contexts, numbers[rows], columns, features)

    def best_of_each_size(self, sizes: Ints, estimate: Floats) -> Ints:
        """The best extensions for each number of source tokens, so that long phrases do not crowd out short ones.

        Of equal ones the first are taken.
        """
        parts = [np.empty(0, np.int64)]
        for size in np.unique(sizes).tolist():
            own = np.flatnonzero(sizes == size)
            if len(own) > self.pool:  # sorting a few is faster than all
                own = own[estimate[own] >= np.partition(estimate[own], len(own) - self.pool)[len(own) - self.pool]]
            parts.append(own[np.argsort(-estimate[own], kind="stable")[: self.pool]])
        return np.concatenate(parts)

    def prune(self, stack: Stack) -> Stack:
        """The best hypotheses of a stack; those with one state are merged."""
        order = np.lexsort((stack.options, stack.parents, -(stack.scores + stack.future)))
        if self.merge:
            state = self.model.state_keys(stack.contexts, len(order))
            key = np.stack([stack.covered.astype(np.int64), stack.last, state])[:, order]
            order = order[np.sort(np.unique(key, axis=1, return_index=True)[1])]
        return take_rows(stack, order[: self.stack])

    def finish(self, stack: Stack, n_best: int) -> list[Derivation]:
        logs, _ = self.model.advance(stack.contexts, np.full(len(stack.scores), EOS))
        scores = stack.scores + self.weights[LANGUAGE] * logs
        features = stack.features.copy()
        features[:, LANGUAGE] += logs
        parents, chosen = (
            np.concatenate([getattr(one, name) for one in self.stacks]) for name in ("parents", "options")
        )
        best: dict[Tokens, Derivation] = {}
        for row in np.argsort(-scores, kind="stable").tolist():
            path = [int(stack.parents[row])]
            while chosen[path[-1]] >= 0:
                path.append(int(parents[path[-1]]))
            path.reverse()
            used = tuple(int(chosen[number]) for number in path[1:])
            tokens = tuple(int(token) for option in used for token in self.options.targets[option] if token >= 0)
            best.setdefault(tokens, Derivation(tokens, features[row], float(scores[row]), used, tuple(path)))
            if len(best) == n_best:
                break
        return list(best.values())
