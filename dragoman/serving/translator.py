"""Translate whole texts and HTML: split into sentences, compute them in shared batches, join the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dragoman.base import DragomanError
from dragoman.data import Sentence, fitting_sentences, join_sentences
from dragoman.data.tokenizers import SPECIALS, UNK
from dragoman.decoding import DecodingOptions
from dragoman.documents import UnitTranslation, parse_blocks, translate_blocks
from dragoman.inference import Prediction
from dragoman.inference.align import WordAlignment
from dragoman.inference.segments import Block
from dragoman.serving.models import BatchWork, ServedModel
from dragoman.serving.options import InputBuilder
from dragoman.serving.state import ServerCall

T = TypeVar("T")


@dataclass
class Translated:
    """The translation of a text; `prediction` has the scores where the text was one sentence."""

    text: str
    alternatives: list[str] = field(default_factory=list)
    prediction: Prediction | None = None
    alignment: WordAlignment | None = None
    sentences: list[tuple[Sentence, Translated]] = field(default_factory=list)  # of a text that was split
    unknown: list[str] = field(default_factory=list)  # characters or words of the source, read as <unk>


class Translator:
    """One model with the options of one request; `form` is text or html, `context` what stands before the texts."""

    def __init__(
        self, call: ServerCall, model: ServedModel, options: DecodingOptions, form: str = "text", context: str = ""
    ) -> None:
        self.call, self.model, self.form = call, model, form
        kept = options.placeholders or form == "html"
        self.build = InputBuilder(replace(options, placeholders=kept), model)
        self.before = [" ".join(sentence.text.split()) for sentence in self.sentences(context) if sentence.text.strip()]

    async def translate(self, texts: Sequence[str], split: bool = True, align: bool = False) -> list[Translated]:
        """Translations of whole texts; `split` into sentences, as HTML always is."""
        if self.form == "html":
            return await self.html(texts)
        return await (self.split(texts, align) if split else self.whole(texts, align))

    def sentences(self, text: str) -> list[Sentence]:
        """The sentences of a text, none longer than the model can read."""
        return fitting_sentences(text, self.fits)

    def fits(self, text: str) -> bool:
        """Whether a text can be one source."""
        return len(text) <= self.call.state.limits.sentence and self.model.engine.fits(text)

    async def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """A prediction for each text as the model reads it; equal texts are computed once."""
        texts = self.model.predictor.in_context([*self.before, *texts])[len(self.before) :]
        distinct = list(dict.fromkeys(texts))
        inputs = await self.prepare(
            lambda: [self.build(text) for text in distinct], [*distinct, *self.build.read_first]
        )
        predictions: dict[str, Prediction] = {}
        # Inputs with constraints are searched apart: they must not change which engine computes the others.
        for constrained in (False, True):
            chosen = [index for index, text in enumerate(inputs) if bool(text.constraints) is constrained]
            if not chosen:
                continue
            work = BatchWork(self.model.name, "predict", self.build.search, constrained)
            outputs = await self.call.compute(work, [inputs[index] for index in chosen])
            predictions |= zip((distinct[index] for index in chosen), outputs, strict=True)
        return [predictions[text] for text in texts]

    @property
    def has_probabilities(self) -> bool:
        return self.model.predictor.backend(self.build.search).traits.likelihood != "none"

    async def prepare(self, work: Callable[[], T], texts: Sequence[str] | None) -> T:
        return await self.call.prepare(work, texts)

    async def align(self, pairs: Sequence[tuple[str, str]]) -> list[WordAlignment | None]:
        """The word alignment of sources and outputs; None where the model has no attention to read it from."""
        sources = [(self.build(source).text, target) for source, target in pairs]
        outputs = await self.call.compute_each(BatchWork(self.model.name, "align"), sources)
        for output in outputs:
            if isinstance(output, Exception) and not isinstance(output, DragomanError):
                raise output
        return [None if isinstance(output, Exception) else output for output in outputs]

    async def whole(self, texts: Sequence[str], align: bool = False) -> list[Translated]:
        predictions = await self.predict(texts)
        unknown = await self.prepare(
            lambda: [self.model.unknown(text, self.build.search.placeholders) for text in texts], texts
        )
        outputs = [
            Translated(prediction.text, [other.text for other in prediction.alternatives], prediction, unknown=own)
            for prediction, own in zip(predictions, unknown, strict=True)
        ]
        if align:
            pairs = [(text, output.text) for text, output in zip(texts, outputs, strict=True)]
            for output, alignment in zip(outputs, await self.align(pairs), strict=True):
                output.alignment = alignment
        return outputs

    async def split(self, texts: Sequence[str], align: bool = False) -> list[Translated]:
        """Translations of texts of any length, sentence by sentence."""
        plans = await self.prepare(lambda: [self.sentences(text) for text in texts], texts)
        flat = [sentence.text for plan in plans for sentence in plan if sentence.text]
        outputs = iter(await self.whole(flat, align))
        joined = []
        for plan in plans:
            # An empty sentence has an empty output.
            parts = [(sentence, next(outputs) if sentence.text else Translated("")) for sentence in plan]
            own = [part for sentence, part in parts if sentence.text]
            text = join_sentences(plan, [part.text for part in own])
            several = max((len(part.alternatives) for part in own), default=0)
            alternatives = [
                join_sentences(plan, [(part.alternatives[number : number + 1] or [part.text])[0] for part in own])
                for number in range(several)
            ]
            whole = Translated(text, list(dict.fromkeys(other for other in alternatives if other != text)))
            if len(own) == 1:
                whole.prediction, whole.alignment = own[0].prediction, own[0].alignment
            refused = (part.prediction for part in own if part.prediction is not None and part.prediction.refused)
            if (uncertain := next(refused, None)) is not None:  # a text with a hole would pass for a translation
                whole = Translated("", prediction=uncertain)
            whole.sentences = parts
            whole.unknown = list(dict.fromkeys(name for part in own for name in part.unknown))
            joined.append(whole)
        return joined

    async def html(self, documents: Sequence[str]) -> list[Translated]:
        parsed = await self.prepare(lambda: [parse_blocks(document) for document in documents], documents)
        blocks = [part for parts in parsed for part in parts if isinstance(part, Block)]
        rendered = iter(await translate_blocks(blocks, self))
        texts = [[part.text for part in parts if isinstance(part, Block)] for parts in parsed]
        unknown = await self.prepare(lambda: [self.model.unknown("\n".join(own), True) for own in texts], documents)
        return [
            Translated(
                "".join(written(next(rendered)) if isinstance(part, Block) else part for part in parts), unknown=own
            )
            for parts, own in zip(parsed, unknown, strict=True)
        ]


def written(output: UnitTranslation | Exception) -> str:
    """The markup of a translation; `Translator.predict` has raised what failed."""
    assert isinstance(output, UnitTranslation)
    return output.markup


def word_confidences(model: ServedModel, prediction: Prediction) -> list[float] | None:
    """The probability of every word (or letter, as the alignment has them) of an output: the product of its tokens'.

    None where words cannot be told.
    """
    from dragoman.inference.align import token_word_shares, word_spans  # they import torch

    tokenizer, text = model.predictor.target_tokenizer, prediction.text
    pieces = tokenizer.pieces(tokenizer.encode(text))
    copied = [own if token == SPECIALS[UNK] else token for token, own in zip(pieces, prediction.tokens, strict=False)]
    if len(pieces) != len(prediction.tokens) or tuple(copied) != prediction.tokens:
        return None
    tokens = prediction.token_confidences or tuple(map(math.exp, prediction.token_scores))
    words = word_spans(text, (), model.predictor.by_letter[1])
    confidences = [1.0] * len(words)
    shares = token_word_shares(tokenizer.spans(text), words, len(prediction.tokens))
    for token, word in shares.nonzero().tolist():
        confidences[word] *= tokens[token]
    return confidences


def prediction_table(output: Translated, model: ServedModel) -> dict[str, Any]:
    """The fields of an answer of /v1/predict."""
    prediction, alignment = output.prediction, output.alignment
    table: dict[str, Any] = {"text": output.text}
    if prediction is not None and output.text == prediction.text:
        table = prediction.as_table()
    elif output.alternatives:
        table["alternatives"] = [{"text": text} for text in output.alternatives]
    if output.unknown:
        table["unknown"] = output.unknown
    if prediction is not None and output.text == prediction.text and alignment is not None:
        table["alignment"] = sorted(alignment.links)
        table["source_words"] = list(alignment.source)
        table["target_words"] = list(alignment.target)
        table["word_confidences"] = word_confidences(model, prediction)
    if output.sentences:
        table["sentences"] = [
            {"source": sentence.text, "space": sentence.space, **prediction_table(part, model)}
            for sentence, part in output.sentences
        ]
    return table
