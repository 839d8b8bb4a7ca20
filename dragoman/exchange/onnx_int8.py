"""ONNX graphs whose weights are stored in 8 bits, and the check that their outputs are as good.

A matrix becomes integers and one scale for each row or column. The graph multiplies them at its start, which runtimes
do once, when they open it: files shrink to a quarter, arithmetic and speed stay those of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DragomanError, MissingExtraError
from dragoman.data import Corpus, source_rows
from dragoman.data.tokenizers import Tokenizer
from dragoman.exchange.onnx_greedy import GreedyDecoder
from dragoman.exchange.onnx_labels import LABEL_GRAPH, GraphOutputs
from dragoman.runs import Run, check_same_data
from dragoman.scoring import select_metrics

LINEAR = {"MatMul", "Gemm", "Gather", "Transpose"}  # nodes that read weights; tables of positions have others
SMALLEST = 1024  # numbers; smaller matrices stay as they are
CHECKED = 200  # validation lines
ROWS = 32  # decoded together
TOLERATED = 0.2  # points of chrF or accuracy on the validation lines


@dataclass(frozen=True)
class PrecisionCheck:
    """How outputs with int8 weights compare with those of float32 on validation lines."""

    lines: int
    same: float  # share of lines with the same output
    metric: str
    scores: tuple[float, float]  # in points: float32, int8

    @property
    def lossless(self) -> bool:
        return self.scores[1] >= self.scores[0] - TOLERATED

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.scores[1]:.1f} with int8, {self.scores[0]:.1f} with float32; {self.same:.1%} of "
            f"{self.lines} validation lines have the same output"
        )


def write_int8(graph: Path, target: Path) -> None:
    """Write a graph again, its large matrices as 8-bit integers and scales."""
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError:
        raise MissingExtraError("--precision int8", "onnx", "export") from None
    model = onnx.load(str(graph))
    kept, nodes = [], []
    users: dict[str, set[str]] = {}
    for name, kind in uses(model.graph):
        users.setdefault(name, set()).add(kind)
    for tensor in model.graph.initializer:
        is_matrix = tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2
        weights = numpy_helper.to_array(tensor)
        if not is_matrix or weights.size < SMALLEST or not users.get(tensor.name, {""}) <= LINEAR:
            kept.append(tensor)
            continue
        integers, scale = quantized(weights)
        name = tensor.name
        kept += [numpy_helper.from_array(integers, f"{name}_int8"), numpy_helper.from_array(scale, f"{name}_scale")]
        nodes += [
            helper.make_node("Cast", [f"{name}_int8"], [f"{name}_float"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [name]),
        ]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    before = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *before])
    onnx.save(model, str(target))


def uses(graph: Any) -> Iterator[tuple[str, str]]:
    """(tensor, kind of node) for every input of a node, also of nodes inside loops."""
    for node in graph.node:
        for name in node.input:
            yield name, node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from uses(attribute.g)


def quantized(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers and scales of a matrix: one scale for each row or for each column, whichever loses less."""
    best: tuple[float, Any, Any] | None = None
    for axis in (0, 1):
        scale = np.maximum(np.abs(weights).max(axis, keepdims=True), 1e-12).astype(np.float32) / 127
        integers = np.rint(weights / scale).astype(np.int8)
        error = float(np.square(weights - integers * scale).sum())
        if best is None or error < best[0]:
            best = error, integers, scale
    assert best is not None
    return best[1], best[2]


def validation_rows(run: Run) -> tuple[Corpus, Sequence[int]] | None:
    """The data of a run and the validation lines to compare on; None where the data are gone."""
    try:
        corpus = run.task.prepare(run.config)
        check_same_data(run.folder, corpus)
    except (DragomanError, OSError):
        return None
    count = len(corpus.valid)
    chosen = sorted({number * count // CHECKED for number in range(CHECKED)}) if count > CHECKED else range(count)
    return corpus, chosen


def compare_texts(run: Run, table: dict[str, Any], folder: Path, other: Path) -> PrecisionCheck | None:
    """Compare the greedy outputs of the graphs of two folders, float32 and int8; None where the data are gone."""
    if (found := validation_rows(run)) is None:
        return None
    corpus, chosen = found
    sources = [list(map(int, row)) for row in source_rows(corpus.valid, chosen)]
    target = run.tokenizers()[1]
    references = [[target.decode(row.tolist())] for row in corpus.valid.target.rows(chosen)]
    texts = [outputs(GreedyDecoder(place, table), sources, target) for place in (folder, other)]
    metric = select_metrics(["chrf"])["chrf"]
    chrf = [metric.score(metric.statistics(own, references)) for own in texts]
    same = sum(left == right for left, right in zip(*texts, strict=True)) / max(1, len(sources))
    return PrecisionCheck(len(sources), same, "chrF", (chrf[0], chrf[1]))


def compare_labels(run: Run, model: Any, folder: Path, other: Path) -> PrecisionCheck | None:
    """The same for the labels of a classifier or tagger, whose scores the graphs compute from now on."""
    if (found := validation_rows(run)) is None:
        return None
    corpus, chosen = found
    sources, targets = source_rows(corpus.valid, chosen), [row.tolist() for row in corpus.valid.target.rows(chosen)]
    batch = run.task.collator(run.config, run.tokenizers()[0]).collate(sources, targets)
    truth = batch.target[:, 0] if batch.target.dim() == 3 else batch.target
    values = []
    for place in (folder, other):
        model.outputs = GraphOutputs(model, place / LABEL_GRAPH)
        predicted = model.predict(batch)
        values.append(predicted.values)
    mask = predicted.mask
    accuracy = [100 * float((own == truth)[mask].double().mean()) for own in values]
    same = float(((values[0] == values[1]) | ~mask).all(1).double().mean())
    return PrecisionCheck(len(chosen), same, "accuracy", (accuracy[0], accuracy[1]))


def outputs(decoder: GreedyDecoder, sources: Sequence[list[int]], target: Tokenizer) -> list[str]:
    """The greedy outputs of sources, which are decoded in batches of like lengths."""
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    texts = [""] * len(sources)
    for first in range(0, len(order), ROWS):
        some = order[first : first + ROWS]
        for number, tokens in zip(some, decoder.decode([sources[number] for number in some]), strict=True):
            texts[number] = target.decode(tokens)
    return texts
