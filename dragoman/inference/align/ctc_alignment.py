"""Forced alignment: the times of the words in a recording, or their positions in a line image, by CTC's best path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.base import ConfigError
from dragoman.data import Fault, pad_tokens
from dragoman.data.media import AudioConfig, FeatureExtractor, LineImageConfig, WaveformConfig
from dragoman.data.tokenizers import PAD, UNK, Tokenizer
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.align.alignment import token_word_shares, word_spans
from dragoman.inference.align.alignments import AlignedSpan, ForcedAlignment
from dragoman.inference.inputs import Warn
from dragoman.inference.pipeline import Done, Row, as_input
from dragoman.inference.predictor import Predictor
from dragoman.inference.target_scores import PairWork
from dragoman.models import CTCEmissions, Transcriber
from dragoman.models.layers import viterbi_positions


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
    extractor = media_codec(predictor)[0]
    extractor.preload({location: file.features for location, file in zip(locations, files, strict=True)})
    try:
        return [" ".join(output.text.splitlines()) for output in predictor.predict(locations, batch_size=batch_size)]
    finally:
        extractor.preload({})


Transcribe = Callable[[Sequence[str], Sequence[MediaFeatures]], list[str]]  # of paths and what they hold


@dataclass(frozen=True)
class ForceAlignWork(PairWork[ForcedAlignment]):
    """Places the words of texts in their recordings or line images; the source of a row is its features."""

    run: Predictor
    batch_size: int = 32
    transcribe: Transcribe | None = None  # gives the texts that inputs do not have

    tag = None
    empty = ForcedAlignment("", "", True, (), ())

    def prepare(self, item: str | ConstrainedInput, name: str) -> ConstrainedInput:
        return as_input(item) if self.transcribe is not None else super().prepare(item, name)

    def read_files(self, paths: Sequence[str]) -> Sequence[Any]:
        return read_media(self.run, paths)

    def encode(self, rows: Sequence[Row]) -> None:
        """Nothing is left to encode."""

    def check_source(self, row: Row, warn: Warn) -> None:
        """The frames of a recording say whether its text fits."""

    def outputs(self, rows: Sequence[Row], done: Done) -> list[ForcedAlignment]:
        features = [row.source for row in rows]
        texts = [row.item.target or "" for row in rows]
        if self.transcribe is not None:
            texts = self.transcribe([row.text for row in rows], features)
        aligned = []
        for row, alignment in zip(rows, force_align(self.run, features, texts, self.batch_size), strict=True):
            aligned.append(alignment)
            done(row)
        return aligned


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
