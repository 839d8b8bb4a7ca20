"""Softmax output layers: over the whole vocabulary, over a sample of it during training, or a mixture of softmaxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dragoman.data.tokenizers import PAD
from dragoman.models.config import FullSoftmaxConfig, PartitionedSoftmaxConfig, SampledSoftmaxConfig, SoftmaxConfig
from dragoman.models.contracts import TokenScores
from dragoman.models.kernels.alignment import aligned_logits
from dragoman.models.kernels.cpu_cross_entropy import total_loss
from dragoman.models.kernels.fused_layers import cross_entropy
from dragoman.models.layers.linear import LogProbabilities
from dragoman.models.layers.rnn import VariationalDropout


def token_scores(logits: Tensor, target: Tensor) -> TokenScores:
    """Score target tokens (B, T) by logits (B, T, V)."""
    mask = target != PAD
    chosen = full_precision(logits).log_softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return TokenScores(chosen * mask, (logits.argmax(-1) == target) & mask, mask)


def full_precision(x: Tensor) -> Tensor:
    """Convert to at least float32: probabilities are never computed in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis in at least float32; half precision is read without a copy."""
    precise = torch.float32 if logits.dtype in (torch.bfloat16, torch.float16) else logits.dtype
    return logits.log_softmax(-1, dtype=precise)


class CrossEntropy(nn.Module):
    """Cross-entropy of logits (B, T, V) and target (B, T) at each position, zero on padding: (B, T)."""

    def forward(self, logits: Tensor, target: Tensor, smoothing: float, vocabulary: int | None = None) -> Tensor:
        """Ignore columns from `vocabulary` on; the slice stands here so that a compiler sees it and copies nothing."""
        words = vocabulary or logits.shape[-1]
        return cross_entropy(logits.flatten(0, 1), target.flatten(), smoothing, words, PAD).view_as(target)


def full_loss(
    config: FullSoftmaxConfig,
    hidden: Tensor,
    target: Tensor,
    output: nn.Linear | LogProbabilities,
    smoothing: float,
    cross_entropy: CrossEntropy | None = None,
) -> Tensor:
    """Cross-entropy at each position, zero on padding: hidden (B, T, D), target (B, T) → (B, T)."""
    logits = hidden if isinstance(output, LogProbabilities) else aligned_logits(hidden, output)
    return (cross_entropy or CrossEntropy())(logits, target, smoothing, output.out_features)


def sampled_loss(
    config: SampledSoftmaxConfig,
    hidden: Tensor,
    target: Tensor,
    output: nn.Linear,
    smoothing: float,
    cross_entropy: CrossEntropy | None = None,
) -> Tensor:
    """Like `full_loss`, estimated from a sample of the vocabulary (Jean et al. 2015, section 3)."""
    vocabulary = output.out_features
    size = min(vocabulary, config.size + target.numel())  # so that every word of the batch fits
    if size == vocabulary:
        return full_loss(FullSoftmaxConfig(), hidden, target, output, smoothing, cross_entropy)
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
    normaliser = torch.logsumexp(logits + stands_for.log(), -1)  # (B, T) estimate of the full softmax
    chosen = logits.gather(-1, index[target][:, :, None])[:, :, 0]
    # Label smoothing covers every word of the vocabulary; a sampled word counts for all those it stands for.
    spread = (logits * (stands_for / vocabulary)).sum(-1)
    losses = normaliser - (1 - smoothing) * chosen - smoothing * spread
    return losses * (target != PAD)


def partitioned_loss(hidden: Tensor, target: Tensor, output: nn.Linear, smoothing: float, words: Tensor) -> Tensor:
    """Cross-entropy over some words (K,), which include all of the target: (B, T)."""
    index = torch.zeros(output.out_features, dtype=torch.long, device=target.device)
    index[words] = torch.arange(len(words), device=target.device)
    bias = None if output.bias is None else output.bias[words]
    logits = full_precision(F.linear(hidden, output.weight[words], bias)).flatten(0, 1)  # (B·T, K)
    losses = F.cross_entropy(logits, index[target].flatten(), reduction="none", label_smoothing=smoothing)
    return losses.view_as(target) * (target != PAD)


LOSSES: dict[type, Callable[..., Tensor]] = {
    FullSoftmaxConfig: full_loss,
    SampledSoftmaxConfig: sampled_loss,
}


@dataclass(frozen=True)
class SoftmaxCriterion:
    """The summed loss of hidden vectors; see `contracts.Criterion`."""

    output: nn.Linear | LogProbabilities
    cross_entropy: CrossEntropy
    softmax: SoftmaxConfig = FullSoftmaxConfig()
    smoothing: float = 0.0
    words: Tensor | None = None  # (K,) of the part of the corpus that the batch is from, for a partitioned softmax

    def __call__(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Training on a CPU computes the full softmax in chunks, which is faster and needs less memory.

        A GPU would have to wait for the number of real tokens.
        """
        softmax, output = self.softmax, self.output
        if isinstance(softmax, PartitionedSoftmaxConfig):
            if self.words is not None and len(self.words) < output.out_features:
                assert isinstance(output, nn.Linear)
                return partitioned_loss(hidden, target, output, self.smoothing, self.words).sum()
            softmax = FullSoftmaxConfig()
        full = isinstance(softmax, FullSoftmaxConfig) and torch.is_grad_enabled() and hidden.device.type == "cpu"
        if full and isinstance(output, nn.Linear) and hidden.dtype == output.weight.dtype:
            return total_loss(hidden, target, output.weight[: output.out_features], output.bias, self.smoothing, PAD)
        return LOSSES[type(softmax)](softmax, hidden, target, output, self.smoothing, self.cross_entropy).sum()

    def scored(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """From the full softmax, whatever is sampled elsewhere."""
        output = self.output
        logits = hidden if isinstance(output, LogProbabilities) else aligned_logits(hidden, output)
        scores = log_probabilities(logits[..., : output.out_features])
        chosen = scores.gather(-1, target[:, :, None])[:, :, 0]
        losses = -(1 - self.smoothing) * chosen
        if self.smoothing:
            losses = losses - self.smoothing * scores.mean(-1)
        return losses * (target != PAD), scores


MAX_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 28}  # computed at once in training


