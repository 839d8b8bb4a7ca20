"""Translate the units of documents: split into sentences, translate, align where tags need it, join.

`translate_blocks` does no work with a model itself. It yields what it needs, predictions or alignments of many texts at
once, and its caller sends the answers: the command line computes them, the server waits for shared batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.data.sentences import Sentence, split_fields, split_long, split_sentences
from dragoman.data.tokenizers.context import split_context
from dragoman.decoding.options import DecodingOptions
from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.markup import Aligned, Block, Span, place_markup, words_of
from dragoman.documents.numbers import Localise
from dragoman.errors import DragomanError
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.long_inputs import has_letter
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import UnseenInputs

if TYPE_CHECKING:
    from dragoman.analysis.alignment import AttentionView
    from dragoman.inference.alignments import WordAlignment

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


def translate_blocks(blocks: Sequence[Block], fits: Fits, localise: Localise | None = None) -> Steps:
    """An output for every block, or the error of one of its sentences; `localise` writes its numbers."""
    plans = [sentences_of(block.text, fits, block.preserve) for block in blocks]
    read = [sentence.text for plan in plans for sentence in plan if has_letter(sentence.text)]
    answers: Iterator[Any] = iter((yield Predict(read)) if read else ())
    rows = [
        [localised(next(answers), sentence.text, localise) if has_letter(sentence.text) else None for sentence in plan]
        for plan in plans
    ]
    faults = [next((prediction for prediction in row if isinstance(prediction, Exception)), None) for row in rows]
    needed = [
        (sentence.text, prediction.text)
        for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True)
        for sentence, prediction in zip(plan, row, strict=True)
        if block.elements and prediction is not None and fault is None and not is_refused(row)
    ]
    alignments = iter((yield Align(needed)) if needed else ())
    outputs: list[UnitTranslation | Exception] = []
    for block, plan, row, fault in zip(blocks, plans, rows, faults, strict=True):
        if fault is not None:
            outputs.append(fault)
            continue
        if is_refused(row):
            outputs.append(UnitTranslation(block.raw or block.escape(block.text), block.text, refused=True))
            continue
        text, place, links = "", 0, list[tuple[Aligned, int, int]]()
        for sentence, prediction in zip(plan, row, strict=True):
            # A sentence without a letter stays as it is, but for the notation of its numbers.
            same = localise(sentence.text, sentence.text) if localise is not None else sentence.text
            output = prediction.text if prediction is not None else same
            if block.elements:
                known = next(alignments) if prediction is not None else None
                linked = sentence_links(known, sentence.text, output)
                if prediction is None and len(linked.sources) == len(linked.targets):
                    order = range(len(linked.sources))
                    linked = linked._replace(sources=order, targets=order)
                links.append((linked, place, len(text)))
            text += output + sentence.space
            place += len(sentence.text) + len(sentence.space)
        confidence = mean_probability([prediction for prediction in row if prediction is not None])
        predicted = [prediction for prediction in row if prediction is not None]
        remembered = bool(predicted) and all(prediction.from_memory for prediction in predicted)
        markup = place_markup(block, joined(text, links))
        outputs.append(UnitTranslation(markup, text, confidence, remembered, wordless=not predicted))
    return outputs


def localised(prediction: Any, source: str, localise: Localise | None) -> Any:
    """A prediction with the numbers of the target language; what a person wrote for a memory stays."""
    if localise is None or not isinstance(prediction, Prediction) or prediction.from_memory:
        return prediction
    return replace(prediction, text=localise(source, prediction.text))


def is_refused(row: Sequence[Prediction | None]) -> bool:
    """Whether a sentence of a unit is too uncertain, so that none of it is written."""
    return any(prediction is not None and prediction.refused for prediction in row)


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


# --- with an open run


@dataclass
class Translation:
    """A translated document, and what became of its units."""

    data: bytes
    counts: Counter[str] = field(default_factory=Counter)  # of units, by what a person reads: "translated" and others
    faults: list[str] = field(default_factory=list)  # place and reason of each unit that failed
    confidences: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what a person should check


@dataclass
class DocumentTranslator:
    """A run with decoding options; placeholders of every text are kept."""

    predictor: Predictor
    options: DecodingOptions
    progress: Callable[[int], None] = lambda count: None
    localise: Localise | None = None
    unseen: UnseenInputs = field(default_factory=lambda: UnseenInputs("sentence"))

    def __post_init__(self) -> None:
        self.options = replace(self.options, placeholders=True, scores=True)

    def translate(self, document: Document, everything: bool = False) -> Translation:
        """Translate the units that have no translation yet; with `everything` all of them."""
        chosen = [index for index, unit in enumerate(document.units) if everything or not unit.translated]
        outputs: list[UnitTranslation | None] = [None] * len(document.units)
        counts = Counter({"already translated": len(document.units) - len(chosen)})
        translation = Translation(b"", +counts)
        results = self.blocks([document.units[index].block for index in chosen])
        for index, result in zip(chosen, results, strict=True):
            if isinstance(result, Exception):
                translation.faults.append(f"{document.units[index].location}: {result}")
                continue
            translation.counts["from memory"] += result.from_memory
            translation.counts["without letters"] += result.wordless
            if result.refused:
                translation.counts["refused"] += 1
            if not result.refused or document.marks_refused:
                outputs[index] = result
            if result.confidence is not None:
                translation.confidences.append(result.confidence)
        others = translation.counts["refused"] + translation.counts["without letters"]
        translation.counts["translated"] = len(chosen) - len(translation.faults) - others
        translation.counts["failed"] = len(translation.faults)
        translation.data = document.render(outputs)
        if message := self.unseen.message():
            translation.warnings.append(message)
        return translation

    def blocks(self, blocks: Sequence[Block]) -> list[UnitTranslation | Exception]:
        steps = translate_blocks(blocks, self.predictor.fits, self.localise)
        answer: list[Any] | None = None
        while True:
            request, outputs = advance(steps, answer)
            if request is None:
                return rated(outputs, self.predictor, self.options)
            answer = self._predict(request) if isinstance(request, Predict) else self._align(request)

    def _predict(self, request: Predict) -> list[Any]:
        """Predictions, or the errors of texts that fail; equal texts once."""
        inputs = self.predictor.in_context(request.texts)
        repeated = Counter(inputs)
        texts, failed = list(repeated), dict[int, DragomanError]()

        def unseen(number: int, surfaces: list[str]) -> None:
            self.unseen.add(split_context(texts[number - 1])[1], surfaces)

        stream = StreamOptions(
            on_warning=lambda line: None,
            on_unknown=unseen,
            on_failed=failed.__setitem__,
            input_name=lambda number: "text",
        )
        results: dict[str, Prediction | DragomanError] = {}
        for number, output in enumerate(self.predictor.stream(texts, self.options, stream), 1):
            text = texts[number - 1]
            results[text] = failed.get(number, output)
            self.progress(repeated[text])
        return [results[text] for text in inputs]

    @cached_property
    def _view(self) -> AttentionView:
        from dragoman.analysis.alignment import select_view

        return select_view(self.predictor)

    def _align(self, request: Align) -> list[WordAlignment | None]:
        """Alignments; all unknown where the model has no attention to read them from."""
        from dragoman.analysis.alignment import align_pairs

        distinct = list(dict.fromkeys(request.pairs))
        try:
            tag = self.options.tag
            aligned = align_pairs(self.predictor, distinct, view=self._view, tag=tag, segment=words_of)
            alignments = dict(zip(distinct, aligned, strict=True))
        except DragomanError:
            return [None] * len(request.pairs)
        return [alignments[pair] for pair in request.pairs]


def rated(
    outputs: list[UnitTranslation | Exception], predictor: Predictor, options: DecodingOptions
) -> list[UnitTranslation | Exception]:
    """The outputs, without confidence where the scores of a model are no probabilities, as of phrases or a copy."""
    if predictor.backend(options).traits.likelihood != "none":
        return outputs
    return [output._replace(confidence=None) if isinstance(output, UnitTranslation) else output for output in outputs]
