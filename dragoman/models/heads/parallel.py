"""How parallel output positions relate to target tokens: CTC (Graves et al. 2006), or a predicted length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Size, setting
from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.models.contracts import CTCEmissions, LengthBeam, Memory, TokenScores
from dragoman.models.heads.softmax import full_precision
from dragoman.models.layers.ctc import collapse, min_path_length
from dragoman.models.layers.masking import masked_mean


class Upsample(nn.Module):
    """Splits every vector into `factor` vectors, each by its own matrix (Libovický and Helcl 2018, section 3)."""

    def __init__(self, inputs: int, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.split = nn.Linear(inputs, factor * width)
        for matrix in self.split.weight.data.chunk(factor):
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.split.bias)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, I) and mask (B, S) → (B, factor·S, D) and its mask."""
        rows, length, _ = x.shape
        return self.split(x).view(rows, self.factor * length, -1), mask.repeat_interleave(self.factor, 1)


def resize(x: Tensor, lengths: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """Interpolate the first `lengths[b]` vectors of every row linearly to `sizes[b]`.

    (B, S, D) → (B, longest, D). The ends are aligned as when an image is scaled. Beyond its size a row repeats its last
    vector.
    """
    positions = torch.arange(longest, device=x.device) + 0.5
    positions = positions * (lengths / sizes.clamp(min=1))[:, None] - 0.5  # (B, longest)
    last = (lengths - 1).clamp(min=0)[:, None]
    positions = positions.clamp(min=0.0).minimum(last.to(positions.dtype))
    left = positions.floor().long()
    right = (left + 1).minimum(last)
    share = (positions - left)[:, :, None].to(x.dtype)

    def at(index: Tensor) -> Tensor:
        return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))

    return at(left) * (1 - share) + at(right) * share


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

    def emissions(
        self, predict: Predict, memory: Memory, limits: Tensor | None = None, candidates: int = 1
    ) -> CTCEmissions:
        """Distributions of all positions; the CTC search applies the limits."""
        vectors, mask = self.upsample(memory.values, memory.mask)
        return CTCEmissions(predict(vectors, mask), mask.sum(1))

    def positions(self, source: int, target: int) -> int:
        """How many positions a training step computes."""
        return self.upsample.factor * source

    def reachable(self, memory_mask: Tensor, target: Tensor) -> Tensor:
        """Which targets (B,) have an alignment."""
        return min_path_length(target, target_lengths(target)) <= self.upsample.factor * memory_mask.sum(1)

    def loss(self, predict: Predict, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Summed −log p; label smoothing mixes in the cross-entropy to the uniform distribution at every position."""
        emissions = self.emissions(predict, memory)
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
        emissions = self.emissions(predict, memory)
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


@dataclass(frozen=True)
class LengthPredictorConfig:
    """Predict the target length first, then one token per position.

    A target longer than `max_length` gives no loss and no scores, and `dragoman check` counts such pairs.
    """

    kind: ClassVar[str] = "length"
    max_length: Size = setting(256, help="longest target that can be written, in tokens without <eos>")


class LengthPredictor(nn.Module):
    """Resizes the memory to the target length; every position then predicts one token."""

    def __init__(self, config: LengthPredictorConfig, memory_width: int, width: int) -> None:
        super().__init__()
        self.max_length = config.max_length
        self.max_positions = config.max_length + 1
        self.length = nn.Linear(memory_width, config.max_length + 1)
        self.project = nn.Linear(memory_width, width)
        for linear in (self.length, self.project):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def length_log_probabilities(self, memory: Memory) -> Tensor:
        """Log-probabilities (B, max_length + 1) of every number of tokens, <eos> not counted."""
        return full_precision(self.length(masked_mean(memory.values, memory.mask))).log_softmax(-1)

    def emit(self, predict: Predict, values: Tensor, mask: Tensor, lengths: Tensor, width: int) -> Tensor:
        """Log-probabilities (B, width, V) of the tokens of texts with these lengths (B,)."""
        lengths = lengths.clamp(min=1)  # the decoder needs at least one position, though its output is then unused
        vectors = self.project(resize(values, mask.sum(1), lengths, width))
        return predict(vectors, torch.arange(width, device=lengths.device) < lengths[:, None])

    def emissions(self, predict: Predict, memory: Memory, limits: Tensor, candidates: int) -> LengthBeam:
        """The most probable lengths within the limits, and the distributions of the tokens for each."""
        lengths = self.length_log_probabilities(memory)
        beyond = torch.arange(lengths.shape[1], device=limits.device) >= limits[:, None]
        scores, sizes = lengths.masked_fill(beyond, float("-inf")).topk(min(candidates, lengths.shape[1]), 1)
        sizes = sizes.minimum((limits - 1).clamp(min=0)[:, None])  # candidates of −∞ may be long and would cost time
        values, mask = (tensor.repeat_interleave(sizes.shape[1], 0) for tensor in (memory.values, memory.mask))
        width = max(1, int(sizes.max())) if sizes.numel() else 1
        log_probabilities = self.emit(predict, values, mask, sizes.flatten(), width)
        return LengthBeam(log_probabilities.view(*sizes.shape, width, -1), sizes, scores)

    def positions(self, source: int, target: int) -> int:
        """How many positions a training step computes."""
        return target

    def reachable(self, memory_mask: Tensor, target: Tensor) -> Tensor:
        """Which targets (B,) are short enough."""
        return target_lengths(target) <= self.max_length

    def loss(self, predict: Predict, memory: Memory, target: Tensor, smoothing: float) -> Tensor:
        """Summed cross-entropy of the tokens, given the true length, and of the length."""
        within = self.reachable(memory.mask, target)
        sizes = target_lengths(target).clamp(max=self.max_length)
        emitted = self.emit(predict, memory.values, memory.mask, sizes, target.shape[1])
        chosen = gather_targets(emitted, target)
        if smoothing:
            chosen = (1 - smoothing) * chosen + smoothing * emitted.mean(-1)
        tokens = (target != PAD) & (target != EOS) & within[:, None]
        length = self.length_log_probabilities(memory).gather(1, sizes[:, None])[:, 0]
        return -(chosen * tokens).sum() - (length * within).sum()

    def score(self, predict: Predict, memory: Memory, target: Tensor) -> TokenScores:
        """Log-probability of every token given the true length; <eos> has the log-probability of the length."""
        sizes = target_lengths(target).clamp(max=self.max_length)
        emitted = self.emit(predict, memory.values, memory.mask, sizes, target.shape[1])
        lengths = self.length_log_probabilities(memory)
        mask = (target != PAD) & self.reachable(memory.mask, target)[:, None]
        ends = target == EOS
        chosen = torch.where(ends, lengths.gather(1, sizes[:, None]), gather_targets(emitted, target))
        correct = torch.where(ends, (lengths.argmax(-1) == sizes)[:, None], emitted.argmax(-1) == target)
        return TokenScores(chosen * mask, correct & mask, mask)


def gather_targets(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Log-probability (B, T) of each target token at its position."""
    return log_probabilities.gather(-1, target[:, :, None])[:, :, 0]
