"""Signals as tensors: resampling, mel filters and log-mel frames. `audio` has the settings and reads the files."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK_PRODUCTS = 1 << 20  # of a convolution
ZEROS = 16  # of the sinc on either side: more make the filter steeper
WHISPER_RANGE = 8.0  # powers of ten below the loudest energy of a recording


def resample_audio(samples: Tensor, old_rate: int, new_rate: int) -> Tensor:
    """Samples (n,) at another rate, by a Hann-windowed sinc; removes frequencies above half the lower rate.

    Output sample k·new + j is at input time k·old + j·old/new: one kernel for each phase j, moved by `old` samples. The
    kernels of neighbouring phases are stacked, as many as reach over few more samples than one. So time grows with the
    outputs and the length of one kernel, even for rates without a common divisor.
    """
    shared = math.gcd(old_rate, new_rate)
    old, new = old_rate // shared, new_rate // shared
    cutoff = min(old, new) * 0.97  # a little below the limit, since no filter is infinitely steep
    reach = math.ceil(ZEROS * old / cutoff)  # samples to either side
    steps = len(samples) // old + 1
    padded = F.pad(samples, (reach, reach + 2 * old))
    out = samples.new_empty(steps, new)
    together = max(1, reach * new // old)  # phases
    for first in range(0, new, together):
        phases = torch.arange(first, min(first + together, new), dtype=torch.float64)
        start, end = first * old // new, int(phases[-1]) * old // new + 1  # the samples at the times of these phases
        inputs = torch.arange(start - reach, end + reach, dtype=torch.float64) / old
        times = (inputs - phases[:, None] / new) * cutoff  # (phases, 2·reach + end − start)
        window = torch.cos(times.clamp(-ZEROS, ZEROS) * math.pi / ZEROS / 2) ** 2
        kernels = (torch.sinc(times) * window * cutoff / old).t()
        block = max(1, _BLOCK_PRODUCTS // len(kernels))  # steps
        for step in range(0, steps, block):
            last = min(step + block, steps)
            part = padded[start + step * old : start + (last - 1) * old + len(kernels)].double()
            out[step:last, first : first + len(phases)] = (part.unfold(0, len(kernels), old) @ kernels).to(out.dtype)
    return out.flatten()[: math.ceil(len(samples) * new / old)]


# Slaney's scale (Auditory Toolbox): 3 mel in 200 Hz up to 1 kHz, from there 27 mel for a factor of 6.4.
_KNEE, _LINEAR, _LOGARITHMIC = 1000.0, 200.0 / 3, math.log(6.4) / 27


def hertz_to_mel(hertz: Tensor, mel_scale: str) -> Tensor:
    """HTK: 2595 log10(1 + f/700). Slaney: 3f/200 up to 1 kHz, then 15 + 27 ln(f/1000) / ln 6.4."""
    if mel_scale == "htk":
        return 2595.0 * torch.log10(1.0 + hertz / 700.0)
    above = _KNEE / _LINEAR + torch.log(hertz.clamp(min=_KNEE) / _KNEE) / _LOGARITHMIC
    return torch.where(hertz < _KNEE, hertz / _LINEAR, above)


def mel_to_hertz(mel: Tensor, mel_scale: str) -> Tensor:
    if mel_scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    knee = _KNEE / _LINEAR
    return torch.where(mel < knee, mel * _LINEAR, _KNEE * torch.exp((mel - knee).clamp(min=0) * _LOGARITHMIC))


@lru_cache(maxsize=16)
def mel_filters(config: Any) -> Tensor:
    """Triangular filters (bins, F), evenly spaced in mel, each from the previous peak to the next one; float64.

    HTK filters have a peak of 1. Slaney filters are divided by half their width in Hz, so that each has an area of 1.
    `config` is an AudioConfig or another hashable one with fmin, top, mel_scale, num_mels, sample_rate and fft_size.
    """
    limits = torch.tensor([config.fmin, config.top], dtype=torch.float64)
    low, high = hertz_to_mel(limits, config.mel_scale).tolist()
    corners = mel_to_hertz(torch.linspace(low, high, config.num_mels + 2, dtype=torch.float64), config.mel_scale)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    bins = torch.linspace(0.0, config.sample_rate / 2, config.fft_size // 2 + 1, dtype=torch.float64)[:, None]
    filters = torch.minimum((bins - left) / (peak - left), (right - bins) / (right - peak)).clamp(min=0.0)
    return filters * (2.0 / (right - left)) if config.mel_scale == "slaney" else filters


def whisper_log_mel(samples: Tensor, config: Any) -> Tensor:
    """log10 energies of a WhisperMelConfig (T, F), scaled to about −1 … 1; samples (n,) are padded with silence."""
    padded = F.pad(samples, (0, config.samples - len(samples)))[: config.samples]
    window = torch.hann_window(config.fft_size)
    spectrum = torch.stft(padded, config.fft_size, config.hop_samples, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2  # (bins, T)
    energies = (mel_filters(config).float().t() @ power.contiguous()).clamp(min=1e-10).log10()
    energies = energies.maximum(energies.max() - WHISPER_RANGE)
    return ((energies + 4.0) / 4.0).t().contiguous()


def log_mel(samples: Tensor, config: Any) -> Tensor:
    """Natural logarithms of the mel energies: samples (n,) → (T, F), T = 1 + (n − window) // hop.

    A frame is a complete window, multiplied by a periodic Hann window and zero-padded to a power of two; the ends of
    the recording are not padded. Energies are at least 1e-10, so that silence is finite, and `top_db` limits them too.
    `config` is an AudioConfig.
    """
    frames = samples.double().unfold(0, config.window_samples, config.hop_samples)  # (T, window)
    frames = frames * torch.hann_window(config.window_samples, dtype=torch.float64)
    power: Tensor = torch.fft.rfft(frames, config.fft_size).abs() ** 2  # (T, bins)
    energies = power @ mel_filters(config)
    minimum = torch.tensor(1e-10, dtype=torch.float64)
    if config.top_db:
        minimum = minimum.maximum(energies.max() * 10.0 ** (-config.top_db / 10.0))
    return energies.maximum(minimum).log().float()


def standardise(features: Tensor) -> Tensor:
    """Every column of (T, F) with mean 0 and variance 1; a constant column becomes 0."""
    return (features - features.mean(0)) / features.std(0, correction=0).clamp(min=1e-5)
