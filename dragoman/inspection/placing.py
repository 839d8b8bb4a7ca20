"""Where the words of a text stand in its recording or line (FIELD A7, H8): the most probable path of CTC."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dragoman.data.audio import AudioConfig
from dragoman.data.images import LineImageConfig
from dragoman.data.media_codec import Features
from dragoman.data.tokenizers import PAD
from dragoman.errors import ConfigError
from dragoman.inspection.alignment import shares, word_spans
from dragoman.layers.ctc import best_places
from dragoman.models.core import Emissions
from dragoman.models.transcriber import Transcriber
from dragoman.predictor import Predictor


class Place(NamedTuple):
    """From where to where, in seconds or pixels, and how probable what stands there is."""

    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Placed:
    """A text over its recording or line; nothing of it has a place if it is too long to be written there at all."""

    source: str
    text: str
    unit: str  # seconds or pixels
    words: tuple[tuple[str, Place | None], ...]
    tokens: tuple[tuple[str, Place | None], ...]

    @property
    def found(self) -> bool:
        """Whether the text has a path."""
        return all(place is not None for _, place in self.tokens)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Source, word, start, end and probability of every word, as text; '-' for what has no place."""
        for word, place in self.words:
            yield self.source, word, *(("-",) * 3 if place is None else (f"{number:.3f}" for number in place))

    def as_line(self) -> str:
        """One JSON object on one line."""
        words: list[dict[str, Any]] = [
            {"word": word} | {name: place and round(getattr(place, name), 4) for name in Place._fields}
            for word, place in self.words
        ]
        table = {"source": self.source, "text": self.text, "unit": self.unit, "words": words}
        return json.dumps(table, ensure_ascii=False)


def transcriber_of(predictor: Predictor) -> Transcriber:
    """The model of a run that transcribes; no other has places."""
    if not isinstance(predictor.model, Transcriber):
        raise ConfigError(
            f'places in files need a run of task = "transcribe"; {predictor.run.folder} has '
            f'task = "{predictor.config.task}"'
        )
    return predictor.model


@torch.no_grad()
def emitted(predictor: Predictor, rows: Sequence[Any]) -> Emissions:
    """What CTC says at every position of features in memory, on the CPU."""
    batch = predictor.form.batch(rows).to(predictor.device)
    found = transcriber_of(predictor).emissions(batch, batch.source_mask.sum(1), 1)
    return Emissions(found.log_probabilities.double().cpu(), found.lengths.cpu())


def placed(predictor: Predictor, pairs: Sequence[tuple[str, str]], batch_size: int = 32) -> Iterator[Placed]:
    """The places of every (location, text), in order."""
    codec = predictor.source_tokenizer
    assert isinstance(codec, Features)
    for first in range(0, len(pairs), batch_size):
        some = pairs[first : first + batch_size]
        features = codec.encode_batch([place for place, _ in some])
        yield from placed_in(predictor, some, [len(row) for row in features], emitted(predictor, features))


def placed_in(
    predictor: Predictor, pairs: Sequence[tuple[str, str]], frames: Sequence[int], emissions: Emissions
) -> Iterator[Placed]:
    """The same where CTC has spoken already, of so many frames each."""
    tokenizer, codec = predictor.target_tokenizer, predictor.source_tokenizer
    assert isinstance(codec, Features)
    assert isinstance(codec.config, AudioConfig | LineImageConfig)
    rows = [tokenizer.encode(text) for _, text in pairs]
    sizes = torch.tensor([len(row) for row in rows])
    texts = torch.full((len(rows), max(1, int(sizes.max()))), PAD)
    for number, row in enumerate(rows):
        texts[number, : len(row)] = torch.tensor(row, dtype=torch.long)
    firsts, lasts = best_places(emissions.log_probabilities, emissions.lengths, texts, sizes, PAD)
    for number, ((source, text), row) in enumerate(zip(pairs, rows, strict=True)):
        frame = codec.config.frame_size(source)
        size, end = transcriber_of(predictor).stride * frame, frames[number] * frame
        places: list[Place | None] = []
        for token, first, last in zip(row, firsts[number].tolist(), lasts[number].tolist(), strict=False):
            surest = emissions.log_probabilities[number, first : last + 1, token].max().exp() if first >= 0 else 0.0
            place = Place(first * size, min((last + 1) * size, end), float(surest))
            places.append(place if first >= 0 else None)
        words = word_spans(text)
        belongs = shares(tokenizer.spans(text), words, len(row)) > 0
        together = [
            whole([places[at] for at in belongs[:, word].nonzero()[:, 0].tolist()]) for word in range(len(words))
        ]
        yield Placed(
            source,
            text,
            codec.config.measure,
            tuple(zip((text[first:end] for first, end in words), together, strict=True)),
            tuple(zip(tokenizer.pieces(row), places, strict=True)),
        )


def whole(places: Sequence[Place | None]) -> Place | None:
    """From where the first token of a word begins to where its last one ends, as probable as the least of them."""
    known = [place for place in places if place is not None]
    if not known or len(known) < len(places):
        return None
    return Place(known[0].start, known[-1].end, min(place.probability for place in known))
