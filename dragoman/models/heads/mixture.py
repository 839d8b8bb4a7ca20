"""A mixture of softmaxes as the output of a language model (Yang et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.data.tokenizers import PAD
from dragoman.models.heads.softmax import full_precision, log_probabilities
from dragoman.models.layers.rnn import VariationalDropout

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
