"""Rules about what may be written (FIELD H9), each a finite automaton over tokens, and several of them together.

A rule never sees probabilities, so that a hypothesis scores under rules what it scores without. `Rules.distance` says
how many tokens must at least be written before the output may end: a search that keeps only hypotheses whose distance
is within what is left of their length limit finds an output whenever there is one.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dragoman.data.tokenizers.tokenizer import EOS
from dragoman.decoding.constraints.token_bytes import INSIDE, NO_TEXT, START, Surfaces

Standing = Any  # where an automaton stands: hashable; None: what led here may not be written
SMALL = 1024  # counted states of required phrases up to which the very shortest way through all of them is sought
REMEMBERED = 200_000  # transitions kept, so that a stream of inputs under one set of rules needs bounded memory
NAMED = 8  # tokens looked at of those that lead to the same place


class Rule(Protocol):
    """A finite automaton over tokens."""

    start: Standing
    steers: bool  # whether there are places where an output may not end: then `wanted` leads on

    def after(self, state: Standing, token: int) -> Standing:
        """Where a token leads; None if it may not be written."""

    def otherwise(self, state: Standing) -> Standing:
        """Where tokens lead that the rule does not know."""

    def only(self, state: Standing) -> Collection[int] | None:
        """The tokens that may be written, where these are few; None: others may be too."""

    def never(self, state: Standing) -> Collection[int]:
        """Tokens that may not be written, as far as that is known at once; `after` knows the rest."""

    def may_end(self, state: Standing) -> bool:
        """Whether <eos> may be written."""

    def wanted(self, state: Standing) -> Iterable[int]:
        """Tokens that lead towards a place where the output may end."""


class Machine:
    """Finds any of several sequences in a stream of symbols (Aho and Corasick 1975)."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.depth = [0]
        ends: list[list[int]] = [[]]
        for number, sequence in enumerate(sequences):
            node = 0
            for symbol in sequence:
                if symbol not in self.children[node]:
                    self.children[node][symbol] = len(self.children)
                    self.children.append({})
                    self.depth.append(self.depth[node] + 1)
                    ends.append([])
                node = self.children[node][symbol]
            ends[node].append(number)
        self.shorter = [0] * len(self.children)  # the longest proper suffix that is a beginning too
        waiting = deque(self.children[0].values())
        while waiting:
            node = waiting.popleft()
            ends[node] += ends[self.shorter[node]]
            for symbol, child in self.children[node].items():
                self.shorter[child] = self.after(self.shorter[node], symbol)
                waiting.append(child)
        self.found = [tuple(numbers) for numbers in ends]  # which sequences end at each node

    def after(self, node: int, symbol: int) -> int:
        """The node after one more symbol."""
        while symbol not in self.children[node]:
            if node == 0:
                return 0
            node = self.shorter[node]
        return self.children[node][symbol]

    def continuing(self, node: int) -> set[int]:
        """Symbols after which something longer than nothing is matched, by what stands here."""
        symbols = set[int]()
        while node:
            symbols |= self.children[node].keys()
            node = self.shorter[node]
        return symbols


class Prefix:
    """The output begins with a text; its last token may write more than the end of it."""

    steers = True

    def __init__(self, surfaces: Surfaces, text: str) -> None:
        self.surfaces = surfaces
        self.bytes = text.encode("utf-8", "replace")
        self.start: Standing = (START, 0) if self.bytes else ()
        self._moves: dict[Standing, dict[int, Standing]] = {(): {}}

    def moves(self, state: Standing) -> Mapping[int, Standing]:
        """Tokens that agree with the rest of the text."""
        if state not in self._moves:
            place, done = state
            fitting = self.surfaces.fitting(place, self.bytes[done:])
            self._moves[state] = {
                token: (self.surfaces.after[token], done + size) if done + size < len(self.bytes) else ()
                for token, size in fitting.items()
            }
        return self._moves[state]

    def after(self, state: Standing, token: int) -> Standing:
        """Anything, once the text is written."""
        return () if state == () else self.moves(state).get(token)

    def otherwise(self, state: Standing) -> Standing:
        """Anything, once the text is written."""
        return () if state == () else None

    def only(self, state: Standing) -> Collection[int] | None:
        """Tokens that agree with the rest of the text."""
        return None if state == () else self.moves(state)

    def never(self, state: Standing) -> Collection[int]:
        """Nothing more."""
        return ()

    def may_end(self, state: Standing) -> bool:
        """Once the text is written."""
        return bool(state == ())

    def wanted(self, state: Standing) -> Iterable[int]:
        """All ways on."""
        return few_of_each(self.moves(state))


