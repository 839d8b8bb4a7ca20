"""Media files: log-mel features against plain numpy and Hugging Face, images, archives, faults."""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError, MissingExtraError
from dragoman.data.examples import Fault
from dragoman.data.media import files as archives
from dragoman.data.media.audio import AudioConfig, read_samples
from dragoman.data.media.files import MediaError, join_path, members, read_bytes, read_many
from dragoman.data.media.images import LineImageConfig, PictureConfig, VideoConfig
from dragoman.data.media.spectrum import hertz_to_mel, log_mel, mel_filters, mel_to_hertz, resample_audio, standardise
from tests.clock import takes_at_most

soundfile = pytest.importorskip("soundfile")
Image = pytest.importorskip("PIL.Image")

SMALL = AudioConfig(sample_rate=8000, num_mels=20, window=0.032, hop=0.01, fmin=60.0, fmax=3800.0, normalise="none")


def recording(samples: NDArray[Any], rate: int = 8000, file_format: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=file_format, subtype="PCM_16")
    return file.getvalue()


def noise(count: int, seed: int = 0) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)


# ---------------------------------------------------------------------- features


def plain_mel(hertz: float, scale: str) -> float:
    if scale == "htk":
        return 2595 * math.log10(1 + hertz / 700)
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def plain_log_mel(samples: NDArray[Any], config: AudioConfig) -> NDArray[np.float64]:
    """Log-mel features by the definition: filter corners by bisection, Fourier sums written out."""
    window, hop, size = config.window_samples, config.hop_samples, config.fft_size
    low, high = plain_mel(config.fmin, config.mel_scale), plain_mel(config.top, config.mel_scale)
    corners = []
    for number in range(config.num_mels + 2):
        wanted, below, above = low + (high - low) * number / (config.num_mels + 1), 0.0, 20_000.0
        for _ in range(80):
            middle = (below + above) / 2
            below, above = (middle, above) if plain_mel(middle, config.mel_scale) < wanted else (below, middle)
        corners.append(below)
    times = np.arange(window)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * times / window)
    bins = np.arange(size // 2 + 1)
    waves = np.exp(-2j * np.pi * np.outer(times, bins) / size)
    rows = []
    for start in range(0, len(samples) - window + 1, hop):
        power = np.abs((samples[start : start + window] * hann) @ waves) ** 2
        row = []
        for left, peak, right in zip(corners, corners[1:], corners[2:], strict=False):
            energy = 0.0
            for number, amount in enumerate(power):
                hertz = number * config.sample_rate / size
                height = min((hertz - left) / (peak - left), (right - hertz) / (right - peak))
                area = 2 / (right - left) if config.mel_scale == "slaney" else 1.0
                energy += max(0.0, height) * area * amount
            row.append(math.log(max(energy, 1e-10)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_log_mel_is_the_definition(scale: str) -> None:
    config = AudioConfig(
        sample_rate=8000, num_mels=20, window=0.03, hop=0.01, fmin=60.0, mel_scale=scale, normalise="none"
    )  # type: ignore[arg-type]
    samples = noise(1000)
    found = log_mel(torch.from_numpy(samples), config)
    assert found.shape == (1 + (1000 - 240) // 80, 20)
    np.testing.assert_allclose(found.numpy(), plain_log_mel(samples.astype(np.float64), config), atol=1e-5)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_filters_are_those_of_hugging_face(scale: str) -> None:
    from transformers.audio_utils import mel_filter_bank

    config = AudioConfig(sample_rate=16_000, num_mels=40, mel_scale=scale)  # type: ignore[arg-type]
    norm = "slaney" if scale == "slaney" else None
    theirs = mel_filter_bank(config.fft_size // 2 + 1, 40, 20.0, 8000.0, 16_000, norm=norm, mel_scale=scale)
    np.testing.assert_allclose(mel_filters(config).numpy(), theirs, atol=1e-9)
    hertz = torch.tensor([0.0, 100.0, 999.0, 1000.0, 1001.0, 7000.0], dtype=torch.float64)
    torch.testing.assert_close(mel_to_hertz(hertz_to_mel(hertz, scale), scale), hertz)


def test_a_tone_excites_its_own_filter_and_silence_is_finite() -> None:
    time = torch.arange(8000) / 8000
    centres = mel_filters(SMALL).argmax(0) * 8000 / SMALL.fft_size
    for number in (3, 10, 17):
        tone = torch.sin(2 * math.pi * float(centres[number]) * time)
        assert int(log_mel(tone, SMALL).mean(0).argmax()) == number
    silence = log_mel(torch.zeros(8000), SMALL)
    assert torch.equal(silence, torch.full_like(silence, math.log(1e-10)))
    assert torch.equal(standardise(silence), torch.zeros_like(silence))


def test_top_db_raises_faint_energies() -> None:
    samples = torch.from_numpy(noise(8000))
    samples[:4000] *= 1e-3  # 60 dB lower
    whole, cut = log_mel(samples, SMALL), log_mel(samples, replace(SMALL, top_db=30.0))
    lowest = whole.max() - 3 * math.log(10)  # 30 dB are a factor of 1,000
    torch.testing.assert_close(cut, whole.clamp(min=float(lowest)))
    assert bool((whole < lowest).any())
    torch.testing.assert_close(log_mel(samples, replace(SMALL, top_db=200.0)), whole)


def test_normalised_features_have_mean_zero_and_variance_one() -> None:
    config = AudioConfig(sample_rate=8000, num_mels=20)
    found = config.decode(recording(noise(8000)), "a.wav")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found.var(0), 1, atol=1e-3)


@pytest.mark.parametrize(("found", "rate"), [(16_000, 8000), (8000, 16_000), (44_100, 16_000)])
def test_resampling_gives_the_same_tone_and_nothing_above_the_limit(found: int, rate: int) -> None:
    here, there = (torch.arange(count, dtype=torch.float64) / count for count in (found, rate))
    tone = resample_audio(torch.sin(2 * math.pi * 700 * here), found, rate)
    assert len(tone) == rate
    inside = slice(rate // 20, -rate // 20)
    torch.testing.assert_close(tone[inside], torch.sin(2 * math.pi * 700 * there)[inside], atol=2e-3, rtol=0)
    if rate < found:
        high = resample_audio(torch.sin(2 * math.pi * 0.6 * rate * here), found, rate)
        assert high[inside].abs().max() < 5e-3


@pytest.mark.parametrize("file_format", ["WAV", "FLAC"])
def test_channels_become_their_mean(file_format: str) -> None:
    both = np.stack([noise(400, 1), noise(400, 2)], 1)
    found = read_samples(recording(both, file_format=file_format), "a", 8000)
    np.testing.assert_allclose(found.numpy(), both.mean(1), atol=1e-4)


def wav(samples: bytes, *, kind: int, bits: int, rate: int = 8000, size: int | None = None) -> bytes:
    """A WAV file of one channel, written by hand; `size` is the number of bytes that its header promises."""
    layout = struct.pack("<HHIIHH", kind, 1, rate, rate * bits // 8, bits // 8, bits)
    data = b"data" + struct.pack("<I", len(samples) if size is None else size) + samples
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(layout)) + layout + data
    return b"RIFF" + struct.pack("<I", min(len(body), 0xFFFFFFFF)) + body


PCM, FLOAT = 1, 3


def test_wav_samples_are_divided_by_their_full_scale() -> None:
    values = np.array([-(2**31), -(2**30), 0, 2**29, 2**31 - 2**24], np.int64)
    files = {
        8: wav((values // 2**24 + 128).astype(np.uint8).tobytes(), kind=PCM, bits=8),
        16: wav((values // 2**16).astype("<i2").tobytes(), kind=PCM, bits=16),
        24: wav(b"".join(int(value // 2**8).to_bytes(3, "little", signed=True) for value in values), kind=PCM, bits=24),
        32: wav(values.astype("<i4").tobytes(), kind=PCM, bits=32),
    }
    expected = (values / 2**31).astype(np.float32)
    for bits, data in files.items():
        np.testing.assert_array_equal(read_samples(data, "a.wav", 8000).numpy(), expected, err_msg=f"{bits} bits")
    for bits in (32, 64):
        data = wav(expected.astype(f"<f{bits // 8}").tobytes(), kind=FLOAT, bits=bits)
        np.testing.assert_array_equal(read_samples(data, "a.wav", 8000).numpy(), expected)


# ---------------------------------------------------------------------- faults


def test_a_truncated_wav_file_is_a_fault_and_a_streamed_one_is_not() -> None:
    samples = np.arange(600, dtype="<i2").tobytes()
    whole = read_samples(wav(samples, kind=PCM, bits=16), "a.wav", 8000)
    streamed = wav(samples, kind=PCM, bits=16, size=0xFFFFFFFF)  # a stream does not know its length
    assert torch.equal(read_samples(streamed, "a.wav", 8000), whole)
    with pytest.raises(MediaError, match=r"a\.wav: .*cut short: found 1200 bytes of samples, expected 2400"):
        read_samples(wav(samples, kind=PCM, bits=16, size=2400), "a.wav", 8000)


@pytest.mark.parametrize(("rate", "kind"), [(8000, "over-long"), (16_000, "wrong-rate")])
def test_rate_and_length_are_checked_before_decoding(monkeypatch: pytest.MonkeyPatch, rate: int, kind: str) -> None:
    def decode(*arguments: Any, **named: Any) -> None:
        raise AssertionError("the samples were decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", decode)
    with pytest.raises(MediaError) as caught:
        replace(SMALL, max_seconds=0.5).decode(recording(noise(8000), rate), "a.wav")
    assert caught.value.kind == kind


def test_faults_of_recordings_name_the_file() -> None:
    whole = recording(noise(8000))
    cases = {
        "wrong-rate": (recording(noise(8000), 16_000), "found 16000 samples a second, expected 8000"),
        "empty-file": (recording(noise(0)), "without samples"),
        "unreadable-file": (b"not a recording at all", "cannot be read as a recording"),
    }
    for kind, (data, words) in cases.items():
        with pytest.raises(MediaError, match=words) as caught:
            SMALL.decode(data, "sounds.tar::x.wav")
        assert caught.value.kind == kind
        assert str(caught.value).startswith("sounds.tar::x.wav: ")
    with pytest.raises(MediaError, match=r"found 0\.013 s, expected at least one window, 0\.032 s"):
        SMALL.decode(recording(noise(100)), "x.wav")
    with pytest.raises(MediaError, match="the file is empty"):
        SMALL.decode(b"", "x.wav")
    assert (
        len(AudioConfig(sample_rate=16_000, num_mels=20, resample=True).decode(whole, "x")) == 1 + (16_000 - 400) // 160
    )


def test_impossible_settings_are_errors() -> None:
    assert list(SMALL.problems()) == []
    assert any("half the sample rate" in text for text in AudioConfig(sample_rate=8000, fmax=5000.0).problems())
    assert any("less than the highest" in text for text in AudioConfig(sample_rate=8000, fmin=4000.0).problems())
    assert any("some filters are empty" in text for text in AudioConfig(sample_rate=8000, num_mels=200).problems())
    huge = AudioConfig(num_mels=1 << 30)
    assert any("expected fewer mel filters or a shorter window" in text for text in huge.problems())
    with pytest.raises(ConfigError, match=r"window: found 1e\+308, expected above 0 and at most 60"):
        settings.build(AudioConfig, {"window": 1e308})


def picture(pixels: NDArray[Any], file_format: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, file_format)
    return file.getvalue()


def test_a_text_line_becomes_columns_with_ink_one() -> None:
    pixels = np.full((48, 7), 255, np.uint8)
    pixels[10:20, 3] = 0
    found = LineImageConfig(height=48).decode(picture(pixels), "line.png")
    assert found.shape == (7, 48)
    np.testing.assert_array_equal(found, 255 - pixels.T)
    np.testing.assert_array_equal(LineImageConfig(height=48, background="dark").decode(picture(pixels), ""), pixels.T)
    assert LineImageConfig(height=24).decode(picture(pixels), "").shape == (4, 24)
    clear = np.zeros((48, 7, 4), np.uint8)  # black, but transparent: background
    assert LineImageConfig(height=48).decode(picture(clear), "").max() == 0


def test_a_picture_becomes_a_square_of_rgb_rows() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    found = PictureConfig(size=8).decode(picture(pixels), "a.png")
    np.testing.assert_array_equal(found.reshape(8, 8, 3), pixels)
    grey = PictureConfig(size=4).decode(picture(np.full((9, 5), 77, np.uint8), "JPEG"), "a.jpg")
    assert grey.shape == (4, 12)
    assert set(grey.ravel().tolist()) == {77}
    deep = PictureConfig(size=4).decode(picture(np.full((4, 4), 77 << 8, np.uint16)), "a.png")
    assert set(deep.ravel().tolist()) == {77}


def test_a_video_is_a_folder_an_archive_or_an_animation(tmp_path: Path) -> None:
    """Frames come in the order of the numbers in their names."""
    frames = [np.full((6, 4, 3), shade, np.uint8) for shade in range(0, 240, 20)]
    (tmp_path / "all" / "clip").mkdir(parents=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / "all" / "clip" / f"f{number}.png")
    (tmp_path / "all" / "clip" / "notes.txt").write_text("not a frame")
    with tarfile.open(tmp_path / "all" / "clip.tar", "w") as tar:
        tar.add(tmp_path / "all" / "clip", "clip")
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(tmp_path / "clip.webp", save_all=True, append_images=others, lossless=True)
    config = VideoConfig(size=4)
    assert archives.list_videos(tmp_path / "all").paths == [
        str(tmp_path / "all" / name) for name in ("clip", "clip.tar")
    ]
    for name in ("all/clip", "all/clip.tar", "clip.webp"):
        path = str(tmp_path / name)
        found = config.decode(read_bytes(path, folders=True), path)
        assert found.shape == (12, 48)
        assert found[:, 0].tolist() == list(range(0, 240, 20))
        assert np.array_equal(replace(config, every=5).decode(read_bytes(path, folders=True), path), found[::5])
        with pytest.raises(MediaError, match="found over 11 frames"):
            replace(config, max_frames=11).decode(read_bytes(path, folders=True), path)
    with pytest.raises(MediaError, match="found a folder, expected a file"):
        read_bytes(str(tmp_path / "all" / "clip"))
    with pytest.raises(MediaError, match="found a folder without pictures"):
        read_bytes(str(tmp_path / "all"), folders=True)


def test_faults_of_images_name_the_file() -> None:
    whole = picture(np.zeros((30, 30), np.uint8), "PNG")
    for data in (b"", b"nothing of the kind", whole[: len(whole) // 2], whole[:20]):
        with pytest.raises(MediaError, match=r"^pages/7\.png: cannot be read as an image") as caught:
            LineImageConfig().decode(data, "pages/7.png")
        assert caught.value.kind == "unreadable-file"


@pytest.mark.parametrize(("module", "package"), [("soundfile", "soundfile"), ("PIL", "pillow")])
def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*dragoman\[media\]"):
        (SMALL if module == "soundfile" else PictureConfig()).decode(b"x", "x")


# ---------------------------------------------------------------------- archives


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.addfile(tarfile.TarInfo("empty-folder/"))
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["all.tar", "all.tar.gz", "all.tgz"])
def test_members_are_found_by_name_or_end(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / name, {"a/1.wav": b"one", "./b/2.wav": b"two", "c/1.wav": b"three", "2.wav": b"four"})
    assert read_bytes(f"{path}::a/1.wav") == b"one"
    assert read_bytes(f"{path}::b/2.wav") == b"two"
    assert read_bytes(join_path(path, "2.wav")) == b"four"  # a full name wins over the end of another
    with pytest.raises(MediaError, match="several members end so") as caught:
        read_bytes(join_path(path, "1.wav"))
    assert str(caught.value).startswith(f"{path}::1.wav: ")
    with pytest.raises(MediaError, match=r"no such member.*Did you mean '2\.wav'"):
        read_bytes(join_path(path, "22.wav"))
    assert join_path(tmp_path, "1.wav") == str(tmp_path / "1.wav")


def test_an_archive_is_read_once_for_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archive(tmp_path / "all.tar.gz", {f"x/{number}": bytes([number]) * 5 for number in range(6)})
    (tmp_path / "alone").write_bytes(b"alone")
    paths = [join_path(packed, name) for name in ("5", "0", "gone", "5", "3")]
    paths += [str(tmp_path / "alone"), str(tmp_path / "missing"), str(tmp_path)]
    opened: list[str] = []
    usual = archives._open_tar
    monkeypatch.setattr(archives, "_open_tar", lambda path: (opened.append(path), usual(path))[1])
    found = dict(read_many(paths))
    assert sorted(found) == list(range(8))
    assert [found[0], found[1], found[3], found[4], found[5]] == [
        bytes([5]) * 5, bytes(5), bytes([5]) * 5, bytes([3]) * 5, b"alone",
    ]  # fmt: skip
    for number, kind in ((2, "missing-file"), (6, "missing-file"), (7, "unreadable-file")):
        fault = found[number]
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.location) == (kind, paths[number])
    assert opened == [str(packed)] * 2  # once for the names and once for the bytes, however many members


# ---------------------------------------------------------------------- small files that claim to be large


def peak_memory(work: Callable[[], Any]) -> int:
    """The most bytes that Python and numpy held at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_channels_are_decoded_in_blocks() -> None:
    silence = np.zeros((1_500_000, 8), np.int16)
    data = recording(silence, 384_000, "FLAC")
    assert len(data) < 100_000
    config = AudioConfig(resample=True)
    assert peak_memory(lambda: config.decode(data, "x.flac")) < 30e6  # 48 MB at once


def test_an_impossible_sample_rate_is_a_fault() -> None:
    data = bytearray(recording(noise(100)))
    data[24:28] = struct.pack("<I", 2_000_000_000)
    with pytest.raises(MediaError, match=r"2,000,000,000 samples a second, expected at most 384,000"):
        AudioConfig(resample=True).decode(bytes(data), "x.wav")


def test_resampling_between_any_rates_takes_bounded_memory_and_time() -> None:
    """15,999 Hz took 8 GB and 45 s."""
    time = torch.arange(15_999) / 15_999
    with takes_at_most(5):
        tone = resample_audio(torch.sin(2 * math.pi * 440 * time), 15_999, 16_000)
    expected = torch.sin(2 * math.pi * 440 * torch.arange(16_000) / 16_000)
    assert (tone - expected)[200:-200].abs().max() < 1e-3


def tar_of(path: Path, *members: tarfile.TarInfo, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def test_a_sparse_member_is_not_expanded(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("big.wav")
    sparse.pax_headers = {"GNU.sparse.size": str(3 << 30), "GNU.sparse.map": f"0,0,{3 << 30},0"}
    path = tar_of(tmp_path / "a.tar", tarfile.TarInfo("small.wav"), sparse)
    assert path.stat().st_size < 20_000
    found: dict[int, Any] = {}
    names = [f"{path}::big.wav", f"{path}::small.wav"]
    assert peak_memory(lambda: found.update(read_many(names))) < 10e6
    assert found[1] == b""
    assert str(found[0]) == f"{names[0]}: found a file of 3,221,225,472 bytes, expected at most 268,435,456"
    with pytest.raises(MediaError, match=r"big.wav: found a file of 3,221,225,472 bytes"):
        read_bytes(names[0])


def test_a_plain_file_that_is_too_large_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "big.wav").touch()
    os.truncate(tmp_path / "big.wav", 3 << 30)
    ((_, fault),) = read_many([str(tmp_path / "big.wav")])
    assert isinstance(fault, Fault)
    assert fault.kind == "over-long"


def test_a_long_header_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 30_000_000
    path = tar_of(tmp_path / "a.tar.gz", header, mode="w:gz")
    assert path.stat().st_size < 40_000

    def refused() -> None:
        with pytest.raises(DataError, match=r"a.tar.gz: the archive is damaged .*header of 30,000,000 bytes"):
            members(str(path))

    assert peak_memory(refused) < 5e6
    with pytest.raises(DataError, match=r"b.tar.gz: the archive is damaged"):  # 300 bytes of bzip2 can be 400 MB
        members(str(tar_of(tmp_path / "b.tar.gz", header, mode="w:bz2")))


def test_many_long_names_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_NAMES", 100_000)
    path = tar_of(tmp_path / "a.tar", *(tarfile.TarInfo("a/" * 100 + str(number)) for number in range(10)))
    with pytest.raises(DataError, match=r"its names have more than 100,000 characters"):
        members(str(path))


def test_the_last_of_several_members_with_one_name_counts(tmp_path: Path) -> None:
    """As for tar, where an archive is updated by appending to it."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for content in (b"first", b"other", b"last"):
            member = tarfile.TarInfo("b" if content == b"other" else "a")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert sorted(read_many([f"{path}::a", f"{path}::b"])) == [(0, b"last"), (1, b"other")]
    assert read_bytes(f"{path}::a") == b"last"


def test_a_large_picture_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")
    with pytest.raises(MediaError, match=r"found 8,000 × 8,000 pixels, expected 40,000,000 or fewer"):
        PictureConfig().decode(file.getvalue(), "x.png")


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "all.tar.gz", {"1": np.random.default_rng(0).bytes(5000)})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"all\.tar\.gz: the archive is damaged or cut short"):
        list(read_many([f"{path}::1"]))
    with pytest.raises(DataError, match=r"none\.tar: cannot be read \(No such file"):
        list(read_many([f"{tmp_path}/none.tar::1"]))


@pytest.mark.parametrize(
    ("top_db", "expected"), [(1e300, "at most 200"), (1e-6, "at least 1, or 0"), (-1.0, "at least 0")]
)
def test_an_impossible_top_db_is_refused(top_db: float, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"top_db: found .*, expected .*{expected}"):
        settings.build(AudioConfig, {"top_db": top_db})


@pytest.mark.parametrize("top_db", [0.0, 1.0, 40, 200.0])
def test_a_possible_top_db_is_accepted(top_db: float) -> None:
    assert settings.build(AudioConfig, {"top_db": top_db}).top_db == top_db


def test_a_file_that_starts_another_program_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decides by content: it would start Ghostscript for a PostScript file named cat.png."""
    import PIL.EpsImagePlugin

    def started(*arguments: Any) -> None:
        raise AssertionError("Ghostscript was called")

    monkeypatch.setattr(PIL.EpsImagePlugin, "Ghostscript", started)
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    Image.preinit()
    for config in (PictureConfig(), LineImageConfig()):
        with pytest.raises(MediaError, match=r"cat.png: cannot be read as an image \(expected PNG, JPEG"):
            config.decode(data, "cat.png")


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM"])
def test_common_image_formats_are_decoded(file_format: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "white").save(file, file_format)
    assert PictureConfig(size=8).decode(file.getvalue(), "a").min() >= 250
