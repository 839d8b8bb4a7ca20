"""Word alignments of files: read or predict sentence pairs, choose the attention to read, write links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.analysis.alignment import (
    AttentionView,
    Pair,
    WordAlignment,
    align_pairs,
    most_agreeing_views,
    select_view,
    symmetrize,
    views_by_error_rate,
)
from dragoman.data.config import DataConfig, paths_of
from dragoman.data.examples import Fault, Pairs
from dragoman.data.readers.lines import read_lines
from dragoman.data.split import read_examples, summarize_faults
from dragoman.errors import DataError
from dragoman.inference.predictor import Predictor
from dragoman.scoring.alignment import GoldAlignment

AGREEMENT_PAIRS = 1000  # sentence pairs on which the agreement of two directions is measured


def read_raw_pairs(files: str | Pairs) -> Iterable[Pair]:
    """All sentence pairs of a file, with the default settings of data; they can be read again and again."""
    data = DataConfig(train="", max_characters=100_000)
    named = [*paths_of(files)]
    if not all(Path(path).is_file() for path in named):  # a pipe can be read only once
        return read_parallel(data, files)
    return FilePairs(data, files)


@dataclass(frozen=True)
class FilePairs:
    """The sentence pairs of a file, read anew every time: memory holds one of them."""

    data: DataConfig
    files: str | Pairs

    def __iter__(self) -> Iterator[Pair]:
        return iterate_parallel(self.data, self.files)


def read_parallel(data: DataConfig, files: str | Pairs) -> list[Pair]:
    """All sentence pairs of a file; raises DataError for a faulty line, because links are written line by line."""
    return list(iterate_parallel(data, files))


def iterate_parallel(data: DataConfig, files: str | Pairs) -> Iterator[Pair]:
    """The same one by one; faulty lines are an error at the end."""
    faults = list[Fault]()
    for item in read_examples(data, files):
        if isinstance(item, Fault):
            faults.append(item)
        else:
            yield item.model_input, item.references[0]
    if faults:
        raise DataError(summarize_faults(faults, len(faults)))


def predict_pairs(predictor: Predictor, file: str | None, tag: str | None) -> list[Pair]:
    """Every line of a file or of standard input with the run's output for it, on one line."""
    sources = list(read_lines(file))
    outputs = predictor.stream(sources, tag=tag)
    return [(source, " ".join(one.text.splitlines())) for source, one in zip(sources, outputs, strict=True)]


@dataclass(frozen=True)
class Aligner:
    """Aligns words with one run, or with two runs of opposite directions."""

    forward: Predictor
    backward: Predictor | None = None
    view: AttentionView | None = None  # of the forward run; None: the default
    backward_view: AttentionView | None = None
    threshold: float | None = None
    symmetrization: str = "grow-diag"
    tag: str | None = None  # target language of a multilingual forward run
    batch_size: int = 32

    def __call__(self, pairs: Sequence[Pair]) -> Iterator[WordAlignment]:
        forward = align_pairs(
            self.forward, pairs, view=self.view, threshold=self.threshold, tag=self.tag, batch_size=self.batch_size
        )
        if self.backward is None:
            return forward
        reversed_pairs = [(target, source) for source, target in pairs]
        backward = align_pairs(
            self.backward, reversed_pairs, view=self.backward_view, threshold=self.threshold, batch_size=self.batch_size
        )
        return (symmetrize(*both, self.symmetrization) for both in zip(forward, backward, strict=True))


def choose_view(
    aligner: Aligner,
    pairs: Sequence[Pair],
    *,
    layer: str | int | None = None,
    head: int | None = None,
    shifted: bool = False,
    gold: Sequence[GoldAlignment] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Aligner:
    """The aligner with its views chosen by layer and head, by gold links or by the agreement of two directions."""
    named = layer is not None or head is not None or shifted
    if gold is not None and named:
        raise DataError("--gold chooses the layer by gold links: leave out --layer, --head and --shift, or --gold")
    forward, threshold, size = aligner.forward, aligner.threshold, aligner.batch_size
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    if gold is not None:
        read = list(zip(forward.read_as(sources, aligner.tag), targets, strict=True))
        view, rate = views_by_error_rate(forward, read, gold, threshold=threshold, batch_size=size)[0]
        log(f"read: {view} (error rate {100 * rate:.2f} % on these pairs)")
        return replace(aligner, view=view)
    if aligner.backward is not None and not named:
        sources, targets = sources[:AGREEMENT_PAIRS], targets[:AGREEMENT_PAIRS]
        ahead = list(zip(forward.read_as(sources, aligner.tag), targets, strict=True))
        behind = list(zip(aligner.backward.read_as(targets), sources, strict=True))
        view, back, agreement = most_agreeing_views(
            forward, aligner.backward, ahead, behind, threshold=threshold, batch_size=size
        )
        log(f"read: {view}; reverse: {back} (agreement {100 * agreement:.2f} %)")
        return replace(aligner, view=view, backward_view=back)
    return replace(aligner, view=select_view(aligner.forward, layer, head, shifted))


def as_json_line(alignment: WordAlignment) -> str:
    """One JSON object on one line; `weights` has a row for each target word."""
    return json.dumps(
        {
            "source": alignment.source,
            "target": alignment.target,
            "links": sorted(alignment.links),
            "weights": [[round(weight, 4) for weight in row] for row in alignment.weights.tolist()],
        },
        ensure_ascii=False,
    )
