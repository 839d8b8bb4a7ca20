"""ConvS2S: convolutional encoder and decoder (Gehring et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base.config import Depth, Share, Size, setting
from dragoman.models.contracts import Decoder, Encoder, Memory, State
from dragoman.models.layers.attention import attend
from dragoman.models.layers.config import AbsolutePositionsConfig, LearnedConfig
from dragoman.models.layers.convolution import GatedConvolution, WeightNormConvolution
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.masking import masked_mean
from dragoman.models.layers.positions import build_absolute_positions

SQRT_HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True)
class ConvS2SStackConfig:
    """Settings of a stack of gated convolutions with residual connections."""

    layers: Depth = setting(6, help="number of convolutions")
    embedding: Size = setting(512, help="size of the embeddings and of the stack's output")
    width: Size = setting(512, help="output channels of every convolution")
    kernel: Size = setting(3, help="kernel size of every convolution, in positions")
    widths: tuple[Size, ...] = setting((), help="output channels layer by layer; replaces width")
    kernels: tuple[Size, ...] = setting((), help="kernel sizes layer by layer; replaces kernel")
    dropout: Share = setting(0.1, help="dropout on embeddings, before every convolution and on the output")
    positions: AbsolutePositionsConfig = setting(LearnedConfig(), help="position embeddings")

    def problems(self) -> Iterator[str]:
        for name in ("widths", "kernels"):
            given = len(getattr(self, name))
            if given not in (0, self.layers):
                yield f"{name}: found {given} numbers, expected one for each of layers = {self.layers}"

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Input channels, output channels and kernel size of every layer; the first layer has inputs = outputs."""
        outputs = self.widths or (self.width,) * self.layers
        kernels = self.kernels or (self.kernel,) * self.layers
        return list(zip((outputs[0], *outputs), outputs, kernels, strict=False))


class ConvS2SInput(nn.Module):
    """Token embedding plus position embedding, then dropout (section 3.1)."""

    def __init__(self, config: ConvS2SStackConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = build_absolute_positions(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, E); `start` is the position of the first token."""
        return self.dropout(self.positions(self.embedding(tokens), start))


def shortcut(inputs: int, outputs: int) -> nn.Module:
    """The residual path of a layer: the identity, or a linear map where the sizes differ."""
    return nn.Identity() if inputs == outputs else WeightNormConvolution(inputs, outputs)


@dataclass(frozen=True)
class ConvS2SEncoderConfig(ConvS2SStackConfig):
    """Gated convolutions that see both sides of a position."""

    kind: ClassVar[str] = "convs2s"
    attentions: Size | None = setting(
        None,
        help="number n of attention layers that read the memory: gradients into the stack are divided by 2n; "
        "none: the encoder's own number of layers",
    )


class ScaledGradient(torch.autograd.Function):
    """The identity, with a factor on the gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * context.scale, None


class ConvS2SEncoderLayer(nn.Module):
    """One gated convolution with its residual connection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.shortcut = shortcut(inputs, outputs)
        self.convolution = GatedConvolution(inputs, outputs, kernel, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D')."""
        return (self.convolution(x, mask) + self.shortcut(x)) * SQRT_HALF


class ConvS2SEncoder(Encoder):
    """Memory with keys z from the stack and values (z + e)·√½, where e are the embeddings (section 3.3).

    Every attention layer of the decoder sends gradients back. Those into the stack are scaled by 1 / (2 × attention
    layers), those into the embeddings are not (section 3.5). The final state is the mean of the values.
    """

    def __init__(self, config: ConvS2SEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.embedding
        self.input = ConvS2SInput(config, embedding)
        shapes = config.shapes
        self.project_in = WeightNormConvolution(config.embedding, shapes[0][0], gain=1 - config.dropout)
        self.layers = nn.ModuleList(ConvS2SEncoderLayer(*shape, config.dropout) for shape in shapes)
        self.project_out = WeightNormConvolution(shapes[-1][1], config.embedding)
        self.gradient_scale = 1 / (2 * (config.attentions or config.layers))

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        embedded = self.input(source, 0)  # (B, S, E)
        x = self.project_in(embedded)
        for layer in self.layers:
            x = layer(x, mask)
        keys: Tensor = ScaledGradient.apply(self.project_out(x), self.gradient_scale)  # type: ignore[no-untyped-call]
        values = (keys + embedded) * SQRT_HALF
        return Memory(keys=keys, values=values, mask=mask, final=(masked_mean(values, mask),))


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
