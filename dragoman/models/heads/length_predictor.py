"""Non-autoregressive output with a predicted length (after Gu et al. 2018): p(text) = p(length) ∏ p(token | length)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Size, setting
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.layers.masking import masked_mean
from dragoman.layers.resampling import resize
from dragoman.models.contracts import LengthBeam, Memory, TokenScores
from dragoman.models.heads.ctc import Predict, target_lengths
from dragoman.models.heads.softmax import full_precision


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
