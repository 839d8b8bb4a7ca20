"""Recordings as the log-mel features of Whisper (Radford et al. 2023, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from dragoman.config.settings import Size, setting
from dragoman.data.media.archives import read_bytes
from dragoman.data.media.audio import Positive, mel_filters, read_samples

DYNAMIC_RANGE = 8.0  # powers of ten below the loudest energy of a recording


@dataclass(frozen=True)
class WhisperMelConfig:
    """Recordings as log-mel frames, padded with silence to one length."""

    kind: ClassVar[str] = "whisper-mel"
    sample_rate: Size = setting(16_000, help="samples per second; a recording with another rate is a fault")
    resample: bool = setting(False, help="resample recordings with another rate instead")
    num_mels: Size = setting(80, help="mel filters: features per frame")
    fft_size: Size = setting(400, help="samples of a frame")
    hop_samples: Size = setting(160, help="samples from one frame to the next")
    seconds: Positive = setting(30.0, help="every recording is padded to this length; a longer one is a fault")

    fmin: ClassVar[float] = 0.0
    top: ClassVar[float] = 8000.0
    mel_scale: ClassVar[Literal["slaney"]] = "slaney"
    measure: ClassVar[str] = "seconds"
    unit: ClassVar[str] = "frames"
    dtype: ClassVar[str] = "float32"
    step: ClassVar[float] = 1.0  # stored number × step = feature

    @property
    def features(self) -> int:
        return self.num_mels

    @property
    def samples(self) -> int:
        """Samples of a padded recording."""
        return round(self.seconds * self.sample_rate)

    @property
    def summary(self) -> str:
        frames = self.samples // self.hop_samples
        return f"{self.num_mels} features a frame of audio, {frames:,} frames for {self.seconds:g} s"

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        """The features (T, F) of a file's content, log10 energies scaled to about −1 … 1; `path` is for errors."""
        samples = read_samples(data, path, self.sample_rate, resample=self.resample, max_seconds=self.seconds)
        padded = F.pad(samples, (0, self.samples - len(samples)))[: self.samples]
        window = torch.hann_window(self.fft_size)
        spectrum = torch.stft(padded, self.fft_size, self.hop_samples, window=window, return_complex=True)
        power = spectrum[:, :-1].abs() ** 2  # (bins, T)
        energies = (mel_filters(self).float().t() @ power.contiguous()).clamp(min=1e-10).log10()
        energies = energies.maximum(energies.max() - DYNAMIC_RANGE)
        features: NDArray[np.float32] = ((energies + 4.0) / 4.0).t().contiguous().numpy()
        return features

    def read(self, path: str) -> NDArray[np.float32]:
        """The features (T, F) of the recording at a path."""
        return self.decode(read_bytes(path), path)

    def decode_with_step(self, data: bytes, path: str) -> tuple[NDArray[np.float32], float]:
        """The features (T, F) of a file's content, and the seconds from one frame to the next."""
        return self.decode(data, path), self.hop_samples / self.sample_rate
