"""Recording → log-mel features (FIELD A7), by torch alone once the file is decoded (extra 'media')."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dragoman.config.settings import Range, Size, setting
from dragoman.data.media.archives import MediaError, read_bytes
from dragoman.data.media.wav import CutShortError, WavError, is_wav, read_wav
from dragoman.errors import MissingExtraError

Positive = Annotated[float, Range(0.0, None, exclusive_minimum=True)]


@dataclass(frozen=True)
class AudioConfig:
    """Recordings as rows of log-mel features, one a hop."""

    kind: ClassVar[str] = "audio"
    rate: Size = setting(16_000, help="samples a second; a recording of another rate is a fault")
    resample: bool = setting(False, help="recordings of another rate are resampled instead")
    features: Size = setting(80, help="mel filters: numbers a frame")
    window: Positive = setting(0.025, help="seconds that a frame sees")
    hop: Positive = setting(0.010, help="seconds from a frame to the next")
    lowest: Annotated[float, Range(0.0, None)] = setting(20.0, help="frequency in Hz where the filters begin")
    highest: Annotated[float, Range(0.0, None)] = setting(0.0, help="where they end; 0: half the rate")
    scale: Literal["htk", "slaney"] = setting(
        "htk", help="htk: 2595 log10(1 + f/700), peaks of 1; slaney: linear to 1 kHz, then log, areas of 1"
    )
    normalise: Literal["recording", "corpus", "none"] = setting(
        "recording",
        help="every feature to mean 0 and variance 1 in each recording, or over the training data; none: as it is",
    )
    range: Annotated[float, Range(0.0, 200.0)] = setting(
        0.0,
        help="decibels: energies further below the recording's loudest count as that far, so that digital silence and "
        "faint noise look alike (30 for clear speech, 80 for nearly all of it), at least 1; 0: no limit",
    )
    longest: Positive = setting(60.0, help="seconds; a longer recording is a fault")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        half = self.rate / 2
        if 0 < self.range < 1:  # next to nothing would be left of a recording
            yield f"range: found {self.range:g}, expected decibels, at least 1, or 0 for no limit"
        if self.highest > half:
            yield f"highest: found {self.highest}, expected at most half the rate, {half:g}"
        if self.lowest >= self.top:
            yield f"lowest: found {self.lowest}, expected less than the highest frequency, {self.top:g}"
        if self.hop_samples < 1 or self.window_samples < 2:
            yield f"hop: found {self.hop} with window = {self.window}, expected at least a sample and two"
        elif not mel_filters(self).any(0).all():
            yield (
                f"features: found {self.features}, but a window of {self.window_samples} samples tells so few "
                "frequencies apart that some filters see none; expected fewer features or a longer window"
            )

    @property
    def top(self) -> float:
        """Where the filters end, in Hz."""
        return self.highest or self.rate / 2

    @property
    def window_samples(self) -> int:
        """Samples that a frame sees."""
        return round(self.window * self.rate)

    @property
    def hop_samples(self) -> int:
        """Samples from a frame to the next."""
        return round(self.hop * self.rate)

    @property
    def transform(self) -> int:
        """Samples of the Fourier transform: the next power of two."""
        return int(2 ** math.ceil(math.log2(self.window_samples)))

    @property
    def about(self) -> str:
        """What a model reads of a recording."""
        rate = self.rate / self.hop_samples
        return f"{self.features} features a frame of audio, {rate:.4g} frames a second"

    measure: ClassVar[str] = "seconds"
    unit: ClassVar[str] = "frames"
    dtype: ClassVar[str] = "float32"
    step: ClassVar[float] = 1.0  # what a stored number is multiplied by

    def decode(self, data: bytes, place: str) -> NDArray[np.float32]:
        """The features (T, F) of a file's bytes."""
        samples = read_samples(data, place, self.rate, resample=self.resample)
        if len(samples) < self.window_samples:
            seconds = len(samples) / self.rate
            raise MediaError(
                place, "empty-file", f"found {seconds:.3f} s, expected at least one window, {self.window} s"
            )
        if len(samples) > self.longest * self.rate:
            seconds = len(samples) / self.rate
            raise MediaError(place, "over-long", f"found {seconds:.1f} s, expected at most {self.longest:g} s")
        features = log_mel(samples, self)
        return (standardised(features) if self.normalise == "recording" else features).numpy()

    def features_of(self, place: str) -> NDArray[np.float32]:
        """The features of the recording at a location."""
        return self.decode(read_bytes(place), place)

    def measured(self, data: bytes, place: str) -> tuple[NDArray[np.float32], float]:
        """The features of a file's bytes, and the seconds from one of them to the next."""
        return self.decode(data, place), self.hop_samples / self.rate


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # the second where the library that it wraps is missing
        raise MissingExtraError("reading recordings", "soundfile", "media") from None
    return soundfile


def decoded(data: bytes, place: str) -> tuple[NDArray[np.float32], int]:
    """Samples (n, channels) and their rate; WAV files need no library, all others do."""
    if not data:
        raise MediaError(place, "unreadable-file", "cannot be read as a recording (the file is empty)")
    if is_wav(data):
        try:
            return read_wav(data)
        except WavError as error:
            try:
                _soundfile()  # knows more kinds of WAV files
                known = not isinstance(error, CutShortError)  # of these it would take what is there
            except MissingExtraError:
                known = False
            if not known:
                detail = f"cannot be read as a recording ({error})"
                raise MediaError(place, "unreadable-file", detail) from None
    soundfile = _soundfile()
    try:
        samples, found = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")  # without the object that was read
        detail = f"cannot be read as a recording ({reason[:1].lower()}{reason[1:]})"
        raise MediaError(place, "unreadable-file", detail) from None
    return samples, found


