"""The position-wise feed-forward layer of the Transformer (Vaswani et al. 2017, section 3.3) and its gated form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.kernels.fused_layers import activate, activated_linear
from dragoman.models.layers.linear import Linear, glorot

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # the approximation of T5 and GPT-2
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """W₂ activation(W₁ x + b₁) + b₂ at every position.

    Gated (Shazeer 2020): W₂ (activation(W_g x) ⊙ W₁ x), SwiGLU with silu, GEGLU with gelu.
    """

    def __init__(
        self, width: int, inner: int, activation: str, dropout: float, bias: bool = True, gated: bool = False
    ) -> None:
        super().__init__()
        self.gate = Linear(width, inner, bias=bias) if gated else None
        self.widen = Linear(width, inner, bias=bias)
        self.narrow = Linear(inner, width, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)
        for linear in (self.gate, self.widen, self.narrow):
            if linear is not None:
                glorot(linear)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None and type(self.widen) is Linear and not self.training:
            inner = activated_linear(self.widen, x, self.activation)
            if inner is not None:
                return self.narrow(inner)
        gate, rate = None if self.gate is None else self.gate(x), self.dropout.p if self.training else 0.0
        return self.narrow(activate(self.widen(x), gate, self.activation, ACTIVATIONS[self.activation], rate))
