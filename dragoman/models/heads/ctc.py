"""Connectionist temporal classification over an upsampled memory (Graves et al. 2006; Libovický and Helcl 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, setting
from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.layers.ctc import collapse, min_path_length
from dragoman.layers.resampling import Upsample
from dragoman.models.contracts import CTCEmissions, Memory, TokenScores

Predict = Callable[[Tensor, Tensor], Tensor]  # vectors (B, T, E) and mask (B, T) → log-probabilities (B, T, V)


@dataclass(frozen=True)
class CTCConfig:
    """CTC over an upsampled memory.

    A target is reachable if it has at most `upsample` × memory entries tokens, plus a blank between equal neighbours.
    Other targets give no loss and no scores, and `dragoman check` counts them. The blank is the output of <pad>, which
    is never written otherwise, so no class is added and tied tables keep their size.
    """

    kind: ClassVar[str] = "ctc"
    upsample: Size = setting(3, help="output positions per source token")


def target_lengths(target: Tensor) -> Tensor:
    """Tokens of each row of target (B, T) without <eos> and padding: (B,)."""
    return (target != PAD).sum(1) - 1


class CTCHead(nn.Module):
    """Every memory entry becomes several output positions; p(text) is the sum over all its alignments."""

    max_positions = None

    def __init__(self, config: CTCConfig, memory_width: int, width: int) -> None:
        super().__init__()
        self.upsample = Upsample(memory_width, width, config.upsample)

    def emit(self, predict: Predict, memory: Memory) -> CTCEmissions:
        """Distributions of all positions."""
        vectors, mask = self.upsample(memory.values, memory.mask)
        return CTCEmissions(predict(vectors, mask), mask.sum(1))

    def emissions(self, predict: Predict, memory: Memory, limits: Tensor, candidates: int) -> CTCEmissions:
        """Distributions of all positions; the CTC search applies the limits."""
        return self.emit(predict, memory)

    def positions(self, source: int, target: int) -> int:
        """How many positions a training step computes."""
        return self.upsample.factor * source

    def reachable(self, memory_mask: Tensor, target: Tensor) -> Tensor:
        """Which targets (B,) have an alignment."""
        return min_path_length(target, target_lengths(target)) <= self.upsample.factor * memory_mask.sum(1)

    def loss(self, predict: Predict, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Summed −log p; label smoothing mixes in the cross-entropy to the uniform distribution at every position."""
        emissions = self.emit(predict, memory)
        total = self.negative_log_probability(emissions, target).sum()
        if smoothing:
            length = emissions.log_probabilities.shape[1]
            real = torch.arange(length, device=target.device) < emissions.lengths[:, None]
            real = real & self.reachable(memory.mask, target)[:, None]
            uniform = -(emissions.log_probabilities.mean(-1) * real).sum()
            total = (1 - smoothing) * total + smoothing * uniform
        return total

    def score(self, predict: Predict, memory: Memory, target: Tensor) -> TokenScores:
        """A text's log-probability, split evenly over its tokens with <eos>: CTC gives no probability per token.

        A token is correct if the text of the best path has it at the same index; <eos> is correct if both end there.
        """
        emissions = self.emit(predict, memory)
        mask = (target != PAD) & self.reachable(memory.mask, target)[:, None]
        per_token = -self.negative_log_probability(emissions, target) / (target != PAD).sum(1)
        never = torch.tensor([SOS, EOS], device=target.device)  # no target label is one of these
        path = emissions.log_probabilities.index_fill(-1, never, float("-inf")).argmax(-1)
        best, lengths = collapse(path, emissions.lengths, PAD)
        width = target.shape[1]
        best = F.pad(best, (0, max(0, width - best.shape[1])), value=PAD)[:, :width]
        best = best.masked_fill(torch.arange(width, device=target.device) == lengths[:, None], EOS)
        return TokenScores(per_token[:, None] * mask, (best == target) & mask, mask)

    def negative_log_probability(self, emissions: CTCEmissions, target: Tensor) -> Tensor:
        """−log p of every row (B,); 0 for an unreachable target."""
        return F.ctc_loss(
            emissions.log_probabilities.transpose(0, 1),
            target,
            emissions.lengths,
            target_lengths(target),
            blank=PAD,
            reduction="none",
            zero_infinity=True,
        )
