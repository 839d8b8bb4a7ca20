"""Convolutional encoders: several kernel sizes in parallel, and the sentence model of Kalchbrenner and Blunsom 2013."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Range, Share, Size, setting
from dragoman.models.config import WidthEmbedding
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.layers.config import AbsolutePositionsConfig, NoPositionsConfig
from dragoman.models.layers.convolution import NonLocal, convolve, pad_same
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.masking import crop_to_maximum, masked_mean
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


@dataclass(frozen=True)
class KalchbrennerConfig(WidthEmbedding):
    """Convolutions of growing size over each feature, until the sentence is one vector."""

    kind: ClassVar[str] = "kalchbrenner"
    width: Size = setting(256, help="size of the embeddings, the sentence vector and the memory")
    kernel: Size = setting(3, help="kernel size of the convolution for the memory entry of each word")
    max_positions: Annotated[int, Range(2, None)] = setting(128, help="longest source, in tokens with <eos>")
    dropout: Share = setting(0.2, help="dropout on embeddings and on the memory")


class SentenceConvolution(nn.Module):
    """One vector per sentence: E ← tanh(K * E), feature by feature, with kernels K of 2, 3, 4, … columns.

    A kernel of k columns removes k−1 columns. When the next kernel no longer fits the c remaining columns, a closing
    kernel of c columns reduces them to one. There is a closing kernel for every possible c.
    """

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        last, columns = 1, max_positions
        while columns > last:
            columns -= last
            last += 1
        # At most as many columns are left as the last kernel has, so both kinds of kernels have the same sizes.
        self.sizes = list(range(2, last + 1))
        # All kernels are one parameter: short batches do not use all of them, but every parameter must get a gradient.
        spread = torch.cat([torch.full((width, size), size**-0.5) for size in self.sizes], 1)
        self.kernels = nn.Parameter(torch.randn_like(spread) * spread)  # (D, 2+3+4+…)
        self.closing = nn.Parameter(torch.randn_like(spread) * spread)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, S, D), lengths (B,) → (B, D); zeros for an empty row.

        The result of a row is taken at the level where it has one column left, so padding never reaches it.
        """
        x = F.pad(x, (0, 0, 0, max(0, 3 - x.shape[1]))).transpose(1, 2)  # (B, D, columns)
        kernels, closing = (torch.split(weight, self.sizes, 1) for weight in (self.kernels, self.closing))
        columns = lengths
        sentence = x.new_zeros(x.shape[:2])
        for level in range(len(kernels) + 1):
            sentence = torch.where((columns == 1)[:, None], x[:, :, 0], sentence)
            for size in range(2, min(level + 1, x.shape[2]) + 1):
                closed = torch.tanh((x[:, :, :size] * closing[size - 2]).sum(2))
                sentence = torch.where((columns == size)[:, None], closed, sentence)
            if level == len(kernels) or x.shape[2] < self.sizes[level]:
                break
            x = torch.tanh(F.conv1d(x, kernels[level][:, None], groups=x.shape[1]))
            columns = columns - (self.sizes[level] - 1)
        return sentence


class KalchbrennerEncoder(Encoder):
    """The final state is the sentence vector of the paper.

    The paper's decoder has no attention. For decoders that attend, a memory entry is the sum of the word's embedding, a
    convolution over its neighbours, and the sentence vector.
    """

    def __init__(self, config: KalchbrennerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width, self.max_positions = config.width, config.max_positions
        self.embedding = embedding
        self.sentence = SentenceConvolution(config.width, config.max_positions)
        self.local = nn.Conv1d(config.width, config.width, config.kernel)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x, mask = crop_to_maximum(self.dropout(self.embedding(source)), mask, self.max_positions)
        final = self.sentence(x, mask.sum(1))
        padded = pad_same(x, mask, self.local.kernel_size[0])
        local = torch.tanh(convolve(padded, self.local.weight, self.local.bias))  # (B, S, D)
        memory = self.dropout(x + local + final[:, None])
        return Memory(keys=memory, values=memory, mask=mask, final=(final,))
