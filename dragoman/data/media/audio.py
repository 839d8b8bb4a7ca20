"""Recordings as features: log-mel frames, Whisper's log-mel frames, or raw samples.

soundfile (extra 'media') decodes the files, `spectrum` computes the features with torch.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.base import MissingExtraError
from dragoman.base.config import Range, Size, setting
from dragoman.data.media.files import MediaError

if TYPE_CHECKING:
    from torch import Tensor

Positive = Annotated[float, Range(0.0, None, exclusive_minimum=True)]
# libsndfile reads what is there of a truncated WAV file, and notes the size that the header promises in its log.
_TRUNCATED = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_SIZE = 0xFFFFFFFF  # written by streams that do not know their length
MAX_SAMPLE_RATE = 384_000  # of the best converters; a header can claim 4 GHz
_BLOCK_SAMPLES = 1 << 20  # of all channels, decoded at a time
_MAX_FILTER_VALUES = 1 << 25  # 80 filters of a window of 8 s at 48 kHz
FrameSeconds = Annotated[float, Range(0.0, 60.0, exclusive_minimum=True)]


WAVEFORM_EPSILON = 1e-7  # added to the variance of a recording, as wav2vec 2.0's feature extractor does


@dataclass(frozen=True)
class RecordingConfig:
    """What features of recordings have in common."""

    kind: ClassVar[str]
    sample_rate: Size = setting(16_000, help="samples per second; a recording with another rate is a fault")
    resample: bool = setting(False, help="resample recordings with another rate instead")

    measure: ClassVar[str] = "seconds"
    unit: ClassVar[str] = "frames"
    dtype: ClassVar[str] = "float32"
    step: ClassVar[float] = 1.0  # stored number × step = feature

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        """The features (T, F) of a file's content; `path` is for error messages."""
        raise NotImplementedError

    def decode_with_step(self, data: bytes, path: str) -> tuple[NDArray[np.float32], float]:
        """The features (T, F) of a file's content, and the seconds from one frame to the next."""
        return self.decode(data, path), self.hop_samples / self.sample_rate

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return 1

    def _samples(self, data: bytes, path: str, max_seconds: float) -> Tensor:
        return read_samples(data, path, self.sample_rate, resample=self.resample, max_seconds=max_seconds)


@dataclass(frozen=True)
class AudioConfig(RecordingConfig):
    """Recordings as frames of log-mel features."""

    kind: ClassVar[str] = "audio"
    sample_rate: Annotated[int, Range(1, MAX_SAMPLE_RATE)] = setting(
        16_000, help="samples per second; a recording with another rate is a fault"
    )
    num_mels: Size = setting(80, help="mel filters: features per frame")
    window: FrameSeconds = setting(0.025, help="length of a frame in seconds")
    hop: FrameSeconds = setting(0.010, help="seconds from one frame to the next")
    fmin: Annotated[float, Range(0.0, None)] = setting(20.0, help="lowest frequency of the mel filters in Hz")
    fmax: Annotated[float, Range(0.0, None)] = setting(
        0.0, help="highest frequency of the mel filters in Hz; 0: half the sample rate"
    )
    mel_scale: Literal["htk", "slaney"] = setting(
        "htk",
        help="htk: 2595 log10(1 + f/700), filters with a peak of 1; slaney: linear up to 1 kHz, then logarithmic, "
        "filters with an area of 1",
    )
    normalise: Literal["recording", "corpus", "none"] = setting(
        "recording",
        help="scale every feature to mean 0 and variance 1 within each recording, or over the training data",
    )
    top_db: Annotated[float, Range(0.0, 200.0)] = setting(
        0.0,
        help="raise energies that are further below the loudest of the recording to that many decibels below it, so "
        "that digital silence and faint noise look alike (30 for clear speech, 80 for nearly all of it), at least 1; "
        "0: no limit",
    )
    max_seconds: Positive = setting(60.0, help="a longer recording is a fault")

    def problems(self) -> Iterator[str]:
        from dragoman.data.media.spectrum import mel_filters

        nyquist = self.sample_rate / 2
        if 0 < self.top_db < 1:  # next to nothing would be left of a recording
            yield f"top_db: found {self.top_db:g}, expected decibels, at least 1, or 0 for no limit"
        if self.fmax > nyquist:
            yield f"fmax: found {self.fmax}, expected at most half the sample rate, {nyquist:g}"
        if self.fmin >= self.top:
            yield f"fmin: found {self.fmin}, expected less than the highest frequency, {self.top:g}"
        if self.hop_samples < 1 or self.window_samples < 2:
            yield f"hop: found {self.hop} with window = {self.window}, expected at least one sample and two samples"
        elif self.num_mels * self.fft_size > _MAX_FILTER_VALUES:
            yield (
                f"num_mels: found {self.num_mels} with a window of {self.window_samples} samples, expected fewer mel "
                "filters or a shorter window"
            )
        elif not mel_filters(self).any(0).all():
            yield (
                f"num_mels: found {self.num_mels}, but a window of {self.window_samples} samples resolves so few "
                "frequencies that some filters are empty; expected fewer mel filters or a longer window"
            )

    @property
    def features(self) -> int:
        return self.num_mels

    @property
    def top(self) -> float:
        """The highest frequency of the mel filters in Hz."""
        return self.fmax or self.sample_rate / 2

    @property
    def window_samples(self) -> int:
        return round(self.window * self.sample_rate)

    @property
    def hop_samples(self) -> int:
        return round(self.hop * self.sample_rate)

    @property
    def fft_size(self) -> int:
        """Samples of the Fourier transform: the next power of two."""
        return int(2 ** math.ceil(math.log2(self.window_samples)))

    @property
    def summary(self) -> str:
        rate = self.sample_rate / self.hop_samples
        return f"{self.num_mels} features a frame of audio, {rate:.4g} frames a second"

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        from dragoman.data.media.spectrum import log_mel, standardise

        samples = self._samples(data, path, self.max_seconds)
        if len(samples) < self.window_samples:
            seconds = len(samples) / self.sample_rate
            raise MediaError(
                path, "empty-file", f"found {seconds:.3f} s, expected at least one window, {self.window} s"
            )
        features = log_mel(samples, self)
        return (standardise(features) if self.normalise == "recording" else features).numpy()


