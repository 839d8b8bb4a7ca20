"""Translate the units of documents: split into sentences, translate, align where tags need it, join.

An `Engine` predicts and aligns: a loaded run (`DocumentTranslator`), or a model of the server, whose batches other
requests share. Its methods are coroutines, so that one request waits while the server computes others; those of a
loaded run never wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dragoman.base import DragomanError
from dragoman.data import Sentence, fitting_sentences
from dragoman.data.tokenizers import split_context
from dragoman.decoding import DecodingOptions
from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.report import CheckedFile, CheckedPair
from dragoman.inference import Finding, Localise, Prediction, Predictor, StreamOptions, UnseenInputs
from dragoman.inference.segments import Aligned, Block, Span, has_letter, place_markup, sentence_links, words_of

if TYPE_CHECKING:
    from dragoman.inference.align import WordAlignment

T = TypeVar("T")
Check = Callable[..., Sequence[Finding]]  # what is doubtful about the output for a source


class Engine(Protocol):
    """A model that documents are translated with."""

    @property
    def has_probabilities(self) -> bool:
        """Whether the scores of tokens are log-probabilities, so that they give confidences."""

    def fits(self, text: str) -> bool:
        """Whether a text can be one source."""

    async def predict(self, texts: Sequence[str]) -> Sequence[Prediction | Exception]:
        """A prediction for each text, or an error instead of it."""

    async def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[WordAlignment | None]:
        """The alignment of each source with its output; None where the model has none."""

    async def prepare(self, work: Callable[[], T], texts: Sequence[str] | None) -> T:
        """The result of work without the model on texts, or on a file (None); a server answers others meanwhile."""


async def translate_blocks(
    blocks: Sequence[Block], engine: Engine, localise: Localise | None = None, check: Check | None = None
) -> list[UnitTranslation | Exception]:
    """An output for every block, or the error of one of its sentences.

    `localise` writes the numbers of an output, `check` says what is doubtful about it.
    """
    texts = [block.text for block in blocks]
    plans = await engine.prepare(
        lambda: [fitting_sentences(block.text, engine.fits, block.preserve) for block in blocks], texts
    )
    read = [sentence.text for plan in plans for sentence in plan if has_letter(sentence.text)]
    answers: Iterator[Any] = iter(await engine.predict(read) if read else ())
    rows = [
        [localised(next(answers), sentence.text, localise) if has_letter(sentence.text) else None for sentence in plan]
        for plan in plans
    ]
    needed = [
        (sentence.text, prediction.text)
        for block, plan, row in zip(blocks, plans, rows, strict=True)
        for sentence, prediction in zip(plan, row, strict=True)
        if block.elements and prediction is not None and fault_of(row) is None and not is_refused(row)
    ]
    alignments = await engine.align(needed) if needed else ()
    outputs = await engine.prepare(lambda: joined_blocks(blocks, plans, rows, alignments, localise, check), texts)
    if engine.has_probabilities:
        return outputs
    return [output._replace(confidence=None) if isinstance(output, UnitTranslation) else output for output in outputs]


def joined_blocks(
    blocks: Sequence[Block],
    plans: Sequence[Sequence[Sentence]],
    rows: Sequence[Sequence[Any]],
    known_alignments: Sequence[WordAlignment | None],
    localise: Localise | None,
    check: Check | None,
) -> list[UnitTranslation | Exception]:
    """The outputs of blocks: of each its sentences, and a prediction, an error or None (no letters) for each."""
    outputs, alignments = list[UnitTranslation | Exception](), iter(known_alignments)
    for block, plan, row in zip(blocks, plans, rows, strict=True):
        if (fault := fault_of(row)) is not None:
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
        findings = tuple(check(block.text, text)) if check is not None and predicted else ()
        outputs.append(UnitTranslation(markup, text, confidence, remembered, wordless=not predicted, findings=findings))
    return outputs


def localised(prediction: Any, source: str, localise: Localise | None) -> Any:
    """A prediction with the numbers of the target language; what a person wrote for a memory stays."""
    if localise is None or not isinstance(prediction, Prediction) or prediction.from_memory:
        return prediction
    return replace(prediction, text=localise(source, prediction.text))


def fault_of(row: Sequence[Any]) -> Exception | None:
    """The first error among the predictions of a unit."""
    return next((prediction for prediction in row if isinstance(prediction, Exception)), None)


def is_refused(row: Sequence[Prediction | None]) -> bool:
    """Whether a sentence of a unit is too uncertain, so that none of it is written."""
    return any(prediction is not None and prediction.refused for prediction in row)


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


# --- documents


@dataclass
class Translation:
    """A translated document, and what became of its units."""

    data: bytes
    counts: Counter[str] = field(default_factory=Counter)  # of units, by what a person reads: "translated" and others
    faults: list[str] = field(default_factory=list)  # place and reason of each unit that failed
    confidences: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what a person should check
    characters: int = 0  # of the units that a model has read
    checked: CheckedFile = field(default_factory=CheckedFile)


async def translate_units(
    document: Document,
    engine: Engine,
    localise: Localise | None = None,
    everything: bool = False,
    check: Check | None = None,
) -> Translation:
    """Translate the units that have no translation yet; with `everything` all of them."""
    chosen = [index for index, unit in enumerate(document.units) if everything or not unit.translated]
    outputs: list[UnitTranslation | None] = [None] * len(document.units)
    translation = Translation(b"", +Counter({"already translated": len(document.units) - len(chosen)}))
    blocks = [document.units[index].block for index in chosen]
    for index, result in zip(chosen, await translate_blocks(blocks, engine, localise, check), strict=True):
        if isinstance(result, Exception):
            translation.faults.append(f"{document.units[index].location}: {result}")
            continue
        translation.counts["from memory"] += result.from_memory
        translation.counts["without letters"] += result.wordless
        translation.counts["refused"] += result.refused
        translation.characters += 0 if result.wordless else len(document.units[index].block.text)
        if check is not None and not result.refused and not result.wordless:
            unit = document.units[index]
            if unit.maxwidth is not None:
                result = result._replace(findings=tuple(check(unit.block.text, result.text, maxwidth=unit.maxwidth)))
            translation.checked.add(CheckedPair(unit.location, unit.block.text, result.text, result.findings))
        if not result.refused or document.marks_refused:
            outputs[index] = result
        if result.confidence is not None:
            translation.confidences.append(result.confidence)
    others = translation.counts["refused"] + translation.counts["without letters"]
    translation.counts["translated"] = len(chosen) - len(translation.faults) - others
    translation.counts["failed"] = len(translation.faults)
    translation.data = await engine.prepare(lambda: document.render(outputs), None)
    return translation


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits; an event loop may be running already, as in a notebook."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the engine waited")


# --- with an open run


@dataclass
class DocumentTranslator:
    """A run with decoding options as an engine; placeholders of every text are kept."""

    predictor: Predictor
    options: DecodingOptions
    progress: Callable[[int], None] = lambda count: None
    localise: Localise | None = None
    check: Check | None = None
    unseen: UnseenInputs = field(default_factory=lambda: UnseenInputs("sentence"))

    def __post_init__(self) -> None:
        self.options = replace(self.options, placeholders=True, scores=True)

    def translate(self, document: Document, everything: bool = False) -> Translation:
        """Translate the units that have no translation yet; with `everything` all of them."""
        translation = finished(translate_units(document, self, self.localise, everything, self.check))
        if message := self.unseen.message():
            translation.warnings.append(message)
        return translation

    @property
    def has_probabilities(self) -> bool:
        return self.predictor.backend(self.options).traits.likelihood != "none"

    def fits(self, text: str) -> bool:
        return self.predictor.fits(text)

    async def prepare(self, work: Callable[[], T], texts: Sequence[str] | None) -> T:
        return work()

    async def predict(self, texts: Sequence[str]) -> Sequence[Prediction | Exception]:
        """Predictions, or the errors of texts that fail; equal texts once."""
        inputs = self.predictor.in_context(texts)
        repeated = Counter(inputs)
        distinct, failed = list(repeated), dict[int, DragomanError]()

        def unseen(number: int, surfaces: list[str]) -> None:
            self.unseen.add(split_context(distinct[number - 1])[1], surfaces)

        stream = StreamOptions(
            on_warning=lambda line: None,
            on_unknown=unseen,
            on_failed=failed.__setitem__,
            input_name=lambda number: "text",
        )
        results: dict[str, Prediction | DragomanError] = {}
        for number, output in enumerate(self.predictor.stream(distinct, self.options, stream), 1):
            text = distinct[number - 1]
            results[text] = failed.get(number, output)
            self.progress(repeated[text])
        return [results[text] for text in inputs]

    async def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[WordAlignment | None]:
        """Alignments; all unknown where the model has no attention to read them from."""
        from dragoman.inference.align import align_pairs

        distinct = list(dict.fromkeys(pairs))
        if (view := self.predictor.alignment_view) is None:
            return [None] * len(pairs)
        try:
            tag = self.options.tag
            aligned = align_pairs(self.predictor, distinct, view=view, tag=tag, segment=words_of)
            alignments = dict(zip(distinct, aligned, strict=True))
        except DragomanError:
            return [None] * len(pairs)
        return [alignments[pair] for pair in pairs]
