"""Worked numbers of searches and metrics: a beam by hand, edit distance, BLEU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from dragoman.base.config import Range, setting
from dragoman.lecture.worked_example import (
    Calculation,
    Matrix,
    Worked,
    figure,
    probability_problem,
    shape_problem,
    size_problem,
)

if TYPE_CHECKING:
    from torch import Tensor

END = "end"
MAX_ALIGNMENTS = 100
MAX_RULES = 50


@dataclass(frozen=True)
class EditDistance(Calculation):
    """Edit distance: the whole table, a cheapest alignment, and how many there are."""

    name: ClassVar[str] = "edit-distance"
    left: str = setting("INTENTION", help="the text to change")
    right: str = setting("EXECUTION", help="what it becomes")
    substitution: Annotated[int, Range(1, 2)] = setting(1, help="cost of a substitution: 1 (Levenshtein) or 2")
    units: Literal["characters", "words"] = setting("characters", help="what is edited")
    printed: tuple[tuple[int, ...], ...] = setting(
        (), help="a table from a book, the empty text in the first row and column: show where it differs"
    )

    def problems(self) -> Iterator[str]:
        for name, units in zip(("left", "right"), self.sides(), strict=True):
            yield from size_problem(name, len(units) + 1, self.units)
        if self.printed:
            rows, columns = (len(units) + 1 for units in self.sides())
            yield from shape_problem("printed", self.printed, rows, columns)

    def sides(self) -> list[list[str]]:
        return [text.split() if self.units == "words" else list(text) for text in (self.left, self.right)]

    def work(self) -> Worked:
        from dragoman.scoring import all_edit_alignments

        left, right = self.sides()
        alignments = all_edit_alignments(left, right, substitution=self.substitution, limit=MAX_ALIGNMENTS)
        best = alignments[0]
        more = "at least " if len(alignments) == MAX_ALIGNMENTS else ""
        count = f"{more}{len(alignments)} cheapest alignment{'s' if len(alignments) > 1 else ''}"
        kinds = f"{best.substitutions} substituted, {best.deletions} deleted, {best.insertions} inserted"
        lines = [
            *best.render_table().splitlines(),
            "",
            *best.render().splitlines(),
            "",
            f"distance {best.cost}: {kinds}; {count}",
        ]
        wrong = []
        for row, (ours, theirs) in enumerate(zip(best.table, self.printed, strict=False)):
            for column, (cost, printed) in enumerate(zip(ours, theirs, strict=True)):
                if cost != printed:
                    wrong.append([row, column, printed, cost])
                    expected = self.arithmetic(best.table, row, column)
                    lines.append(f"printed[{row}][{column}]: found {printed}, expected {expected}")
        if self.printed and not wrong:
            lines.append("the printed table is right")
        return Worked(
            tuple(lines),
            {
                "table": best.table,
                "path": best.path,
                "distance": best.cost,
                "alignments": len(alignments),
                "wrong": wrong,
            },
        )

    def arithmetic(self, table: list[list[int]], row: int, column: int) -> str:
        """The sum that gives a cell of the table."""
        left, right = self.sides()
        ways = []
        if row and column:
            cost = 0 if left[row - 1] == right[column - 1] else self.substitution
            ways.append(f"{table[row - 1][column - 1]} + {cost}")
        ways += [f"{table[row - 1][column]} + 1"] * (row > 0) + [f"{table[row][column - 1]} + 1"] * (column > 0)
        return f"min({', '.join(ways)}) = {table[row][column]}" if ways else "0"


@dataclass(frozen=True)
class BLEU(Calculation):
    """BLEU taken apart: clipped n-gram precisions, brevity penalty, geometric mean."""

    name: ClassVar[str] = "bleu"
    hypothesis: str = setting("airport security Israeli officials are responsible", help="the output")
    reference: str | tuple[str, ...] = setting(
        "Israeli officials are responsible for airport security", help="what it should be; a list of several references"
    )

    def problems(self) -> Iterator[str]:
        yield from size_problem("hypothesis", len(self.hypothesis.split()), "words")
        for number, text in enumerate(self.references()):
            yield from size_problem(f"reference[{number}]", len(text.split()), "words")

    def references(self) -> list[str]:
        return [self.reference] if isinstance(self.reference, str) else list(self.reference)

    def work(self) -> Worked:
        from dragoman.scoring import bleu_apart

        found = bleu_apart([self.hypothesis], [self.references()])
        tokens, matched = found["segments"][0]["tokens"], found["segments"][0]["matched"]
        lines = []
        for order, flags in enumerate(matched, 1):
            grams = [" ".join(tokens[place : place + order]) for place in range(len(flags))]
            hits = [gram for gram, hit in zip(grams, flags, strict=True) if hit]
            share = f"{found['matches'][order - 1]}/{found['totals'][order - 1]}"
            smoothed = " (smoothed)" if flags and not hits and found["score"] else ""
            precision = figure(found["precisions"][order - 1])
            lines.append(f"{order}-grams  {share} = {precision}{smoothed}   {', '.join(hits) or 'none'}")
        output, reference = found["output_length"], found["reference_length"]
        brevity = (
            "1, since it is not shorter"
            if output >= reference
            else f"e^(1 − {reference}/{output}) = {figure(found['brevity_penalty'])}"
        )
        product = " × ".join(figure(share) for share in found["precisions"])
        lines += [
            f"brevity  {brevity}   ({output} tokens, reference {reference})",
            f"BLEU     100 × {figure(found['brevity_penalty'])} × ({product})^(1/4) = {found['score']:.2f}",
        ]
        names = ("score", "precisions", "matches", "totals", "brevity_penalty", "output_length", "reference_length")
        return Worked(tuple(lines), {name: found[name] for name in names} | {"tokens": tokens, "matched": matched})


class Prefixes(NamedTuple):
    """The state of a toy model: what every hypothesis has written so far."""

    rows: tuple[tuple[int, ...], ...]
    hypotheses: int = 1

    def select(self, rows: Tensor) -> Prefixes:
        each = range(self.hypotheses)
        return self._replace(
            rows=tuple(self.rows[row * self.hypotheses + one] for row in rows.tolist() for one in each)
        )

    def reorder(self, rows: Tensor) -> Prefixes:
        return self._replace(rows=tuple(self.rows[row] for row in rows.tolist()))

    def expand(self, hypotheses: int) -> Prefixes:
        return Prefixes(tuple(row for row in self.rows for _ in range(hypotheses)), hypotheses)


@dataclass(frozen=True)
class Beam(Calculation):
    """Beam search by hand: every candidate, what greedy search misses, and the best of all outputs."""

    name: ClassVar[str] = "beam"
    tokens: tuple[str, ...] = setting(("a", "b"), help='words of the outputs; the last column of `after` is "end"')
    after: tuple[str, ...] = setting(
        ("", "a", "b"),
        help="last words of the output so far, one for every row of `next`; the longest that fits counts",
    )
    next: Matrix = setting(
        ((0.6, 0.4, 0.0), (0.35, 0.25, 0.4), (0.06, 0.04, 0.9)), help="p(next): a column for every token, then the end"
    )
    width: Annotated[int, Range(1, 16)] = setting(2, help="beam width; 1 is greedy search")
    length: Annotated[int, Range(1, 12)] = setting(3, help="most tokens of an output, its end included")
    length_penalty: Annotated[float, Range(0.0, 5.0)] = setting(0.0, help="α: Σ log p is divided by length^α")

    def problems(self) -> Iterator[str]:
        yield from size_problem("tokens", len(self.tokens), "tokens", 20)
        if len({*self.tokens, END}) <= len(self.tokens):
            yield f'tokens: found {", ".join(self.tokens)}, expected different words, none called "{END}"'
        yield from size_problem("after", len(self.after), "rows", MAX_RULES)
        if "" not in self.after:
            yield 'after: found no row "", expected one for the empty output'
        for number, words in enumerate(self.after):
            if strange := [word for word in words.split() if word not in self.tokens]:
                yield f"after[{number}]: found {strange[0]!r}, expected words of {', '.join(self.tokens)}"
        yield from shape_problem("next", self.next, len(self.after), len(self.tokens) + 1)
        for number, row in enumerate(self.next):
            yield from probability_problem(f"next[{number}]", row)
        outputs = sum(len(self.tokens) ** size for size in range(self.length))
        if outputs > 100_000:
            yield f"length: found {self.length}, which gives {outputs:,} outputs, expected at most 100,000"

    def row_after(self, written: tuple[str, ...]) -> tuple[float, ...]:
        """p(next) after these words: the row of the longest ending of theirs that has one."""
        rows = {tuple(words.split()): row for words, row in zip(self.after, self.next, strict=True)}
        return next(rows[written[first:]] for first in range(len(written) + 1) if written[first:] in rows)

    def work(self) -> Worked:
        import torch

        from dragoman.data.tokenizers import EOS, SOS
        from dragoman.decoding import BeamOptions, Scorer, Trace, beam_search, exhaustive_search

        first = EOS + 1  # the numbers of the tokens begin after those of special ones
        names = dict(enumerate(self.tokens, first)) | {EOS: END}

        def step(tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
            rows = tuple((*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True))
            out = torch.zeros(len(rows), first + len(self.tokens), dtype=torch.float64)
            for number, row in enumerate(rows):
                chances = self.row_after(tuple(names[token] for token in row[1:] if token in names))
                out[number, first:], out[number, EOS] = torch.tensor(chances[:-1], dtype=torch.float64), chances[-1]
            return out.log(), state._replace(rows=rows)

        start, limits, scorer = Prefixes(((),)), torch.tensor([self.length]), Scorer(self.length_penalty)
        trace = Trace(1)
        found = [
            beam_search(step, start, limits, BeamOptions(width), scorer, trace=trace if width == self.width else None)[
                0
            ]
            for width in {1, self.width}
        ]
        ranked = {width: hypotheses[0] for width, hypotheses in zip({1, self.width}, found, strict=True)}
        best = exhaustive_search(step, start, self.length, scorer, 1, limits.device)[0]
        assert SOS not in names
        texts, lines, nodes = {0: ""}, [["step", "output", "p(token)", "Σ log p", "score", ""]], list[dict[str, Any]]()
        for node in trace.nodes[0]:
            piece = names[node.token]
            texts[node.number] = f"{texts[node.parent]} {piece}".strip()
            nodes.append({**node._asdict(), "piece": piece})
            row = [
                texts[node.number],
                figure(math.exp(node.log_probability)),
                f"{node.score:.3f}",
                f"{node.normalised:.3f}",
                node.fate,
            ]
            lines.append([str(node.step), *row])

        def shown(tokens: tuple[int, ...]) -> str:
            return " ".join(names[token] for token in tokens)

        named = {"greedy": ranked[1], f"beam of {self.width}": ranked[self.width], "best of all": best}
        widths = [max(len(row[column]) for row in lines) for column in range(6)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
        ]
        summary = [
            f"{name:<13}{shown(one.tokens)}: p = {figure(math.exp(one.score))}, score {one.normalised:.3f}"
            for name, one in named.items()
        ]
        results = {
            name: {"text": shown(one.tokens), "probability": math.exp(one.score), "score": one.normalised}
            for name, one in zip(("greedy", "beam", "best"), named.values(), strict=True)
        }
        return Worked((*table, *summary), {**results, "nodes": nodes})


CALCULATIONS = (Beam, EditDistance, BLEU)
