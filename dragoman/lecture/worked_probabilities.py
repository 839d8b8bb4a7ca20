"""Worked numbers of probabilities: CTC, Viterbi, IBM model 1, label bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Any, ClassVar

from dragoman.base.config import Range, setting
from dragoman.lecture.worked_example import (
    MAX_SYMBOLS,
    Calculation,
    Matrix,
    Row,
    Worked,
    aligned,
    figure,
    index_of,
    probability_problem,
    shape_problem,
    size_problem,
)

STATES = ("Healthy", "Fever")


@dataclass(frozen=True)
class CTC(Calculation):
    """CTC: how a path collapses to a text, and how many paths have this text."""

    name: ClassVar[str] = "ctc"
    path: str = setting("HHHHHH-eeeelll-lll--oo---", help="one symbol for every frame")
    blank: str = setting("-", help="the blank")

    def problems(self) -> Iterator[str]:
        yield from size_problem("path", len(self.path), "frames")
        if len(self.blank) != 1:
            yield f"blank: found {self.blank!r}, expected one symbol"

    def work(self) -> Worked:
        import torch

        from dragoman.inspect.views import ctc_forward
        from dragoman.models.layers import collapse

        frames, symbols = len(self.path), [self.blank, *sorted(set(self.path) - {self.blank})]  # the blank is number 0
        numbers = torch.tensor([[symbols.index(symbol) for symbol in self.path]])
        text, size = collapse(numbers, torch.tensor([frames]), 0)
        labels = text[0, : int(size)].tolist()
        merged = "".join(symbol for symbol, _ in groupby(self.path))
        _, paths = ctc_forward(torch.zeros(frames, len(symbols)), labels)
        repeats = sum(left == right for left, right in pairwise(labels))
        written = "".join(symbols[label] for label in labels)
        units, needed = len(labels), len(labels) + repeats
        numbers_of = f"C({frames} + {units} − {repeats}, {2 * units}) = C({frames + units - repeats}, {2 * units})"
        lines = [
            f"path      {self.path}   {frames} frames",
            f"merged    {merged}   repeats become one symbol",
            f"text      {written}   blanks are dropped",
            f"paths     C(T + U − R, 2U) = {numbers_of} = {paths:,}",
            f"          T = {frames} frames, U = {units} symbols, R = {repeats} equal neighbours with a blank between",
            f"narrow    C(T, U + R) = C({frames}, {needed}) = {math.comb(frames, needed):,}",
            "          paths whose only blanks are those needed ones and a run at the end: not all paths of CTC",
        ]
        results = {"text": written, "merged": merged, "paths": paths, "narrow_paths": math.comb(frames, needed)}
        return Worked(tuple(lines), results)


@dataclass(frozen=True)
class CTCFrames(Calculation):
    """CTC frame by frame: the best path against the probability of a text, summed over all its paths."""

    name: ClassVar[str] = "ctc-frames"
    symbols: str = setting("-a", help="the symbols of a frame, the blank first")
    frames: Matrix = setting(((0.6, 0.4), (0.6, 0.4)), help="a row for every frame: the probability of every symbol")
    text: str = setting("a", help="the text to sum the paths of")

    def problems(self) -> Iterator[str]:
        yield from size_problem("symbols", len(self.symbols))
        if len(set(self.symbols)) < len(self.symbols):
            yield f"symbols: found {self.symbols!r}, expected every symbol once"
        yield from size_problem("frames", len(self.frames), "frames")
        yield from shape_problem("frames", self.frames, None, len(self.symbols))
        for number, row in enumerate(self.frames):
            yield from probability_problem(f"frames[{number}]", row)
        yield from size_problem("text", len(self.text) + 1)

    def work(self) -> Worked:
        import torch

        from dragoman.inspect.views import ctc_forward, ctc_table
        from dragoman.models.layers import collapse

        labels = [index_of("text", symbol, self.symbols[1:]) + 1 for symbol in self.text]
        frames = torch.tensor(self.frames, dtype=torch.float64)
        best = frames.argmax(1)
        path = "".join(self.symbols[int(one)] for one in best)
        collapsed, size = collapse(best[None], torch.tensor([len(frames)]), 0)
        found = "".join(self.symbols[label] for label in collapsed[0, : int(size)].tolist())
        forward, paths = ctc_forward(frames.log(), labels)
        states = [self.symbols[0], *(symbol for label in self.text for symbol in (label, self.symbols[0]))]
        chances = forward.exp()
        probability = float(chances[-2:, -1].sum()) if labels else float(chances[-1, -1])
        single = float(frames.amax(1).prod())
        scores = ctc_table(frames.log(), labels).scores
        heads = ["", *(f"t = {frame + 1}" for frame in range(len(frames)))]
        lines = [
            f"best path  {path} → {found!r}, p = {figure(single)}",
            f"forward variables of {self.text!r}",
            *aligned([heads, *([name, *row] for name, row in zip(states, chances.tolist(), strict=True))]),
            f"p({self.text})  {figure(probability)}, the sum of {paths:,} paths, of the last two states at the end",
            f"best path of {self.text!r} alone: {figure(math.exp(float(scores[-2:, -1].max())))}",
        ]
        results = {"best_path": path, "best_text": found, "best_path_probability": single}
        sums = {"forward": chances.tolist(), "probability": probability, "paths": paths}
        return Worked(tuple(lines), results | sums)


@dataclass(frozen=True)
class Viterbi(Calculation):
    """Viterbi: the most probable states of a hidden Markov model, and the probability of what was seen."""

    name: ClassVar[str] = "viterbi"
    states: tuple[str, ...] = setting(STATES, help="names of the states")
    symbols: tuple[str, ...] = setting(("normal", "cold", "dizzy"), help="what may be seen")
    start: Row = setting((0.6, 0.4), help="p(first state)")
    transitions: Matrix = setting(
        ((0.7, 0.3), (0.4, 0.6)), help="p(state | state before): a row for every state before"
    )
    emissions: Matrix = setting(((0.5, 0.4, 0.1), (0.1, 0.3, 0.6)), help="p(symbol | state): a row for every state")
    seen: tuple[str, ...] = setting(("normal", "cold", "dizzy"), help="the symbols that were seen, in order")

    def problems(self) -> Iterator[str]:
        for name in ("states", "symbols", "seen"):
            yield from size_problem(name, len(getattr(self, name)), "names")
        states = len(self.states)
        yield from shape_problem("start", (self.start,), None, states)
        yield from shape_problem("transitions", self.transitions, states, states)
        yield from shape_problem("emissions", self.emissions, states, len(self.symbols))
        yield from probability_problem("start", self.start)
        for name in ("transitions", "emissions"):
            for number, row in enumerate(getattr(self, name)):
                yield from probability_problem(f"{name}[{number}]", row)

    def work(self) -> Worked:
        import numpy as np
        import torch

        from dragoman.classical import DiscreteHMM
        from dragoman.inspect.views import viterbi_table
        from dragoman.models.layers import LinearChainCRF

        row = [index_of(f"seen[{place}]", symbol, self.symbols) for place, symbol in enumerate(self.seen)]
        model = DiscreteHMM(*(np.array(part, float) for part in (self.start, self.transitions, self.emissions)))
        chain = LinearChainCRF(len(self.states)).double()  # an HMM is a CRF whose scores are log-probabilities
        with torch.no_grad():
            chain.first.copy_(torch.tensor(self.start).double().log())
            chain.transitions.copy_(torch.tensor(self.transitions).double().log())
        emitted = torch.tensor(self.emissions, dtype=torch.float64)[:, row].T
        table = viterbi_table(chain, emitted.log())
        best, log_probability = model.viterbi(row)
        values = table.scores.exp()
        back: list[list[int]] = table.back or []
        lines = aligned(
            [["", *self.seen], *([name, *each] for name, each in zip(self.states, values.tolist(), strict=True))]
        )
        for step, symbol in enumerate(self.seen):
            for number, name in enumerate(self.states):
                own = figure(self.emissions[number][row[step]])
                if step == 0:
                    sum_of = f"{figure(self.start[number])} × {own}"
                else:
                    ways = (
                        f"{figure(float(values[before, step - 1]))} × {figure(moves[number])}"
                        for before, moves in enumerate(self.transitions)
                    )
                    sum_of = f"max({', '.join(ways)}) × {own}"
                origin = f" from {self.states[back[step][number]]}" if step else ""
                lines.append(f"{symbol}, {name}: {sum_of} = {figure(float(values[number, step]))}{origin}")
        paths = len(self.states) ** len(row)
        path, likelihood = [self.states[state] for state in best], math.exp(model.log_likelihood(row))
        lines += [
            f"best path     {' → '.join(path)}, p = {figure(math.exp(log_probability))}",
            f"p(seen)       {figure(likelihood)}, the sum over all {paths:,} paths (forward algorithm)",
        ]
        return Worked(
            tuple(lines),
            {
                "table": values.tolist(),
                "back": back,
                "path": path,
                "probability": math.exp(log_probability),
                "likelihood": likelihood,
            },
        )


@dataclass(frozen=True)
class IBM1(Calculation):
    """IBM model 1: word translation probabilities by EM, iteration by iteration."""

    name: ClassVar[str] = "ibm1"
    pairs: tuple[str, ...] = setting(
        ("das Haus / the house", "das Buch / the book", "ein Buch / a book"), help='pairs as "SOURCE / TARGET"'
    )
    iterations: Annotated[int, Range(1, 100)] = setting(3, help="iterations of EM")
    empty_word: bool = setting(False, help="let target words also come from the empty word NULL")

    def problems(self) -> Iterator[str]:
        yield from size_problem("pairs", len(self.pairs), "pairs")
        for number, pair in enumerate(self.pairs):
            sides = [side.split() for side in pair.split("/")]
            if len(sides) != 2 or not all(sides):
                yield f'pairs[{number}]: found {pair!r}, expected "SOURCE / TARGET" with words on both sides'
            elif max(map(len, sides)) > MAX_SYMBOLS:
                yield f"pairs[{number}]: found {max(map(len, sides))} words, expected at most {MAX_SYMBOLS}"

    def work(self) -> Worked:
        from dragoman.classical import Ragged, WordAligner

        sides = [[side.split() for side in pair.split("/")] for pair in self.pairs]
        names = [["NULL", *dict.fromkeys(word for pair in sides for word in pair[side])] for side in (0, 1)]
        rows = [Ragged.of([[names[side].index(word) for word in pair[side]] for pair in sides]) for side in (0, 1)]
        sizes = (len(names[0]) - 1, len(names[1]) - 1)
        columns, losses = list[Any](), list[float]()
        for iterations in range(self.iterations + 1):
            aligner = WordAligner("ibm1", iterations, empty_word=self.empty_word)
            losses = aligner.fit_rows(rows[0], rows[1], sizes)
            columns.append(aligner.table[:-1].tolist())
        links = [divmod(int(key), sizes[1] + 1) for key in aligner.keys]
        shown = [place for place, (source, _) in enumerate(links) if source or self.empty_word]
        table = {
            f"{names[1][target]} | {names[0][source]}": [column[place] for column in columns]
            for place in shown
            for source, target in [links[place]]
        }
        heads = ["t(target | source)", "start", *(f"EM {number}" for number in range(1, self.iterations + 1))]
        body = [[name, *(f"{value:.4f}" for value in values)] for name, values in table.items()]
        return Worked(tuple(aligned([heads, *body])), {"probabilities": table, "losses": losses})


@dataclass(frozen=True)
class LabelBias(Calculation):
    """Label bias: states with one way on ignore what they see, if probabilities are normalised in every state."""

    name: ClassVar[str] = "label-bias"
    first: Row = setting((0.6, 0.4), help="p(path of rib), p(path of rob): how often training had each word")
    match: Annotated[float, Range(0.5, 1.0, exclusive_maximum=True)] = setting(
        0.9, help="how probable the letter that a state expects is; the other letter shares the rest"
    )
    word: str = setting("rob", help="the word to read, of the letters r, i, o, b")

    def problems(self) -> Iterator[str]:
        yield from shape_problem("first", (self.first,), None, 2)
        yield from probability_problem("first", self.first)
        if not any(self.word == known for known in ("rib", "rob")):
            yield f"word: found {self.word!r}, expected rib or rob"

    def work(self) -> Worked:
        import torch

        with torch.no_grad():
            return self.compare()

    def compare(self) -> Worked:
        import torch

        from dragoman.models.layers import LinearChainCRF

        # States 0 r, 1 i, 2 b read "rib", states 3 r, 4 o, 5 b read "rob" (Lafferty et al. 2001, figure 1).
        letters, ways = "ribrob", {0: 1, 1: 2, 3: 4, 4: 5}
        chain = LinearChainCRF(6).double()
        chain.first.fill_(-torch.inf)
        chain.first[0], chain.first[3] = (math.log(share) if share else -torch.inf for share in self.first)
        chain.transitions.fill_(-torch.inf)
        for before, after in ways.items():
            chain.transitions[before, after] = 0.0
        fits = [[self.match if letter == own else 1 - self.match for own in letters] for letter in self.word]
        scores = torch.tensor([fits], dtype=torch.float64).log()
        mask = torch.ones(1, 3, dtype=torch.bool)
        paths = torch.tensor([[0, 1, 2], [3, 4, 5]])
        both = scores.expand(2, -1, -1)
        globally = chain.log_probability(both, paths, mask.expand(2, -1)).exp().tolist()
        # Normalised in every state: of the first states both fit an r equally; later states have one way on.
        local = [torch.softmax(chain.first + scores[0, 0], 0)]
        local += [torch.softmax(chain.transitions + scores[0, step], 1) for step in (1, 2)]
        factors = [
            [float(local[0][one]), float(local[1][one, two]), float(local[2][two, three])]
            for one, two, three in paths.tolist()
        ]
        locally = [math.prod(steps) for steps in factors]
        lines = [f"read {self.word!r}; the path of rib is r i b, that of rob is r o b"]
        for name, own, steps in zip(("rib", "rob"), locally, factors, strict=True):
            lines.append(f"MEMM  p({name} path) = {' × '.join(map(figure, steps))} = {figure(own)}")
        for name, share, path, own in zip(("rib", "rob"), self.first, paths.tolist(), globally, strict=True):
            terms = [figure(share), *(figure(fits[step][state]) for step, state in enumerate(path))]
            lines.append(f"CRF   p({name} path) = {' × '.join(terms)} / Z = {figure(own)}")
        winners = ["rib" if left >= right else "rob" for left, right in (locally, globally)]
        why = ": the MEMM never used the letter in the middle" if winners[0] != winners[1] else ""
        lines.append(f"the MEMM reads {winners[0]}, the CRF {winners[1]}{why}")
        words = {"memm_word": winners[0], "crf_word": winners[1]}
        return Worked(tuple(lines), {"memm": locally, "crf": globally, **words})


CALCULATIONS = (CTC, CTCFrames, Viterbi, IBM1, LabelBias)
