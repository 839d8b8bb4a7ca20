"""Low-rank adapters (LoRA; Hu et al. 2022): a frozen matrix plus a trained product of two small ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dragoman.layers.dropout import Dropout
from dragoman.layers.linear import Linear


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
        """(…, I) → (…, O)."""
        low = nn.functional.linear(self.dropout(x), self.lora_A)  # (…, r)
        return super().forward(x) + self.scale * nn.functional.linear(low, self.lora_B)


@torch.no_grad()
def merge(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """W + (α / r) B A, computed in float64."""
    return (weight.double() + scale * (up.double() @ down.double())).to(weight.dtype)
