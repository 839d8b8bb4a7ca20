"""Parallel convolutions of several kernel sizes, optionally with non-local attention between the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Share, Size, setting
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.layers.config import AbsolutePositionsConfig, NoPositionsConfig
from dragoman.models.layers.convolution import NonLocal, convolve, pad_same
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.masking import masked_mean
from dragoman.models.layers.positions import build_absolute_positions


@dataclass(frozen=True)
class MultiKernelConfig:
    """Parallel convolutions; each kernel size gives an equal share of the channels."""

    kind: ClassVar[str] = "multi-kernel"
    kernels: tuple[Size, ...] = setting((3, 5, 11), help="kernel sizes of the parallel convolutions of a layer")
    layers: Depth = setting(2, help="number of layers")
    embedding: Size = setting(256, help="size of the source embeddings")
    width: Size = setting(384, help="size of the memory; a multiple of the number of kernels")
    dropout: Share = setting(0.2, help="dropout on embeddings and after every layer")
    non_local: bool = setting(
        False, help="a non-local block (Wang et al. 2018) after every layer: each position attends to all"
    )
    positions: AbsolutePositionsConfig = setting(NoPositionsConfig(), help="position embeddings")

    def problems(self) -> Iterator[str]:
        if not self.kernels:
            yield "kernels: found none, expected at least one"
        elif self.width % len(self.kernels):
            yield f"width: found {self.width}, expected a multiple of {len(self.kernels)} (the number of kernels)"


class MultiKernelLayer(nn.Module):
    """ReLU of the concatenated convolutions, with a residual connection where the sizes match."""

    def __init__(self, config: MultiKernelConfig, inputs: int) -> None:
        super().__init__()
        share = config.width // len(config.kernels)
        self.convolutions = nn.ModuleList(nn.Conv1d(inputs, share, kernel) for kernel in config.kernels)
        self.residual = inputs == config.width
        self.dropout = nn.Dropout(config.dropout)
        self.non_local = NonLocal(config.width) if config.non_local else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, I), mask (B, S) → (B, S, D)."""
        outputs = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            padded = pad_same(x, mask, convolution.kernel_size[0])
            outputs.append(convolve(padded, convolution.weight, convolution.bias))
        out: Tensor = self.dropout(F.relu(torch.cat(outputs, 2))).transpose(1, 2)  # (B, D, S)
        if self.residual:
            out = out + x.transpose(1, 2)
        if self.non_local is not None:
            out = self.non_local(out, mask)
        return out.transpose(1, 2)


class MultiKernelEncoder(Encoder):
    """A stack of multi-kernel layers; the final state is the mean over real positions."""

    def __init__(self, config: MultiKernelConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.positions = build_absolute_positions(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)
        inputs = [config.embedding] + [config.width] * (config.layers - 1)
        self.layers = nn.ModuleList(MultiKernelLayer(config, size) for size in inputs)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = self.dropout(self.positions(self.embedding(source) * self.embedding.width**0.5, 0))
        for layer in self.layers:
            x = layer(x, mask)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
