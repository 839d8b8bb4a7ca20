"""Encoders of frames and images: padding and the other rows of a batch change nothing, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Memory
from dragoman.models.convs2s import ConvS2SEncoderConfig
from dragoman.models.encoders.convolutional import KalchbrennerConfig, MultiKernelConfig
from dragoman.models.encoders.dense import DenseEncoderConfig
from dragoman.models.encoders.frames import (
    Conv2dSubsampling,
    Conv2dSubsamplingConfig,
    FramesConfig,
    FramesEncoder,
    FrameStackingConfig,
    Standardizer,
)
from dragoman.models.encoders.images import PatchesConfig, PatchesEncoder, ResNetConfig, ResNetEncoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SEQUENCE_ENCODERS
from dragoman.models.layers.cells import GRUConfig
from dragoman.models.layers.config import LearnedConfig

CLOSE = {"rtol": 0.0, "atol": 1e-10}
LENGTHS = [13, 5, 1, 8, 16]
FEATURES = 7
SUBSAMPLINGS = {
    "stacked": FrameStackingConfig(frames=3),
    "one by one": FrameStackingConfig(frames=1),
    "convolutions": Conv2dSubsamplingConfig(channels=(4, 6), time_strides=(2, 2), feature_strides=(2, 2)),
    "no norm, other steps": Conv2dSubsamplingConfig(
        channels=(3, 4, 5), time_strides=(1, 3, 1), feature_strides=(2, 1, 3), norm=False
    ),
}
INNERS = {
    "lstm": RecurrentEncoderConfig(layers=2, embedding=6, width=8, dropout=0.0),
    "gru forward": RecurrentEncoderConfig(cell=GRUConfig(), embedding=6, width=8, direction="forward", dropout=0.0),
    "transformer": TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0),
    "convolutional": ConvS2SEncoderConfig(
        layers=2, embedding=7, widths=(6, 5), kernels=(3, 4), dropout=0.0, positions=LearnedConfig(max_positions=40)
    ),
    "sentence": KalchbrennerConfig(width=6, max_positions=20, dropout=0.0),
    "multi-kernel": MultiKernelConfig(kernels=(1, 3), layers=1, embedding=6, width=6, dropout=0.0),
    "dense": DenseEncoderConfig(max_positions=20, layers=2, embedding=4, hidden=9, width=5, dropout=0.0),
}
for entry in SEQUENCE_ENCODERS.values():
    if entry.config not in map(type, INNERS.values()):
        INNERS[entry.example.kind] = entry.example


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    yield
    torch.set_default_dtype(torch.float32)


def rows() -> list[Tensor]:
    return [torch.randn(length, FEATURES) for length in LENGTHS]


def grid(rows: list[Tensor], width: int, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    out = torch.full((len(rows), width, FEATURES), fill)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out, torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]


def perturbed(module: torch.nn.Module) -> None:
    with torch.no_grad():  # away from the tidy start, so that biases and norms matter
        for part in module.parameters():
            part.add_(0.1 * torch.randn_like(part))


def same(left: Memory, right: Memory, row: int) -> None:
    seen, entries = left.mask[row], right.mask[0]
    assert entries.any()
    torch.testing.assert_close(left.keys[row, seen], right.keys[0, entries], **CLOSE)
    torch.testing.assert_close(left.values[row, seen], right.values[0, entries], **CLOSE)
    for one, other in zip(left.final, right.final, strict=True):
        torch.testing.assert_close(one[row], other[0], **CLOSE)


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_padding_and_neighbours_change_nothing(subsampling: str, inner: str) -> None:
    encoder = FramesEncoder(
        FramesConfig(subsampling=SUBSAMPLINGS[subsampling], inner=INNERS[inner], dropout=0.0), FEATURES
    ).eval()
    perturbed(encoder)
    data = rows()
    for fill in (0.0, 1e3):  # what stands on padding is never looked at
        memory = encoder(*grid(data, 22, fill))
        assert memory.keys.shape[-1] == encoder.width
        for place, row in enumerate(data):
            same(memory, encoder(row[None], torch.ones(1, len(row), dtype=torch.bool)), place)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_padding_changes_no_gradient(subsampling: str) -> None:
    encoder = FramesEncoder(
        FramesConfig(subsampling=SUBSAMPLINGS[subsampling], inner=INNERS["lstm"], dropout=0.0), FEATURES
    )
    data = rows()
    gradients = []
    for width in (16, 25):
        encoder.zero_grad()
        memory = encoder(*grid(data, width))
        weight = torch.randn(memory.keys.shape[2], generator=torch.Generator().manual_seed(1))
        ((memory.keys * weight) * memory.mask[:, :, None]).sum().backward()
        gradients.append([part.grad.clone() for part in encoder.parameters() if part.grad is not None])
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_output_lengths_are_as_computed_from_settings(subsampling: str) -> None:
    config = SUBSAMPLINGS[subsampling]
    encoder = FramesEncoder(FramesConfig(subsampling=config, inner=INNERS["lstm"]), FEATURES)
    mask = encoder(*grid(rows(), 22)).mask
    assert mask.sum(1).tolist() == [config.output_length(length) for length in LENGTHS]


def test_convolutions_of_one_row_are_torchs() -> None:
    config = Conv2dSubsamplingConfig(channels=(4, 6), time_strides=(2, 2), feature_strides=(2, 2), norm=False)
    subsampling = Conv2dSubsampling(config, FEATURES, 9)
    perturbed(subsampling)
    x = torch.randn(1, 13, FEATURES)
    y, mask = subsampling(x, torch.ones(1, 13, dtype=torch.bool))
    first, second = subsampling.layers
    truth = F.relu(second(F.relu(first(x[:, None]))))  # (1, 6, 4, 2)
    torch.testing.assert_close(y, subsampling.project(truth.permute(0, 2, 1, 3).flatten(2)))
    assert mask.shape == (1, 4)
    assert mask.all()


def test_a_transformer_reads_frames_without_its_embedding_scale() -> None:
    """A Transformer multiplies its embeddings by √width; frames are divided by it first."""
    encoder = FramesEncoder(
        FramesConfig(subsampling=FrameStackingConfig(1), inner=INNERS["transformer"], dropout=0.0), FEATURES
    )
    seen = []
    encoder.inner.input.positions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))  # type: ignore[attr-defined]
    x = torch.randn(2, 5, FEATURES)
    mask = torch.ones(2, 5, dtype=torch.bool)
    encoder(x, mask)
    torch.testing.assert_close(seen[0], encoder.subsampling(x, mask)[0])


@pytest.mark.parametrize("non_local", [False, True])
def test_an_image_gives_one_entry_per_cell_and_images_are_independent(non_local: bool) -> None:
    config = ResNetConfig(channels=(8, 16), blocks=2, width=12, dropout=0.0, non_local=non_local)
    encoder = ResNetEncoder(config, 3 * 10)
    perturbed(encoder)
    pictures = torch.rand(3, 10, 30)
    mask = torch.ones(3, 10, dtype=torch.bool)
    memory = encoder(pictures, mask)
    assert memory.keys.shape == (3, 9, 12)  # 10 → 5 → 3 places a side
    assert memory.mask.all()
    for place in range(3):
        same(memory, encoder(pictures[place : place + 1], mask[:1]), place)


def test_entries_are_in_row_major_order() -> None:
    config = ResNetConfig(channels=(8,), blocks=1, width=12, dropout=0.0)
    encoder = ResNetEncoder(config, 3 * 8)
    perturbed(encoder)
    plain = torch.full((1, 8, 24), 0.5)
    spot = plain.clone().view(1, 8, 8, 3)
    spot[:, 6, 1] = 1.0  # third row of the grid from the top would be 1·4, the last is 3·4; column 0
    mask = torch.ones(1, 8, dtype=torch.bool)
    # Norms spread a little of it everywhere; most of it stays near the spot.
    change = (encoder(spot.view(1, 8, 24), mask).keys - encoder(plain, mask).keys).norm(dim=-1)[0]
    assert int(change.argmax()) in (3 * 4 + 0, 3 * 4 + 1)


def test_patches_are_squares() -> None:
    config = PatchesConfig(size=4, inner=INNERS["transformer"])
    encoder = PatchesEncoder(config, 3 * 8).eval()
    perturbed(encoder)
    picture = torch.rand(1, 8, 8, 3)
    seen = []
    encoder.inner.input.positions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))  # type: ignore[attr-defined]
    memory = encoder(picture.view(1, 8, 24), torch.ones(1, 8, dtype=torch.bool))
    assert memory.keys.shape == (1, 4, 8)
    squares = [picture[0, top : top + 4, left : left + 4] for top in (0, 4) for left in (0, 4)]
    matrix = encoder.patches.weight.permute(0, 2, 3, 1).flatten(1)  # (E, 4·4·3)
    for place, square in enumerate(squares):
        expected = matrix @ ((square.flatten() - 0.5) * 4) + encoder.patches.bias
        torch.testing.assert_close(seen[0][0, place], expected)


def test_features_are_standardised() -> None:
    data = torch.randn(1, 50, 3) * torch.tensor([2.0, 5.0, 0.0]) + torch.tensor([1.0, -4.0, 7.0])
    mask = torch.ones(1, 50, dtype=torch.bool)
    standard = Standardizer(3)
    torch.testing.assert_close(standard(data, mask), data)
    standard.set_scale(data[0].mean(0), data[0].std(0, correction=0))
    out = standard(data, mask)
    torch.testing.assert_close(out[0].mean(0), torch.zeros(3), atol=1e-8, rtol=0)
    torch.testing.assert_close(out[0].std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-8, rtol=0)
    mask[0, 40:] = False
    padded = data.masked_fill(~mask[:, :, None], float("nan"))
    assert standard(padded, mask)[0, 40:].eq(0).all()
    torch.testing.assert_close(standard(padded, mask)[0, :40], out[0, :40])
    assert not list(standard.state_dict())  # the codec of the data keeps the scale


def test_wrong_settings_are_reported() -> None:
    assert any("time_strides: found 1" in text for text in Conv2dSubsamplingConfig(time_strides=(2,)).problems())
    assert any("multiples of 8" in text for text in ResNetConfig(channels=(12,)).problems())
    one_hot = RecurrentEncoderConfig(embedding=0)
    assert any("inner.embedding" in text for text in FramesConfig(inner=one_hot).problems())
    assert any("inner.embedding" in text for text in PatchesConfig(inner=one_hot).problems())
    for config in (Conv2dSubsamplingConfig(), ResNetConfig(), FramesConfig(), PatchesConfig()):
        assert list(config.problems()) == []
