"""Word alignment by expectation maximisation: IBM models 1, 2, 3 (Brown et al. 1993), HMM (Vogel et al. 1996).

All models have p(target word | source word), where the empty word explains words without a partner. They differ in how
probable it is that target word j comes from source word i: equally in model 1, by (i, j, lengths) in model 2, and by
the distance to the source word of target word j − 1 in the HMM. Pairs with sources of one length are handled together,
and every different link (source word, target word) has a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import RunError
from dragoman.classical.fertility import FAR, MAX_FERTILITY, FertilityModel
from dragoman.classical.hmm_alignment import JUMPS, forward_backward
from dragoman.classical.model import Note, TensorSpec
from dragoman.classical.rows import Bools, Floats, Ints, KeyIndex, Ragged, by_source_length, distinct
from dragoman.scoring import LinkRows, symmetrize_rows

NULL = 0  # the number of the empty word
MAX_LINKS = 30_000_000  # of the pairs that EM reads; more pairs are sampled evenly
FLOOR = 1e-9  # probability of links that EM has not seen
PRIOR = 0.01  # of a word's translations: few words have many, so rare words attract fewer wrong links
CELLS = 250_000  # links handled at a time: few enough for the processor's cache
KINDS = ("ibm1", "ibm2", "ibm3", "hmm")
LEXICON_ITERATIONS = 5  # after these the probabilities of a word's first few translations hardly change


def digamma(values: Floats) -> Floats:
    import torch

    return torch.digamma(torch.from_numpy(values)).numpy()


class Group(NamedTuple):
    """Pairs whose sources have one length S, sorted by the length of their targets."""

    indices: Ints  # (N,)
    links: NDArray[np.int32]  # (T, S+1, N) numbers of links, the empty word first; the last number is for padding
    lengths: Ints  # (N,) of the targets

    @property
    def real(self) -> Bools:
        """(T, N), True = a target word."""
        return np.arange(len(self.links))[:, None] < self.lengths

    @property
    def first(self) -> Ints:
        """For every target word the first pair that has it: (T,)."""
        return np.searchsorted(self.lengths, np.arange(len(self.links)), "right")

    def most_probable(self, posterior: Floats) -> LinkRows:
        """Each target word with its most probable source word, unless that is the empty one."""
        best = posterior.argmax(1)  # (T, N); of padding 0
        targets, rows = np.nonzero(best)
        return LinkRows(self.indices[rows], best[targets, rows] - 1, targets)

    def probable(self, posterior: Floats, threshold: float) -> LinkRows:
        targets, sources, rows = np.nonzero(posterior[:, 1:] >= threshold)
        return LinkRows(self.indices[rows], sources, targets)


class AlignedPairs(NamedTuple):
    """What an aligner finds of many pairs."""

    links: LinkRows
    logs: Floats  # log p(target | source), of model 3 with the best alignment; −inf for a target without source words
    posteriors: list[Floats]  # of every pair (T, S+1), the empty word first


class WordAligner:
    """p(target | source): learned from pairs of sentences, then used to align the same or other pairs."""

    def __init__(self, kind: str = "hmm", iterations: int = 5, prior: float = 0.0, empty_word: bool = True) -> None:
        """`iterations` of each model.

        Without `empty_word` no target word can come from it: its probabilities begin as 0, and EM leaves them so.

        With a `prior` of 0 this is EM: the likelihood never falls. A prior above 0 is that of a Dirichlet distribution
        over the translations of a word; variational Bayes then fits a bound of another objective, so the loss may rise.
        """
        assert kind in KINDS
        self.kind, self.iterations, self.prior, self.empty_word = kind, iterations, prior, empty_word
        self.jumps = np.ones(2 * JUMPS + 1)  # expected number of jumps by −JUMPS … JUMPS
        self.places: dict[tuple[int, int], Floats] = {}  # (S, T) → (T, S+1), of model 2

    def fit_rows(
        self, left: Ragged, right: Ragged, sizes: tuple[int, int], note: Note = lambda doing, count: None
    ) -> list[float]:
        """Learn from rows of numbers; returns the loss per target word before every iteration.

        The numbers of words are below the sizes of both sides, and above 0, the number of the empty word.
        """
        self.sizes = sizes
        usable = np.flatnonzero((left.lengths > 0) & (right.lengths > 0))
        total = int(((left.lengths + 1) * right.lengths)[usable].sum())
        count = min(len(usable), int(len(usable) * MAX_LINKS / max(1, total)) + 1)
        sampled = usable[np.unique(np.linspace(0, len(usable) - 1, count).astype(np.int64))]
        self.keys = self._different_keys(left, right, sampled)
        self.index = KeyIndex(self.keys)
        groups = [group for group, _ in self._groups(left, right, sampled)]
        self.owners = (self.keys // (self.sizes[1] + 1)).astype(np.int32)
        # p(target | source) of every link, all alike at first; 0 for padding
        self.table = np.append(np.full(len(self.keys), 1 / max(1, sizes[1])), 0.0)
        if not self.empty_word:
            self.table[:-1][self.owners == NULL] = 0.0
        losses: list[float] = []
        for stage in ("ibm1",) if self.kind == "ibm1" else ("ibm1", self.stage):
            for _ in range(self.iterations):
                note("aligning words", len(losses) + 1)
                losses.append(self._iterate(groups, stage))
        if self.kind == "ibm3":
            self.fertility = FertilityModel(self.sizes[0] + 1)
            for _ in range(self.iterations):
                note("learning fertilities", 0)
                self._learn_fertilities(left, right, sampled)
        return losses

    def _different_keys(self, left: Ragged, right: Ragged, some: Ints) -> Ints:
        """The keys of all links of these pairs, sorted; a part at a time, so that memory stays small."""
        known, parts, size = np.empty(0, np.int64), list[Ints](), 0
        for _, rows, columns, _ in padded_groups(left, right, some):
            parts.append(distinct(self._keys(rows, columns).swapaxes(1, 2)[columns >= 0]))
            size += len(parts[-1])
            if size > max(len(known), 4 * CELLS):
                known, parts, size = distinct(np.concatenate([known, *parts])), [], 0
        return distinct(np.concatenate([known, *parts]))

    @property
    def stage(self) -> str:
        """The model whose posteriors alignments start from."""
        return "ibm2" if self.kind == "ibm3" else self.kind

    def _learn_fertilities(self, left: Ragged, right: Ragged, some: Ints) -> None:
        """One iteration of model 3 on the best alignments that it finds; t(f | e) is counted anew from them too."""
        counts = 0.1 * self.table
        aligned: list[tuple[Ints, Ints]] = []
        for group, rows in self._groups(left, right, some):
            for row, alignment, _, _ in self._fertility_alignments(group, rows):
                aligned.append((rows[:, row], alignment))
                links = group.links[np.arange(len(alignment)), alignment, row]
                np.add.at(counts, links, 1.0)
        counts[-1] = 0.0
        self.fertility.update(aligned)
        self._normalise(counts, prior=0.0)

    def _fertility_alignments(self, group: Group, sources: Ints) -> Iterator[tuple[int, Ints, Floats, float]]:
        """The alignment of every pair by model 3, the gains of moving each of its links, and its log-probability."""
        start, _, _ = self._posteriors(group, "ibm2")
        emitted = np.maximum(self.table.take(group.links), FLOOR)
        for row, length in enumerate(group.lengths.tolist()):
            scores = self.fertility.scores(sources[:, row], emitted[:length, :, row])
            first = start[:length, :, row].argmax(1)
            if (first == NULL).sum() > length // 2:  # model 3 gives the empty word at most half of the words
                first = start[:length, 1:, row].argmax(1) + 1
            alignment, gains = scores.hill_climb(first)
            yield row, alignment, gains, scores.score(alignment)

    def _keys(self, sources: Ints, targets: Ints) -> Ints:
        """The keys of all links of padded pairs: (T, S+1, N)."""
        return sources * (self.sizes[1] + 1) + targets[:, None]

    def _groups(self, left: Ragged, right: Ragged, some: Ints) -> Iterator[tuple[Group, Ints]]:
        """Groups of pairs, and their source words (S+1, N). Links that EM has not seen are numbered as padding is."""
        for indices, rows, columns, lengths in padded_groups(left, right, some):
            yield Group(indices, self.index.find(self._keys(rows, columns)), lengths), rows

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
                    key = (group.links.shape[1] - 1, length)
                    shares = posterior[:length, :, group.lengths == length].sum(2)
                    places[key] = places.get(key, 0.0) + shares
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
        if prior:  # exp(digamma) of a small count is far below the count, so rare links fade (Riley and Gildea 2012)
            size = np.bincount(self.owners, minlength=self.sizes[0] + 1)
            below = digamma(totals + prior * np.maximum(size, 1))
        for first in range(0, len(own), CELLS):  # a part at a time, so that memory stays small
            part = slice(first, min(first + CELLS, len(own)))
            if prior:
                above = digamma(own[part] + prior)
                self.table[part] = np.exp(above - below.take(self.owners[part]))
            else:
                self.table[part] = own[part] / np.maximum(totals.take(self.owners[part]), 1e-300)

    def _posteriors(self, group: Group, stage: str, counting: bool = False) -> tuple[Floats, Floats, Floats | None]:
        """p(link | pair) (T, S+1, N), the log-likelihood (N,) of the pairs, and with `counting` expected jumps."""
        emitted = self.table.take(group.links)  # EM has seen all links, and that of padding is 0
        if not counting:
            emitted[group.links == len(self.keys)] = FLOOR
            emitted *= group.real[:, None]
        if stage == "hmm":
            return forward_backward(emitted, group.first, self.jumps, counting)
        emitted *= self._place_weights(group) if stage == "ibm2" else 1 / group.links.shape[1]
        totals = np.where(group.real, np.maximum(emitted.sum(1), 1e-300), 1.0)
        emitted /= totals[:, None]
        return emitted, np.log(totals).sum(0), None

    def _place_weights(self, group: Group) -> Floats:
        """a(i | j, S, T) of model 2: (T, S+1, N); equal where these lengths are new."""
        width = group.links.shape[1]
        out = np.full(group.links.shape, 1 / width)
        for length in np.unique(group.lengths).tolist():
            table = self.places.get((width - 1, length))
            if table is not None:
                out[:length, :, group.lengths == length] = table[:, :, None]
        return out

    def align_rows(
        self, left: Ragged, right: Ragged, *, threshold: float | None = None, keep: bool = True
    ) -> AlignedPairs:
        """Align rows of numbers.

        A link is the most probable source word of a target word, unless that is the empty one; with a threshold all
        that are at least so probable. `keep` the posteriors too; those of model 3 are given all other links.
        """
        links: list[LinkRows] = []
        logs = np.where(right.lengths > 0, -np.inf, 0.0)
        posteriors: list[Floats] = []
        if keep:
            sizes = zip(left.lengths.tolist(), right.lengths.tolist(), strict=True)
            posteriors = [np.zeros((target, source + 1)) for source, target in sizes]
        usable = np.flatnonzero((left.lengths > 0) & (right.lengths > 0))
        for group, rows in self._groups(left, right, usable):
            if self.kind == "ibm3":
                posterior, logs[group.indices] = self._fertility_posteriors(group, rows)
            else:
                posterior, logs[group.indices], _ = self._posteriors(group, self.kind)
            links.append(group.most_probable(posterior) if threshold is None else group.probable(posterior, threshold))
            for row, index in enumerate(group.indices.tolist() if keep else []):
                posteriors[index] = posterior[: group.lengths[row], :, row]
        return AlignedPairs(LinkRows.joined(links), logs, posteriors)

    def _fertility_posteriors(self, group: Group, sources: Ints) -> tuple[Floats, Floats]:
        """By model 3 the probability of each link given all others (T, S+1, N), and log p of the alignments (N,)."""
        posteriors, logs = np.zeros(group.links.shape), np.zeros(len(group.lengths))
        for row, _, gains, score in self._fertility_alignments(group, sources):
            shares = np.exp(gains - gains.max(1, keepdims=True))
            posteriors[: len(gains), :, row], logs[row] = shares / shares.sum(1, keepdims=True), score
        return posteriors, logs

    # --- storage

    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {"keys": self.keys, "table": self.table[:-1]}
        if self.kind == "hmm":
            arrays["jumps"] = self.jumps
        if self.stage == "ibm2":
            sizes = sorted(self.places)
            arrays["place_sizes"] = np.array(sizes, np.int64).reshape(-1, 2)
            arrays["places"] = np.concatenate([np.empty(0), *(self.places[size].ravel() for size in sizes)])
        if self.kind == "ibm3":
            model = self.fertility
            arrays |= {"fertility": model.fertility, "distances": model.distances, "empty": np.array([model.empty])}
        return arrays

    def tensor_specs(self, prefix: str, sizes: tuple[int, int]) -> dict[str, TensorSpec]:
        """What the arrays are, with a prefix to their names and to those of their sizes."""
        kind = np.float64
        specs = {
            "keys": TensorSpec(np.int64, (f"{prefix}links",), 0, (sizes[0], sizes[1] + 1), rising=True),
            "table": TensorSpec(kind, (f"{prefix}links",)),
        }
        if self.kind == "hmm":
            specs["jumps"] = TensorSpec(kind, (2 * JUMPS + 1,))
        if self.stage == "ibm2":
            specs["place_sizes"] = TensorSpec(np.int64, (f"{prefix}lengths", 2), 1)
            specs["places"] = TensorSpec(kind, (f"{prefix}places",))
        if self.kind == "ibm3":
            specs["fertility"] = TensorSpec(kind, (sizes[0] + 1, MAX_FERTILITY + 1))
            specs["distances"] = TensorSpec(kind, (2 * FAR + 1,))
            specs["empty"] = TensorSpec(kind, (1,))
        return {f"{prefix}{name}": spec for name, spec in specs.items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]], sizes: tuple[int, int]) -> None:
        self.sizes, self.keys = sizes, arrays["keys"]
        self.index = KeyIndex(self.keys)
        self.owners = (self.keys // (sizes[1] + 1)).astype(np.int32)
        self.table = np.append(arrays["table"], 0.0)
        if self.kind == "hmm":
            self.jumps = arrays["jumps"]
        if self.stage == "ibm2":
            lengths = arrays["place_sizes"].tolist()  # of source and target
            sizes_of = [(source + 1) * target for source, target in lengths]
            if sum(sizes_of) != len(arrays["places"]):
                raise RunError("the weights are damaged: place_sizes does not divide places")
            parts = np.split(arrays["places"], np.cumsum(sizes_of)[:-1].astype(np.int64))
            tables = zip(lengths, parts, strict=False)
            self.places = {(source, target): part.reshape(target, source + 1) for (source, target), part in tables}
        if self.kind == "ibm3":
            self.fertility = FertilityModel(sizes[0] + 1)
            self.fertility.fertility, self.fertility.distances = arrays["fertility"], arrays["distances"]
            self.fertility.empty = float(arrays["empty"][0])


def padded_groups(sources: Ragged, targets: Ragged, indices: Ints) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Pairs by source length: indices (N,), sources (S+1, N), the empty word first, targets (T, N), lengths (N,).

    Padding of targets is −1.
    """
    for same in by_source_length(sources, targets, indices):
        first = 0
        while first < len(same):
            width = int(sources.lengths[same[first]]) + 1
            count = max(1, CELLS // (width * max(1, int(targets.lengths[same[min(first + 64, len(same) - 1)]]))))
            chosen = same[first : first + count]
            first += count
            left, right = sources.take(chosen), targets.take(chosen)
            rows = np.zeros((width, len(chosen)), np.int64)
            rows[1:] = left.flat.reshape(len(chosen), -1).T
            yield chosen, rows, np.ascontiguousarray(right.padded().T), right.lengths


class BothDirections:
    """Two aligners: p(target | source) and p(source | target)."""

    def __init__(self, kind: str, iterations: int, prior: float = PRIOR) -> None:
        self.forward, self.backward = WordAligner(kind, iterations, prior), WordAligner(kind, iterations, prior)

    def fit_rows(self, left: Ragged, right: Ragged, sizes: tuple[int, int], note: Note) -> list[float]:
        """Learn from rows of numbers below these sizes; returns the losses of p(target | source)."""
        with ThreadPoolExecutor(2) as directions:  # numpy computes both at once where there are two cores
            ahead = directions.submit(self.forward.fit_rows, left, right, sizes, note)
            back = directions.submit(self.backward.fit_rows, right, left, (sizes[1], sizes[0]))
            back.result()
            return ahead.result()

    def align_rows(
        self, left: Ragged, right: Ragged, combine: str, *, threshold: float | None = None, keep: bool = False
    ) -> tuple[LinkRows, AlignedPairs, AlignedPairs]:
        """Links combined by a method of symmetrization, and what each direction found."""
        with ThreadPoolExecutor(2) as directions:
            ahead = directions.submit(self.forward.align_rows, left, right, threshold=threshold, keep=keep)
            back = directions.submit(self.backward.align_rows, right, left, threshold=threshold, keep=keep)
            forward, backward = ahead.result(), back.result()
        return symmetrize_rows(forward.links, backward.links.swapped(), combine), forward, backward


class Lexicon(NamedTuple):
    """Three columns, sorted by source token: sources, targets and p(target | source)."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def most_probable(self, vocabulary: int, count: int, filler: int, without: Sequence[int] = ()) -> NDArray[np.int64]:
        """For every source token its `count` most probable target tokens, except `without`: (V, count)."""
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        order = order[~np.isin(self.targets[order], np.array(without, np.int64))]
        sources, targets = self.sources[order], self.targets[order]
        rank = np.arange(len(sources)) - np.searchsorted(sources, sources)  # among the targets of the same source
        chosen = (rank < count) & (sources < vocabulary)
        table = np.full((vocabulary, count), filler, np.int64)
        table[sources[chosen], rank[chosen]] = targets[chosen]
        return table


def learn_lexicon(store: Any, source_vocabulary: int, pairs: int) -> Lexicon:
    """Learn from at most `pairs` pairs of token rows, evenly spread over the store."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(pairs, len(store))).astype(np.int64))
    left, right = (Ragged.of_rows(column.rows(rows)) for column in (store.source, store.target))
    return lexicon_of_rows(left, right, source_vocabulary)


def lexicon_of_rows(left: Ragged, right: Ragged, source_vocabulary: int) -> Lexicon:
    """Learn from all pairs of rows; the empty word has the number of the source vocabulary's size."""
    size = int(right.flat.max(initial=0)) + 1
    aligner = WordAligner("ibm1", LEXICON_ITERATIONS)
    aligner.fit_rows(Ragged(left.flat + 1, left.offsets), right, (source_vocabulary + 1, size))
    sources, targets = aligner.owners.astype(np.int64) - 1, aligner.keys % (size + 1)
    order = np.argsort(sources == -1, kind="stable")  # the empty word comes last
    sources = np.where(sources == -1, source_vocabulary, sources)
    return Lexicon(sources[order], targets[order], aligner.table[:-1][order])
