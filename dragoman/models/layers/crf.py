"""A linear-chain conditional random field (Lafferty et al. 2001): exact likelihood, marginals, Viterbi decoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearChainCRF(nn.Module):
    """Transition scores of neighbouring tags and of the first and last tag, added to the emission scores of words.

    Padding is at the end of a row. Nothing here copies a number from the device to the host.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(tags, tags))  # from, to
        self.first = nn.Parameter(torch.zeros(tags))
        self.last = nn.Parameter(torch.zeros(tags))

    def score(self, scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The score (B,) of given paths: scores (B, W, K), tags (B, W), mask (B, W)."""
        tags = tags.clamp(min=0)
        own = scores.gather(2, tags[:, :, None])[:, :, 0]
        between = self.transitions[tags[:, :-1], tags[:, 1:]]
        ends = tags.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return (own * mask).sum(1) + (between * mask[:, 1:]).sum(1) + self.first[tags[:, 0]] + self.last[ends]

    def log_partition(self, scores: Tensor, mask: Tensor) -> Tensor:
        """log Σ exp(score) over all paths (B,), by the forward algorithm."""
        forward = self.first + scores[:, 0]  # (B, K)
        for t in range(1, scores.shape[1]):
            reached = (forward[:, :, None] + self.transitions).logsumexp(1) + scores[:, t]
            forward = torch.where(mask[:, t, None], reached, forward)
        return (forward + self.last).logsumexp(1)

    def log_probability(self, scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return self.score(scores, tags, mask) - self.log_partition(scores, mask)

    @torch.no_grad()
    def viterbi(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The path (B, W) of highest score (Viterbi 1967); 0 on padding."""
        best = self.first + scores[:, 0]
        came: list[Tensor] = []
        stay = torch.arange(scores.shape[2], device=scores.device).expand_as(best)
        for t in range(1, scores.shape[1]):
            reached, origin = (best[:, :, None] + self.transitions).max(1)
            real = mask[:, t, None]
            best = torch.where(real, reached + scores[:, t], best)
            came.append(torch.where(real, origin, stay))  # on padding the path stands still
        tag = (best + self.last).argmax(1, keepdim=True)  # (B, 1)
        path = [tag]
        for origin in reversed(came):
            tag = origin.gather(1, tag)
            path.append(tag)
        return torch.cat(path[::-1], 1) * mask

    def marginals(self, scores: Tensor, mask: Tensor) -> Tensor:
        """p(tag of a word) over all paths (B, W, K): the gradient of log Z."""
        with torch.enable_grad():
            given = scores.detach().requires_grad_()
            (marginals,) = torch.autograd.grad(self.log_partition(given, mask).sum(), given)
        return marginals
