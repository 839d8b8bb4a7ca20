"""An edit transducer for sentences: it copies the source from left to right and edits what it must.

The edit transducer has a softmax over all tokens at every source position, T·S·V numbers for a pair. Here the softmax
belongs to the step, and a source position only chooses between insertion, substitution, deletion, copy and stop:
T·(S + V) numbers, so that sentences and large vocabularies fit. The softmax reads a context of soft attention.

    p(y_t | y_<t, x) = Σ_i w_i [(p_insert(i) + p_substitute(i)) P(y_t) + p_copy(i) 1(x_i = y_t)]
    p(<eos> | y_<t, x) = w_S p_stop(S)

with w_i the forward variable of the position. It is a pointer-generator (See et al. 2017) whose pointer is the position
of an edit transducer (Makarov and Clematide 2018). Before training it copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.base.config import setting
from dragoman.data.tokenizers import EOS, PAD
from dragoman.models.decoders.edit_transducer import EditTransducer, EditTransducerConfig, left_of
from dragoman.models.decoders.monotone import IMPOSSIBLE, Actions, Source
from dragoman.models.heads.softmax import log_probabilities
from dragoman.models.layers.linear import LogProbabilities

INSERT, SUBSTITUTE, DELETE, COPY, STOP = range(5)
COPIES_AT_FIRST = 3.0  # logit of copying before training: 87 % of all actions


@dataclass(frozen=True)
class CopyTransducerConfig(EditTransducerConfig):
    """Copies the source from left to right; one softmax over the vocabulary for what it substitutes or inserts."""

    kind: ClassVar[str] = "copy-transducer"
    copies_at_first: ClassVar[bool] = True  # an untrained model copies its source
    context: bool = setting(True, help="the softmax sees a context of soft attention over the whole source")


class CopyTransducer(EditTransducer):
    """Actions = (choices (N, T, S, 5), log-probabilities of tokens (N, T, V) without <eos>)."""

    def set_output(self, layer: nn.Linear) -> LogProbabilities:
        self.choice = nn.Linear(layer.in_features, 5)
        with torch.no_grad():
            self.choice.bias.zero_()[COPY] = COPIES_AT_FIRST
        return super(EditTransducer, self).set_output(layer)

    def first_actions(self, like: Tensor) -> tuple[Tensor, ...]:
        choices = like.new_full((*like.shape, 5), IMPOSSIBLE)
        choices[..., INSERT] = 0.0
        return choices, like.new_zeros(like.shape[0], self.width)

    def actions(self, states: Tensor, source: Source) -> Actions:
        """At the last position (<eos>) there are insertions and the stop, elsewhere all but the stop."""
        target = self.target_readout(states, source)
        logits = self.choice(self.readout(target, source))  # (N, T, S, 5)
        by_source = logits.view(source.keys.shape[0], -1, *logits.shape[2:])
        choices = log_probabilities(by_source.masked_fill(self.forbidden(source)[:, None], IMPOSSIBLE)).view_as(logits)
        tokens = self.output(self.readout_dropout(torch.tanh(target)))
        stops = torch.arange(self.width, device=tokens.device) == EOS
        return Actions(
            (choices, log_probabilities(tokens.masked_fill(stops, IMPOSSIBLE))), (left_of(choices[..., DELETE]),)
        )

    def forbidden(self, source: Source) -> Tensor:
        end = source.keys[..., 0]  # (B, S)
        return torch.stack([torch.zeros_like(end), end, end, end | (source.copied == PAD), ~end], -1)

    def writing(self, actions: Sequence[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        choices, table = actions
        written = table.gather(-1, tokens[:, :, None])  # (N, T, 1)
        insert = torch.where(tokens[:, :, None] == EOS, choices[..., STOP], choices[..., INSERT] + written)
        return insert, choices[..., SUBSTITUTE] + written, choices[..., COPY]

    def deletion(self, actions: Sequence[Tensor]) -> Tensor:
        return actions[0][..., DELETE]

    def mixture(self, weights: Tensor, actions: Sequence[Tensor], source: Source) -> tuple[Tensor, Tensor]:
        """The softmax, the copies of the source and the stop, each with the weights of the positions that choose it."""
        choices, table = actions
        insert, substitute, _, copy, stop = (weights[..., None] + choices).unbind(-1)  # (N, T, S)
        own = torch.logaddexp(insert, substitute)
        generated = table + own.logsumexp(-1, keepdim=True)  # (N, T, V)
        copied = source.copied[:, None].expand(-1, copy.numel() // source.copied.numel(), -1).reshape(copy.shape)
        largest = copy.amax(-1, keepdim=True)  # (N, T, 1)
        mass = torch.zeros_like(generated).scatter_add(2, copied, (copy - largest).exp())
        copies = mass.clamp(min=torch.finfo(mass.dtype).tiny).log() + largest
        out = torch.logaddexp(generated, copies.masked_fill(mass == 0, IMPOSSIBLE))
        out[..., EOS] = stop.logsumexp(-1)
        return out, torch.logaddexp(torch.logaddexp(own, copy), stop)
