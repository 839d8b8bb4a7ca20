"""The convolutional sentence model (FIELD C7): Kalchbrenner and Blunsom 2013, section 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.layers.convolution import pad_same
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import crop_to_maximum
from dragoman.models.contracts import Memory


@dataclass(frozen=True)
class KalchbrennerConfig:
    """Convolutions of growing size over each feature, until one vector stands for the sentence."""

    kind: ClassVar[str] = "kalchbrenner"
    width: Size = setting(256, help="size of the embeddings, of the sentence vector and of the memory")
    kernel: Size = setting(3, help="positions around a word that its entry in the memory sees")
    max_positions: Annotated[int, Range(2, None)] = setting(128, help="longest source it can read, <eos> included")
    dropout: Share = setting(0.2, help="on embeddings and on the memory")

    @property
    def embedding(self) -> int:
        """Width of the token embeddings it reads."""
        return self.width


class SentenceConvolution(nn.Module):
    """One vector from a row of any length: E ← tanh(K * E) with K of 2, 3, 4, … columns, feature by feature.

    A kernel of k columns leaves k−1 fewer. When c columns are left and the next kernel no longer fits, the closing
    kernel of c columns makes them one; there is one for every c that can be left over.
    """

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        last, columns = 1, max_positions
        while columns > last:
            columns -= last
            last += 1
        # What is left is at most as wide as the last kernel, so both kinds come in the same sizes.
        self.sizes = list(range(2, last + 1))
        # Side by side in one parameter: batches of short rows do not use all, but every parameter must get a gradient.
        spread = torch.cat([torch.full((width, size), size**-0.5) for size in self.sizes], 1)
        self.kernels = nn.Parameter(torch.randn_like(spread) * spread)  # (D, 2+3+4+…)
        self.closing = nn.Parameter(torch.randn_like(spread) * spread)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, S, D) with each row's real columns first, lengths (B,) → (B, D); zeros for an empty row.

        Every row leaves at the level where it has become one column, so that padding never reaches it.
        """
        x = F.pad(x, (0, 0, 0, max(0, 3 - x.shape[1]))).transpose(1, 2)  # (B, D, columns), enough for both kinds
        kernels, closing = (torch.split(part, self.sizes, 1) for part in (self.kernels, self.closing))
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


class KalchbrennerEncoder(nn.Module):
    """Tokens to memory: the final state is the sentence vector.

    For decoders that attend, which the paper's does not, the memory holds each embedding plus a convolution over its
    neighbourhood plus the sentence vector, which the paper gives to every step.
    """

    def __init__(self, config: KalchbrennerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width, self.max_positions = config.width, config.max_positions
        self.embedding = embedding
        self.sentence = SentenceConvolution(config.width, config.max_positions)
        self.around = nn.Conv1d(config.width, config.width, config.kernel)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        x, mask = crop_to_maximum(self.dropout(self.embedding(source)), mask, self.max_positions)
        final = self.sentence(x, mask.sum(1))
        seen = pad_same(x, mask, self.around.kernel_size[0]).transpose(1, 2)
        near = torch.tanh(self.around(seen)).transpose(1, 2)  # (B, S, D)
        memory = self.dropout(x + near + final[:, None])
        return Memory(keys=memory, values=memory, mask=mask, final=(final,))
