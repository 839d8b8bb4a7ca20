"""A neural transducer over edit actions: copy, substitute, insert, delete (Makarov and Clematide 2018, 2020).

The score of an output is log p(y | x), the sum over all action sequences that write y. In the papers the recurrent
layers read the actions; here they read the written tokens alone, so that the sum is exact (as in Graves 2012) and a
search over tokens has nothing to approximate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Share, setting
from dragoman.data.tokenizers import EOS, PAD
from dragoman.models.contracts import Memory
from dragoman.models.decoders.monotone import (
    IMPOSSIBLE,
    PADDING,
    Actions,
    ForwardPass,
    MonotoneDecoder,
    MonotoneDecoderBase,
    Source,
    Written,
)
from dragoman.models.heads.softmax import log_probabilities
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.linear import LogProbabilities

INSERT, SUBSTITUTE, DELETE, COPY = range(4)
NEVER = 1e6


def edit_costs(same: Tensor, source_end: Tensor, target_end: Tensor) -> Tensor:
    """The fewest actions that turn the source from position i into the target from token t: (B, T, S).

    same (B, T, S): copying position i writes token t; source_end, target_end (B,): the positions of <eos>. A cost is
    NEVER outside of both texts. For each i the cheapest number of insertions is a running minimum over t.
    """
    rows, length, size = same.shape
    steps = torch.arange(length, device=same.device, dtype=torch.float32)
    left = target_end[:, None] - steps
    at_end = left.masked_fill(left < 0, NEVER)  # (B, T): insert what is left
    columns = [at_end.new_full((rows, length), NEVER)]
    for i in reversed(range(size)):
        right = columns[-1]
        diagonal = torch.cat([right[:, 1:], right.new_full((rows, 1), NEVER)], 1)
        move_on = torch.minimum(right + 1, diagonal + (~same[:, :, i]).float())
        insert = (move_on + steps).flip(1).cummin(1).values.flip(1) - steps  # move on at some t' ≥ t
        columns.append(torch.where((source_end == i)[:, None], at_end, insert))
    return torch.stack(columns[:0:-1], 2).clamp_(max=NEVER)


def optimal_edits(same: Tensor, source_end: Tensor, target_end: Tensor) -> Tensor:
    """Which edits are optimal at position i with t tokens written: (B, T, S, 4); insertion at the end is the end.

    Insertion, substitution and copy write token t.
    """
    costs = edit_costs(same, source_end, target_end)
    rows, length, size = costs.shape
    written = torch.cat([costs[:, 1:], costs.new_full((rows, 1, size), NEVER)], 1)
    positions, steps = torch.arange(size, device=same.device), torch.arange(length, device=same.device)
    at_end = positions == source_end[:, None]  # (B, S)
    done = steps == target_end[:, None]  # (B, T)

    def next_position(table: Tensor) -> Tensor:
        return torch.cat([table[:, :, 1:], table.new_full((rows, length, 1), NEVER)], 2)

    move_on = next_position(written).masked_fill(done[:, :, None], NEVER)
    end = (at_end[:, None] & done[:, :, None]).float()  # it costs nothing
    every = torch.stack(
        [
            torch.where(end > 0, 0.0, (written + 1).masked_fill(done[:, :, None], NEVER)),
            move_on + 1,
            next_position(costs) + 1,
            move_on.masked_fill(~same, NEVER),
        ],
        -1,
    )
    every[..., SUBSTITUTE:].masked_fill_(at_end[:, None, :, None], NEVER)
    best = every.amin(-1, keepdim=True)
    return (every == best) & (best < NEVER)


@dataclass(frozen=True)
class EditTransducerConfig(MonotoneDecoderBase):
    """At a source position: write a token and stay, write one and move on, copy the source token, or delete it."""

    kind: ClassVar[str] = "edit-transducer"
    expert: Share = setting(
        0.0,
        help="share of imitation learning in the loss: an expert names the actions that lead to the target with the "
        "fewest edits, wherever the model may be in the source; the rest is the likelihood",
    )


class EditTransducer(MonotoneDecoder):
    """One softmax over all actions at every source position: V insertions, V substitutions, deletion, copying.

    The output layer scores substitutions. At the last position (<eos>) there are only insertions; that of <eos> ends
    the output.
    """

    def __init__(self, config: EditTransducerConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__(config, embedding, memory_width)
        self.expert = config.expert

    def set_output(self, layer: nn.Linear) -> LogProbabilities:
        readout = layer.in_features
        self.insert = nn.Linear(readout, layer.out_features)
        self.other = nn.Linear(readout, 2)  # delete, copy
        nn.init.normal_(self.insert.weight, std=readout**-0.5)
        nn.init.zeros_(self.insert.bias)
        with torch.no_grad():  # at first copying is as likely as all substitutions together, so that it is tried
            self.other.bias.copy_(torch.tensor([0.0, math.log(layer.out_features)]))
        return super().set_output(layer)

    def first_actions(self, like: Tensor) -> tuple[Tensor, ...]:
        insert, others = (
            like.new_zeros(*like.shape, self.width),
            like.new_full((*like.shape, self.width + 2), IMPOSSIBLE),
        )
        return (torch.cat([insert, others], -1),)

    def read(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """PADDING at positions that do not exist (B, S); whether a position is the last (B, S, 1)."""
        mask = memory.mask
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = positions == (positions * mask).amax(1, keepdim=True)
        bias = torch.zeros(mask.shape, device=mask.device, dtype=torch.float32).masked_fill(~mask, PADDING)
        return bias, last[:, :, None]

    def actions(self, states: Tensor, source: Source) -> Actions:
        readout = self.readout(self.target_readout(states, source), source)
        rows, length, size = readout.shape[:3]
        logits = torch.cat([self.insert(readout), self.output(readout), self.other(readout)], -1)
        by_source = logits.view(source.keys.shape[0], -1, *logits.shape[2:])
        allowed = by_source.masked_fill(self.forbidden(source)[:, None], IMPOSSIBLE)
        actions = log_probabilities(allowed).view(rows, length, size, -1)
        return Actions((actions,), (left_of(actions[..., -2]),))

    def forbidden(self, source: Source) -> Tensor:
        """Which actions cannot happen: (B, S, 2V + 2)."""
        end = source.keys  # (B, S, 1)
        stops = torch.arange(self.width, device=end.device) == EOS
        insert = ~end & stops
        copy = end | (source.copied == PAD)[:, :, None]
        return torch.cat([insert, end | stops, end, copy], -1)

    def combine(self, losses: Tensor, passed: ForwardPass, actions: Actions, target: Tensor, source: Source) -> Tensor:
        """Mix in imitation learning (Makarov and Clematide 2018, eq. 5): −log of all optimal actions together.

        The model's own weights say how likely it is at each position, so the expert answers wherever the model goes.
        """
        if not (self.training and self.expert):
            return losses
        insert, substitute, copy = self.writing(actions.tokens, target)
        every = torch.stack([insert, substitute, self.deletion(actions.tokens), copy], -1)  # (N, T, S, 4)
        end = source.keys[..., 0].long().argmax(1)  # (B,)
        optimal = optimal_edits(self._same(target, source), end, (target != PAD).sum(1) - 1)
        imitation = -every.masked_fill(~optimal, IMPOSSIBLE).logsumexp(-1)
        visits = torch.stack(passed.weights, 1).detach().exp() * optimal.any(-1)  # (N, T, S)
        return (1 - self.expert) * losses + self.expert * (visits * imitation).sum(-1)

    def _same(self, tokens: Tensor, source: Source) -> Tensor:
        """Whether copying position i writes token t: tokens (N, T) → (N, T, S)."""
        same = source.copied[:, None] == tokens.reshape(
            source.copied.shape[0], tokens.numel() // source.copied.shape[0], 1
        )  # (B, k·T, S)
        return same.view(*tokens.shape, source.copied.shape[1])

    def writing(self, actions: Sequence[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Insertion, substitution and copying of given tokens (N, T) at every position: (N, T, S) each."""
        (table,) = actions  # (N, T, S, A)
        columns = torch.stack([tokens, tokens + self.width, torch.full_like(tokens, table.shape[-1] - 1)], -1)
        insert, substitute, copy = table.gather(-1, columns[:, :, None].expand(-1, -1, table.shape[2], -1)).unbind(-1)
        return insert, substitute, copy

    def deletion(self, actions: Sequence[Tensor]) -> Tensor:
        """Deletion of every position: (N, T, S)."""
        return actions[0][..., -2]

    def written(self, actions: Sequence[Tensor], tokens: Tensor, source: Source) -> list[Written]:
        stay, substitute, copy = self.writing(actions, tokens)
        advance = torch.logaddexp(substitute, copy.masked_fill(~self._same(tokens, source), IMPOSSIBLE))
        return [Written(*both) for both in zip(stay.unbind(1), advance.unbind(1), strict=True)]

    def mixture(self, weights: Tensor, actions: Sequence[Tensor], source: Source) -> tuple[Tensor, Tensor]:
        (table,) = actions
        rows, length, size = table.shape[:3]
        stay, substitute, _, copy = torch.split(table, [self.width, self.width, 1, 1], -1)
        same = torch.arange(self.width, device=copy.device) == source.copied[:, :, None]  # (B, S, V)
        copies = copy.view(same.shape[0], -1, size, 1).masked_fill(~same[:, None], IMPOSSIBLE)
        written = torch.logaddexp(torch.logaddexp(stay, substitute), copies.view(rows, length, size, -1))
        joint = weights[..., None] + written  # (N, T, S, V)
        return joint.logsumexp(2), joint.logsumexp(3)

    def move(self, after: Tensor, step: Sequence[Tensor], source: Source) -> Tensor:
        """Delete any number of source tokens: log Σ_{i ≤ j} exp(after_i) Π_{i ≤ l < j} p(delete l)."""
        (deleted,) = step
        moved = (torch.logcumsumexp(after - deleted, -1) + deleted).view(source.bias.shape[0], -1, after.shape[1])
        return (moved + source.bias[:, None]).view_as(after)


def left_of(deletions: Tensor) -> Tensor:
    """The log-probability of deleting everything left of a position: (…, S) → (…, S)."""
    return F.pad(deletions.cumsum(-1)[..., :-1], (1, 0))
