"""Convolutions against torch's own layers, plain loops and numeric gradients, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from dragoman.models.layers.attention import observe_attention
from dragoman.models.layers.convolution import (
    CharacterConvolution,
    GatedConvolution,
    Highway,
    NonLocal,
    WeightNormConvolution,
)

CLOSE = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(torch.float32)


def shake(module: nn.Module) -> None:
    with torch.no_grad():
        for part in module.parameters():
            part.add_(0.3 * torch.randn_like(part))


def gradients(out: Tensor, parts: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    found = torch.autograd.grad((out * weight).sum(), list(parts))
    assert all(float(part.abs().max()) > 1e-3 for part in found), "nothing to compare"
    return list(found)


def agree(ours: Tensor, theirs: Tensor, our_parts: Sequence[Tensor], their_parts: Sequence[Tensor]) -> None:
    """Outputs and the gradients of inputs and parameters."""
    torch.testing.assert_close(ours, theirs, **CLOSE)
    weight = torch.randn_like(ours)
    pairs = zip(gradients(ours, our_parts, weight), gradients(theirs, their_parts, weight), strict=True)
    for mine, yours in pairs:
        torch.testing.assert_close(mine.reshape(yours.shape), yours, **CLOSE)


def torch_twin(ours: WeightNormConvolution) -> nn.Module:
    """torch's weight-normalised convolution with the same g, v and bias."""
    outputs, inputs, kernel = ours.direction.shape
    twin = weight_norm(nn.Conv1d(inputs, outputs, kernel), dim=0)
    with torch.no_grad():
        twin.parametrizations.weight.original0.copy_(ours.scale[:, None, None])
        twin.parametrizations.weight.original1.copy_(ours.direction)
        twin.bias.copy_(ours.bias)  # type: ignore[union-attr, operator]
    return twin


