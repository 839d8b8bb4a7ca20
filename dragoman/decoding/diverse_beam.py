"""Diverse outputs: a beam in groups that keep away from each other's tokens (Vijayakumar et al. 2016).

Each group is a beam search of its own, as if its source stood in the batch once for every group. They meet in one
place alone: before a group chooses, every token costs it `diversity` for each hypothesis of an earlier group of its
source that goes on with that token at this step (the paper's Hamming diversity). The cost decides what is chosen, never
what it is worth: scores stay those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import ConfigError

NOTHING = float("-inf")
# Candidates (B', k, V), the same without wishes, the numbers (B',) of their blocks → scores, flat places, may complete
Choose = Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor, Tensor]]


class Groups:
    """How a beam is divided: blocks g, g + 1, … of the batch are the groups of one source."""

    def __init__(self, count: int, diversity: float) -> None:
        self.count = count
        self.diversity = diversity

    def width(self, beam: int) -> int:
        """How many hypotheses each group keeps."""
        if beam % self.count:
            raise ConfigError(f"search.beam_groups: found {self.count}, expected a divisor of the beam of {beam}")
        return beam // self.count

    def rows(self, sources: int, device: torch.device) -> Tensor:
        """Which source each block is."""
        return torch.arange(sources, device=device).repeat_interleave(self.count)

    def choose(
        self, place: Tensor, candidates: Tensor, unwished: Tensor | None, choose: Choose, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What every block chose of its candidates (B, k, V): what it was ranked by, flat places, may complete: (B, C).

        `place` (B,) tells which each block was at the start. One group after another chooses, of all sources at once;
        a group whose search is over costs the others nothing any more.
        """
        vocabulary = candidates.shape[2]
        owner = place.div(self.count, rounding_mode="floor")
        source = (owner != owner.roll(1)).cumsum(0) % len(place)  # the sources that are left, numbered anew
        taken = candidates.new_zeros(len(place), vocabulary)  # how often groups of a source went on with each token
        found: list[tuple[Tensor, ...]] = []
        for group in range(self.count):
            rows = (place % self.count == group).nonzero()[:, 0]
            if not len(rows):
                continue
            cost = self.diversity * taken[source[rows], None]
            others = None if unwished is None else unwished[rows] - cost
            ranked, index, ahead = choose(candidates[rows] - cost, others, rows)
            token = index % vocabulary
            going = ranked.masked_fill(token == EOS, NOTHING)
            going, order = going.sort(dim=1, descending=True, stable=True)
            chosen = (source[rows, None].expand(-1, width), token.gather(1, order[:, :width]))
            taken.index_put_(chosen, (going[:, :width] > NOTHING).to(taken), accumulate=True)
            found.append((rows, ranked, index, ahead))
        rows, ranked, index, ahead = (torch.cat(column) for column in zip(*found, strict=True))
        back = rows.argsort()
        return ranked[back], index[back], ahead[back]

    def together(self, found: Sequence[list[Hypothesis]], most: int) -> list[list[Hypothesis]]:
        """The outputs of all groups of a source: the best of every group before any second one, each output once."""
        out = []
        for first in range(0, len(found), self.count):
            groups = sorted(
                (one for one in found[first : first + self.count] if one), key=lambda one: -one[0].normalised
            )
            in_turn = (one for one in chain.from_iterable(zip_longest(*groups)) if one is not None)
            once: dict[tuple[int, ...], Hypothesis] = {}
            for one in in_turn:
                if len(once) < most:
                    once.setdefault(one.tokens, one)
            out.append(sorted(once.values(), key=lambda one: -one.normalised))
        return out
