"""One example opened for inspection: a run, its model, one batch, and the tokens and words on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dragoman.base import DataError
from dragoman.classical import FittedModel, HMMTagger
from dragoman.data import Batch, SourceReader, batch_of
from dragoman.data.formats import MASK, MASK_ID
from dragoman.data.tokenizers import EOS, SOS, SPECIALS
from dragoman.inference import Completer, Labeler, MaskFiller, Predictor, ignore_unknown
from dragoman.inference.align import token_labels, word_spans
from dragoman.inspect.options import InspectOptions
from dragoman.models import BaseModel, Regressor, Tagger

Loaded = Predictor | Labeler | Completer
MAX_TOKENS = 512  # on one side; the pictures of longer texts could not be read


@dataclass(frozen=True)
class Axis:
    """The tokens of one side and the words that they belong to."""

    text: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]  # the word of each token
    unit: str = "word"  # what the words are called: letters, where a model reads single words letter by letter

    def __len__(self) -> int:
        return len(self.tokens)

    def shifted(self) -> Axis:
        """The inputs of a decoder that writes these tokens: <sos> first, the last token missing."""
        sos = SPECIALS[SOS]
        return Axis(
            self.text,
            (sos, *self.tokens[:-1]),
            (sos, *self.words[: max(self.word_of[:-1], default=-1) + 1]),
            (0, *(word + 1 for word in self.word_of[:-1])),
            self.unit,
        )

    def after(self, first: Sequence[str]) -> Axis:
        """The axis with tokens before its own, each a word."""
        shift = len(first)
        words = (*range(shift), *(word + shift for word in self.word_of))
        return Axis(self.text, (*first, *self.tokens), (*first, *self.words), words, self.unit)

    def as_dict(self) -> dict[str, Any]:
        sequences = {name: list(getattr(self, name)) for name in ("tokens", "words", "word_of")}
        return {**sequences, "unit": self.unit}


def target_log_probabilities(model: BaseModel, batch: Batch) -> Tensor:
    """The log-probability of every target (B, T), differentiable; zero on padding. Of a regressor its number (B, 1)."""
    if isinstance(model, Tagger):  # its score() may be a marginal without a graph
        scores, mask = model.outputs(batch)
        chosen = scores.log_softmax(-1).gather(2, batch.target[:, 0].clamp(min=0)[:, :, None])
        return chosen[:, :, 0] * mask
    if isinstance(model, Regressor):  # has no probabilities: its number stands for them
        return model.outputs(batch)
    return model.score(batch).log_probabilities


def mask_distributions(model: Any, batch: Batch) -> Tensor:
    """Log-probabilities (B, K, V) for every [MASK] of a batch, all rows of which have K."""
    source, mask = batch.source.data, batch.source.mask
    masked = (source == MASK_ID) & mask
    scores: Tensor = model.fill(source, mask, masked)
    return scores[masked].view(len(source), -1, scores.shape[2])


def mask_log_probabilities(model: Any, batch: Batch) -> Tensor:
    """The log-probabilities (B, K) of the tokens that fill the masks; `score` would mask tokens of its own choice."""
    return mask_distributions(model, batch).gather(2, batch.target[:, :, None])[:, :, 0]


@dataclass(frozen=True)
class Subject:
    """What is inspected."""

    loaded: Loaded
    model: Any
    batch: Batch  # one row
    source: Axis | None  # None: a language model has no source
    target: Axis
    given: bool  # whether the user gave the target; else it is the prediction
    options: InspectOptions = InspectOptions()
    text: str = ""  # all of the user's text; the source may be its beginning
    score: Callable[[Any, Batch], Tensor] = target_log_probabilities  # (model, batch) → (B, T), with a gradient

    @property
    def encoder(self) -> Any:
        """The encoder; None: the model has none."""
        return getattr(self.model, "encoder", None)

    @property
    def encoded(self) -> Axis | None:
        """The source as the layers of the encoder see it: with the tokens that the encoder puts before it."""
        prepended = getattr(self.encoder, "prepended", ())
        return self.source if self.source is None else self.source.after(prepended)

    @property
    def input_unit(self) -> str:
        return "word" if self.source is None else self.source.unit

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        loaded = self.loaded
        if isinstance(loaded, Completer):
            return loaded.tokenizer.pieces(tokens)
        if isinstance(loaded, Predictor) and self.source is not None:
            return loaded.codec.target_of(self.source.text).pieces(tokens)
        return loaded.target_tokenizer.pieces(tokens)

    @property
    def writes_numbers(self) -> bool:
        """Whether the outputs are numbers, which have no probability."""
        return isinstance(self.loaded, Labeler) and self.loaded.head_decoder.outputs == "numbers"

    @property
    def has_likelihood(self) -> bool:
        """Whether the model gives any target a probability."""
        fitted = isinstance(self.model, FittedModel) and self.model.likelihood == "none"
        return not fitted and not self.writes_numbers

    @property
    def measure(self) -> str:
        return "the value" if self.writes_numbers else "log p"

    def log_probabilities(self, batch: Batch | None = None) -> Tensor:
        """The log-probability of every target token, label or tag (T,), with the gradient of the model."""
        return self.score(self.model, self.batch if batch is None else batch)[0]


def text_axis(tokenizer: SourceReader, text: str, ids: Sequence[int], *, unit: str = "word") -> Axis:
    """The axis of an encoded text; a space belongs to the word after it, and <eos> is a word of its own.

    With the unit "letter" every token is a word. Unknown tokens have the text that they stand for.
    """
    try:
        spans, words = tokenizer.spans(text), word_spans(text, tokenizer.tags)
    except NotImplementedError:
        spans, words = [], []
    pieces = token_labels(tokenizer, text, ids)
    if len(spans) != len(ids) or not words or unit == "letter":
        return plain_axis([*pieces, SPECIALS[EOS]], text, unit)
    word_of, word = [], 0
    for first, last in spans:
        while word < len(words) - 1 and words[word][1] <= first and (last > words[word][1] or first == last):
            word += 1
        word_of.append(word)
    names = [text[first:last] for first, last in words]
    if tokenizer.tags and words and words[0][0] > 0:  # the tag and what stands before the first word
        tag = text[: words[0][0]].strip()
        if tag:
            names, word_of = [tag, *names], [0 if spans[i][1] <= words[0][0] else w + 1 for i, w in enumerate(word_of)]
    pieces, names, word_of = [*pieces, SPECIALS[EOS]], [*names, SPECIALS[EOS]], [*word_of, len(names)]
    return Axis(text, tuple(pieces), tuple(names), tuple(word_of), unit)


def units(loaded: Loaded) -> tuple[str, str]:
    """What the parts of sources and targets are called: letters, the symbols that letters are turned into, or words."""
    if not isinstance(loaded, Predictor) or not loaded.source_tokenizer.is_text:
        return "word", "word"
    by_letter = loaded.by_letter
    source, target = ("letter" if own else "symbol" if any(by_letter) else "word" for own in by_letter)
    return source, target


def plain_axis(labels: Sequence[str], text: str = "", unit: str = "word") -> Axis:
    return Axis(text or " ".join(labels), tuple(labels), tuple(labels), tuple(range(len(labels))), unit)


def beginning(tokenizer: SourceReader, text: str, limit: int) -> str:
    """The text, or of a longer one the beginning that has at most `limit` tokens."""
    if not tokenizer.is_text or len(text) <= limit:
        return text
    spans = tokenizer.spans(text)
    return text if len(spans) <= limit else text[: spans[limit][0]].rstrip()


def open_subject(loaded: Loaded, text: str, options: InspectOptions | None = None) -> Subject:
    """Read a text, and a target or by default the run's own prediction; of long texts their beginning."""
    options = options or InspectOptions()
    target = options.target
    limit = min(MAX_TOKENS, getattr(loaded.config.data, "max_length", 0) or MAX_TOKENS) - 1  # <eos>
    if isinstance(loaded, Completer):
        subject = _language_model_subject(loaded, beginning(loaded.tokenizer, text, limit), target)
    elif not text.strip():
        raise DataError("found empty text, expected text to inspect")
    elif isinstance(loaded, MaskFiller):
        subject = _mask_subject(loaded, beginning(loaded.source_tokenizer, text, limit), target)
    elif isinstance(loaded, Labeler):
        subject = _label_subject(loaded, beginning(loaded.source_tokenizer, text, limit), target)
    else:
        if target is not None:
            target = beginning(loaded.target_tokenizer, target, limit)
        subject = _search_subject(loaded, text, target, options.tag, limit)
    return replace(subject, text=text, options=options)