class Forbid:
    """None of several texts is written, or each only so often; it holds for every way to cut them into tokens."""

    steers = False

    def __init__(self, surfaces: Surfaces, texts: Sequence[str], most: Sequence[int] | None = None) -> None:
        self.surfaces = surfaces
        sequences = [text.encode("utf-8", "replace") for text in texts]
        assert all(sequences), "nothing is everywhere and cannot be forbidden"
        self.machine = Machine(sequences)
        self.most = tuple(most or [0] * len(texts))
        self.start: Standing = (START, 0, (0,) * len(texts))
        self.usual = INSIDE if sum(surfaces.after) * 2 > len(surfaces) else START
        self._sequences = sequences
        self._whole: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._never: dict[Standing, list[int]] = {}

    def after(self, state: Standing, token: int) -> Standing:
        """What is matched after all bytes of a token, unless a text came once too often."""
        place, node, counts = state
        for byte in self.surfaces.written[token][place]:
            node = self.machine.after(node, byte)
            if hits := self.machine.found[node]:
                counts = tuple(count + hits.count(text) for text, count in enumerate(counts))
                if any(count > most for count, most in zip(counts, self.most, strict=True)):
                    return None
        return self.surfaces.after[token], node, counts

    def only(self, state: Standing) -> Collection[int] | None:
        """Anything else."""
        return None

    def never(self, state: Standing) -> Collection[int]:
        """Tokens that by themselves write a text too often."""
        place, _, counts = state
        if (place, counts) not in self._never:
            self._never[place, counts] = [
                token
                for token, times in self.whole(place)
                if any(count + more > most for count, more, most in zip(counts, times, self.most, strict=True))
            ]
        return self._never[place, counts]

    def whole(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """Tokens that hold a whole text, and how often each."""
        if place not in self._whole:
            holding, written = self.surfaces.holding[place], self.surfaces.written
            found: dict[int, None] = {}
            for sequence in self._sequences:
                rarest = min((holding.get(byte, []) for byte in sequence), key=len)
                found |= dict.fromkeys(token for token in rarest if sequence in written[token][place])
            self._whole[place] = [
                (token, tuple(written[token][place].count(sequence) for sequence in self._sequences)) for token in found
            ]
        return self._whole[place]

    def otherwise(self, state: Standing) -> Standing:
        """Nothing is matched."""
        return (self.usual, 0, state[2])

    def may_end(self, state: Standing) -> bool:
        """Always."""
        return True

    def wanted(self, state: Standing) -> Iterable[int]:
        """Nothing."""
        return ()


class Require:
    """Every one of several phrases is written at least so often, in one of the ways it is cut into tokens."""

    steers = True

    def __init__(self, phrases: Sequence[Sequence[tuple[int, ...]]], times: Sequence[int] | None = None) -> None:
        assert all(cut and EOS not in cut for cuts in phrases for cut in cuts)
        self.phrases = phrases
        self.needed = tuple(times or [1] * len(phrases))
        pairs = [(number, cut) for number, cuts in enumerate(phrases) for cut in cuts]
        self.phrase_of = [number for number, _ in pairs]
        self.machine = Machine([cut for _, cut in pairs])
        self.tokens = sorted({token for _, cut in pairs for token in cut})
        self.start: Standing = (0, (0,) * len(phrases)) if any(self.needed) else ()
        self.small = len(self.machine.children) * math.prod(times + 1 for times in self.needed) <= SMALL
        self._moves: dict[Standing, dict[int, Standing]] = {(): {}}

    def moves(self, state: Standing) -> Mapping[int, Standing]:
        """Tokens of the phrases."""
        if state not in self._moves:
            self._moves[state] = {token: self._after(state, token) for token in self.tokens}
        return self._moves[state]

    def after(self, state: Standing, token: int) -> Standing:
        """How much is matched."""
        return self.moves(state).get(token, () if state == () else (0, state[1]))

    def only(self, state: Standing) -> Collection[int] | None:
        """Anything else."""
        return None

    def never(self, state: Standing) -> Collection[int]:
        """Nothing."""
        return ()

    def _after(self, state: Standing, token: int) -> Standing:
        node, counts = state
        node = self.machine.after(node, token)
        hits = {self.phrase_of[cut] for cut in self.machine.found[node]}
        if not hits:
            return node, counts
        counts = tuple(min(count + (place in hits), self.needed[place]) for place, count in enumerate(counts))
        if counts == self.needed:
            return ()
        # Of a phrase that is needed once more nothing may be counted twice.
        return 0 if any(counts[phrase] < self.needed[phrase] for phrase in hits) else node, counts

    def otherwise(self, state: Standing) -> Standing:
        """Nothing is matched."""
        return () if state == () else (0, state[1])

    def may_end(self, state: Standing) -> bool:
        """When all is written."""
        return bool(state == ())

    def wanted(self, state: Standing) -> Iterable[int]:
        """Tokens that begin a phrase or go on with one; of many phrases only what the first one misses."""
        if state == ():
            return ()
        node, counts = state
        if self.small:
            unmet = (cuts for place, cuts in enumerate(self.phrases) if counts[place] < self.needed[place])
            return self.machine.continuing(node).union(cut[0] for cuts in unmet for cut in cuts)
        return {self._missing(node, cut) for cut in self.phrases[self._first(counts)]}

    def _first(self, counts: tuple[int, ...]) -> int:
        return next(place for place, count in enumerate(counts) if count < self.needed[place])

    def _missing(self, node: int, cut: tuple[int, ...]) -> int:
        """The next token of a cut after as much of it as stands here."""
        ends = [0]
        for token in cut[:-1]:
            ends.append(self.machine.children[ends[-1]][token])
        while node not in ends:
            node = self.machine.shorter[node]
        return cut[ends.index(node)]


class Among:
    """The output is one of several token rows (a trie)."""

    steers = True

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        self.start: Standing = 0
        self.children: list[dict[int, Standing]] = [{}]
        self.ends = set[int]()
        for row in rows:
            node = 0
            for token in row:
                if token not in self.children[node]:
                    self.children[node][token] = len(self.children)
                    self.children.append({})
                node = self.children[node][token]
            self.ends.add(node)

    def after(self, state: Standing, token: int) -> Standing:
        """A row that goes on so."""
        return self.children[state].get(token)

    def only(self, state: Standing) -> Collection[int] | None:
        """The ways on."""
        return self.children[state]

    def never(self, state: Standing) -> Collection[int]:
        """Nothing more."""
        return ()

    def otherwise(self, state: Standing) -> Standing:
        """Nothing else."""
        return None

    def may_end(self, state: Standing) -> bool:
        """Where one of the rows ends."""
        return state in self.ends

    def wanted(self, state: Standing) -> Iterable[int]:
        """All ways on."""
        return self.children[state]


def few_of_each(moves: Mapping[int, Standing]) -> list[int]:
    """Some tokens for every place that they lead to."""
    by_place: dict[Hashable, list[int]] = defaultdict(list)
    for token, place in moves.items():
        if place is not None and len(by_place[place]) < NAMED:
            by_place[place].append(token)
    return [token for tokens in by_place.values() for token in tokens]


class Rules:
    """Several rules at once, for one source; sources under the same rules may share the object.

    The distance is that of a real way to the end, and the shortest one unless a forbidden text or NAMED tokens that
    lead to one place bar all that were looked at; then, as with very many required phrases, it may be too long.
    """

    def __init__(self, rules: Sequence[Rule], vocabulary: int) -> None:
        self.rules = tuple(rules)
        self.vocabulary = vocabulary
        self.start: Standing = tuple(rule.start for rule in rules)
        self.requires = any(isinstance(rule, Require) and rule.start != () for rule in rules)
        self._steering = [(place, rule) for place, rule in enumerate(rules) if rule.steers]
        self._known: dict[tuple[Standing, int], Standing] = {}
        self._distances: dict[Standing, float] = {}
        self._lists: dict[Standing, tuple[list[int] | None, list[int]]] = {}

    def after(self, state: Standing, token: int) -> Standing:
        """Where all rules stand after a token; None if one of them does not let it be written."""
        key = (state, token)
        if key not in self._known:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            self._known[key] = self._after(state, token)
        return self._known[key]

    def _after(self, state: Standing, token: int) -> Standing:
        standing = []
        for rule, part in zip(self.rules, state, strict=True):
            new = rule.after(part, token)
            if new is None:
                return None
            standing.append(new)
        return tuple(standing)

    def may_end(self, state: Standing) -> bool:
        """Whether <eos> may be written."""
        return all(rule.may_end(part) for rule, part in zip(self.rules, state, strict=True))

    def lists(self, state: Standing) -> tuple[list[int] | None, list[int]]:
        """The only tokens that may be written (None: all), and those that may not, as far as is known at once."""
        if state not in self._lists:
            only: set[int] | None = None
            never = set[int]()
            for rule, part in zip(self.rules, state, strict=True):
                never.update(rule.never(part))
                if (own := rule.only(part)) is not None:
                    only = set(own) if only is None else only & set(own)
            if self.may_end(state):
                only = only if only is None else only | {EOS}
            else:
                never.add(EOS)
            self._lists[state] = (None if only is None else sorted(only - never), sorted(never))
        return self._lists[state]

    def wanted(self, state: Standing) -> list[int]:
        """Tokens that may be written and lead towards the end."""
        tokens = dict.fromkeys(token for place, rule in self._steering for token in rule.wanted(state[place]))
        return [token for token in tokens if token not in NO_TEXT and self.after(state, token) is not None]

    def _ways(self, state: Standing) -> set[Standing]:
        """Places one token away: by the wanted tokens, and by one that no rule knows, or by all if there is none."""
        tokens = self.wanted(state)
        others = tuple(rule.otherwise(part) for rule, part in zip(self.rules, state, strict=True))
        writable = range(len(NO_TEXT), self.vocabulary)
        if None not in others:
            if any(self.after(state, token) == others for token in writable):
                return {self.after(state, token) for token in tokens} - {None} | {others}
            tokens = list(writable)
        return {self.after(state, token) for token in tokens} - {None}

    def distance(self, state: Standing) -> float:
        """How many tokens lead to a place where the output may end; ∞ if none do."""
        if state not in self._distances:
            self._explore(state)
        return self._distances[state]

    def _explore(self, state: Standing) -> None:
        before: dict[Standing, list[Standing]] = defaultdict(list)
        best: dict[Standing, float] = {}
        seen, waiting = {state}, deque([state])
        while waiting:
            here = waiting.popleft()
            if here in self._distances:
                best[here] = self._distances[here]
                continue
            if self.may_end(here):
                best[here] = 0
                continue
            for there in self._ways(here):
                before[there].append(here)
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
        heap = [(distance, number, here) for number, (here, distance) in enumerate(best.items())]
        heapq.heapify(heap)
        count = len(heap)
        while heap:
            distance, _, here = heapq.heappop(heap)
            if distance > best[here]:
                continue
            for there in before[here]:
                if there not in self._distances and distance + 1 < best.get(there, math.inf):
                    best[there] = distance + 1
                    count += 1
                    heapq.heappush(heap, (distance + 1, count, there))
        for here in seen:
            self._distances[here] = best.get(here, math.inf)