def read_samples(data: bytes, place: str, rate: int, *, resample: bool = False) -> Tensor:
    """The mean of a recording's channels, between −1 and 1: (n,)."""
    samples, found = decoded(data, place)
    if not len(samples):
        raise MediaError(place, "empty-file", "found a recording without samples, expected sound")
    if not np.isfinite(samples).all():
        raise MediaError(place, "unreadable-file", "found samples that are no numbers, expected finite ones")
    if found != rate and not resample:
        advice = "convert it, or train with tokenizer.source.resample = true"
        raise MediaError(place, "wrong-rate", f"found {found} samples a second, expected {rate}; {advice}")
    mono = torch.from_numpy(samples.mean(1))
    return mono if found == rate else resampled(mono, found, rate)


def resampled(samples: Tensor, found: int, rate: int, zeros: int = 16) -> Tensor:
    """Samples (n,) at another rate, by a sinc under a Hann window; frequencies above half the lower rate go."""
    shared = math.gcd(found, rate)
    old, new = found // shared, rate // shared
    cutoff = min(old, new) * 0.97  # a little below the limit, since no filter is infinitely steep
    reach = math.ceil(zeros * old / cutoff)  # samples to either side
    # Output sample k·new + j stands at input time (k·old + j·old/new): one kernel for each j, moved by old samples.
    places = torch.arange(-reach, reach + old, dtype=torch.float64) / old
    times = (places - torch.arange(new, dtype=torch.float64)[:, None] / new) * cutoff  # (new, 2·reach + old)
    window = torch.cos(times.clamp(-zeros, zeros) * math.pi / zeros / 2) ** 2
    kernels = torch.sinc(times) * window * cutoff / old
    padded = F.pad(samples.double(), (reach, reach + old))
    out = F.conv1d(padded[None, None], kernels[:, None], stride=old)[0]  # (new, steps)
    length = math.ceil(len(samples) * new / old)
    return out.t().reshape(-1)[:length].to(samples.dtype)


# Slaney's scale (Auditory Toolbox): 3 mel in 200 Hz up to 1 kHz, from there 27 mel for a factor of 6.4.
_KNEE, _LINEAR, _LOGARITHMIC = 1000.0, 200.0 / 3, math.log(6.4) / 27


def hertz_to_mel(hertz: Tensor, scale: str) -> Tensor:
    """HTK: 2595 log10(1 + f/700). Slaney: 3f/200 up to 1 kHz, then 15 + 27 ln(f/1000) / ln 6.4."""
    if scale == "htk":
        return 2595.0 * torch.log10(1.0 + hertz / 700.0)
    above = _KNEE / _LINEAR + torch.log(hertz.clamp(min=_KNEE) / _KNEE) / _LOGARITHMIC
    return torch.where(hertz < _KNEE, hertz / _LINEAR, above)


def mel_to_hertz(mel: Tensor, scale: str) -> Tensor:
    """The way back."""
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    knee = _KNEE / _LINEAR
    return torch.where(mel < knee, mel * _LINEAR, _KNEE * torch.exp((mel - knee).clamp(min=0) * _LOGARITHMIC))


@lru_cache(maxsize=16)
def mel_filters(config: AudioConfig) -> Tensor:
    """Triangles (bins, F) evenly spaced in mel, each from the peak before to the peak after its own; float64.

    HTK's have peaks of 1, Slaney's are divided by half their width in Hz, so that each has an area of 1.
    """
    low, high = hertz_to_mel(torch.tensor([config.lowest, config.top], dtype=torch.float64), config.scale).tolist()
    corners = mel_to_hertz(torch.linspace(low, high, config.features + 2, dtype=torch.float64), config.scale)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    bins = torch.linspace(0.0, config.rate / 2, config.transform // 2 + 1, dtype=torch.float64)[:, None]
    filters = torch.minimum((bins - left) / (peak - left), (right - bins) / (right - peak)).clamp(min=0.0)
    return filters * (2.0 / (right - left)) if config.scale == "slaney" else filters


def log_mel(samples: Tensor, config: AudioConfig) -> Tensor:
    """Natural logs of the energies that the filters see: samples (n,) → (T, F), T = 1 + (n − window) // hop.

    A frame is a whole window under a Hann window (periodic), filled up with zeros to a power of two; nothing is made
    up beyond the ends. Energies below 1e-10 count as that, so silence is finite; so do those below `config.range`.
    """
    frames = samples.double().unfold(0, config.window_samples, config.hop_samples)  # (T, window)
    frames = frames * torch.hann_window(config.window_samples, dtype=torch.float64)
    power: Tensor = torch.fft.rfft(frames, config.transform).abs() ** 2  # (T, bins)
    energies = power @ mel_filters(config)
    lowest = torch.tensor(1e-10, dtype=torch.float64)
    if config.range:
        lowest = lowest.maximum(energies.max() * 10.0 ** (-config.range / 10.0))
    return energies.maximum(lowest).log().float()


def standardised(features: Tensor) -> Tensor:
    """Every column of (T, F) with mean 0 and variance 1; a column that never changes becomes 0."""
    return (features - features.mean(0)) / features.std(0, correction=0).clamp(min=1e-5)
