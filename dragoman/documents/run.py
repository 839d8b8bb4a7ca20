"""Translate documents with an open run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from dragoman.analysis.alignment import AttentionView, WordAlignment, align_pairs, select_view
from dragoman.decoding.options import DecodingOptions
from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.markup import Block, words_of
from dragoman.documents.translate import Align, Predict, Steps, advance, translate_blocks
from dragoman.errors import DragomanError
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.isolate import predict_each
from dragoman.inference.long_inputs import MAX_TOKENS_PER_CHARACTER
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor

Progress = Callable[[int], None]
WINDOW = 4096  # sentences


@dataclass
class Translation:
    """A translated document, and what became of its units."""

    data: bytes
    counts: Counter[str] = field(default_factory=Counter)  # translated, "already translated", failed
    faults: list[str] = field(default_factory=list)  # place and reason of each unit that failed
    confidences: list[float] = field(default_factory=list)
    unseen: dict[str, list[str]] = field(default_factory=dict)  # by sentence: what training did not have

    @property
    def warnings(self) -> list[str]:
        """What a person should check: sentences with characters or words that training did not have."""
        if not self.unseen:
            return []
        texts = Counter(text for surfaces in self.unseen.values() for text in surfaces)
        shown = ", ".join(repr(text)[:40] for text, _ in texts.most_common(10))
        count = f"{len(self.unseen):,} sentence{'s have' if len(self.unseen) > 1 else ' has'}"
        first = next(iter(self.unseen))
        return [f"{count} characters or words that training did not have: {shown} (first in {first[:40]!r})"]


@dataclass
class DocumentTranslator:
    """A run with decoding options; placeholders of every text are kept."""

    predictor: Predictor
    options: DecodingOptions
    progress: Progress = lambda count: None
    unseen: dict[str, list[str]] = field(default_factory=dict)  # by sentence: what training did not have

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
        translation.unseen, self.unseen = self.unseen, {}
        return translation

    def blocks(self, blocks: Sequence[Block]) -> list[UnitTranslation | Exception]:
        """An output for every block, or its error."""
        outputs = self._drive(translate_blocks(blocks, lambda text: fits(self.predictor, text)))
        return rated(outputs, self.predictor, self.options)

    def _drive(self, steps: Steps) -> list[UnitTranslation | Exception]:
        answer: list[Any] | None = None
        while True:
            request, outputs = advance(steps, answer)
            if request is None:
                return outputs
            answer = self._predict(request) if isinstance(request, Predict) else self._align(request)

    def _predict(self, request: Predict) -> list[Any]:
        """Predictions, equal texts once."""
        repeated = Counter(request.texts)
        found: dict[str, Any] = {}
        for first in range(0, len(repeated), WINDOW):
            texts = list(islice(repeated, first, first + WINDOW))
            found |= zip(texts, predict_each(self._outputs, texts), strict=True)
            self.progress(sum(repeated[text] for text in texts))
        return [found[text] for text in request.texts]

    def _outputs(self, texts: Sequence[str]) -> list[Prediction]:
        def unseen(number: int, surfaces: list[str]) -> None:
            self.unseen[texts[number - 1]] = surfaces

        stream = StreamOptions(on_warning=lambda line: None, on_unknown=unseen, input_name=lambda number: "text")
        return list(self.predictor.stream(texts, self.options, stream))

    @cached_property
    def _view(self) -> AttentionView:
        return select_view(self.predictor)

    def _align(self, request: Align) -> list[WordAlignment | None]:
        """Alignments; all unknown where the model has no attention to read them from."""
        distinct = list(dict.fromkeys(request.pairs))
        try:
            tag = self.options.tag
            aligned = align_pairs(self.predictor, distinct, view=self._view, tag=tag, segment=words_of)
            found = dict(zip(distinct, aligned, strict=True))
        except DragomanError:
            return [None] * len(request.pairs)
        return [found[pair] for pair in request.pairs]


def rated(
    outputs: list[UnitTranslation | Exception], predictor: Predictor, options: DecodingOptions
) -> list[UnitTranslation | Exception]:
    """The outputs, without confidence where the scores of a model are no probabilities, as of phrases or a copy."""
    if getattr(predictor.backend(options).model, "likelihood", "tokens") != "none":
        return outputs
    return [one._replace(confidence=None) if isinstance(one, UnitTranslation) else one for one in outputs]


def fits(predictor: Predictor, text: str) -> bool:
    """Whether a model can read a text as one source."""
    limits = predictor.length_limits
    if len(text) > limits.characters:
        return False
    room = limits.tokens - 2  # a tag takes one, and a piece at the start may be split differently
    return len(text) * MAX_TOKENS_PER_CHARACTER <= room or len(predictor.source_tokenizer.encode(text)) <= room
