"""Translate documents with an open run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dragoman.analysis.alignment import AttentionView, WordAlignment, align_pairs, select_view
from dragoman.decoding.options import DecodingOptions
from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.markup import Block, words_of
from dragoman.documents.translate import Align, Predict, advance, translate_blocks
from dragoman.errors import DragomanError
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import UnseenInputs

Progress = Callable[[int], None]


@dataclass
class Translation:
    """A translated document, and what became of its units."""

    data: bytes
    counts: Counter[str] = field(default_factory=Counter)  # translated, "already translated", failed
    faults: list[str] = field(default_factory=list)  # place and reason of each unit that failed
    confidences: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what a person should check


@dataclass
class DocumentTranslator:
    """A run with decoding options; placeholders of every text are kept."""

    predictor: Predictor
    options: DecodingOptions
    progress: Progress = lambda count: None
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
            outputs[index] = result
            if result.confidence is not None:
                translation.confidences.append(result.confidence)
        translation.counts["translated"] = len(chosen) - len(translation.faults)
        translation.counts["failed"] = len(translation.faults)
        translation.data = document.render(outputs)
        if message := self.unseen.message():
            translation.warnings.append(message)
        return translation

    def blocks(self, blocks: Sequence[Block]) -> list[UnitTranslation | Exception]:
        """An output for every block, or its error."""
        steps = translate_blocks(blocks, self.predictor.fits)
        answer: list[Any] | None = None
        while True:
            request, outputs = advance(steps, answer)
            if request is None:
                return rated(outputs, self.predictor, self.options)
            answer = self._predict(request) if isinstance(request, Predict) else self._align(request)

    def _predict(self, request: Predict) -> list[Any]:
        """Predictions, or the errors of texts that fail; equal texts once."""
        repeated = Counter(request.texts)
        texts, failed = list(repeated), dict[int, DragomanError]()
        stream = StreamOptions(
            on_warning=lambda line: None,
            on_unknown=lambda number, surfaces: self.unseen.add(texts[number - 1], surfaces),
            on_failed=failed.__setitem__,
            input_name=lambda number: "text",
        )
        results: dict[str, Prediction | DragomanError] = {}
        for number, output in enumerate(self.predictor.stream(texts, self.options, stream), 1):
            text = texts[number - 1]
            results[text] = failed.get(number, output)
            self.progress(repeated[text])
        return [results[text] for text in request.texts]

    @cached_property
    def _view(self) -> AttentionView:
        return select_view(self.predictor)

    def _align(self, request: Align) -> list[WordAlignment | None]:
        """Alignments; all unknown where the model has no attention to read them from."""
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
    if predictor.backend(options).model.likelihood != "none":
        return outputs
    return [output._replace(confidence=None) if isinstance(output, UnitTranslation) else output for output in outputs]
