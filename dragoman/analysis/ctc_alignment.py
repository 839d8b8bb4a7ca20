"""Forced alignment: the times of the words in a recording, or their positions in a line image, by CTC's best path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.analysis.alignment import token_word_shares, word_spans
from dragoman.data.batch import pad_tokens
from dragoman.data.examples import Fault
from dragoman.data.media.audio import AudioConfig, WaveformConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.media.images import LineImageConfig
from dragoman.data.tokenizers.base import PAD, UNK, Tokenizer
from dragoman.errors import ConfigError
from dragoman.inference.predictor import Predictor
from dragoman.layers.ctc import viterbi_positions
from dragoman.models.contracts import CTCEmissions
from dragoman.models.transcriber import Transcriber


class AlignedSpan(NamedTuple):
    """Start and end in seconds or pixels, and the probability of the token or word there."""

    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class ForcedAlignment:
    """A text aligned with its recording or line image; words outside the vocabulary have no span."""

    text: str
    unit: str  # seconds or pixels
    fits: bool  # whether the recording or line is long enough for the text; if not, no word has a span
    words: tuple[tuple[str, AlignedSpan | None], ...]
    tokens: tuple[tuple[str, AlignedSpan | None], ...]

    def rows(self, name: str) -> Iterator[tuple[str, ...]]:
        """Name, word, start, end and probability of every word, as text; '-' without a span."""
        for word, span in self.words:
            yield name, word, *(("-",) * 3 if span is None else (f"{number:.3f}" for number in span))

    def as_json_line(self, name: str) -> str:
        words: list[dict[str, Any]] = [
            {"word": word} | {field: span and round(getattr(span, field), 4) for field in AlignedSpan._fields}
            for word, span in self.words
        ]
        table = {"source": name, "text": self.text, "unit": self.unit, "words": words}
        return json.dumps(table, ensure_ascii=False)


class MediaFeatures(NamedTuple):
    """The features of a recording or line image."""

    features: Any  # (T, F)
    frame_size: float  # in seconds or pixels


def require_transcriber(predictor: Predictor) -> Transcriber:
    """The model of the run; raises ConfigError unless the run transcribes by CTC."""
    if not isinstance(predictor.model, Transcriber):
        kind = getattr(predictor.config.model, "kind", "")
        raise ConfigError(
            f'forced alignment needs a run of task = "transcribe" with CTC (model.kind = "transcriber"); '
            f'{predictor.run.folder} has task = "{predictor.config.task}", model.kind = "{kind}"'
        )
    return predictor.model


def media_codec(predictor: Predictor) -> tuple[FeatureExtractor, AudioConfig | WaveformConfig | LineImageConfig]:
    """The feature extractor of a run that transcribes, and its settings."""
    codec = predictor.extractor
    assert isinstance(codec.config, AudioConfig | WaveformConfig | LineImageConfig)
    return codec, codec.config


def read_media(predictor: Predictor, locations: Sequence[str]) -> list[MediaFeatures | Fault]:
    """The features of each file, or its fault; an archive is read once for all its files."""
    results = media_codec(predictor)[0].encode_with_steps(locations)
    return [result if isinstance(result, Fault) else MediaFeatures(*result) for result in results]


def transcribe(
    predictor: Predictor, locations: Sequence[str], files: Sequence[MediaFeatures], batch_size: int = 32
) -> list[str]:
    """The transcript of each file on one line, from features that are read already."""
    codec = media_codec(predictor)[0]
    codec.preload({location: file.features for location, file in zip(locations, files, strict=True)})
    try:
        return [
            " ".join(prediction.text.splitlines()) for prediction in predictor.predict(locations, batch_size=batch_size)
        ]
    finally:
        codec.preload({})


@torch.no_grad()
def ctc_emissions(predictor: Predictor, files: Sequence[MediaFeatures]) -> CTCEmissions:
    batch = predictor.collator.collate([file.features for file in files]).to(predictor.device)
    return require_transcriber(predictor).emissions(batch, batch.source.mask.sum(1), 1)


def force_align(
    predictor: Predictor, files: Sequence[MediaFeatures], texts: Sequence[str], batch_size: int = 32
) -> Iterator[ForcedAlignment]:
    for first in range(0, len(files), batch_size):
        chunk = files[first : first + batch_size]
        yield from align_emissions(predictor, chunk, texts[first : first + batch_size], ctc_emissions(predictor, chunk))


def align_emissions(
    predictor: Predictor, files: Sequence[MediaFeatures], texts: Sequence[str], emissions: CTCEmissions
) -> Iterator[ForcedAlignment]:
    """Align every text with its file, given the CTC log-probabilities."""
    tokenizer, (_, config) = predictor.target_tokenizer, media_codec(predictor)
    texts = [text.strip() for text in texts]
    rows = [tokenizer.encode(text) for text in texts]
    known = [[token for token in row if token != UNK] for row in rows]
    sizes = torch.tensor([len(row) for row in known])
    target = pad_tokens(known)[:, :-1] if max(sizes.tolist(), default=0) else torch.full((len(rows), 1), PAD)
    inside = torch.arange(target.shape[1]) < sizes[:, None]
    target, sizes = (tensor.to(predictor.device) for tensor in (target.where(inside, PAD), sizes))
    ends = viterbi_positions(emissions.log_probabilities, emissions.lengths, target, sizes, PAD)
    firsts, lasts = (tensor.tolist() for tensor in ends)
    stride = require_transcriber(predictor).stride
    for number, (file, text, row) in enumerate(zip(files, texts, rows, strict=True)):
        log_probabilities = emissions.log_probabilities[number][:, known[number]].cpu()  # (T, tokens)
        aligned = iter(zip(log_probabilities.unbind(1), firsts[number], lasts[number], strict=False))
        spans = [None if token == UNK else frame_span(file, stride, *next(aligned)) for token in row]
        yield ForcedAlignment(
            text,
            config.measure,
            all(first >= 0 for first in firsts[number][: len(known[number])]),
            tuple(word_spans_in_media(tokenizer, text, row, spans)),
            tuple(zip(tokenizer.pieces(row), spans, strict=True)),
        )


def frame_span(
    file: MediaFeatures, stride: float, log_probabilities: Tensor, first: int, last: int
) -> AlignedSpan | None:
    """The span of positions `first` to `last`, with the highest of a token's probabilities there; None if first < 0."""
    if first < 0:
        return None
    size, end = stride * file.frame_size, len(file.features) * file.frame_size
    return AlignedSpan(
        first * size, min((last + 1) * size, end), float(log_probabilities[first : last + 1].max().exp())
    )


def word_spans_in_media(
    tokenizer: Tokenizer, text: str, row: Sequence[int], spans: Sequence[AlignedSpan | None]
) -> Iterator[tuple[str, AlignedSpan | None]]:
    """Every word with the span from its first to its last token, and the lowest of their probabilities."""
    words = word_spans(text)
    belongs = token_word_shares(tokenizer.spans(text), words, len(row)) > 0
    for index, piece in enumerate(tokenizer.pieces(row)):
        if not piece.replace("▁", " ").strip():  # a space belongs to no word
            belongs[index] = False
    for word, (first, end) in enumerate(words):
        own = [span for index, span in enumerate(spans) if span is not None and belongs[index, word]]
        lowest = min((span.probability for span in own), default=0.0)
        yield text[first:end], AlignedSpan(own[0].start, own[-1].end, lowest) if own else None
