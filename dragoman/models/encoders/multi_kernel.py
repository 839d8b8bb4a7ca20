"""Convolutions of several widths side by side (FIELD C11), with attention over all positions between (FIELD D12)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, Size, setting
from dragoman.layers.convolution import NonLocal, pad_same
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import masked_mean
from dragoman.layers.positions import AbsolutePositionsConfig, NoPositionsConfig, build_absolute_positions
from dragoman.models.contracts import Memory


@dataclass(frozen=True)
class MultiKernelConfig:
    """Narrow and wide convolutions at once; each kernel gives an equal share of the width."""

    kind: ClassVar[str] = "multi-kernel"
    kernels: tuple[Size, ...] = setting((3, 5, 11), help="positions that the convolutions of a layer see")
    layers: Size = setting(2, help="layers in the stack")
    embedding: Size = setting(256, help="size of the source embeddings")
    width: Size = setting(384, help="size of the memory: a multiple of the number of kernels")
    dropout: Share = setting(0.2, help="on embeddings and after every layer")
    non_local: bool = setting(False, help="after every layer, let each position look at all others")
    positions: AbsolutePositionsConfig = setting(NoPositionsConfig(), help="how a token's place is told")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if not self.kernels:
            yield "kernels: found none, expected at least one"
        elif self.width % len(self.kernels):
            yield f"width: found {self.width}, expected a multiple of {len(self.kernels)} (the number of kernels)"


class MultiKernelLayer(nn.Module):
    """relu of every convolution, side by side; added to its input where the sizes allow it."""

    def __init__(self, config: MultiKernelConfig, inputs: int) -> None:
        super().__init__()
        share = config.width // len(config.kernels)
        self.convolutions = nn.ModuleList(nn.Conv1d(inputs, share, kernel) for kernel in config.kernels)
        self.residual = inputs == config.width
        self.dropout = nn.Dropout(config.dropout)
        self.non_local = NonLocal(config.width) if config.non_local else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, I), mask (B, S) → (B, S, D)."""
        parts = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            parts.append(convolution(pad_same(x, mask, convolution.kernel_size[0]).transpose(1, 2)))
        out: Tensor = self.dropout(F.relu(torch.cat(parts, 1)))  # (B, D, S)
        if self.residual:
            out = out + x.transpose(1, 2)
        if self.non_local is not None:
            out = self.non_local(out, mask)
        return out.transpose(1, 2)


class MultiKernelEncoder(nn.Module):
    """Tokens to memory; its final state is the mean over real positions."""

    def __init__(self, config: MultiKernelConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.positions = build_absolute_positions(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)
        inputs = [config.embedding] + [config.width] * (config.layers - 1)
        self.layers = nn.ModuleList(MultiKernelLayer(config, size) for size in inputs)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        x = self.dropout(self.positions(self.embedding(source) * self.embedding.width**0.5, 0))
        for layer in self.layers:
            x = layer(x, mask)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
