"""Feature extractor: path of a recording or image → feature frames (T, F)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from numpy.typing import NDArray

from dragoman.base import config as settings
from dragoman.data.examples import Fault
from dragoman.data.media.audio import AudioConfig, WaveformConfig, WhisperMelConfig
from dragoman.data.media.files import MediaError, read_many, reads_folders
from dragoman.data.media.images import LineImageConfig, PictureConfig, VideoConfig
from dragoman.data.source_reader import SourceReader
from dragoman.data.store import FeatureColumn, write_features
from dragoman.data.tokenizers.base import content_hash

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data.collate import SourceCollator

MediaConfig = AudioConfig | WaveformConfig | WhisperMelConfig | LineImageConfig | PictureConfig | VideoConfig
MEDIA_CONFIGS: dict[str, type[MediaConfig]] = {config.kind: config for config in get_args(MediaConfig)}


def _decode_all(paths: Sequence[str], decode: Callable[[bytes, str], Any], folders: bool) -> list[Any]:
    """What `decode` returns for every path, or the fault of the file; each archive is read once."""
    out: list[Any] = [None] * len(paths)
    for index, data in read_many(paths, folders):
        try:
            out[index] = data if isinstance(data, Fault) else decode(data, paths[index])
        except MediaError as error:
            out[index] = error.fault
    return out


class FeatureExtractor(SourceReader):
    """Encodes the path of a media file as feature frames (T, F), scaled by statistics of the training data."""

    is_text = False
    reads_files = True

    def __init__(
        self, config: MediaConfig, mean: Sequence[float] | None = None, deviation: Sequence[float] | None = None
    ) -> None:
        self.config, self.mean, self.deviation = config, mean, deviation
        self._stored: tuple[FeatureColumn, dict[str, int]] | None = None
        self._preloaded: Mapping[str, Any] = {}

    @property
    def kind(self) -> str:
        return self.config.kind

    def __len__(self) -> int:
        return self.config.features

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.config.unit

    @property
    def size(self) -> str:
        return f"{len(self):,} features"

    def describe(self, side: str) -> str:
        return f"{side}: {self.config.summary}"

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """What a model subtracts from stored features, and what it divides them by: (F,) each."""
        import torch

        mean = torch.zeros(len(self)) if self.mean is None else torch.tensor(self.mean)
        deviation = torch.ones(len(self)) if self.deviation is None else torch.tensor(self.deviation)
        return mean / self.config.step, deviation / self.config.step

    def read_files(self, folder: Path, paths: Sequence[str]) -> list[Fault]:
        """Decode files into a store and read their features from there; returns the faults of files."""
        faults = write_features(folder, paths, self.config)
        self.use_store(FeatureColumn(folder))
        return faults

    def use_store(self, column: FeatureColumn) -> None:
        """Read the features of all paths in this store from there instead of decoding the files again."""
        self._stored = (column, {path: row for row, path in enumerate(column.paths())})

    def preload(self, features: Mapping[str, Any]) -> None:
        """Use these features for these paths, until the next call replaces them."""
        self._preloaded = features

    @property
    def collator(self) -> SourceCollator:
        """How the features of several files become a batch."""
        from dragoman.data.collate import FrameCollator, PictureCollator  # torch

        if isinstance(self.config, PictureConfig):
            return PictureCollator(self.config.size, self.config.features)
        return FrameCollator(self.config.features, self.config.dtype)

    def encode_with_steps(self, texts: Sequence[str]) -> list[tuple[NDArray[Any], float] | Fault]:
        """For every path its features (T, F) and the seconds or pixels per frame, or the fault of the file."""
        assert not isinstance(self.config, PictureConfig), "rows of a picture are not positions of a text"
        return _decode_all(texts, self.config.decode_with_step, reads_folders(self.config))

    def encode_or_fault(self, texts: Sequence[str]) -> list[NDArray[Any] | Fault]:
        """For every path its features (T, F), or the fault of the file."""
        out: list[Any] = [None] * len(texts)
        column, rows = self._stored or (None, {})
        missing = []
        for index, path in enumerate(texts):
            if path in self._preloaded:
                out[index] = self._preloaded[path]
            elif column is not None and path in rows:
                out[index] = column.rows([rows[path]])[0]
            else:
                missing.append(index)
        decoded = _decode_all([texts[index] for index in missing], self.config.decode, reads_folders(self.config))
        for index, features in zip(missing, decoded, strict=True):
            out[index] = features
        return out

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        """The features (T, F) of every path; raises MediaError for the first file that cannot be used."""
        out = self.encode_or_fault(texts)
        for features in out:
            if isinstance(features, Fault):
                raise MediaError(*features)
        return out

    def encode(self, text: str) -> Any:
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[Any]) -> str:
        return f"{len(ids)} frames of {self.kind}"

    def pieces(self, ids: Sequence[Any]) -> list[str]:
        return [str(number) for number in range(1, len(ids) + 1)]

    def _table(self) -> dict[str, Any]:
        scale = {} if self.mean is None else {"mean": list(self.mean), "deviation": list(self.deviation or ())}
        return {**settings.as_table(self.config), **scale}

    def contents(self) -> list[str | bytes]:
        """The settings, and the mean and deviation of the training data."""
        return [json.dumps(self._table() | {"fingerprint": self.fingerprint()}, indent=2) + "\n"]

    def fingerprint(self) -> str:
        return content_hash(self._table())

    @classmethod
    def load(cls, table: dict[str, Any]) -> FeatureExtractor:
        own = {key: value for key, value in table.items() if key not in ("mean", "deviation", "fingerprint", "kind")}
        return cls(settings.build(MEDIA_CONFIGS[table["kind"]], own), table.get("mean"), table.get("deviation"))


def extractor_of(reader: SourceReader) -> FeatureExtractor:
    """A reader that reads files as what it is, for code that needs features rather than rows."""
    assert reader.reads_files
    return cast(FeatureExtractor, reader)
