"""Word alignment by expectation maximisation: IBM models 1, 2, 3 (Brown et al. 1993), HMM (Vogel et al. 1996).

All models have p(target word | source word), where the empty word explains words without a partner. They differ in how
probable it is that target word j comes from source word i: equally in model 1, by (i, j, lengths) in model 2, and by
the distance to the source word of target word j − 1 in the HMM. Pairs with sources of one length are handled together,
and every different link (source word, target word) has a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.classical.fertility import FertilityModel
from dragoman.classical.key_index import KeyIndex, distinct
from dragoman.classical.model import Note
from dragoman.classical.rows import Ragged
from dragoman.scoring.alignment import SYMMETRIZATIONS, Links, swap_direction

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = Sequence[str]
NULL = 0  # the number of the empty word
CELLS = 1_000_000  # links handled at a time
MAX_LINKS = 30_000_000  # of the pairs that EM reads; more pairs are sampled evenly
FLOOR = 1e-9  # probability of links that EM has not seen
EMPTY = 0.2  # probability that an HMM goes to the empty word
JUMPS = 40  # longer jumps count as this long
PRIOR = 0.01  # of a word's translations: few words have many
KINDS = ("ibm1", "ibm2", "ibm3", "hmm")


class Vocabulary:
    """Numbers from 1 for words, in the order of their first occurrence; words are compared without case."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._spelt: dict[str, int] = {}  # the same for words as they are spelt

    @property
    def size(self) -> int:
        """Above all numbers."""
        return len(self.numbers) + 1

    def learn(self, words: Iterable[str]) -> list[int]:
        """The numbers of words, which new words get now."""
        spelt, numbers, out = self._spelt, self.numbers, list[int]()
        for word in words:
            if (number := spelt.get(word)) is None:
                number = spelt[word] = numbers.setdefault(word.casefold(), len(numbers) + 1)
            out.append(number)
        return out

    def rows(self, sentences: Sequence[Words]) -> Ragged:
        """Sentences as numbers; an unknown word has the number `size`."""
        spelt, numbers, unknown = self._spelt.get, self.numbers, self.size
        return Ragged.of(
            [[spelt(word) or numbers.get(word.casefold(), unknown) for word in words] for words in sentences]
        )


class Group(NamedTuple):
    """Pairs whose sources have one length S."""

    indices: Ints  # (N,)
    links: NDArray[np.int32]  # (N, T, S+1) numbers of links, the empty word first; the last number is for padding
    lengths: Ints  # (N,) of the targets

    @property
    def real(self) -> NDArray[np.bool_]:
        """(N, T), True = a target word."""
        return np.arange(self.links.shape[1]) < self.lengths[:, None]


