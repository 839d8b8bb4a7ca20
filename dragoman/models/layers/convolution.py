"""Convolutions over sequences: weight-normalised, gated, over characters; and the non-local block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.layers.attention import attend


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution over time: (B, T, I), weight (O, I, k) → (B, T−k+1, O).

    On CPUs a matrix product of windows: F.conv1d is slower, and several times slower where torch was built without the
    CPU vendor's kernels.
    """
    if x.is_cuda:
        return F.conv1d(x.transpose(1, 2), weight, bias).transpose(1, 2)
    kernel = weight.shape[2]
    length = x.shape[1] - kernel + 1
    windows = torch.cat([x[:, start : start + length] for start in range(kernel)], 2)
    return F.linear(windows, weight.transpose(1, 2).flatten(1), bias)


class WeightNormConvolution(nn.Module):
    """w = g · v / ‖v‖ for each output (Salimans and Kingma 2016, eq. 2); with kernel 1 a linear layer.

    `gain` is the variance a layer keeps: 4 before a gated linear unit, which quarters it, and 1 elsewhere, less
    the share dropped at its input (Gehring et al. 2017, section 3.5 and appendix A).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel = kernel
        self.direction = nn.Parameter(torch.randn(outputs, inputs, kernel) * (gain / (inputs * kernel)) ** 0.5)
        self.scale = nn.Parameter(torch.linalg.vector_norm(self.direction.detach(), dim=(1, 2)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def weight(self) -> Tensor:
        """The normalised kernels: (O, I, k)."""
        length: Tensor = torch.linalg.vector_norm(self.direction, dim=(1, 2))
        return self.direction * (self.scale / length)[:, None, None]

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, I) → (B, T−k+1, O); the caller pads."""
        if self.kernel == 1:
            return F.linear(x, self.weight()[:, :, 0], self.bias)
        return convolve(x, self.weight(), self.bias)


def pad_same(x: Tensor, mask: Tensor, kernel: int) -> Tensor:
    """Zeros on padding and around the ends, so that a convolution keeps the length: (B, T+k−1, D)."""
    x = x * mask[:, :, None].to(x.dtype)
    return F.pad(x, (0, 0, (kernel - 1) // 2, kernel // 2))


class GatedConvolution(nn.Module):
    """GLU([A B]) = A ⊗ σ(B) of a weight-normalised convolution (Dauphin et al. 2017, eq. 1)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inputs, self.kernel = inputs, kernel
        self.convolution = WeightNormConvolution(inputs, 2 * outputs, kernel, gain=4 * (1 - dropout))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Every position sees both sides of it: (B, S, I), mask (B, S) → (B, S, O)."""
        return F.glu(self.convolution(pad_same(self.dropout(x), mask, self.kernel)))

    def extend(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """New positions see themselves and the k−1 inputs before: (N, T, I), past (N, k−1, I) → (N, T, O)."""
        seen = torch.cat([past, self.dropout(x)], 1)  # dropout before caching, as in one call over all
        return F.glu(self.convolution(seen)), seen[:, seen.shape[1] - self.kernel + 1 :]

    def init_cache(self, rows: int, like: Tensor) -> Tensor:
        """The inputs before the first position: zeros."""
        return like.new_zeros(rows, self.kernel - 1, self.inputs)


class Highway(nn.Module):
    """y = t ⊙ relu(W x + b) + (1 − t) ⊙ x with t = σ(W_t x + b_t) (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # initially most of x is carried

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.change(x)) + (1 - gate) * x


class CharacterConvolution(nn.Module):
    """A word's vector from its characters: kernels of several widths, tanh, the largest over time, highways.

    Kim et al. 2016, section 2.2 and 2.3 . Every window that overlaps the word counts, with zeros outside: words shorter
    than a kernel have windows, too, and the ends of a word need no marks.
    """

    def __init__(self, inputs: int, kernels: Sequence[int], filters: Sequence[int], highways: int) -> None:
        super().__init__()
        self.width = sum(filters)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(inputs, count, kernel, padding=kernel - 1) for kernel, count in zip(kernels, filters, strict=True)
        )
        self.highways = nn.Sequential(*(Highway(self.width) for _ in range(highways)))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Characters (W, L, I) of W words, mask (W, L) with the real ones first → (W, D), zeros for empty words."""
        real = mask[:, :, None].to(x.dtype)
        characters = (x * real).transpose(1, 2)  # (W, I, L)
        lengths = mask.sum(1)
        features = []
        for convolution in self.convolutions:
            windows = torch.tanh(convolution(characters))  # (W, D', L+k−1)
            positions = torch.arange(windows.shape[2], device=x.device)
            beyond = positions >= (lengths + windows.shape[2] - mask.shape[1])[:, None]
            features.append(windows.masked_fill(beyond[:, None], -1.0).amax(2))  # tanh is never below
        words: Tensor = self.highways(torch.cat(features, 1))
        return words * (lengths > 0)[:, None].to(x.dtype)


class NonLocal(nn.Module):
    """z = W y + x, where y is the mean of all g(x), weighted by softmax(θ(x)ᵀ φ(x)).

    The embedded Gaussian with half the channels of Wang et al. 2018, sections 3.2 and 3.3. W starts
    at zero, so that the block initially changes nothing.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = max(1, channels // 2)
        self.project = nn.Linear(channels, 3 * self.inner)
        self.output = nn.Linear(self.inner, channels)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, C, *grid) → (B, C, *grid); mask (B, *grid) of the visible positions."""
        flat = x.flatten(2).transpose(1, 2)  # (B, P, C)
        query, key, value = self.project(flat)[:, None].chunk(3, -1)  # (B, 1, P, C/2)
        visible = None if mask is None else mask.flatten(1)[:, None, None]  # (B, 1, 1, P)
        # The paper does not divide by √d as `attend` does.
        out = attend(self, query * self.inner**0.5, key, value, mask=visible)[:, 0]
        added: Tensor = self.output(out).transpose(1, 2)  # (B, C, P)
        return x + added.reshape(x.shape)
