"""Linear layers, their initialisation, and low-rank adapters (LoRA; Hu et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels import deferred_gradients, fused_layers
from dragoman.models.kernels.cpu_dropout import Dropout


class Linear(nn.Linear):
    """A linear layer that may get an adapter (`train.lora`): those of Transformer blocks, no output layer."""

    def forward(self, x: Tensor) -> Tensor:
        if fused_layers.fuses_linear(x):
            return fused_layers.linear(x, self)
        return F.linear(x, self.weight, self.bias)


class StepLinear(nn.Linear):
    """A linear layer inside a loop over time; see `kernels.deferred_gradients`."""

    def forward(self, x: Tensor) -> Tensor:
        return deferred_gradients.linear(x, self.weight, self.bias)


class FirstRowsLinear(nn.Linear):
    """A linear layer that uses the first rows of a weight table shared with others, which has more rows."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, V), V ≤ the rows of the table."""
        return F.linear(x, self.weight[: self.out_features], self.bias)


class LogProbabilities(nn.Module):
    """The output layer of a model whose decoder gives log-probabilities already: it changes nothing.

    Log-probabilities are logits too: a softmax leaves them as they are.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.out_features = vocabulary

    def forward(self, x: Tensor) -> Tensor:
        """(…, V) → (…, V)."""
        return x


def output_layer(
    width: int, vocabulary: int, table: nn.Parameter | None = None, *, bias: bool = False, tags: int = 0
) -> nn.Linear:
    """Hidden vectors → logits; `table` is an embedding table to share, with rows for `tags` after the vocabulary."""
    layer = (FirstRowsLinear if tags else nn.Linear)(width, vocabulary, bias=bias)
    if bias:
        nn.init.zeros_(layer.bias)
    if table is None:
        nn.init.normal_(layer.weight, std=width**-0.5)
    else:
        layer.weight = table
    return layer


def glorot(layer: nn.Linear, gain: float = 1.0) -> None:
    """Initialise the weights as in Glorot and Bengio 2010, and the bias with zeros."""
    nn.init.xavier_uniform_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class LoRALinear(Linear):
    """y = W x + b + (α / r) B A dropout(x), with A (r, I) and B (O, r). B begins with zeros: W alone counts at first.

    It takes the place of a linear layer and shares its weight and bias, whose names stay the same.
    """

    def __init__(self, layer: Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(self.weight.new_empty(rank, self.in_features))
        self.lora_B = nn.Parameter(self.weight.new_zeros(self.out_features, rank))
        self.dropout = Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = nn.functional.linear(self.dropout(x), self.lora_A)  # (…, r)
        return super().forward(x) + self.scale * nn.functional.linear(low, self.lora_B)


@torch.no_grad()
def merge(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """W + (α / r) B A, computed in float64."""
    return (weight.double() + scale * (up.double() @ down.double())).to(weight.dtype)