@dataclass(frozen=True)
class WaveformConfig(RecordingConfig):
    """Recordings as samples, for encoders that learn features from them (wav2vec 2.0): a frame is one sample."""

    kind: ClassVar[str] = "waveform"
    normalise: bool = setting(True, help="scale the samples of each recording to mean 0 and variance 1")
    min_samples: Size = setting(
        400, help="a recording with fewer samples is a fault; at least what one output of the encoder sees"
    )
    max_seconds: Positive = setting(60.0, help="a longer recording is a fault")

    unit: ClassVar[str] = "samples"
    features: ClassVar[int] = 1

    @property
    def summary(self) -> str:
        return f"the waveform of audio, {self.sample_rate:,} samples a second"

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        samples: NDArray[np.float32] = self._samples(data, path, self.max_seconds).numpy()
        if len(samples) < self.min_samples:
            raise MediaError(
                path, "empty-file", f"found {len(samples)} samples, expected at least {self.min_samples} (min_samples)"
            )
        if self.normalise:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + WAVEFORM_EPSILON)
        return samples[:, None]


@dataclass(frozen=True)
class WhisperMelConfig(RecordingConfig):
    """Recordings as log-mel frames, padded with silence to one length (Whisper: Radford et al. 2023, section 2.2)."""

    kind: ClassVar[str] = "whisper-mel"
    num_mels: Size = setting(80, help="mel filters: features per frame")
    fft_size: Size = setting(400, help="samples of a frame")
    hop_samples: Size = setting(160, help="samples from one frame to the next")
    seconds: Positive = setting(30.0, help="every recording is padded to this length; a longer one is a fault")

    fmin: ClassVar[float] = 0.0
    top: ClassVar[float] = 8000.0
    mel_scale: ClassVar[Literal["slaney"]] = "slaney"

    @property
    def features(self) -> int:
        return self.num_mels

    @property
    def samples(self) -> int:
        return round(self.seconds * self.sample_rate)

    @property
    def summary(self) -> str:
        frames = self.samples // self.hop_samples
        return f"{self.num_mels} features a frame of audio, {frames:,} frames for {self.seconds:g} s"

    def decode(self, data: bytes, path: str) -> NDArray[np.float32]:
        """The features (T, F): log10 energies, scaled to about −1 … 1."""
        from dragoman.data.media.spectrum import whisper_log_mel

        samples = self._samples(data, path, self.seconds)
        features: NDArray[np.float32] = whisper_log_mel(samples, self).numpy()
        return features


@contextmanager
def open_audio(data: bytes, path: str) -> Iterator[Any]:
    """A recording as a soundfile.SoundFile, whose header is read and whose samples are not; errors are MediaErrors."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the library that it wraps is missing
        raise MissingExtraError("reading recordings", "soundfile", "media") from None
    if not data:
        raise MediaError(path, "unreadable-file", "cannot be read as a recording (the file is empty)")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            truncated = _TRUNCATED.search(file.extra_info)
            if truncated and int(truncated[2]) < int(truncated[1]) < _UNKNOWN_SIZE:
                raise ValueError(f"cut short: found {truncated[2]} bytes of samples, expected {truncated[1]}")
            yield file
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")  # without the object that was read
        detail = f"cannot be read as a recording ({reason[:1].lower()}{reason[1:]})"
        raise MediaError(path, "unreadable-file", detail) from None


def read_sample_rate(data: bytes, path: str) -> int:
    with open_audio(data, path) as file:
        return int(file.samplerate)


def read_samples(data: bytes, path: str, rate: int, *, resample: bool = False, max_seconds: float = math.inf) -> Tensor:
    """The mean of a recording's channels, between −1 and 1: (n,).

    Length and rate are checked before decoding, and few samples of all channels are in memory at a time.
    """
    import torch

    from dragoman.data.media.spectrum import resample_audio

    with open_audio(data, path) as file:
        if not file.frames:
            raise MediaError(path, "empty-file", "found a recording without samples, expected sound")
        if not 0 < file.samplerate <= MAX_SAMPLE_RATE:
            found = f"found {file.samplerate:,} samples a second, expected at most {MAX_SAMPLE_RATE:,}"
            raise MediaError(path, "wrong-rate", found)
        if file.samplerate != rate and not resample:
            advice = "convert it, or train with tokenizer.source.resample = true"
            raise MediaError(path, "wrong-rate", f"found {file.samplerate} samples a second, expected {rate}; {advice}")
        seconds = file.frames / file.samplerate
        if seconds > max_seconds:
            raise MediaError(path, "over-long", f"found {seconds:.1f} s, expected at most {max_seconds:g} s")
        blocks = file.blocks(max(1, _BLOCK_SAMPLES // file.channels), dtype="float32", always_2d=True)
        samples = np.concatenate([np.zeros(0, np.float32), *(block.mean(1) for block in blocks)])
        found_rate = file.samplerate
    if not np.isfinite(samples).all():
        raise MediaError(path, "unreadable-file", "found samples that are not numbers, expected finite ones")
    mono = torch.from_numpy(samples)
    return mono if found_rate == rate else resample_audio(mono, found_rate, rate)
