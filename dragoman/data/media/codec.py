"""Between the location of a recording or picture and its features: what a tokenizer is for text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import settings
from dragoman.data.examples import Fault
from dragoman.data.feature_store import FeatureColumn
from dragoman.data.media.archives import MediaError, read_many
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.images import LineImageConfig, PictureConfig
from dragoman.data.tokenizers.tokenizer import _hash, _write

MediaConfig = AudioConfig | LineImageConfig | PictureConfig
MEDIA: dict[str, type[MediaConfig]] = {one.kind: one for one in (AudioConfig, LineImageConfig, PictureConfig)}


def _decoded(places: Sequence[str], decode: Callable[[bytes, str], Any]) -> list[Any]:
    """What `decode` makes of the bytes at every location, or what is wrong there; an archive is read once for all."""
    out: list[Any] = [None] * len(places)
    for number, found in read_many(places):
        try:
            out[number] = found if isinstance(found, Fault) else decode(found, places[number])
        except MediaError as error:
            out[number] = error.fault
    return out


class Features:
    """Features of files, and the scale that the training data gave them; `encode` reads a location."""

    tags: tuple[str, ...] = ()
    space: int | None = None

    def __init__(
        self, config: MediaConfig, mean: Sequence[float] | None = None, deviation: Sequence[float] | None = None
    ) -> None:
        self.config, self.mean, self.deviation = config, mean, deviation
        self._stored: tuple[FeatureColumn, dict[str, int]] | None = None
        self._held: Mapping[str, Any] = {}

    @property
    def kind(self) -> str:
        """Recordings, lines or pictures."""
        return self.config.kind

    def __len__(self) -> int:
        return self.config.features

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """What a model subtracts from stored features, and divides them by: (F,) each."""
        mean = torch.zeros(len(self)) if self.mean is None else torch.tensor(self.mean)
        deviation = torch.ones(len(self)) if self.deviation is None else torch.tensor(self.deviation)
        return mean / self.config.step, deviation / self.config.step

    def remember(self, column: FeatureColumn) -> None:
        """Read the locations of a store from there, and decode their files no more."""
        self._stored = (column, {place: number for number, place in enumerate(column.places())})

    def hold(self, features: Mapping[str, Any]) -> None:
        """Take the features of some locations from here, until others are held."""
        self._held = features

    def measured(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], float] | Fault]:
        """Of every location the features (T, F) and the seconds or pixels of a frame, or what is wrong there."""
        assert not isinstance(self.config, PictureConfig), "rows of a picture are no places in a text"
        return _decoded(texts, self.config.measured)

    def encode_or_fault(self, texts: Sequence[str]) -> list[NDArray[Any] | Fault]:
        """The features (T, F) at every location, or what is wrong there."""
        out: list[Any] = [None] * len(texts)
        column, numbers = self._stored or (None, {})
        others = []
        for place, text in enumerate(texts):
            if text in self._held:
                out[place] = self._held[text]
            elif column is not None and text in numbers:
                out[place] = column.rows([numbers[text]])[0]
            else:
                others.append(place)
        for place, found in zip(others, _decoded([texts[place] for place in others], self.config.decode), strict=True):
            out[place] = found
        return out

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        """The features (T, F) at every location; a MediaError names the first that cannot be read."""
        found = self.encode_or_fault(texts)
        for one in found:
            if isinstance(one, Fault):
                raise MediaError(*one)
        return found

    def encode(self, text: str) -> Any:
        """The features (T, F) at one location."""
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[Any]) -> str:
        """Features cannot be told in words."""
        return f"{len(ids)} frames of {self.kind}"

    def pieces(self, ids: Sequence[Any]) -> list[str]:
        """The number of each frame."""
        return [str(number) for number in range(1, len(ids) + 1)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """A location is no text."""
        raise NotImplementedError

    def files(self, folder: Path, name: str) -> tuple[Path, ...]:
        """The file that `save` writes."""
        return (Path(folder) / f"{name}.json",)

    def _table(self) -> dict[str, Any]:
        scale = {} if self.mean is None else {"mean": list(self.mean), "deviation": list(self.deviation or ())}
        return {**settings.as_table(self.config), **scale}

    def save(self, folder: Path, name: str) -> None:
        """Write how files are read, and the scale of the training data."""
        table = self._table() | {"fingerprint": self.fingerprint()}
        _write(self.files(folder, name)[0], json.dumps(table, indent=2) + "\n")

    def fingerprint(self) -> str:
        """A hash of how files are read and scaled."""
        return _hash(self._table())

    @classmethod
    def load(cls, table: dict[str, Any]) -> Features:
        """From what `save` wrote."""
        own = {key: value for key, value in table.items() if key not in ("mean", "deviation", "fingerprint", "kind")}
        return cls(settings.build(MEDIA[table["kind"]], own), table.get("mean"), table.get("deviation"))
