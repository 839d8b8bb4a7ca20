"""Translate whole texts and HTML: split into sentences, compute them in shared batches, join the outputs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from dragoman.analysis.alignment import WordAlignment, token_word_shares
from dragoman.data.sentences import Sentence, join_sentences, split_long, split_sentences
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import DataError, DragomanError
from dragoman.inference.prediction import Prediction
from dragoman.serving.markup import Aligned, Block, parse_blocks, place_markup, words_of
from dragoman.serving.models import ServedModel, Work, fault_of
from dragoman.serving.options import InputBuilder
from dragoman.serving.state import ServerState

T = TypeVar("T")
LONG = 4_000  # characters


async def in_thread(work: Callable[[], T], texts: Sequence[str]) -> T:
    """The result of work on texts, in a thread if they are long: the server goes on answering meanwhile."""
    return await asyncio.to_thread(work) if sum(map(len, texts)) > LONG else work()


@dataclass
class Translated:
    """The translation of a text; `prediction` has the scores where the text was one sentence."""

    text: str
    alternatives: list[str] = field(default_factory=list)
    prediction: Prediction | None = None
    alignment: WordAlignment | None = None
    sentences: list[tuple[Sentence, Translated]] = field(default_factory=list)  # of a text that was split


@dataclass(frozen=True)
class Translator:
    """One model with the options of one request."""

    state: ServerState
    request: Request
    model: ServedModel
    options: DecodingOptions
    build: InputBuilder

    def sentences(self, text: str) -> list[Sentence]:
        """The sentences of a text, none longer than the model can read."""
        longest = self.state.limits.sentence

        def fits(part: str) -> bool:
            return len(part) <= longest and self.model.fits(part)

        found: list[Sentence] = []
        for sentence in split_sentences(text):
            parts = split_long(sentence.text, fits)
            found += [*parts[:-1], Sentence(parts[-1].text, parts[-1].space + sentence.space)]
        return found

    async def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """A prediction for each text as the model reads it; equal texts are computed once."""
        distinct = list(dict.fromkeys(texts))
        inputs = [self.build(text) for text in distinct]
        found: dict[str, Prediction] = {}
        # Inputs with constraints are searched apart: they must not change which engine computes the others.
        for constrained in (False, True):
            chosen = [index for index, one in enumerate(inputs) if bool(one.constraints) is constrained]
            work = Work(self.model.name, "predict", self.options, constrained)
            outputs = await self.state.compute(self.request, work, [inputs[index] for index in chosen])
            for index, output in zip(chosen, outputs, strict=True):
                if fault := fault_of(output):
                    raise DataError(fault)
                found[distinct[index]] = output
        return [found[text] for text in texts]

    async def alignments(self, pairs: Sequence[tuple[str, str]]) -> list[WordAlignment | None]:
        """The word alignment of sources and outputs; None where the model has no attention to read it from."""
        sources = [(self.build(source).text, target) for source, target in pairs]
        outputs = await self.state.compute(self.request, Work(self.model.name, "align"), sources)
        for output in outputs:
            if isinstance(output, Exception) and not isinstance(output, DragomanError):
                raise output
        return [None if isinstance(output, Exception) else output for output in outputs]

    async def whole(self, texts: Sequence[str], align: bool = False) -> list[Translated]:
        """Translations of texts that are not split."""
        predictions = await self.predict(texts)
        found = [Translated(one.text, [other.text for other in one.alternatives], one) for one in predictions]
        if align:
            pairs = [(text, one.text) for text, one in zip(texts, predictions, strict=True)]
            for one, alignment in zip(found, await self.alignments(pairs), strict=True):
                one.alignment = alignment
        return found

    async def split(self, texts: Sequence[str], align: bool = False) -> list[Translated]:
        """Translations of texts of any length, sentence by sentence."""
        plans = await in_thread(lambda: [self.sentences(text) for text in texts], texts)
        flat = [sentence.text for plan in plans for sentence in plan if sentence.text]
        outputs = iter(await self.whole(flat, align))
        found = []
        for plan in plans:
            own = [next(outputs) for sentence in plan if sentence.text]
            text = join_sentences(plan, [one.text for one in own])
            several = max((len(one.alternatives) for one in own), default=0)
            alternatives = [
                join_sentences(plan, [(one.alternatives[number : number + 1] or [one.text])[0] for one in own])
                for number in range(several)
            ]
            single = own[0] if len(own) == 1 else None
            found.append(
                Translated(
                    text,
                    list(dict.fromkeys(other for other in alternatives if other != text)),
                    single.prediction if single else None,
                    single.alignment if single else None,
                    [(sentence, one) for sentence, one in zip(plan, paired(plan, own), strict=True)],
                )
            )
        return found

    async def html(self, documents: Sequence[str]) -> list[Translated]:
        """Translations of HTML documents with all their tags."""
        parsed = await in_thread(lambda: [parse_blocks(document) for document in documents], documents)
        blocks = [part for parts in parsed for part in parts if isinstance(part, Block)]
        plans = await in_thread(lambda: [self.sentences(block.text) for block in blocks], documents)
        flat = [sentence.text for plan in plans for sentence in plan if sentence.text]
        predictions = await self.predict(flat)
        aligned = await self._aligned(blocks, plans, predictions)
        placed = await in_thread(lambda: list(map(place_markup, blocks, aligned)), documents)
        rendered = iter(placed)
        return [
            Translated("".join(next(rendered) if isinstance(part, Block) else part for part in parts))
            for parts in parsed
        ]

    async def _aligned(
        self, blocks: Sequence[Block], plans: Sequence[list[Sentence]], predictions: Sequence[Prediction]
    ) -> list[Aligned]:
        """The output of each block, aligned where inline tags need it."""
        outputs = iter(predictions)
        rows: list[list[tuple[Sentence, str]]] = [
            [(sentence, next(outputs).text if sentence.text else "") for sentence in plan] for plan in plans
        ]
        needed = [
            (sentence.text, output)
            for block, row in zip(blocks, rows, strict=True)
            for sentence, output in row
            if block.elements and sentence.text
        ]
        alignments = iter(await self.alignments(needed))
        found = []
        for block, row in zip(blocks, rows, strict=True):
            text, sources, targets = "", list[int](), list[int]()
            for sentence, output in row:
                text += output + sentence.space
                if block.elements and sentence.text:
                    links = word_links(next(alignments), len(sentence.text.split()), len(output.split()))
                    before = len(targets), len(sources)
                    sources += [one + before[0] if one >= 0 else one for one in links[0]]
                    targets += [one + before[1] if one >= 0 else one for one in links[1]]
            found.append(Aligned(text, sources, targets))
        return found


def word_links(alignment: WordAlignment | None, sources: int, targets: int) -> tuple[list[int], list[int]]:
    """For each output word of a sentence the source word of highest weight, and the other way round; −1: unknown."""
    if alignment is None or alignment.weights.shape != (targets, sources) or not alignment.weights.numel():
        return [-1] * targets, [-1] * sources
    return alignment.weights.argmax(1).tolist(), alignment.weights.argmax(0).tolist()


def paired(plan: Sequence[Sentence], own: Sequence[Translated]) -> list[Translated]:
    """An output for every sentence, an empty one for an empty sentence."""
    outputs = iter(own)
    return [next(outputs) if sentence.text else Translated("") for sentence in plan]


def word_confidences(model: ServedModel, prediction: Prediction) -> list[float] | None:
    """The probability of every word of an output: the product of its tokens'; None where words cannot be told."""
    tokenizer, text = model.predictor.target_tokenizer, prediction.text
    if tuple(tokenizer.pieces(tokenizer.encode(text))) != prediction.tokens:
        return None
    tokens = prediction.token_confidences or tuple(map(math.exp, prediction.token_scores))
    words = words_of(text)
    found = [1.0] * len(words)
    shares = token_word_shares(tokenizer.spans(text), words, len(prediction.tokens))
    for token, word in shares.nonzero().tolist():
        found[word] *= tokens[token]
    return found


def prediction_table(one: Translated, model: ServedModel) -> dict[str, Any]:
    """The fields of an answer of /v1/predict."""
    table = _own_table(one, model)
    if one.sentences:
        table["sentences"] = [
            {"source": sentence.text, "space": sentence.space, **_own_table(part, model)}
            for sentence, part in one.sentences
        ]
    return table


def _own_table(one: Translated, model: ServedModel) -> dict[str, Any]:
    if one.prediction is None or one.text != one.prediction.text:
        table: dict[str, Any] = {"text": one.text}
        if one.alternatives:
            table["alternatives"] = [{"text": text} for text in one.alternatives]
        return table
    table = one.prediction.as_table()
    if one.alignment is not None:
        links = sorted(one.alignment.links)
        table["alignment"] = links
        table["source_words"] = list(one.alignment.source)
        table["target_words"] = list(one.alignment.target)
        table["word_confidences"] = word_confidences(model, one.prediction)
    return table
