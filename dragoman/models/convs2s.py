"""Convolutional sequence to sequence learning (FIELD C8): Gehring et al. 2017, section 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Share, Size, setting
from dragoman.layers.attention import attend
from dragoman.layers.blocks import TokenEmbedding, mean_over
from dragoman.layers.convolution import GatedConvolution, NormalisedConvolution
from dragoman.layers.positions import AddedPositionsConfig, LearnedConfig, added_positions
from dragoman.models.contracts import Memory, State

HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True)
class ConvS2SStackConfig:
    """What encoder and decoder have in common: gated convolutions with residuals around them."""

    layers: Size = setting(6, help="convolutions in the stack")
    embedding: Size = setting(512, help="size of the embeddings, and of what the stack gives")
    width: Size = setting(512, help="outputs of every convolution")
    kernel: Size = setting(3, help="positions that a convolution sees")
    widths: tuple[Size, ...] = setting((), help="outputs layer by layer, in place of width")
    kernels: tuple[Size, ...] = setting((), help="positions seen layer by layer, in place of kernel")
    dropout: Share = setting(0.1, help="on embeddings, before every convolution and at the end")
    positions: AddedPositionsConfig = setting(LearnedConfig(), help="how a token's place is told")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        for name in ("widths", "kernels"):
            given = len(getattr(self, name))
            if given not in (0, self.layers):
                yield f"{name}: found {given} numbers, expected one for each of layers = {self.layers}"

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Inputs, outputs and kernel of every layer; the first one reads what it writes."""
        outputs = self.widths or (self.width,) * self.layers
        kernels = self.kernels or (self.kernel,) * self.layers
        return list(zip((outputs[0], *outputs), outputs, kernels, strict=False))


@dataclass(frozen=True)
class ConvS2SEncoderConfig(ConvS2SStackConfig):
    """Gated convolutions that see both sides."""

    kind: ClassVar[str] = "convs2s"
    attentions: Size | None = setting(
        None, help="attention layers that will read it: its gradients are divided by twice that; none: its own layers"
    )


@dataclass(frozen=True)
class ConvS2SDecoderConfig(ConvS2SStackConfig):
    """Gated convolutions over the past; every one attends over the memory."""

    kind: ClassVar[str] = "convs2s"
    output: Size | None = setting(
        None, help="size of the vectors given to the output layer; none: that of the embeddings, as tying them needs"
    )

    @property
    def output_width(self) -> int:
        """Size of the vectors the output layer sees."""
        return self.output or self.embedding