def _search_subject(loaded: Predictor, text: str, target: str | None, tag: str | None, limit: int) -> Subject:
    tokenizer, model = loaded.source_tokenizer, loaded.single_model("the views show the inside of one")
    (text,) = loaded.read_as([text], tag)
    text = beginning(tokenizer, text, limit)
    source = tokenizer.encode(text)
    source_unit, target_unit = units(loaded)
    if loaded.reads_files:
        axis = plain_axis([str(number) for number in range(1, len(source) + 1)], text)
    else:
        axis = text_axis(tokenizer, text, source, unit=source_unit)
    if target is None:
        (output,) = loaded.stream([text], engine="torch", split_long=False, on_unknown=ignore_unknown)
    written = output.text if target is None else target
    batch = loaded.collator.collate(*loaded.codec.encode_pairs([text], [written])).to(loaded.device)
    tokenizer = loaded.target_tokenizer
    target_axis = text_axis(tokenizer, written, tokenizer.encode(written), unit=target_unit)
    return Subject(loaded, model, batch, axis, target_axis, target is not None)


@torch.no_grad()
def _mask_subject(loaded: MaskFiller, text: str, target: str | None) -> Subject:
    """Every [MASK] is a target: the most probable token, or that of a target with one token for each."""
    if not hasattr(loaded.model, "fill"):
        kind = loaded.config.model.kind
        raise DataError(f'nothing to inspect: model.kind = "{kind}" cannot fill [MASK], expected "masked-lm"')
    tokenizer, special = loaded.source_tokenizer, {MASK_ID: MASK, EOS: "[SEP]"}
    sources, targets = loaded.example_format.encode_inputs([text], tokenizer)
    batch = loaded.collator.collate(sources, targets).to(loaded.device)
    row = batch.source.data[0].tolist()
    pieces = [special.get(token) or tokenizer.pieces([token])[0] for token in row]
    logs, count = mask_distributions(loaded.model, batch)[0], row.count(MASK_ID)
    if target is None:
        logs[:, : len(SPECIALS)] = -torch.inf  # they are no text
        filling, filled = logs.argmax(1).tolist(), next(loaded.stream([text], on_unknown=ignore_unknown)).text
    else:
        filling, filled = loaded.target_tokenizer.encode(target), text
        if len(filling) != count:
            raise DataError(
                f"target: found {target!r}, which is {len(filling)} tokens, expected {count}: one for each {MASK}"
            )
        for word in loaded.target_tokenizer.pieces(filling):
            filled = filled.replace(MASK, word, 1)
    batch = replace(batch, target=torch.tensor([filling], device=loaded.device))
    labels = plain_axis(loaded.target_tokenizer.pieces(filling), filled, "token")
    return Subject(
        loaded, loaded.model, batch, plain_axis(pieces, text, "token"), labels, target is not None,
        score=mask_log_probabilities,
    )  # fmt: skip


