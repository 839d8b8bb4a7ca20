"""The decoder of ConvS2S (Gehring et al. 2017, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Size, setting
from dragoman.layers.attention import attend
from dragoman.layers.convolution import GatedConvolution, WeightNormConvolution
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.models.contracts import Decoder, Memory, State
from dragoman.models.convs2s import SQRT_HALF, ConvS2SInput, ConvS2SStackConfig, shortcut


@dataclass(frozen=True)
class ConvS2SDecoderConfig(ConvS2SStackConfig):
    """Causal gated convolutions; every layer attends over the memory."""

    kind: ClassVar[str] = "convs2s"
    output: Size | None = setting(
        None,
        help="size of the vectors given to the output layer; none: that of the embeddings, so that both can be tied",
    )

    @property
    def output_width(self) -> int:
        return self.output or self.embedding


class ConvS2SAttention(nn.Module):
    """The attention of one layer: query d = W h + g, weights softmax(d · z) (section 3.3, eq. 1 and 2)."""

    is_cross_attention = True

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.query = WeightNormConvolution(width, embedding)
        self.output = WeightNormConvolution(embedding, width)

    def forward(self, x: Tensor, embedded: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x (N, T, D), embedded (N, T, E); keys and values (B, 1, S, E), mask (B, S) → (N, T, D)."""
        query = (self.query(x) + embedded) * SQRT_HALF
        query = query[:, None] * query.shape[-1] ** 0.5  # undoes the division by √d in `attend`: the paper has none
        context = attend(self, query, keys, values, mask=mask[:, None, None])[:, 0]
        return (self.output(context) + x) * SQRT_HALF


class ConvS2SDecoderLayer(nn.Module):
    """One causal gated convolution and its attention, with a residual connection around both."""

    def __init__(self, inputs: int, outputs: int, kernel: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.shortcut = shortcut(inputs, outputs)
        self.convolution = GatedConvolution(inputs, outputs, kernel, dropout)
        self.attention = ConvS2SAttention(outputs, embedding)

    def forward(
        self, x: Tensor, past: Tensor, embedded: Tensor, memory: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(N, T, D) → (N, T, D') and the inputs that the convolution of the next tokens needs."""
        out, present = self.convolution.extend(x, past)
        out = self.attention(out, embedded, *memory)
        return (out + self.shortcut(x)) * SQRT_HALF, present


class ConvS2SDecoder(Decoder):
    """A stack of causal convolutions with attention in every layer."""

    unused_memory = ("final", "states")

    def __init__(self, config: ConvS2SDecoderConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__()
        size = config.embedding
        self.width = config.output_width
        self.input = ConvS2SInput(config, embedding)
        self.max_positions = self.input.positions.max_positions
        # Queries have the size of the embeddings; a memory of another size is projected once for all layers.
        self.key, self.value = shortcut(memory_width, size), shortcut(memory_width, size)
        shapes = config.shapes
        self.project_in = WeightNormConvolution(size, shapes[0][0], gain=1 - config.dropout)
        self.layers = nn.ModuleList(ConvS2SDecoderLayer(*shape, size, config.dropout) for shape in shapes)
        self.project_out = WeightNormConvolution(shapes[-1][1], self.width)
        self.dropout = nn.Dropout(config.dropout)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (keys, values, mask); cache = per layer the last inputs, as many as the kernel looks back."""
        keys, values = self.key(memory.keys), self.value(memory.values)
        # A mean of m vectors has 1/m of their variance, so the values are scaled by √m (section 3.5), once for all.
        real = memory.mask.sum(1).to(values.dtype)
        values = values * real.sqrt()[:, None, None]
        cache = tuple(
            layer.convolution.init_cache(keys.shape[0], keys)  # type: ignore[operator, union-attr]
            for layer in self.layers
        )
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=keys.device)
        return State(static=(keys[:, None], values[:, None], memory.mask), cache=cache, length=length)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        embedded = self.input(tokens, state.length)  # (N, T, E)
        x = self.project_in(embedded)
        cache = []
        for layer, past in zip(self.layers, state.cache, strict=True):
            x, present = layer(x, past, embedded, state.static)
            cache.append(present)
        hidden = self.dropout(self.project_out(x))
        return hidden, state._replace(cache=tuple(cache), length=state.length + tokens.shape[1])