class ConvS2SInput(nn.Module):
    """Embedding plus positions, then dropout (section 3.1)."""

    def __init__(self, config: ConvS2SStackConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = added_positions(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, E)."""
        out: Tensor = self.dropout(self.positions(self.embedding(tokens), start))
        return out


def shortcut(inputs: int, outputs: int) -> nn.Module:
    """The way around a layer: straight, or projected where the sizes differ."""
    return nn.Identity() if inputs == outputs else NormalisedConvolution(inputs, outputs)


class ScaledGradient(torch.autograd.Function):
    """The same numbers; the gradient that comes back is scaled."""

    @staticmethod
    def forward(context: Any, x: Tensor, scale: float) -> Tensor:
        """x as it is."""
        context.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The scaled gradient."""
        return gradients[0] * context.scale, None


class ConvS2SEncoderLayer(nn.Module):
    """One gated convolution of the encoder and the residual around it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.around = shortcut(inputs, outputs)
        self.convolution = GatedConvolution(inputs, outputs, kernel, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D')."""
        out: Tensor = (self.convolution(x, mask) + self.around(x)) * HALF
        return out


class ConvS2SEncoder(nn.Module):
    """Tokens to memory: keys z from the stack, values (z + e)·√½ with the embeddings e (section 3.3).

    All attention layers send gradients back; those of the stack are scaled by 1 / (2 × attention layers), those of
    the embeddings are not (section 3.5). The final state is the mean of the values over real positions.
    """

    def __init__(self, config: ConvS2SEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.embedding
        self.input = ConvS2SInput(config, embedding)
        shapes = config.shapes
        self.enter = NormalisedConvolution(config.embedding, shapes[0][0], gain=1 - config.dropout)
        self.layers = nn.ModuleList(ConvS2SEncoderLayer(*shape, config.dropout) for shape in shapes)
        self.leave = NormalisedConvolution(shapes[-1][1], config.embedding)
        self.gradient = 1 / (2 * (config.attentions or config.layers))

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        embedded = self.input(source, 0)  # (B, S, E)
        x = self.enter(embedded)
        for layer in self.layers:
            x = layer(x, mask)
        keys: Tensor = ScaledGradient.apply(self.leave(x), self.gradient)  # type: ignore[no-untyped-call]
        values = (keys + embedded) * HALF
        return Memory(keys=keys, values=values, mask=mask, final=(mean_over(values, mask),))


class StepAttention(nn.Module):
    """One layer's look at the memory: d = W h + g asks, softmax(d · z) reads (section 3.3, eq. 1 and 2)."""

    reads_memory = True

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.query = NormalisedConvolution(width, embedding)
        self.output = NormalisedConvolution(embedding, width)

    def forward(self, x: Tensor, embedded: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x (N, T, D), embedded (N, T, E); keys and values (B, 1, S, E), mask (B, S) → (N, T, D)."""
        query = (self.query(x) + embedded) * HALF
        query = query[:, None] * query.shape[-1] ** 0.5  # the paper does not divide by √d as `attend` does
        read = attend(self, query, keys, values, mask=mask[:, None, None])[:, 0]
        out: Tensor = (self.output(read) + x) * HALF
        return out


class ConvS2SDecoderLayer(nn.Module):
    """One causal gated convolution, its attention, and the residual around both."""

    def __init__(self, inputs: int, outputs: int, kernel: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.around = shortcut(inputs, outputs)
        self.convolution = GatedConvolution(inputs, outputs, kernel, dropout)
        self.attention = StepAttention(outputs, embedding)

    def forward(
        self, x: Tensor, past: Tensor, embedded: Tensor, memory: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(N, T, D) → (N, T, D') and the inputs that the next tokens will look back at."""
        out, present = self.convolution.extend(x, past)
        out = self.attention(out, embedded, *memory)
        return (out + self.around(x)) * HALF, present


class ConvS2SDecoder(nn.Module):
    """Memory and target tokens to hidden vectors."""

    def __init__(self, config: ConvS2SDecoderConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__()
        size = config.embedding
        self.width = config.output_width
        self.input = ConvS2SInput(config, embedding)
        self.max_positions = self.input.positions.max_positions
        # Queries live where the embeddings do; an encoder of another size is projected once, for all layers.
        self.key, self.value = shortcut(memory_width, size), shortcut(memory_width, size)
        shapes = config.shapes
        self.enter = NormalisedConvolution(size, shapes[0][0], gain=1 - config.dropout)
        self.layers = nn.ModuleList(ConvS2SDecoderLayer(*shape, size, config.dropout) for shape in shapes)
        self.leave = NormalisedConvolution(shapes[-1][1], self.width)
        self.dropout = nn.Dropout(config.dropout)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (keys, values, mask); cache = per layer the last inputs, whose number never grows."""
        keys, values = self.key(memory.keys), self.value(memory.values)
        # A mean of m vectors has 1/m of their variance: scaled back by √m, here where it costs nothing (section 3.5).
        real = memory.mask.sum(1).to(values.dtype)
        values = values * real.sqrt()[:, None, None]
        cache = tuple(
            layer.convolution.empty(keys.shape[0], keys)  # type: ignore[operator, union-attr]
            for layer in self.layers
        )
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=keys.device)
        return State(static=(keys[:, None], values[:, None], memory.mask), cache=cache, length=length)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        embedded = self.input(tokens, state.length)  # (N, T, E)
        x = self.enter(embedded)
        cache = []
        for layer, past in zip(self.layers, state.cache, strict=True):
            x, present = layer(x, past, embedded, state.static)
            cache.append(present)
        hidden = self.dropout(self.leave(x))
        return hidden, state._replace(cache=tuple(cache), length=state.length + tokens.shape[1])
