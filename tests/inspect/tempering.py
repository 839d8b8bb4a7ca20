"""The probabilities of the next token as the page computes them, in Python."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.inspect.views.next_tokens import NextTokenTable


def tempered(next_: NextTokenTable, step: int, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The probabilities (K,) of one step's top tokens after temperature, top-k and top-p, as the page computes them.

    `temperature` must be one of `next_.temperatures`. Tokens that are cut off have probability 0.
    """
    logits = next_.logits[step] / temperature
    kept = torch.ones_like(logits, dtype=torch.bool)
    rest = next_.rest[step, next_.temperatures.index(temperature)]
    if top_k:
        kept &= torch.arange(len(logits)) < top_k
        rest = rest.new_tensor(-torch.inf) if top_k <= len(logits) else rest
    total = torch.cat([logits.masked_fill(~kept, -torch.inf), rest[None]]).logsumexp(0)
    probabilities = (logits.masked_fill(~kept, -torch.inf) - total).exp()
    if top_p < 1.0:  # the smallest set of tokens that reaches top_p
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
        probabilities = probabilities / probabilities.sum()
    return probabilities
