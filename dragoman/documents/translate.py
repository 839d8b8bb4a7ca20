"""Translate the units of documents: split into sentences, translate, align where tags need it, join.

`translate_blocks` does no work with a model itself. It yields what it needs, predictions or alignments of many texts at
once, and its caller sends the answers: the command line computes them, the server waits for shared batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dragoman.analysis.alignment import WordAlignment
from dragoman.data.sentences import Sentence, split_fields, split_long, split_sentences
from dragoman.documents.base import UnitTranslation
from dragoman.documents.markup import Aligned, Block, Span, place_markup, words_of
from dragoman.inference.long_inputs import has_letter
from dragoman.inference.prediction import Prediction

Fits = Callable[[str], bool]


class Predict(NamedTuple):
    """Texts to translate; the answer is a prediction for each, or an error instead of it."""

    texts: list[str]


class Align(NamedTuple):
    """Sources and outputs to align; the answer is an alignment for each, None where it is unknown."""

    pairs: list[tuple[str, str]]


Steps = Generator[Predict | Align, list[Any], list[UnitTranslation | Exception]]


def sentences_of(text: str, fits: Fits, preserve: bool = False) -> list[Sentence]:
    """The sentences of a text, none longer than the model can read; `preserve` cuts them at longer white space too."""
    sentences: list[Sentence] = []
    for sentence in split_fields(text) if preserve else split_sentences(text):
        parts = split_long(sentence.text, fits)
        sentences += [*parts[:-1], Sentence(parts[-1].text, parts[-1].space + sentence.space)]
    return sentences


def translate_blocks(blocks: Sequence[Block], fits: Fits) -> Steps:
    """An output for every block, or the error of one of its sentences."""
    plans = [sentences_of(block.text, fits, block.preserve) for block in blocks]
    read = [sentence.text for plan in plans for sentence in plan if has_letter(sentence.text)]
    answers: Iterator[Any] = iter((yield Predict(read)) if read else ())
    rows = [[next(answers) if has_letter(sentence.text) else None for sentence in plan] for plan in plans]
    faults = [next((prediction for prediction in row if isinstance(prediction, Exception)), None) for row in rows]
    needed = [
        (sentence.text, prediction.text)
        for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True)
        for sentence, prediction in zip(plan, row, strict=True)
        if block.elements and prediction is not None and fault is None
    ]
    alignments = iter((yield Align(needed)) if needed else ())
    outputs: list[UnitTranslation | Exception] = []
    for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True):
        if fault is not None:
            outputs.append(fault)
            continue
        text, place, links = "", 0, list[tuple[Aligned, int, int]]()
        for sentence, prediction in zip(plan, row, strict=True):
            # Numbers and signs are the same in every language: a sentence without a letter stays as it is.
            output = prediction.text if prediction is not None else sentence.text
            if block.elements:
                known = next(alignments) if prediction is not None else None
                linked = sentence_links(known, sentence.text, output)
                if prediction is None:
                    same = range(len(linked.sources))
                    linked = linked._replace(sources=same, targets=same)
                links.append((linked, place, len(text)))
            text += output + sentence.space
            place += len(sentence.text) + len(sentence.space)
        confidence = mean_probability([prediction for prediction in row if prediction is not None])
        outputs.append(UnitTranslation(place_markup(block, joined(text, links)), text, confidence))
    return outputs


def sentence_links(alignment: WordAlignment | None, source: str, output: str) -> Aligned:
    """An output with links between its words and those of its source, by the highest weights of an alignment.

    Where the alignment is between white space and a word here is a letter, the letters of two linked words are
    linked in order.
    """
    words, others = words_of(source), words_of(output)
    sources, targets = [-1] * len(others), [-1] * len(words)
    weights = alignment.weights if alignment is not None else None
    if weights is not None and weights.numel():
        rows, columns = weights.argmax(1).tolist(), weights.argmax(0).tolist()
        if weights.shape == (len(others), len(words)):
            sources, targets = rows, columns
        elif weights.shape == (len(output.split()), len(source.split())):
            groups, other_groups = letters_of_words(words), letters_of_words(others)
            sources, targets = letter_links(other_groups, groups, rows), letter_links(groups, other_groups, columns)
    return Aligned(output, sources, targets, words, others)


def letter_links(groups: list[list[int]], others: list[list[int]], links: Sequence[int]) -> list[int]:
    """For each letter the one at the same share of the word that its word is linked to."""
    return [
        others[link][index * len(others[link]) // len(letters)]
        for letters, link in zip(groups, links, strict=True)
        for index in range(len(letters))
    ]


def letters_of_words(words: Sequence[Span]) -> list[list[int]]:
    """For each stretch between white space the words in it."""
    groups: list[list[int]] = []
    end = -1
    for index, (start, stop) in enumerate(words):
        if start == end:
            groups[-1].append(index)
        else:
            groups.append([index])
        end = stop
    return groups


def joined(text: str, sentences: Iterable[tuple[Aligned, int, int]]) -> Aligned:
    """An output with the links of its sentences, each with the characters of source and output where it begins."""
    sources, targets = list[int](), list[int]()
    words, others = list[Span](), list[Span]()
    for links, source, output in sentences:
        sources += [word + len(words) if word >= 0 else word for word in links.sources]
        targets += [word + len(others) if word >= 0 else word for word in links.targets]
        words += [(start + source, end + source) for start, end in links.source_words or ()]
        others += [(start + output, end + output) for start, end in links.output_words or ()]
    return Aligned(text, sources, targets, words, others)


def mean_probability(predictions: Sequence[Prediction]) -> float | None:
    """The geometric mean of the probabilities of all tokens, calibrated ones where the run has them."""
    logs = [
        math.log(max(prediction.token_confidences[index] if prediction.token_confidences else math.exp(score), 1e-30))
        for prediction in predictions
        for index, score in enumerate(prediction.token_scores)
        if index < len(prediction.token_confidences) or not prediction.token_confidences
    ]
    mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
    return min(1.0, mean) if math.isfinite(mean) else None


def advance(steps: Steps, answer: list[Any] | None) -> tuple[Predict | Align | None, list[UnitTranslation | Exception]]:
    """The next thing that is needed, or None and the outputs."""
    try:
        return (next(steps) if answer is None else steps.send(answer)), []
    except StopIteration as end:
        return None, end.value
