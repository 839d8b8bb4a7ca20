"""An n-gram language model of tokens, for CTC's prefix beam search (FIELD H8): counts, and nothing else.

Interpolated after Witten and Bell (1991): with c(h·) tokens seen after a history h, t(h) of them different, and h' the
history one token shorter,

    p(w | h) = (c(hw) + t(h) · p(w | h')) / (c(h·) + t(h)),

down to an even share for every token that can be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.hypothesis import NEVER_WRITTEN
from dragoman.errors import DataError
from dragoman.models.contracts import State, join_tensors

KEPT = 50_000_000  # numbers that an n-gram model keeps of what it has told
Text = tuple[int, ...]


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

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of what follows each text, <eos> too."""
        return torch.stack([self.after(text) for text in texts])

    def after(self, text: Text) -> Tensor:
        """Those of one text (V,)."""
        padded = (*[SOS] * (self.order - 1), *text)
        padded = padded[len(padded) - self.order + 1 :]
        if padded not in self.known:  # many texts end alike
            if len(self.known) * len(self.even) > KEPT:
                self.known.clear()
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


class Told(NamedTuple):
    """What a neural model knows of texts of one size."""

    places: dict[Text, int]  # the row of each
    following: Tensor  # (N, V)
    state: State


class Neural:
    """The same by a neural language model, which reads a text as a line of its own.

    Texts that were asked for the last time, and those that are one token longer, are not read again from their start.
    """

    def __init__(self, model: Any, name: str = "the language model") -> None:
        """A LanguageModel that does not train; `name` says which in an error."""
        self.model, self.name = model, name
        self.told: dict[int, Told] = {}  # by size

    @torch.no_grad()
    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of what follows each text; −∞ for what is never written."""
        sizes: dict[int, list[Text]] = {}
        for text in dict.fromkeys(texts):
            sizes.setdefault(len(text), []).append(text)
        told: dict[int, Told] = {}
        for size in sorted(sizes):
            try:
                told[size] = self._told(sizes[size], told.get(size - 1))
            except DataError as error:  # longer than it can read
                raise DataError(f"{self.name}: {error}") from None
        self.told = told
        found = torch.stack([told[len(text)].following[told[len(text)].places[text]] for text in texts]).double()
        found[:, [token for token in NEVER_WRITTEN if token != EOS]] = float("-inf")
        return found

    def _told(self, texts: list[Text], shorter: Told | None) -> Told:
        """What follows texts of one size; `shorter` is what was just told of some that are one token shorter."""
        size = len(texts[0])
        before, parents = self.told.get(size), [one for one in (shorter, self.told.get(size - 1)) if one is not None]
        order: list[Text] = []
        following: list[Tensor] = []
        states: list[State] = []

        def tell(some: list[Text], found: tuple[Tensor, State]) -> None:
            order.extend(some)
            following.append(found[0].cpu())
            states.append(found[1])

        rest = texts
        if before is not None and (known := [text for text in rest if text in before.places]):
            rows = [before.places[text] for text in known]
            tell(known, (before.following[rows], before.state.select(self._tensor(rows))))
            rest = [text for text in rest if text not in before.places]
        for parent in parents:
            if grown := [text for text in rest if text[:-1] in parent.places]:
                state = parent.state.select(self._tensor([parent.places[text[:-1]] for text in grown]))
                tell(grown, self.model.step(self._tensor([text[-1] for text in grown]), state))
                rest = [text for text in rest if text[:-1] not in parent.places]
        if rest:
            source = torch.full((len(rest), 1), EOS, device=self._device)  # a line begins where the one before ended
            state = self.model.start(Batch(source, source != PAD, source.new_empty(len(rest), 0)))
            tell(rest, self.model.step(self._tensor([[SOS, *text] for text in rest]), state))
        whole = states[0]._replace(
            static=join_tensors([state.static for state in states]),
            cache=join_tensors([state.cache for state in states]),
        )
        return Told({text: place for place, text in enumerate(order)}, torch.cat(following), whole)

    @property
    def _device(self) -> torch.device:
        found: torch.device = next(self.model.parameters()).device
        return found

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._device)
