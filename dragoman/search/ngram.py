"""An n-gram language model of tokens, for CTC's prefix beam search (FIELD H8): counts, and nothing else.

Interpolated after Witten and Bell (1991): with c(h·) tokens seen after a history h, t(h) of them different, and h' the
history one token shorter,

    p(w | h) = (c(hw) + t(h) · p(w | h')) / (c(h·) + t(h)),

down to an even share for every token that can be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batches import Batch
from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.search.core import NEVER_WRITTEN


class NGram:
    """What follows a text, told by how texts went on after its last tokens; a `Scorer` for `Fusion`."""

    def __init__(self, rows: Iterable[Sequence[int]], vocabulary: int, order: int = 5) -> None:
        """Learn from texts (token ids without <eos>) the n-grams of up to `order` tokens."""
        assert order >= 1
        self.order = order
        counts: dict[tuple[int, ...], Counter[int]] = {}
        for row in rows:
            text = [*[SOS] * (order - 1), *row, EOS]
            for place in range(order - 1, len(text)):
                for size in range(order):
                    history = tuple(text[place - size : place])
                    counts.setdefault(history, Counter())[text[place]] += 1
        self.counts = {
            history: (torch.tensor(list(found)), torch.tensor(list(found.values()), dtype=torch.float64))
            for history, found in counts.items()
        }
        even = torch.ones(vocabulary, dtype=torch.float64)
        even[[token for token in NEVER_WRITTEN if token != EOS]] = 0.0
        self.even = even / even.sum()
        self.known: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        """Log-probabilities (V,) of what follows a text, <eos> too."""
        padded = (*[SOS] * (self.order - 1), *text)
        padded = padded[len(padded) - self.order + 1 :]
        if padded not in self.known:  # many texts end alike
            self.known[padded] = self._following(padded)
        return self.known[padded]

    def _following(self, padded: tuple[int, ...]) -> Tensor:
        """The same for a history as long as any that counts."""
        shares = self.even
        for size in range(self.order):
            found = self.counts.get(padded[len(padded) - size :])
            if found is None:
                break  # a longer history was never seen either
            tokens, counts = found
            seen = torch.zeros_like(shares)
            seen[tokens] = counts
            shares = (seen + len(tokens) * shares) / (counts.sum() + len(tokens))
        return shares.log()


class Neural:
    """The same by a neural language model, which reads a text as a line of its own."""

    def __init__(self, model: Any) -> None:
        """A LanguageModel that does not train."""
        self.model = model

    @torch.no_grad()
    def __call__(self, text: tuple[int, ...]) -> Tensor:
        """Log-probabilities (V,) of what follows a text; −∞ for what is never written."""
        device = next(self.model.parameters()).device
        source = torch.full((1, 1), EOS, device=device)  # a line begins where the one before ended
        state = self.model.start(Batch(source, source != PAD, source.new_empty(1, 0)))
        found: Tensor = self.model.step(torch.tensor([[SOS, *text]], device=device), state)[0][0].double().cpu()
        found[[token for token in NEVER_WRITTEN if token != EOS]] = float("-inf")
        return found
