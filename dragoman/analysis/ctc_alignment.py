"""Where the words of a text stand in its recording or line (FIELD A7, H8): the most probable path of CTC."""

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
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.media.images import LineImageConfig
from dragoman.data.tokenizers.base import PAD, UNK, Tokenizer
from dragoman.errors import ConfigError
from dragoman.inference.predictor import Predictor
from dragoman.layers.ctc import viterbi_positions
from dragoman.models.contracts import CTCEmissions
from dragoman.models.transcriber import Transcriber


class AlignedSpan(NamedTuple):
    """From where to where, in seconds or pixels, and how probable what stands there is."""

    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class ForcedAlignment:
    """A text over its recording or line; what is unknown to the vocabulary has no place."""

    text: str
    unit: str  # seconds or pixels
    fits: bool  # whether the text is short enough to be written there at all; else nothing has a place
    words: tuple[tuple[str, AlignedSpan | None], ...]
    tokens: tuple[tuple[str, AlignedSpan | None], ...]

    def rows(self, name: str) -> Iterator[tuple[str, ...]]:
        """Name, word, start, end and probability of every word, as text; '-' for what has no place."""
        for word, place in self.words:
            yield name, word, *(("-",) * 3 if place is None else (f"{number:.3f}" for number in place))

    def as_json_line(self, name: str) -> str:
        """One JSON object on one line."""
        words: list[dict[str, Any]] = [
            {"word": word} | {field: place and round(getattr(place, field), 4) for field in AlignedSpan._fields}
            for word, place in self.words
        ]
        table = {"source": name, "text": self.text, "unit": self.unit, "words": words}
        return json.dumps(table, ensure_ascii=False)


class MediaFeatures(NamedTuple):
    """A recording or line as a run reads it."""

    features: Any  # (T, F)
    size: float  # seconds or pixels of a frame


def require_transcriber(predictor: Predictor) -> Transcriber:
    """The model of a run that transcribes; no other has places."""
    if not isinstance(predictor.model, Transcriber):
        raise ConfigError(
            f'places in files need a run of task = "transcribe"; {predictor.run.folder} has '
            f'task = "{predictor.config.task}"'
        )
    return predictor.model


def media_codec(predictor: Predictor) -> tuple[FeatureExtractor, AudioConfig | LineImageConfig]:
    """How a run that transcribes reads files."""
    codec = predictor.source_tokenizer
    assert isinstance(codec, FeatureExtractor)
    assert isinstance(codec.config, AudioConfig | LineImageConfig)
    return codec, codec.config


def read_media(predictor: Predictor, places: Sequence[str]) -> list[MediaFeatures | Fault]:
    """What stands at locations, or what is wrong there; an archive is read once for all."""
    found = media_codec(predictor)[0].encode_with_steps(places)
    return [one if isinstance(one, Fault) else MediaFeatures(*one) for one in found]


def transcribe(
    predictor: Predictor, places: Sequence[str], files: Sequence[MediaFeatures], batch_size: int = 32
) -> list[str]:
    """What the run writes for files that are open, each on one line; none is read again."""
    codec = media_codec(predictor)[0]
    codec.preload({place: file.features for place, file in zip(places, files, strict=True)})
    try:
        return [" ".join(one.text.splitlines()) for one in predictor.predict(places, batch_size=batch_size)]
    finally:
        codec.preload({})


@torch.no_grad()
def ctc_emissions(predictor: Predictor, files: Sequence[MediaFeatures]) -> CTCEmissions:
    """What CTC says at every position."""
    batch = predictor.collator.collate([one.features for one in files]).to(predictor.device)
    return require_transcriber(predictor).emissions(batch, batch.source_mask.sum(1), 1)


def force_align(
    predictor: Predictor, files: Sequence[MediaFeatures], texts: Sequence[str], batch_size: int = 32
) -> Iterator[ForcedAlignment]:
    """The places of every text in its file, in order."""
    for first in range(0, len(files), batch_size):
        some = files[first : first + batch_size]
        yield from align_emissions(predictor, some, texts[first : first + batch_size], ctc_emissions(predictor, some))


def align_emissions(
    predictor: Predictor, files: Sequence[MediaFeatures], texts: Sequence[str], emissions: CTCEmissions
) -> Iterator[ForcedAlignment]:
    """The same where CTC has spoken already."""
    tokenizer, (_, config) = predictor.target_tokenizer, media_codec(predictor)
    texts = [text.strip() for text in texts]
    rows = [tokenizer.encode(text) for text in texts]
    known = [[token for token in row if token != UNK] for row in rows]
    sizes = torch.tensor([len(row) for row in known])
    target = pad_tokens(known)[:, :-1] if max(sizes.tolist(), default=0) else torch.full((len(rows), 1), PAD)
    inside = torch.arange(target.shape[1]) < sizes[:, None]
    target, sizes = (part.to(predictor.device) for part in (target.where(inside, PAD), sizes))
    ends = viterbi_positions(emissions.log_probabilities, emissions.lengths, target, sizes, PAD)
    firsts, lasts = (part.tolist() for part in ends)
    stride = require_transcriber(predictor).stride
    for number, (file, text, row) in enumerate(zip(files, texts, rows, strict=True)):
        said = emissions.log_probabilities[number][:, known[number]].cpu()  # (T, tokens), all at once
        along = iter(zip(said.unbind(1), firsts[number], lasts[number], strict=False))
        places = [None if token == UNK else frame_span(file, stride, *next(along)) for token in row]
        yield ForcedAlignment(
            text,
            config.measure,
            all(first >= 0 for first in firsts[number][: len(known[number])]),
            tuple(word_spans_in_media(tokenizer, text, row, places)),
            tuple(zip(tokenizer.pieces(row), places, strict=True)),
        )


def frame_span(file: MediaFeatures, stride: float, said: Tensor, first: int, last: int) -> AlignedSpan | None:
    """Where positions from `first` to `last` lie, and how probable a token, said (T,), is at the surest of them."""
    if first < 0:
        return None
    size, end = stride * file.size, len(file.features) * file.size
    return AlignedSpan(first * size, min((last + 1) * size, end), float(said[first : last + 1].max().exp()))


def word_spans_in_media(
    tokenizer: Tokenizer, text: str, row: Sequence[int], places: Sequence[AlignedSpan | None]
) -> Iterator[tuple[str, AlignedSpan | None]]:
    """Every word from where the first of its tokens begins to where the last ends, as probable as the least of them."""
    words = word_spans(text)
    belongs = token_word_shares(tokenizer.spans(text), words, len(row)) > 0
    for at, piece in enumerate(tokenizer.pieces(row)):
        if not piece.replace("▁", " ").strip():  # a mere space, which belongs to no word wherever it stands
            belongs[at] = False
    for word, (first, end) in enumerate(words):
        found = [place for at, place in enumerate(places) if place is not None and belongs[at, word]]
        least = min((place.probability for place in found), default=0.0)
        yield text[first:end], AlignedSpan(found[0].start, found[-1].end, least) if found else None
