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

from dragoman.config.settings import Share, setting
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.layers.edit_expert import optimal_edits
from dragoman.layers.embeddings import Embedding
from dragoman.layers.monotone import IMPOSSIBLE, ForwardPass, Written, forward_bias, last_position
from dragoman.models.contracts import Memory
from dragoman.models.decoders.monotone import Actions, MonotoneDecoder, MonotoneDecoderBase, Source, move_forward
from dragoman.models.heads.softmax import log_probabilities


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

    def set_output(self, layer: nn.Linear) -> None:
        """Take the output layer, and add those of the other actions."""
        readout = layer.in_features
        self.insert = nn.Linear(readout, layer.out_features)
        self.other = nn.Linear(readout, 2)  # delete, copy
        nn.init.normal_(self.insert.weight, std=readout**-0.5)
        nn.init.zeros_(self.insert.bias)
        with torch.no_grad():  # at first copying is as likely as all substitutions together, so that it is tried
            self.other.bias.copy_(torch.tensor([0.0, math.log(layer.out_features)]))
        super().set_output(layer)

    def first_actions(self, like: Tensor) -> Tensor:
        """Insertions are certain."""
        insert, others = (
            like.new_zeros(*like.shape, self.width),
            like.new_full((*like.shape, self.width + 2), IMPOSSIBLE),
        )
        return torch.cat([insert, others], -1)

    def read(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """The bias of moves; (B, S, 1): whether a position is the last."""
        return forward_bias(memory.mask, monotone=True), last_position(memory.mask)[:, :, None]

    def actions(self, states: Tensor, readout: Tensor, source: Source) -> Actions:
        """All actions; between two tokens, source tokens are deleted."""
        rows, length, size = readout.shape[:3]
        logits = torch.cat([self.insert(readout), self.output(readout), self.other(readout)], -1)
        by_source = logits.view(source.keys.shape[0], -1, *logits.shape[2:])
        allowed = by_source.masked_fill(self._forbidden(source)[:, None], IMPOSSIBLE)
        actions = log_probabilities(allowed).view(rows, length, size, -1)
        deleted = F.pad(actions[..., -2].cumsum(-1)[..., :-1], (1, 0))  # (N, T, S) everything left of a position
        return Actions(actions, (deleted,))

    def _forbidden(self, source: Source) -> Tensor:
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
        insert, substitute, copy = self._writing(actions.tokens, target).unbind(-1)
        every = torch.stack([insert, substitute, actions.tokens[..., -2], copy], -1)  # (N, T, S, 4)
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

    def _writing(self, actions: Tensor, tokens: Tensor) -> Tensor:
        """Actions (N, T, S, A) that may write given tokens (N, T): insertion, substitution, copy (N, T, S, 3)."""
        columns = torch.stack([tokens, tokens + self.width, torch.full_like(tokens, actions.shape[-1] - 1)], -1)
        return actions.gather(-1, columns[:, :, None].expand(-1, -1, actions.shape[2], -1))

    def written(self, actions: Tensor, tokens: Tensor, source: Source) -> list[Written]:
        """An insertion stays; a substitution or a copy moves on."""
        stay, substitute, copy = self._writing(actions, tokens).unbind(-1)
        advance = torch.logaddexp(substitute, copy.masked_fill(~self._same(tokens, source), IMPOSSIBLE))
        return [Written(*both) for both in zip(stay.unbind(1), advance.unbind(1), strict=True)]

    def mixture(self, actions: Tensor, source: Source) -> Tensor:
        """Insertion, substitution or copy."""
        rows, length, size = actions.shape[:3]
        stay, substitute, _, copy = torch.split(actions, [self.width, self.width, 1, 1], -1)
        same = torch.arange(self.width, device=copy.device) == source.copied[:, :, None]  # (B, S, V)
        copies = copy.view(same.shape[0], -1, size, 1).masked_fill(~same[:, None], IMPOSSIBLE)
        return torch.logaddexp(torch.logaddexp(stay, substitute), copies.view(rows, length, size, -1))

    def move(self, after: Tensor, step: Sequence[Tensor], source: Source) -> Tensor:
        """Delete any number of source tokens."""
        (deleted,) = step
        return move_forward(after, -deleted, deleted, source.bias)