def padded_groups(sources: Ragged, targets: Ragged, indices: Ints) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Pairs by source length: indices (N,), sources (N, S+1), the empty word first, targets (N, T), lengths (N,)."""
    order = indices[np.lexsort((indices, targets.lengths[indices], sources.lengths[indices]))]
    for same in np.split(order, np.flatnonzero(np.diff(sources.lengths[order])) + 1):
        first = 0
        while first < len(same):
            width = int(sources.lengths[same[first]]) + 1
            count = max(1, CELLS // (width * max(1, int(targets.lengths[same[min(first + 64, len(same) - 1)]]))))
            some = same[first : first + count]
            first += count
            left, right = sources.take(some), targets.take(some)
            padded = np.full((len(some), max(1, int(right.lengths.max()))), -1, np.int64)
            padded[np.arange(padded.shape[1]) < right.lengths[:, None]] = right.flat
            rows = np.concatenate([np.zeros((len(some), 1), np.int64), left.flat.reshape(len(some), -1)], 1)
            yield some, rows.astype(np.int64), padded, right.lengths


class WordAligner:
    """p(target | source): learned from pairs of sentences, then used to align the same or other pairs."""

    def __init__(self, kind: str = "hmm", iterations: int = 5, prior: float = 0.0) -> None:
        """`iterations` of each model; `prior` above 0 is that of a Dirichlet distribution, which favours few links."""
        assert kind in KINDS
        self.kind, self.iterations, self.prior = kind, iterations, prior
        self.jumps = np.ones(2 * JUMPS + 1)  # expected number of jumps by −JUMPS … JUMPS
        self.places: dict[tuple[int, int], Floats] = {}  # (S, T) → (T, S+1), of model 2

    def fit(
        self, sources: Sequence[Words], targets: Sequence[Words], note: Note = lambda doing, count: None
    ) -> list[float]:
        """Learn from pairs; returns the loss per target word before every iteration, which never rises."""
        return self.fit_rows(*self.read(sources, targets), note)

    def read(self, sources: Sequence[Words], targets: Sequence[Words]) -> tuple[Ragged, Ragged, tuple[int, int]]:
        """Learn the vocabularies; returns the sentences as rows of numbers, and the sizes of both vocabularies."""
        self.source_words, self.target_words = Vocabulary(), Vocabulary()
        left = Ragged.of([self.source_words.learn(words) for words in sources])
        right = Ragged.of([self.target_words.learn(words) for words in targets])
        return left, right, (self.source_words.size, self.target_words.size)

    def fit_rows(
        self, left: Ragged, right: Ragged, sizes: tuple[int, int], note: Note = lambda doing, count: None
    ) -> list[float]:
        """The same for rows of numbers below these sizes; no word has the number 0, which is that of the empty word."""
        self.sizes = sizes
        usable = np.flatnonzero((left.lengths > 0) & (right.lengths > 0))
        total = int(((left.lengths + 1) * right.lengths)[usable].sum())
        count = min(len(usable), int(len(usable) * MAX_LINKS / max(1, total)) + 1)
        some = usable[np.unique(np.linspace(0, len(usable) - 1, count).astype(np.int64))]
        self.keys = self._different_keys(left, right, some)
        self.index = KeyIndex(self.keys)
        groups = [
            Group(indices, self._numbers(self._keys(rows, columns)), lengths)
            for indices, rows, columns, lengths in padded_groups(left, right, some)
        ]
        self.owners = (self.keys // (self.sizes[1] + 1)).astype(np.int32)
        # p(target | source) of every link, all alike at first; 0 for padding
        self.table = np.append(np.full(len(self.keys), 1 / max(1, sizes[1])), 0.0)
        losses: list[float] = []
        for stage in ("ibm1",) if self.kind == "ibm1" else ("ibm1", self.stage):
            for _ in range(self.iterations):
                note("aligning words", len(losses) + 1)
                losses.append(self._iterate(groups, stage))
        if self.kind == "ibm3":
            self.fertility = FertilityModel(self.sizes[0] + 1)
            for _ in range(self.iterations):
                note("learning fertilities", 0)
                self._learn_fertilities(left, right, some)
        return losses

    def _different_keys(self, left: Ragged, right: Ragged, some: Ints) -> Ints:
        """The keys of all links of these pairs, sorted; a part at a time, so that memory stays small."""
        found, parts, size = np.empty(0, np.int64), list[Ints](), 0
        for _, rows, columns, _ in padded_groups(left, right, some):
            parts.append(distinct(self._keys(rows, columns)[columns >= 0]))
            size += len(parts[-1])
            if size > max(len(found), 4 * CELLS):
                found, parts, size = distinct(np.concatenate([found, *parts])), [], 0
        return distinct(np.concatenate([found, *parts]))

    @property
    def stage(self) -> str:
        """The model whose posteriors alignments start from."""
        return "ibm2" if self.kind == "ibm3" else self.kind

    def _learn_fertilities(self, left: Ragged, right: Ragged, some: Ints) -> None:
        """One iteration of model 3 on the best alignments that it finds; t(f | e) is counted anew from them too."""
        counts = 0.1 * self.table
        found: list[tuple[Ints, Ints]] = []
        for indices, rows, columns, lengths in padded_groups(left, right, some):
            group = Group(indices, self._numbers(self._keys(rows, columns)), lengths)
            for row, alignment, _, _ in self._climbed(group, rows):
                found.append((rows[row], alignment))
                links = group.links[row, np.arange(len(alignment)), alignment]
                np.add.at(counts, links, 1.0)
        counts[-1] = 0.0
        self.fertility.update(found)
        self._normalise(counts, prior=0.0)

    def _climbed(self, group: Group, sources: Ints) -> Iterator[tuple[int, Ints, Floats, float]]:
        """The alignment of every pair by model 3, the gains of moving each of its links, and its log-probability."""
        start, _, _ = self._posteriors(group, "ibm2")
        emitted = np.maximum(self.table[group.links], FLOOR)
        for row, length in enumerate(group.lengths.tolist()):
            scores = self.fertility.scores(sources[row], emitted[row, :length])
            first = start[row, :length].argmax(1)
            if (first == NULL).sum() > length // 2:  # model 3 gives the empty word at most half of the words
                first = start[row, :length, 1:].argmax(1) + 1
            alignment, gains = scores.climb(first)
            yield row, alignment, gains, scores.score(alignment)

    def _keys(self, sources: Ints, targets: Ints) -> Ints:
        return sources[:, None, :] * (self.sizes[1] + 1) + targets[:, :, None]

    def _numbers(self, keys: Ints) -> NDArray[np.int32]:
        """The numbers of links; the last for padding and for links that EM has not seen."""
        return self.index.find(keys)

    def _iterate(self, groups: list[Group], stage: str) -> float:
        counts = np.zeros(len(self.table))
        jumps = np.zeros_like(self.jumps)
        places: dict[tuple[int, int], Floats] = {}
        likelihood, words = 0.0, 0
        for group in groups:
            posterior, logs, moved = self._posteriors(group, stage, counting=True)
            np.add.at(counts, group.links.ravel(), posterior.ravel())
            likelihood, words = likelihood + float(logs.sum()), words + int(group.lengths.sum())
            if moved is not None:
                jumps += moved
            if stage == "ibm2":
                for length in np.unique(group.lengths).tolist():
                    key = (group.links.shape[2] - 1, length)
                    found = posterior[group.lengths == length, :length].sum(0)
                    places[key] = places.get(key, 0.0) + found
        self._normalise(counts, self.prior)
        if stage == "hmm":
            self.jumps = jumps + 1e-6 * jumps.sum() / len(jumps)
        if stage == "ibm2":
            self.places = {key: table / table.sum(1, keepdims=True) for key, table in places.items()}
        return -likelihood / max(1, words)

    def _normalise(self, counts: Floats, prior: float) -> None:
        """p(target | source) from expected counts; with a prior, the means of a variational posterior."""
        own = counts[:-1]
        totals = np.bincount(self.owners, own, minlength=self.sizes[0] + 1)
        if prior:
            size = np.bincount(self.owners, minlength=self.sizes[0] + 1)
            below = torch.digamma(torch.from_numpy(totals + prior * np.maximum(size, 1))).numpy()
        for first in range(0, len(own), CELLS):  # a part at a time, so that memory stays small
            part = slice(first, min(first + CELLS, len(own)))
            if prior:
                above = torch.digamma(torch.from_numpy(own[part] + prior)).numpy()
                self.table[part] = np.exp(above - below[self.owners[part]])
            else:
                self.table[part] = own[part] / np.maximum(totals[self.owners[part]], 1e-300)

    def _posteriors(self, group: Group, stage: str, counting: bool = False) -> tuple[Floats, Floats, Floats | None]:
        """p(link | pair) (N, T, S+1), the log-likelihood (N,) of the pairs, and with `counting` expected jumps."""
        emitted = self.table[group.links]  # EM has seen all links, and that of padding is 0
        if not counting:
            emitted[group.links == len(self.keys)] = FLOOR
            emitted *= group.real[:, :, None]
        if stage == "hmm":
            return self._forward_backward(group, emitted, counting)
        if stage == "ibm2":
            emitted = emitted * self._place_weights(group)
        else:
            emitted = emitted / group.links.shape[2]
        totals = emitted.sum(2)
        real = group.real
        logs = np.log(np.where(real, np.maximum(totals, 1e-300), 1.0)).sum(1)
        return emitted / np.where(real, np.maximum(totals, 1e-300), 1.0)[:, :, None], logs, None

    def _place_weights(self, group: Group) -> Floats:
        """a(i | j, S, T) of model 2: (N, T, S+1); equal where these lengths are new."""
        width = group.links.shape[2]
        out = np.full(group.links.shape, 1 / width)
        for length in np.unique(group.lengths).tolist():
            table = self.places.get((width - 1, length))
            if table is not None:
                out[group.lengths == length, :length] = table
        return out

    def transitions(self, length: int) -> tuple[Floats, Floats]:
        """p(next source word | last) (S, S) of the HMM, and p(first source word) (S,)."""
        places = np.arange(length)
        weights = self.jumps[np.clip(places[None] - places[:, None], -JUMPS, JUMPS) + JUMPS]
        first = self.jumps[np.clip(places + 1, -JUMPS, JUMPS) + JUMPS]
        return weights / weights.sum(1, keepdims=True), first / first.sum()

    def _forward_backward(self, group: Group, emitted: Floats, counting: bool) -> tuple[Floats, Floats, Floats | None]:
        """The HMM of Och and Ney (2003): a state for every source word, and one for the empty word after each."""
        length, steps = group.links.shape[2] - 1, group.links.shape[1]
        matrix, first = self.transitions(length)
        null, own = EMPTY * emitted[:, :, :1], (1 - EMPTY) * emitted[:, :, 1:]  # (N, T, 1), (N, T, S)
        padding = [np.flatnonzero(~alive) for alive in group.real.T]  # by step: rows whose target has ended
        ahead = np.empty((steps, 2, *own[:, 0].shape))  # real and empty states
        scales = np.ones((steps, len(own)))
        before = np.broadcast_to(first, own[:, 0].shape)  # (N, S): the last source word, whichever state
        for step in range(steps):
            real, empty = ahead[step]
            np.multiply(before @ matrix if step else first, own[:, step], out=real)
            np.multiply(before, null[:, step], out=empty)
            scales[step] = np.maximum(real.sum(1) + empty.sum(1), 1e-300)
            ahead[step] /= scales[step][:, None]
            if len(ended := padding[step]):
                scales[step, ended], ahead[step][:, ended] = 1.0, ahead[step - 1][:, ended]
            before = real + empty
        behind = np.ones_like(own[:, 0])  # (N, S), the same for both states of a source word
        posterior = np.zeros_like(emitted)
        moved = np.zeros((length, length))
        for step in range(steps - 1, -1, -1):
            real, empty = ahead[step]
            np.multiply(real, behind, out=posterior[:, step, 1:])
            posterior[:, step, 0] = np.einsum("ns,ns->n", empty, behind)
            if len(ended := padding[step]):
                posterior[ended, step] = 0.0
            if step:
                behind_scaled = behind / scales[step][:, None]
                weighted = own[:, step] * behind_scaled
                if len(ended):
                    weighted[ended] = 0.0
                if counting:
                    moved += ahead[step - 1].sum(0).T @ weighted
                back = weighted @ matrix.T
                back += null[:, step] * behind_scaled
                if len(ended):
                    back[ended] = behind[ended]
                behind = back
        jumps = self._expected_jumps(moved * matrix, posterior[:, 0, 1:].sum(0)) if counting else None
        return posterior, np.log(scales).sum(0), jumps  # scales of padding are 1

    def _expected_jumps(self, moved: Floats, starts: Floats) -> Floats:
        """Jumps by their distance, from those between two source words (S, S) and those to the first one (S,)."""
        jumps, places = np.zeros_like(self.jumps), np.arange(len(starts))
        np.add.at(jumps, np.clip(places[None] - places[:, None], -JUMPS, JUMPS) + JUMPS, moved)
        np.add.at(jumps, np.clip(places + 1, -JUMPS, JUMPS) + JUMPS, starts)
        return jumps

    def posteriors(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[Floats]:
        """p(source word | target word) of every pair: (T, S+1), the empty word first.

        Of model 3 given all other links of the best alignment.
        """
        return self.align_rows(self.source_words.rows(sources), self.target_words.rows(targets))[0]

    def align_rows(self, left: Ragged, right: Ragged) -> tuple[list[Floats], Floats]:
        """The posteriors of rows of numbers, and log p(target | source) of every pair.

        Of model 3 it is that of the best alignment. Without source words, a target has no probability.
        """
        sizes = zip(left.lengths.tolist(), right.lengths.tolist(), strict=True)
        out: list[Floats] = [np.zeros((target, source + 1)) for source, target in sizes]
        logs = np.where(right.lengths > 0, -np.inf, 0.0)
        usable = np.flatnonzero((left.lengths > 0) & (right.lengths > 0))
        for indices, rows, columns, lengths in padded_groups(left, right, usable):
            group = Group(indices, self._numbers(self._keys(rows, columns)), lengths)
            if self.kind == "ibm3":
                for row, _, gains, score in self._climbed(group, rows):
                    logs[indices[row]] = score
                    shares = np.exp(gains - gains.max(1, keepdims=True))
                    out[int(indices[row])] = shares / shares.sum(1, keepdims=True)
                continue
            found, logs[indices], _ = self._posteriors(group, self.kind)
            for row, index in enumerate(indices.tolist()):
                out[index] = found[row, : lengths[row]]
        return out, logs

    # --- storage

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was learned from rows of numbers, by name."""
        found: dict[str, NDArray[Any]] = {"keys": self.keys, "table": self.table[:-1]}
        if self.kind == "hmm":
            found["jumps"] = self.jumps
        if self.stage == "ibm2":
            sizes = sorted(self.places)
            found["place_sizes"] = np.array(sizes, np.int64).reshape(-1, 2)
            found["places"] = np.concatenate([np.empty(0), *(self.places[size].ravel() for size in sizes)])
        if self.kind == "ibm3":
            model = self.fertility
            found |= {"fertility": model.fertility, "distances": model.distances, "empty": np.array([model.empty])}
        return found

    def restore(self, arrays: Mapping[str, NDArray[Any]], sizes: tuple[int, int]) -> None:
        """Take what an aligner of the same kind learned."""
        self.sizes, self.keys = sizes, arrays["keys"]
        self.index = KeyIndex(self.keys)
        self.owners = (self.keys // (sizes[1] + 1)).astype(np.int32)
        self.table = np.append(arrays["table"], 0.0)
        if self.kind == "hmm":
            self.jumps = arrays["jumps"]
        if self.stage == "ibm2":
            shapes = [(target, source + 1) for source, target in arrays["place_sizes"].tolist()]
            ends = np.cumsum([target * width for target, width in shapes])
            parts = np.split(arrays["places"], ends[:-1].astype(np.int64)) if shapes else []
            self.places = {
                (shape[1] - 1, shape[0]): part.reshape(shape) for shape, part in zip(shapes, parts, strict=True)
            }
        if self.kind == "ibm3":
            self.fertility = FertilityModel(sizes[0] + 1)
            self.fertility.fertility, self.fertility.distances = arrays["fertility"], arrays["distances"]
            self.fertility.empty = float(arrays["empty"][0])


class BothDirections:
    """Two aligners: p(target | source) and p(source | target)."""

    def __init__(self, kind: str, iterations: int) -> None:
        self.forward, self.backward = WordAligner(kind, iterations, PRIOR), WordAligner(kind, iterations, PRIOR)

    def fit_rows(self, left: Ragged, right: Ragged, sizes: tuple[int, int], note: Note) -> list[float]:
        """Learn from rows of numbers below these sizes; returns the losses of p(target | source)."""
        with ThreadPoolExecutor(2) as directions:  # numpy computes both at once where there are two cores
            ahead = directions.submit(self.forward.fit_rows, left, right, sizes, note)
            back = directions.submit(self.backward.fit_rows, right, left, (sizes[1], sizes[0]))
            back.result()
            return ahead.result()

    def align_rows(self, left: Ragged, right: Ragged) -> tuple[list[Floats], list[Floats]]:
        """The posteriors of every pair by both: (T, S+1) and (S, T+1), the empty word first."""
        with ThreadPoolExecutor(2) as directions:
            ahead = directions.submit(self.forward.align_rows, left, right)
            back = directions.submit(self.backward.align_rows, right, left)
            return ahead.result()[0], back.result()[0]


def combined_links(one: Floats, other: Floats, combine: str, threshold: float | None = None) -> Links:
    """The links of a pair from the posteriors of both directions."""
    return SYMMETRIZATIONS[combine](links_of(one, threshold), swap_direction(links_of(other, threshold)))


def links_of(posterior: Floats, threshold: float | None = None) -> Links:
    """(source, target) links: of each target word the most probable source word, unless it is the empty one.

    With a threshold all links that are at least so probable.
    """
    if threshold is not None:
        targets, sources = np.nonzero(posterior[:, 1:] >= threshold)
        return frozenset(zip(sources.tolist(), targets.tolist(), strict=True))
    best = posterior.argmax(1)
    return frozenset((int(source) - 1, target) for target, source in enumerate(best) if source)
