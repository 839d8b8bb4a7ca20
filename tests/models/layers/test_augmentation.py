"""Data augmentation: within its limits, different for every row, and determined by torch's random state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.models.layers.augmentation import (
    AUGMENTATIONS,
    Augmentation,
    AugmentationConfig,
    ImageAugmentConfig,
    LineAugmentConfig,
    NoAugmentationConfig,
    SpecAugmentConfig,
    random_crop,
    shift_rows,
    spans,
    warp,
)

CASES: list[AugmentationConfig] = [
    NoAugmentationConfig(),
    SpecAugmentConfig(times=2, time_share=0.3, bands=2, band_share=0.3),
    LineAugmentConfig(),
    ImageAugmentConfig(),
]


def test_every_kind_has_a_case() -> None:
    assert {type(case) for case in CASES} == set(AUGMENTATIONS)


@pytest.mark.parametrize("config", CASES, ids=lambda config: config.kind)
def test_it_follows_from_the_random_state_and_only_while_training(config: AugmentationConfig) -> None:
    change = Augmentation(config)
    x, mask = torch.rand(6, 12, 30), torch.ones(6, 12, dtype=torch.bool)
    before = x.clone()

    def again(seed: int) -> Tensor:
        torch.manual_seed(seed)
        out: Tensor = change(x, mask)
        return out

    assert torch.equal(again(1), again(1))
    assert torch.equal(x, before)  # what it was given stays
    assert again(1).shape == x.shape
    assert torch.equal(again(1), again(2)) == isinstance(config, NoAugmentationConfig)
    change.eval()
    assert torch.equal(again(1), x)


def test_spans_have_every_width_and_place_within_their_row() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([20] * 4000 + [5] * 4000)
    found = spans(8000, lengths, 1, 0.2, 25)
    assert not found[:, 20:].any()
    assert not found[4000:, 5:].any()
    widths = found.sum(1)
    assert set(widths[:4000].tolist()) == {0, 1, 2, 3, 4}
    assert set(widths[4000:].tolist()) == {0, 1}
    for width in range(5):  # all as likely
        assert abs(float((widths[:4000] == width).float().mean()) - 0.2) < 0.03
    steps = (found[:, 1:] != found[:, :-1]).sum(1) + found[:, 0] + found[:, -1]
    assert int(steps.max()) <= 2  # one stretch without a gap
    assert found[:4000].any(0)[:20].all()
    assert not spans(3, torch.tensor([4, 4, 4]), 0, 0.5, 4).any()


def test_masking_silences_stretches_and_bands() -> None:
    torch.manual_seed(3)
    x = torch.rand(50, 20, 10) + 1
    mask = torch.arange(20) < torch.randint(5, 21, (50, 1))
    config = SpecAugmentConfig(times=1, time_share=0.25, bands=1, band_share=0.3)
    out = Augmentation(config)(x, mask)
    silent = out == 0
    assert torch.equal(out, torch.where(silent, 0.0, x))
    times, bands = silent.all(2), silent.all(1)
    assert torch.equal(silent, times[:, :, None] | bands[:, None])
    assert int(bands.sum(1).max()) == 3
    assert (times.sum(1) <= 0.25 * mask.sum(1)).all()
    assert times.any()
    assert not (times & ~mask).any()


def test_lines_move_whole_and_by_few_pixels() -> None:
    x = torch.zeros(200, 9, 7)
    x[:, 4, 3] = 1.0
    mask = torch.ones(200, 9, dtype=torch.bool)
    torch.manual_seed(0)
    out = Augmentation(LineAugmentConfig(shift=2, contrast=0.0, noise=0.0))(x, mask)
    assert torch.equal(out.sum((1, 2)), torch.ones(200))
    places = out.flatten(1).argmax(1)
    assert {(int(place) // 7 - 4, int(place) % 7 - 3) for place in places} == {
        (along, down) for along in range(-2, 3) for down in range(-2, 3)
    }
    edge = shift_rows(torch.arange(4.0).view(1, 4, 1), torch.tensor([1]), 1)
    assert edge.flatten().tolist() == [0, 0, 1, 2]
    noisy = Augmentation(LineAugmentConfig(noise=0.1))(x, mask & (torch.arange(9) < 5))
    assert not noisy[:, 5:].any()  # padding stays empty


def test_pictures_move_mirror_and_change_their_light() -> None:
    picture = torch.rand(1, 8, 8, 3).expand(300, -1, -1, -1)
    x, mask = picture.reshape(300, 8, 24), torch.ones(300, 8, dtype=torch.bool)
    torch.manual_seed(0)
    config = ImageAugmentConfig(shift=2, contrast=0.0, brightness=0.0, mirror=True)
    out = Augmentation(config)(x, mask).view(300, 8, 8, 3)
    seen = set()
    for row in out:
        for down in range(-2, 3):
            for across in range(-2, 3):
                for mirrored in (False, True):
                    rows = (torch.arange(8) + down).clamp(0, 7)
                    columns = (torch.arange(8) + across).clamp(0, 7)
                    expected = picture[0][rows][:, columns.flip(0) if mirrored else columns]
                    if torch.equal(row, expected):
                        seen.add((down, across, mirrored))
    assert len(seen) == 50  # every way occurs, and nothing else does (below)
    assert len({tuple(row.flatten().tolist()) for row in out}) == 50
    light = Augmentation(ImageAugmentConfig(shift=0, contrast=0.2, brightness=0.1, mirror=False))(x, mask)
    slope = (light - light.mean((1, 2), keepdim=True)).std((1, 2)) / x.std((1, 2))
    assert 0.8 <= float(slope.min()) < 0.85
    assert 1.15 < float(slope.max()) <= 1.2001


def test_lines_lean_as_written() -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 20, 9)
    torch.testing.assert_close(warp(x, 0.0, 0.0, 0.0), x, atol=1e-5, rtol=0)
    # A line squeezed to no less than half ends where at most its last pixel is; letters stay in their order.
    ramp = torch.arange(1.0, 21.0)[None, :, None].expand(50, 20, 9).contiguous()
    squeezed = warp(ramp, 0.5, 0.0, 0.0)[:, :, 4]
    inside = squeezed[:, :-1] > 0
    assert (squeezed.diff(dim=1)[inside[:, :] & (squeezed[:, 1:] > squeezed[:, :-1])] < 2.01).all()
    torch.testing.assert_close(squeezed[:, 0], torch.ones(50))
    ends = (squeezed > 0).sum(1)
    assert ends.min() >= 10
    assert ends.max() <= 20
    assert len(ends.unique()) > 3
    # Slant moves the upper half one way, the lower the other, and leaves the middle alone.
    slanted = warp(ramp, 0.0, 0.0, 0.5)
    torch.testing.assert_close(slanted[:, :, 4], ramp[:, :, 4])
    inner = slice(4, 16)
    left, right = slanted[:, inner, 0] - ramp[:, inner, 0], slanted[:, inner, 8] - ramp[:, inner, 8]
    torch.testing.assert_close(left, -right, atol=1e-4, rtol=0)
    assert left.abs().max() <= 2.0


def test_pictures_are_zoomed_and_coloured_within_bounds() -> None:
    torch.manual_seed(0)
    places = torch.arange(40).expand(200, -1)
    found = random_crop(places, 0.3)
    assert found.min() >= 0
    assert found.max() <= 39
    assert (found.diff(dim=1) >= 0).all()
    widths = found[:, -1] - found[:, 0]
    assert widths.min() >= 26
    assert widths.min() < 30 < 36 < widths.max()
    plain = {"shift": 0, "contrast": 0.0, "brightness": 0.0, "mirror": False}
    change = Augmentation(ImageAugmentConfig(**plain, colour=0.2))
    pictures = torch.full((30, 4, 12), 0.5)
    out = change(pictures, torch.ones(30, 4, dtype=torch.bool)).view(30, 4, 4, 3)
    assert out.min() >= 0.4
    assert out.max() <= 0.6
    torch.testing.assert_close(out, out[:, :1, :1].expand_as(out))  # one strength a colour and picture
    assert len(out[:, 0, 0].unique()) == 90


def test_recordings_become_faster_louder_and_noisier() -> None:
    torch.manual_seed(1)
    rows, length, features = 64, 40, 6
    x = torch.randn(rows, length, features).cumsum(1)  # smooth in time
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[:, 30:] = False
    nothing = {"times": 0, "bands": 0}
    faster = Augmentation(SpecAugmentConfig(**nothing, squeeze=0.5))(x, mask)
    # The first frame stays, a later one comes earlier: somewhere before its old place the same numbers stand.
    torch.testing.assert_close(faster[:, 0], x[:, 0])
    for row in range(8):
        gaps = (faster[row, :30] - x[row, 20]).abs().sum(1)
        assert int(gaps.argmin()) <= 20
    louder = Augmentation(SpecAugmentConfig(**nothing, loudness=2.0))(x, mask) - x
    added = louder[:, 0, 0]
    torch.testing.assert_close(louder[:, :30], added[:, None, None].expand(-1, 30, features), rtol=1e-4, atol=1e-4)
    assert added.abs().max() <= 2.0
    assert added.std() > 0.8
    noisier = Augmentation(SpecAugmentConfig(**nothing, noise=0.5))(x, mask)[:, :30] - x[:, :30]
    assert float(noisier.std()) == pytest.approx(0.5, abs=0.05)
    assert not Augmentation(SpecAugmentConfig(**nothing, noise=0.5, loudness=1.0))(x, mask)[:, 30:].any()
