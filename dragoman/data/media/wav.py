"""WAV files without any library: RIFF chunks, whole numbers of 8 to 32 bits and floats."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


class WavError(ValueError):
    """Bytes that are no WAV file which can be read here; soundfile may know more."""


class CutShortError(WavError):
    """A WAV file that says it is longer than it is."""


class Sound(NamedTuple):
    """Samples between −1 and 1, (n, channels), and how many there are a second."""

    samples: NDArray[np.float32]
    rate: int


def is_wav(data: bytes) -> bool:
    """Whether bytes begin as a WAV file does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes) -> Sound:
    """The samples of a WAV file; a WavError says what is wrong, or what is not known here."""
    if not is_wav(data):
        raise WavError("not a WAV file")
    layout: tuple[int, int, int, int] | None = None  # format, channels, rate, bits
    place = 12
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        body = data[place + 8 : place + 8 + size]
        if name == b"fmt ":
            if len(body) < 16:
                raise WavError("its format is cut short")
            form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
            if form == EXTENSIBLE and len(body) >= 26:
                (form,) = struct.unpack_from("<H", body, 24)
            layout = (form, channels, rate, bits)
        elif name == b"data":
            if layout is None:
                raise WavError("samples come before their format")
            if len(body) < size and size < 0xFFFFFFFF:  # that is what streams write who do not know their length
                raise CutShortError(f"cut short: found {len(body)} bytes of samples, expected {size}")
            return Sound(_samples(body, *layout), layout[2])
        place += 8 + size + size % 2
    raise WavError("it has no samples")


def _samples(body: bytes, form: int, channels: int, rate: int, bits: int) -> NDArray[np.float32]:
    """As libsndfile scales them: whole numbers divided by 2^(bits − 1)."""
    width = bits // 8
    known = (form == PCM and bits in (8, 16, 24, 32)) or (form == FLOAT and bits in (32, 64))
    if not known or not channels or not rate:
        raise WavError(f"found format {form} with {bits} bits, {channels} channels and {rate} samples a second")
    body = body[: len(body) - len(body) % (width * channels)]
    if form == FLOAT:
        samples = np.frombuffer(body, f"<f{width}").astype(np.float32)
    elif bits == 8:  # these alone have no sign
        samples = (np.frombuffer(body, np.uint8) / 128.0 - 1.0).astype(np.float32)
    elif bits == 24:
        parts = np.zeros((len(body) // 3, 4), np.uint8)
        parts[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        samples = (parts.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    else:
        samples = (np.frombuffer(body, f"<i{width}") / 2.0 ** (bits - 1)).astype(np.float32)
    return samples.reshape(-1, channels)
