"""Linear layers and their initialisation."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """A linear layer that may get an adapter (`train.lora`): those of Transformer blocks, no output layer."""


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
