"""Translate the units of documents: split into sentences, translate, align where tags need it, join.

`translate_blocks` does no work with a model itself. It yields what it needs, predictions or alignments of many texts at
once, and its caller sends the answers: the command line computes them, the server waits for shared batches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from dragoman.analysis.alignment import WordAlignment
from dragoman.data.sentences import Sentence, split_long, split_sentences
from dragoman.documents.base import Output
from dragoman.documents.markup import Aligned, Block, place_markup
from dragoman.inference.parts import has_letter
from dragoman.inference.prediction import Prediction

Fits = Callable[[str], bool]


class Predict(NamedTuple):
    """Texts to translate; the answer is a prediction for each, or an error instead of it."""

    texts: list[str]


class Align(NamedTuple):
    """Sources and outputs to align; the answer is an alignment for each, None where it is unknown."""

    pairs: list[tuple[str, str]]


Steps = Generator[Predict | Align, list[Any], list[Output | Exception]]


def sentences_of(text: str, fits: Fits) -> list[Sentence]:
    """The sentences of a text, none longer than the model can read."""
    found: list[Sentence] = []
    for sentence in split_sentences(text):
        parts = split_long(sentence.text, fits)
        found += [*parts[:-1], Sentence(parts[-1].text, parts[-1].space + sentence.space)]
    return found


def translate_blocks(blocks: Sequence[Block], fits: Fits) -> Steps:
    """An output for every block, or the error of one of its sentences."""
    plans = [sentences_of(_without_gaps(block), fits) for block in blocks]
    read = [sentence.text for plan in plans for sentence in plan if has_letter(sentence.text)]
    answers: Iterator[Any] = iter((yield Predict(read)) if read else ())
    rows = [[next(answers) if has_letter(sentence.text) else None for sentence in plan] for plan in plans]
    faults = [next((one for one in row if isinstance(one, Exception)), None) for row in rows]
    needed = [
        (sentence.text, prediction.text)
        for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True)
        for sentence, prediction in zip(plan, row, strict=True)
        if block.elements and prediction is not None and fault is None
    ]
    alignments = iter((yield Align(needed)) if needed else ())
    outputs: list[Output | Exception] = []
    for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True):
        if fault is not None:
            outputs.append(fault)
            continue
        text, sources, targets = "", list[int](), list[int]()
        for sentence, prediction in zip(plan, row, strict=True):
            # Numbers and signs are the same in every language: a sentence without a letter stays as it is.
            output = prediction.text if prediction is not None else sentence.text
            text += output + sentence.space
            if block.elements:
                words = len(sentence.text.split()), len(output.split())
                same = [*range(words[0])]
                links = word_links(next(alignments), *words) if prediction is not None else (same, same)
                before = len(targets), len(sources)
                sources += [one + before[0] if one >= 0 else one for one in links[0]]
                targets += [one + before[1] if one >= 0 else one for one in links[1]]
        confidence = mean_probability([one for one in row if one is not None])
        outputs.append(Output(place_markup(block, Aligned(text, sources, targets)), text, confidence))
    return outputs


def _without_gaps(block: Block) -> str:
    """The text of a block; where a tag was taken out, one space of two is left."""
    return re.sub(r"(?<=\S)  +(?=\S)", " ", block.text) if block.elements else block.text


def word_links(alignment: WordAlignment | None, sources: int, targets: int) -> tuple[list[int], list[int]]:
    """For each output word of a sentence the source word of highest weight, and the other way round; −1: unknown."""
    if alignment is None or alignment.weights.shape != (targets, sources) or not alignment.weights.numel():
        return [-1] * targets, [-1] * sources
    return alignment.weights.argmax(1).tolist(), alignment.weights.argmax(0).tolist()


def mean_probability(predictions: Sequence[Prediction]) -> float | None:
    """The geometric mean of the probabilities of all tokens, calibrated ones where the run has them."""
    logs = [
        math.log(max(one.token_confidences[index] if one.token_confidences else math.exp(score), 1e-30))
        for one in predictions
        for index, score in enumerate(one.token_scores)
        if index < len(one.token_confidences) or not one.token_confidences
    ]
    found = math.exp(sum(logs) / len(logs)) if logs else math.nan
    return min(1.0, found) if math.isfinite(found) else None


def advance(steps: Steps, answer: list[Any] | None) -> tuple[Predict | Align | None, list[Output | Exception]]:
    """The next thing that is needed, or None and the outputs."""
    try:
        return (next(steps) if answer is None else steps.send(answer)), []
    except StopIteration as end:
        return None, end.value
