"""Worked numbers of networks: attention, positions, gates, parameter counts, a recurrence that computes Fibonacci."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from dragoman.base.config import Accepted, Range, Size, accepted, setting
from dragoman.lecture.worked_example import (
    MAX_SYMBOLS,
    Calculation,
    Matrix,
    Row,
    Worked,
    aligned,
    figure,
    listed,
    shape_problem,
    size_problem,
)

if TYPE_CHECKING:
    from torch import nn

EXACT = 78  # the 79th Fibonacci number does not fit into the 53 bits of a float64


@dataclass(frozen=True)
class Attention(Calculation):
    """Scaled dot-product attention: softmax(q·k / √d) and the weighted sum of values."""

    name: ClassVar[str] = "attention"
    scores: Row = setting((112.0, 96.0), help="products q·k of one query with every key")
    depth: Size | None = setting(None, help="d, the width of queries; without queries 64")
    queries: Matrix = setting((), help="rows of queries, in place of scores")
    keys: Matrix = setting((), help="a row for every key")
    values: Matrix = setting((), help="a row for every value; without them there is no output")

    def problems(self) -> Iterator[str]:
        if bool(self.queries) != bool(self.keys):
            name, other = ("keys", "queries") if self.queries else ("queries", "keys")
            yield f"{name}: found none, expected a row each, since {other} are given"
            return
        keys = len(self.keys) or len(self.scores)
        yield from size_problem("keys" if self.keys else "scores", keys)
        if self.queries:
            yield from size_problem("queries", len(self.queries), "rows")
            yield from size_problem("queries[0]", len(self.queries[0]), "numbers")
            yield from shape_problem("queries", self.queries, None, None)
            yield from shape_problem("keys", self.keys, None, len(self.queries[0]))
        if self.values:
            yield from shape_problem("values", self.values, keys, None)

    def work(self) -> Worked:
        import torch

        from dragoman.models.layers import plain_attention

        exact = torch.float64
        query, key = torch.tensor(self.queries, dtype=exact), torch.tensor(self.keys, dtype=exact)
        if not self.queries:  # queries of width 1, so that their products with the keys are the scores
            query, key = torch.ones(1, 1, dtype=exact), torch.tensor(self.scores, dtype=exact)[:, None]
        value = torch.tensor(self.values, dtype=exact) if self.values else torch.eye(len(key), dtype=exact)
        depth = self.depth or (len(self.queries[0]) if self.queries else 64)
        out, weights = plain_attention(
            query[None, None], key[None, None], value[None, None], None, None, 0.0, depth**-0.5
        )
        products = (query @ key.T).tolist()
        scaled = [[score / math.sqrt(depth) for score in row] for row in products]
        results = {"products": products, "scaled": scaled, "weights": weights[0, 0].tolist()}
        if self.values:
            results["output"] = out[0, 0].tolist()
        lines = []
        for number, (row, divided, shares) in enumerate(zip(products, scaled, results["weights"], strict=True)):
            if len(products) > 1:
                lines.append(f"query {number + 1}")
            powers = [f"e^{figure(score)}" for score in divided]
            total = " + ".join([*powers[:6], *(["…"] if len(powers) > 6 else [])])
            rounded = ", ".join(f"{share:.4f}" for share in shares)
            lines += [
                f"q·k           {listed(row)}",
                f"{f'q·k / √{depth}':<14}{listed(divided)}",
                f"softmax       {rounded}   ({powers[0]} / ({total}) = {shares[0]:.4f})",
            ]
            if self.values:
                lines.append(f"Σ weight · v  {listed(results['output'][number])}")
        return Worked(tuple(lines), results)


@dataclass(frozen=True)
class Positions(Calculation):
    """Sinusoidal positions: sin and cos of pos / 10000^(2i/d)."""

    name: ClassVar[str] = "positions"
    length: Annotated[int, Range(1, MAX_SYMBOLS)] = setting(4, help="number of positions, from 0")
    width: Annotated[int, Range(1, 64)] = setting(4, help="d, numbers of a position")

    def work(self) -> Worked:
        import torch

        from dragoman.models.layers import sinusoids

        table = sinusoids(self.length, self.width, dtype=torch.float64).tolist()
        heads = [
            f"{'cos' if column % 2 else 'sin'}(pos/{figure(10000 ** (2 * (column // 2) / self.width))})"
            for column in range(self.width)
        ]
        rows = [["pos", *heads], *([str(place), *(f"{value:.4f}" for value in row)] for place, row in enumerate(table))]
        return Worked(tuple(aligned(rows)), {"positions": table})


@dataclass(frozen=True)
class Gates(Calculation):
    """The implicit attention of a gated unit: the weight of every past candidate in its state."""

    name: ClassVar[str] = "gates"
    update: Row = setting((0.5, 0.8, 0.9), help="u of every step, in h = u·h' + (1 − u)·candidate")

    def problems(self) -> Iterator[str]:
        yield from size_problem("update", len(self.update), "steps")
        for number, gate in enumerate(self.update):
            if not 0 <= gate <= 1:
                yield f"update[{number}]: found {gate:g}, expected a gate from 0 to 1"

    def work(self) -> Worked:
        import torch

        from dragoman.inspect.views import implicit_attention

        weights = implicit_attention(torch.tensor(self.update, dtype=torch.float64)[:, None])[-1].tolist()
        lines = []
        for step, weight in enumerate(weights):
            factors = [figure(gate) for gate in self.update[step:]]
            own = [] if step == 0 else [f"(1 − {figure(self.update[step - 1])})"]
            name = f"candidate {step}" if step else "start state"
            lines.append(f"{name:<14}{' × '.join([*own, *factors]) or '1'} = {figure(weight)}")
        lines.append(f"{'sum':<14}{figure(round(sum(weights), 12))}")
        return Worked(tuple(lines), {"weights": weights})


@dataclass(frozen=True)
class Parameters(Calculation):
    """Parameters of a model, layer by layer, with one bias for every gate."""

    name: ClassVar[str] = "parameters"
    layers: tuple[str, ...] = setting(
        ("lstm:74x256", "lstm:78x256", "dense:256x78"),
        help="layers such as lstm:INPUTSxWIDTH, dense:INPUTSxOUTPUTS, embedding:WORDSxWIDTH, attention:WIDTHxSTEPS",
    )

    def problems(self) -> Iterator[str]:
        yield from size_problem("layers", len(self.layers), "layers")
        kinds = ["dense", "embedding", "attention", *_cells().kinds]
        for number, layer in enumerate(self.layers):
            kind, _, sizes = layer.partition(":")
            if kind not in kinds:
                yield f"layers[{number}]: found {layer!r}, expected KIND:INPUTSxOUTPUTS with one of {', '.join(kinds)}"
            elif len(found := sizes.split("x")) != 2 or not all(
                size.isdecimal() and 0 < int(size) <= 10**6 for size in found
            ):
                yield f"layers[{number}]: found {layer!r}, expected two sizes from 1 to 1000000, such as {kind}:20x10"

    def work(self) -> Worked:
        import torch

        counts, rows = [], list[list[object]]()
        for layer in self.layers:
            with torch.device("meta"):  # shapes without memory
                shapes = {name: list(weight.shape) for name, weight in _layer(layer).named_parameters()}
            counts.append(sum(math.prod(shape) for shape in shapes.values()))
            terms = " + ".join("×".join(map(figure, shape)) for shape in shapes.values())
            rows.append([layer, terms, counts[-1]])
        rows.append(["total", " + ".join(map(figure, counts)), sum(counts)])
        width = max(len(str(row[1])) for row in rows)
        lines = aligned([[name, f"{terms:<{width}}", f"= {count:,}"] for name, terms, count in rows])
        return Worked(
            tuple(lines),
            {"layers": dict(zip(map(str, range(1, len(counts) + 1)), counts, strict=True)), "total": sum(counts)},
        )


def _cells() -> Accepted:
    from dragoman.models.layers import CellConfig

    return accepted(CellConfig)


def _layer(text: str) -> nn.Module:
    from torch import nn

    from dragoman.models.layers import Linear, TimeAttention, build_cell

    kind, _, sizes = text.partition(":")
    inputs, outputs = map(int, sizes.split("x"))
    if kind == "dense":
        return Linear(inputs, outputs)
    if kind == "embedding":
        return nn.Embedding(inputs, outputs)
    if kind == "attention":
        return TimeAttention(inputs, outputs)
    return build_cell(_cells().class_of(kind)(), inputs, outputs)


@dataclass(frozen=True)
class Fibonacci(Calculation):
    """A plain recurrent cell of two units that computes Fibonacci's numbers exactly."""

    name: ClassVar[str] = "fibonacci"
    start: Row = setting((1.0, 1.0), help="the first two numbers")
    weights: Row = setting((1.0, 1.0), help="a and b of F(t) = a·F(t−1) + b·F(t−2), none negative")
    count: Annotated[int, Range(2, EXACT)] = setting(10, help="how many numbers to compute")

    def problems(self) -> Iterator[str]:
        for name, values in (("start", self.start), ("weights", self.weights)):
            if len(values) != 2 or min(values) < 0:
                yield f"{name}: found {listed(values) or 'nothing'}, expected two numbers, none negative"

    def work(self) -> Worked:
        import torch

        from dragoman.models.layers import Linear, RNNConfig, build_cell

        (first, second), (one, two) = self.start, self.weights
        cell = build_cell(RNNConfig(activation="relu"), 1, 2).double()  # ReLU changes no number that is not negative
        output = Linear(2, 1).double()
        with torch.no_grad():
            cell.input_weight.copy_(torch.tensor([[1.0], [0.0]]))
            cell.hidden_weight.copy_(torch.tensor([[one, two], [1.0, 0.0]]))
            cell.bias.zero_()
            output.weight.copy_(torch.tensor([[1.0, 0.0]]))
            output.bias.zero_()
            # The input starts the series; afterwards it is 0, and the state alone goes on.
            given = torch.zeros(1, self.count, 1, dtype=torch.float64)
            given[0, 0, 0], given[0, 1, 0] = first, second - one * first
            states, _ = cell(given, cell.start(1))
            numbers = output(states)[0, :, 0].tolist()
        parameters = sum(weight.numel() for module in (cell, output) for weight in module.parameters())
        heads = [["step", "h₁ = F(t)", "h₂ = F(t−1)"]]
        rows = [[str(step + 1), *state] for step, state in enumerate(states[0].tolist())]
        ratio = figure(numbers[-1] / numbers[-2], 7) if numbers[-2] else "undefined"
        lines = [
            f"h = relu(W h' + w x), W = [[{figure(one)}, {figure(two)}], [1, 0]], w = [1, 0]; output = h₁",
            f"{parameters} parameters: 4 + 2 + 2 of the cell, 2 + 1 of the output",
            *aligned([*heads, *rows]),
            f"F({self.count}) / F({self.count - 1}) = {ratio}",
        ]
        return Worked(tuple(lines), {"numbers": numbers, "parameters": parameters})


CALCULATIONS = (Attention, Positions, Gates, Parameters, Fibonacci)