@torch.no_grad()
def _label_subject(loaded: Labeler, text: str, target: str | None) -> Subject:
    """The predicted or given labels are the target."""
    tokenizer, codec, model = loaded.source_tokenizer, loaded.target_tokenizer, loaded.model
    sources, targets = loaded.example_format.encode_inputs([text], tokenizer)
    batch = loaded.collator.collate(sources, targets).to(loaded.device)
    axis = (
        text_axis(tokenizer, text, sources[0]) if tokenizer.is_text else plain_axis(tokenizer.pieces(sources[0]), text)
    )
    if tokenizer.is_text and axis.tokens and len(axis) != batch.source.data.shape[-1]:
        axis = plain_axis([*tokenizer.pieces(batch.source.data.flatten().tolist())], text)
    if getattr(getattr(model, "encoder", None), "prepended", ()):  # BERT calls <eos> [SEP]
        named = [
            tuple("[SEP]" if name == SPECIALS[EOS] else name for name in names) for names in (axis.tokens, axis.words)
        ]
        axis = replace(axis, tokens=named[0], words=named[1])
    predict, tagging = getattr(model, "predict", None), isinstance(model, Tagger | HMMTagger)
    if predict is None or not loaded.labels:
        labels, unit = [target or next(loaded.stream([text], on_unknown=ignore_unknown)).text], "value"
        if isinstance(model, Regressor):
            batch = replace(batch, target=model.predict(batch).values)
        return Subject(loaded, model, batch, axis, plain_axis(labels, unit=unit), target is not None)
    if target is not None:
        names = target.split(" ") if tagging else [target]
        ids = torch.tensor([[list(loaded.labels).index(name) if name in loaded.labels else -1 for name in names]])
        expected = batch.target[:, 0].shape if tagging else (1, 1)
        if bool((ids < 0).any()) or ids.shape != expected:
            raise DataError(
                f"target: found {target!r}, expected {expected[1]} of the labels {', '.join(loaded.labels)}"
            )
        values = ids.to(batch.source.device)
    else:
        values = predict(batch).values
    labels, unit = codec.pieces(values[0].tolist()), "label"
    if tagging:
        words = [str(frame) for frame in range(1, values.shape[1] + 1)] if loaded.reads_files else text.split(" ")
        labels, unit = [f"{word}/{tag}" for word, tag in zip(words, labels, strict=False)], "tag"
        values = torch.stack([values, batch.target[:, 1]], 1)
    batch = replace(batch, target=values)
    return Subject(loaded, model, batch, axis, plain_axis(labels, unit=unit), target is not None)


def _language_model_subject(loaded: Completer, text: str, target: str | None) -> Subject:
    whole = text if target is None else text + target
    ids = loaded.encode(whole, "text", allow_unknown=True)
    batch = batch_of([[]], [ids]).to(loaded.device)
    if "\n" in whole:
        axis = plain_axis([*loaded.tokenizer.pieces(ids), SPECIALS[EOS]], whole)
    else:
        axis = text_axis(loaded.tokenizer, whole, ids)
    return Subject(loaded, loaded.model, batch, None, axis, target is not None)