def parts_of(ours: WeightNormConvolution, twin: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    norm = twin.parametrizations.weight  # type: ignore[union-attr]
    return [ours.scale, ours.direction, ours.bias], [norm.original0, norm.original1, twin.bias]  # type: ignore[union-attr, list-item]


# --- the gated convolution --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_same_convolution_is_torchs_and_padding_is_zero(kernel: int) -> None:
    ours = GatedConvolution(5, 4, kernel)
    shake(ours)
    twin = torch_twin(ours.convolution)
    x = torch.randn(3, 6, 5, requires_grad=True)
    mask = torch.arange(6) < torch.tensor([[6], [2], [4]])
    rows = x.masked_fill(~mask[:, :, None], 0.0).transpose(1, 2)
    theirs = F.glu(twin(F.pad(rows, ((kernel - 1) // 2, kernel // 2))), 1).transpose(1, 2)
    our_parts, their_parts = parts_of(ours.convolution, twin)
    agree(ours(x, mask), theirs, [x, *our_parts], [x, *their_parts])
    if kernel > 2:
        noisy = torch.where(mask[:, :, None], x, torch.tensor(1e3))
        torch.testing.assert_close(ours(noisy, mask)[mask], ours(x, mask)[mask], **CLOSE)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [[7], [1] * 7, [3, 4], [1, 5, 1]])
def test_causal_convolution_is_torchs_in_any_split(kernel: int, sizes: list[int]) -> None:
    ours = GatedConvolution(4, 3, kernel)
    shake(ours)
    twin = torch_twin(ours.convolution)
    x = torch.randn(2, 7, 4, requires_grad=True)
    theirs = F.glu(twin(F.pad(x.transpose(1, 2), (kernel - 1, 0))), 1).transpose(1, 2)
    past = ours.init_cache(2, x)
    outputs = []
    for part in x.split(sizes, 1):
        out, past = ours.extend(part, past)
        assert past.shape == (2, kernel - 1, 4)
        outputs.append(out)
    our_parts, their_parts = parts_of(ours.convolution, twin)
    agree(torch.cat(outputs, 1), theirs, [x, *our_parts], [x, *their_parts])


def test_weight_normalisation_begins_as_the_drawn_kernel() -> None:
    """At the start g = ‖v‖ (section 3 of the paper), drawn with variance gain / inputs."""
    layer = WeightNormConvolution(64, 256, 3, gain=4.0)
    torch.testing.assert_close(layer.weight(), layer.direction, **CLOSE)
    assert float(layer.direction.detach().std()) == pytest.approx(math.sqrt(4.0 / (64 * 3)), rel=0.02)


def test_dropped_inputs_are_kept_dropped() -> None:
    """The past holds what the convolution saw, so a split drops nothing twice."""
    layer = GatedConvolution(50, 3, 3, dropout=0.5).train()
    x = torch.ones(1, 4, 50)
    _, past = layer.extend(x, layer.init_cache(1, x))
    assert {float(value) for value in past.unique()} == {0.0, 2.0}


# --- highway and characters -------------------------------------------------------------------------------------------


def test_highway_is_its_equation() -> None:
    layer = Highway(5)
    shake(layer)
    x = torch.randn(4, 5, requires_grad=True)
    change, gate = layer.change, layer.gate
    rows = []
    for row in x:
        t = 1 / (1 + torch.exp(-(gate.weight @ row + gate.bias)))
        rows.append(t * (change.weight @ row + change.bias).clamp(min=0) + (1 - t) * row)
    parts = [x, change.weight, change.bias, gate.weight, gate.bias]
    agree(layer(x), torch.stack(rows), parts, parts)


def plain_word(layer: CharacterConvolution, characters: Tensor) -> Tensor:
    """Kim et al. 2016, eq. 2 and 3, one window after another: characters (n, E)."""
    features = []
    for convolution in layer.convolutions:
        assert isinstance(convolution, nn.Conv1d)
        assert convolution.bias is not None
        kernel = convolution.kernel_size[0]
        zeros = characters.new_zeros(kernel - 1, characters.shape[1])
        row = torch.cat([zeros, characters, zeros])
        for weights, bias in zip(convolution.weight, convolution.bias, strict=True):
            windows = [
                torch.tanh((weights.T * row[start : start + kernel]).sum() + bias)
                for start in range(len(row) - kernel + 1)
            ]
            features.append(torch.stack(windows).max())
    vector: Tensor = layer.highways(torch.stack(features))
    return vector


def test_character_convolution_is_a_loop_over_words() -> None:
    layer = CharacterConvolution(3, kernels=(1, 2, 4), filters=(2, 3, 4), highways=2)
    shake(layer)
    x = torch.randn(4, 5, 3, requires_grad=True)
    lengths = [5, 1, 3, 2]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    expected = torch.stack([plain_word(layer, word[:length]) for word, length in zip(x, lengths, strict=True)])
    parts = [x, *layer.parameters()]
    agree(layer(x, mask), expected, parts, parts)


def test_a_word_without_characters_is_zero() -> None:
    layer = CharacterConvolution(3, kernels=(2,), filters=(4,), highways=1)
    shake(layer)
    x = torch.randn(2, 3, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out = layer(x, mask)
    assert not out[1].any()
    assert out[0].any()
    out.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


# --- non-local attention ----------------------------------------------------------------------------------------------


def plain_non_local(layer: NonLocal, x: Tensor, mask: Tensor | None) -> Tensor:
    """Wang et al. 2018, eq. 1, 2, 5 and 6, place by place: x (C, *grid)."""
    places = x.flatten(1).T
    theta, phi, g = ((places @ w.T + b) for w, b in zip(layer.project.weight.chunk(3), layer.project.bias.chunk(3)))  # noqa: B905
    seen = range(len(places)) if mask is None else mask.flatten().nonzero()[:, 0].tolist()
    rows = []
    for query, place in zip(theta, places, strict=True):
        weights = torch.stack([torch.exp((query * phi[other]).sum()) for other in seen])
        read = sum((weight * g[other] for weight, other in zip(weights, seen, strict=True)), torch.zeros(())) / (
            weights.sum()
        )
        rows.append(layer.output.weight @ read + layer.output.bias + place)
    return torch.stack(rows).T.reshape(x.shape)


@pytest.mark.parametrize("grid", [(5,), (2, 3)], ids=["row", "picture"])
@pytest.mark.parametrize("masked", [False, True])
def test_non_local_is_a_loop_over_places(grid: tuple[int, ...], masked: bool) -> None:
    layer = NonLocal(4)
    shake(layer)
    x = torch.randn(2, 4, *grid, requires_grad=True)
    mask = torch.rand(2, *grid) < 0.6 if masked else None
    if mask is not None:
        mask[:, 0] = True
    rows = [plain_non_local(layer, row, None if mask is None else mask[place]) for place, row in enumerate(x)]
    # φ's bias adds the same to every score of a query, so it never has a gradient.
    parts = [x, layer.project.weight, layer.output.weight, layer.output.bias]
    agree(layer(x, mask), torch.stack(rows), parts, parts)


def test_non_local_begins_as_identity_and_can_be_watched() -> None:
    layer = NonLocal(4)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(layer(x), x, **CLOSE)
    seen: list[Tensor] = []
    with observe_attention(lambda module, weights: seen.append(weights)):
        layer(x)
    assert seen[0].shape == (2, 1, 9, 9)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 1, 9), **CLOSE)


# --- numeric gradients ------------------------------------------------------------------------------------------------

MASK = torch.tensor([[True, True, True], [True, False, False]])
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "same": (lambda: GatedConvolution(2, 2, 3), lambda layer, x: layer(x, MASK)),
    "causal": (lambda: GatedConvolution(2, 2, 3), lambda layer, x: layer.extend(x, layer.init_cache(2, x))[0]),  # type: ignore[operator]
    "highway": (lambda: Highway(2), lambda layer, x: layer(x)),
    "characters": (lambda: CharacterConvolution(2, (1, 2), (2, 1), 1), lambda layer, x: layer(x, MASK)),
    "non-local": (lambda: NonLocal(2), lambda layer, x: layer(x.transpose(1, 2), MASK)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_numeric_ones(name: str) -> None:
    build, run = CASES[name]
    layer = build()
    shake(layer)
    names = [place for place, _ in layer.named_parameters()]

    def outputs(x: Tensor, *parts: Tensor) -> Tensor:
        class Whole(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Tensor) -> Tensor:
                return run(self.layer, x)

        values = {f"layer.{place}": part for place, part in zip(names, parts, strict=True)}
        found: Tensor = torch.func.functional_call(Whole(), values, (x,))
        return found

    x = torch.randn(2, 3, 2, requires_grad=True)
    parts = tuple(part.detach().clone().requires_grad_() for part in layer.parameters())
    assert torch.autograd.gradcheck(outputs, (x, *parts))
