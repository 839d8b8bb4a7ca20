"""The loss over the target vocabulary: in full, or over a sample of it while training (FIELD F8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Range, setting
from dragoman.data.tokenizers.base import PAD
from dragoman.kernels.cpu_cross_entropy import total_loss
from dragoman.kernels.half_precision_rnn import spare


def full_precision(x: Tensor) -> Tensor:
    """At least float32: probabilities are never computed in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis in at least float32, read from half precision in one go."""
    precise = torch.float32 if logits.dtype in (torch.bfloat16, torch.float16) else logits.dtype
    return logits.log_softmax(-1, dtype=precise)


@dataclass(frozen=True)
class FullSoftmaxConfig:
    """Every word of the vocabulary at every place."""

    kind: ClassVar[str] = "full"


@dataclass(frozen=True)
class SampledSoftmaxConfig:
    """The words of the batch and so many others, drawn anew for every batch; testing sees all words.

    Every batch is a bucket with a vocabulary of its own (Jean et al. 2015). The words drawn stand for all that were
    not, so their scores are raised by the log of how many each stands for, and the loss estimates the full one.
    """

    kind: ClassVar[str] = "sampled"
    size: Annotated[int, Range(1, None)] = setting(8192, help="words drawn beside those of the batch")


SoftmaxConfig = FullSoftmaxConfig | SampledSoftmaxConfig


class CrossEntropy(nn.Module):
    """Of scores (B, T, V) and target (B, T) what each place costs, zero on padding: (B, T)."""

    compile_in_training = True  # the compiled code reads half-precision scores without a float32 copy

    def forward(self, logits: Tensor, target: Tensor, smoothing: float, vocabulary: int | None = None) -> Tensor:
        """A share `smoothing` of the target probability is spread over all words; columns after the last are left out.

        Here, so that a compiler sees it and copies nothing.
        """
        words = logits if vocabulary in (None, logits.shape[-1]) else logits[..., :vocabulary]
        scores, truth = full_precision(words).flatten(0, 1), target.flatten()
        losses = F.cross_entropy(scores, truth, ignore_index=PAD, reduction="none", label_smoothing=smoothing)
        return losses.view_as(target)


def aligned_scores(hidden: Tensor, output: nn.Linear) -> Tensor:
    """output(hidden), with columns of zeros after the last word where that lets a GPU multiply at its full speed.

    In half precision its matrix units read eight numbers at a time; measured on an H200 with 33,281 words, the three
    products of a step took 8.3 ms, and 1.3 ms with seven rows of zeros below the table.
    """
    more = spare(output.out_features, hidden.device)
    if not more or not torch.is_autocast_enabled(hidden.device.type):
        found: Tensor = output(hidden)
        return found
    bias = None if output.bias is None else F.pad(output.bias, (0, more))
    return F.linear(hidden, F.pad(output.weight[: output.out_features], (0, 0, 0, more)), bias)


def full_loss(
    config: FullSoftmaxConfig,
    hidden: Tensor,
    target: Tensor,
    output: nn.Linear,
    smoothing: float,
    costs: CrossEntropy | None = None,
) -> Tensor:
    """Cross-entropy of each place, zero on padding: hidden (B, T, D), target (B, T) → (B, T)."""
    found: Tensor = (costs or CrossEntropy())(aligned_scores(hidden, output), target, smoothing, output.out_features)
    return found


def sampled_loss(
    config: SampledSoftmaxConfig,
    hidden: Tensor,
    target: Tensor,
    output: nn.Linear,
    smoothing: float,
    costs: CrossEntropy | None = None,
) -> Tensor:
    """The same, estimated from a part of the vocabulary (Jean et al. 2015 section 3)."""
    vocabulary, places = output.out_features, target.numel()
    size = min(vocabulary, config.size + places)  # so that every word of the batch surely fits
    if size == vocabulary:
        return full_loss(FullSoftmaxConfig(), hidden, target, output, smoothing, costs)
    device = target.device
    present = torch.zeros(vocabulary, dtype=torch.bool, device=device)
    present[target.flatten()] = True
    words = torch.rand(vocabulary, device=device).masked_fill(present, 2.0).topk(size).indices  # (K,)
    index = torch.empty(vocabulary, dtype=torch.long, device=device)
    index[words] = torch.arange(size, device=device)
    bias = None if output.bias is None else output.bias[words]
    logits = full_precision(F.linear(hidden, output.weight[words], bias))  # (B, T, K)
    given = present.sum()
    stands_for = torch.where(present[words], 1.0, (vocabulary - given) / (size - given)).to(logits.dtype)  # (K,)
    whole = torch.logsumexp(logits + stands_for.log(), -1)  # (B, T) of the full softmax, estimated
    chosen = logits.gather(-1, index[target][:, :, None])[:, :, 0]
    # Smoothing gives every word of the vocabulary its share; a drawn one speaks for those it stands for.
    spread = (logits * (stands_for / vocabulary)).sum(-1)
    losses = whole - (1 - smoothing) * chosen - smoothing * spread
    return losses * (target != PAD)


LOSSES: dict[type, Callable[..., Tensor]] = {
    FullSoftmaxConfig: full_loss,
    SampledSoftmaxConfig: sampled_loss,
}


def summed_loss(
    config: SoftmaxConfig,
    hidden: Tensor,
    target: Tensor,
    output: nn.Linear,
    smoothing: float,
    costs: CrossEntropy | None = None,
) -> Tensor:
    """What LOSSES gives, summed; while training on a CPU in chunks, which is faster and needs less memory.

    Only there: a GPU would have to wait to know how many tokens are real.
    """
    full = isinstance(config, FullSoftmaxConfig)
    if full and torch.is_grad_enabled() and hidden.device.type == "cpu" and hidden.dtype == output.weight.dtype:
        return total_loss(hidden, target, output.weight[: output.out_features], output.bias, smoothing, PAD)
    return LOSSES[type(config)](config, hidden, target, output, smoothing, costs).sum()
