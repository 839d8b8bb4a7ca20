"""A neural transducer over edit actions: copy, substitute, insert, delete (Makarov and Clematide 2018, 2020).

The score of an output is log p(y | x), the sum over all action sequences that write y. In the papers the recurrent
layers read the actions; here they read the written tokens alone, so that the sum is exact (as in Graves 2012) and a
search over tokens has nothing to approximate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.layers.monotone import IMPOSSIBLE, deletions, last_position
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.monotone import Emissions, MonotoneDecoder, MonotoneDecoderBase
from dragoman.models.heads.softmax import log_probabilities


@dataclass(frozen=True)
class EditTransducerConfig(MonotoneDecoderBase):
    """At a source position: write a token and stay, write one and move on, copy the source token, or delete it."""

    kind: ClassVar[str] = "edit-transducer"


class EditTransducer(MonotoneDecoder):
    """One softmax over all actions at every source position.

    The output layer scores substitutions, a second layer insertions, deletion and copying. At the last position
    (<eos>) there are insertions and the end, which is the substitution of <eos> by <eos>.
    """

    num_emissions = 2

    def set_output(self, layer: nn.Linear) -> None:
        """Take the output layer, and add those of the other actions."""
        readout = layer.in_features
        self.insert = nn.Linear(readout, layer.out_features, bias=False)
        self.other = nn.Linear(readout, 2)  # delete, copy
        nn.init.normal_(self.insert.weight, std=readout**-0.5)
        super().set_output(layer)

    def read(self, memory: Memory) -> tuple[Tensor, ...]:
        """Which actions cannot happen (B, S, 2V + 2): insertions, substitutions, deletion, copying; tokens to copy."""
        end = last_position(memory.mask)[:, :, None]  # (B, S, 1)
        rows, length = memory.mask.shape
        copied = memory.mask.new_zeros(rows, length, dtype=torch.long) if memory.tokens is None else memory.tokens
        stops = torch.arange(self.width, device=end.device) == EOS
        insert = stops.expand(rows, length, -1)
        substitute = torch.where(end, ~stops, stops)
        copy = end | (copied == PAD)[:, :, None]
        return torch.cat([insert, substitute, end, copy], -1), copied

    def emissions(self, states: Tensor, readout: Tensor, state: State) -> tuple[Emissions, Tensor]:
        """Insertions stay, substitutions and copies move on, deletions move in between; <eos> stays at the end."""
        mask, _, forbidden, copied = state.static
        rows, length = readout.shape[:2]
        logits = torch.cat([self.insert(readout), self.output(readout), self.other(readout)], -1)
        by_source = logits.view(mask.shape[0], -1, *logits.shape[2:])  # (B, k·T, S, 2V + 2)
        actions = log_probabilities(by_source.masked_fill(forbidden[:, None], IMPOSSIBLE))
        stay, advance, delete, copy = torch.split(actions, [self.width, self.width, 1, 1], -1)
        same = torch.arange(self.width, device=mask.device) == copied[:, :, None]  # (B, S, V)
        advance = torch.logaddexp(advance, copy.masked_fill(~same[:, None], IMPOSSIBLE))
        # The end of the output stays at the end of the source, where nothing is substituted.
        end = last_position(mask)[:, None, :, None]  # (B, 1, S, 1)
        stay = torch.where(end, torch.logaddexp(stay, advance), stay)
        advance = advance.masked_fill(end, IMPOSSIBLE)
        moves = deletions(delete[..., 0], mask[:, None])
        stay, advance, moves = (table.reshape(rows, length, *table.shape[2:]) for table in (stay, advance, moves))
        return (stay, advance), moves