class MixtureOfSoftmaxes(nn.Module):
    """p(y | h) = Σ_k π_k softmax_y(W tanh(L_k h)), π = softmax(P h) (section 2.3 of the paper).

    One softmax has log-probabilities of the rank of its vectors; a mixture has no such bound. W is the output layer.
    """

    def __init__(self, width: int, embedding: int, count: int, dropout: float) -> None:
        super().__init__()
        self.count, self.embedding = count, embedding
        self.prior = nn.Linear(width, count, bias=False)
        self.latent = nn.Linear(width, count * embedding)
        self.dropout = VariationalDropout(dropout)

    def parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors (…, K, E) and log-weights (…, K) of the softmaxes."""
        latent: Tensor = self.dropout(torch.tanh(self.latent(hidden)))
        vectors = latent.view(*latent.shape[:-1], self.count, self.embedding)
        return vectors, full_precision(self.prior(hidden)).log_softmax(-1)

    def log_probabilities(self, hidden: Tensor, output: nn.Module) -> Tensor:
        """(…, D) → (…, V)."""
        return mixed(*self.parts(hidden), output)

    def loss(self, hidden: Tensor, target: Tensor, output: nn.Linear, smoothing: float = 0.0) -> Tensor:
        """Summed cross-entropy of targets (B, T) after hidden vectors (B, T, D).

        K · V logits of every token do not fit into memory: they are computed in chunks, and again for the gradients.
        """
        latent, prior = self.parts(hidden)
        latent, prior, targets = latent.flatten(0, 1), prior.flatten(0, 1), target.flatten()
        size = max(1, MAX_LOGITS[target.device.type] // (self.count * output.out_features))
        total = prior.new_zeros(())
        for rows in zip(*(torch.split(part, size) for part in (latent, prior, targets)), strict=True):
            losses = checkpoint(chunk_loss, *rows, output, smoothing, use_reentrant=False, preserve_rng_state=False)
            assert isinstance(losses, Tensor)
            total = total + losses
        return total


def mixed(latent: Tensor, prior: Tensor, output: nn.Module) -> Tensor:
    """log Σ_k π_k p_k: vectors (…, K, E), log-weights (…, K) → (…, V)."""
    return (log_probabilities(output(latent)) + prior[..., None]).logsumexp(-2)


def chunk_loss(latent: Tensor, prior: Tensor, target: Tensor, output: nn.Module, smoothing: float) -> Tensor:
    scores = mixed(latent, prior, output)
    losses = -(1 - smoothing) * scores.gather(1, target[:, None])[:, 0]
    if smoothing:
        losses = losses - smoothing * scores.mean(-1)
    return (losses * (target != PAD)).sum()
