"""Recordings as raw samples, for encoders that learn their features from the waveform (wav2vec 2.0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dragoman.config.settings import Size, setting
from dragoman.data.media.archives import MediaError, read_bytes
from dragoman.data.media.audio import Positive, read_samples

EPSILON = 1e-7  # added to the variance of a recording, as wav2vec 2.0's feature extractor does


@dataclass(frozen=True)
class WaveformConfig:
    """Recordings as samples: a frame is one sample."""

    kind: ClassVar[str] = "waveform"
    sample_rate: Size = setting(16_000, help="samples per second; a recording with another rate is a fault")
    resample: bool = setting(False, help="resample recordings with another rate instead")
    normalise: bool = setting(True, help="scale the samples of each recording to mean 0 and variance 1")
    min_samples: Size = setting(
        400, help="a recording with fewer samples is a fault; at least what one output of the encoder sees"
    )
    max_seconds: Positive = setting(60.0, help="a longer recording is a fault")

    measure: ClassVar[str] = "seconds"
    unit: ClassVar[str] = "samples"
    dtype: ClassVar[str] = "float32"
    step: ClassVar[float] = 1.0  # stored number × step = feature
    features: ClassVar[int] = 1

    @property
    def summary(self) -> str:
        return f"the waveform of audio, {self.sample_rate:,} samples a second"

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        """The samples (T, 1) of a file's content; `path` is for error messages."""
        read = read_samples(data, path, self.sample_rate, resample=self.resample, max_seconds=self.max_seconds)
        if len(read) < self.min_samples:
            raise MediaError(
                path, "empty-file", f"found {len(read)} samples, expected at least {self.min_samples} (min_samples)"
            )
        samples: NDArray[np.float32] = read.numpy()
        if self.normalise:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + EPSILON)
        return samples[:, None]

    def read(self, path: str) -> NDArray[np.float32]:
        """The samples (T, 1) of the recording at a path."""
        return self.decode(read_bytes(path), path)

    def decode_with_step(self, data: bytes, path: str) -> tuple[NDArray[np.float32], float]:
        """The samples (T, 1) of a file's content, and the seconds from one to the next."""
        return self.decode(data, path), 1 / self.sample_rate
