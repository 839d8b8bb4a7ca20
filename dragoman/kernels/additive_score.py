"""vᵀ tanh(q + k) for every query and key: the costliest part of additive attention (Bahdanau et al. 2015, A.1.2).

As separate torch operations it creates several tensors (B, S, A) per step, and as many in the backward pass. Here all
steps of a loop add to one gradient of the keys, and

- on a CPU no tanh is computed: tanh(q + k) = 2y − 1 with y = 1 / (1 + e^(−2q) e^(−2k)). All steps share e^(−2k), and
  e^(−2q) has no source axis. A product, a sum and a reciprocal per step are left;
- on a GPU each direction is one kernel (`additive_score_triton`), which stores nothing of that size.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dragoman.kernels.deferred_gradients import StepRecords, anchored, shared_by_steps
from dragoman.kernels.triton_support import HAS_TRITON

SMALL = 2**15  # with fewer numbers the set-up does not pay off: decoding a single sentence
LIMITS = {torch.float32: 40.0, torch.float64: 300.0}  # e^(±2 LIMIT) is within the range of the type


def additive_scores(query: Tensor, keys: tuple[Tensor, ...], vector: Tensor) -> Tensor:
    """Scores (B, n, S) of queries (B, n, A), keys as `prepare_keys` returns them, vector (1, A)."""
    scorer = scorer_for(keys[0])
    if scorer is not None:
        return scored(query, shared_by_steps(keys[0], lambda: scorer(vector, *keys)))
    return F.linear(torch.tanh(query[:, :, None] + keys[0][:, None]), vector).squeeze(-1)


def prepare_keys(keys: Tensor) -> tuple[Tensor, ...]:
    """Keys (B, S, A), and e^(−2 keys) where the scores will be computed from it."""
    exponentials = exp_minus_2(keys.detach()) if scorer_for(keys) is ExponentialScorer else None
    return (keys,) if exponentials is None else (keys, exponentials)


def exp_minus_2(x: Tensor) -> Tensor | None:
    """e^(−2x), or None where it would leave the range of the type: then tanh has to be computed after all."""
    return torch.exp(-2.0 * x) if x.numel() == 0 or float(x.abs().amax()) < LIMITS[x.dtype] else None


class ExponentialScorer:
    """Keys and v as all steps of a pass share them, and the sums of their gradients."""

    def __init__(self, vector: Tensor, keys: Tensor, exponentials: Tensor | None = None) -> None:
        self.keys, self.exponentials, self.vector = keys.detach(), exponentials, vector.detach().reshape(-1)
        self.types = keys.dtype, vector.dtype, vector.shape
        self.buffer: Tensor | None = None
        self.records = StepRecords()  # of one entry: the sums
        self.anchor = anchored(self.take, keys, vector) if torch.is_grad_enabled() else None

    def take(self) -> tuple[Tensor | None, ...]:
        """The gradients of keys (B, S, A) and v."""
        sums = self.records.take()
        if not sums:
            return None, None
        (d_keys, d_vector), *_ = sums
        return self.finish(d_keys, d_vector)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Where the steps of this backward pass add the gradients of keys and v."""
        if not self.records.current():
            self.records.add(*self.zeros())
        keys, vector = self.records.records[0]
        return keys, vector

    def zeros(self) -> tuple[Tensor, Tensor]:
        """The sums before the first step."""
        return torch.zeros_like(self.keys), torch.zeros_like(self.vector)

    def finish(self, d_keys: Tensor, d_vector: Tensor) -> tuple[Tensor, Tensor]:
        keys_type, vector_type, shape = self.types
        return d_keys.mul_(4.0 * self.vector).to(keys_type), d_vector.view(shape).to(vector_type)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, n, S) of queries (B, n, A), and what the backward pass needs."""
        return (self.logistic(query) @ (2.0 * self.vector)).sub_(self.vector.sum()), query

    def logistic(self, query: Tensor) -> Tensor:
        """y (B, n, S, A) in a buffer that all steps share: allocating costs more than computing it twice."""
        shape = (*query.shape[:2], *self.keys.shape[1:])
        if self.buffer is None or self.buffer.shape != shape:
            self.buffer = query.new_empty(shape)
        query_exponentials = None if self.exponentials is None else exp_minus_2(query)
        if self.exponentials is None or query_exponentials is None:
            return torch.add(query[:, :, None], self.keys[:, None], out=self.buffer).mul_(2.0).sigmoid_()
        product = torch.mul(query_exponentials[:, :, None], self.exponentials[:, None], out=self.buffer)
        return product.add_(1.0).reciprocal_()

    def backward(self, query: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the queries (B, n, A); adds those of keys and v to the sums; gradient (B, n, S)."""
        d_keys, d_vector = self.sums()
        y, flat = self.logistic(query), gradient.reshape(1, -1)
        d_vector.add_((flat @ y.view(flat.shape[1], -1))[0].mul_(2.0).sub_(flat.sum()))
        slope = y.addcmul_(y, y, value=-1.0)  # y (1 − y), a quarter of the slope of tanh
        slope.mul_(gradient[:, :, :, None])
        for index in range(y.shape[1]):
            d_keys.add_(slope[:, index])
        return slope.sum(2).mul_(4.0 * self.vector)


class TritonScorer(ExponentialScorer):
    """On a GPU: of the size (B, S, A) only the keys and, in the backward pass, their gradient are stored."""

    def __init__(self, vector: Tensor, keys: Tensor) -> None:
        super().__init__(vector, keys.contiguous())

    def zeros(self) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(self.keys.shape, dtype=torch.float32, device=self.keys.device)
        return zeros, zeros.new_zeros(zeros.shape[0], zeros.shape[2])

    def finish(self, d_keys: Tensor, d_vector: Tensor) -> tuple[Tensor, Tensor]:
        keys_type, vector_type, shape = self.types
        return d_keys.mul_(self.vector).to(keys_type), d_vector.sum(0).view(shape).to(vector_type)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        from dragoman.kernels import additive_score_triton

        query = query.contiguous()
        return additive_score_triton.forward(query, self.keys, self.vector), query

    def backward(self, query: Tensor, gradient: Tensor) -> Tensor:
        from dragoman.kernels import additive_score_triton

        return additive_score_triton.backward(query, self.keys, self.vector, gradient, *self.sums())


def scorer_for(keys: Tensor) -> type[ExponentialScorer] | None:
    """What computes the scores of these keys; None: torch, operation by operation, which a compiler fuses itself."""
    if torch.compiler.is_compiling() or (keys.numel() < SMALL and not torch.is_grad_enabled()):
        return None
    if keys.is_cuda:
        if keys.dtype == torch.float64:
            return None
        if not HAS_TRITON:
            warnings.warn("additive attention runs without its GPU kernels: Triton is not installed", stacklevel=2)
            return None
        return TritonScorer
    return ExponentialScorer if keys.device.type == "cpu" and keys.dtype in LIMITS else None


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, anchor: Tensor, scorer: ExponentialScorer) -> Tensor:
        scores, kept = scorer.forward(query)
        ctx.scorer = scorer
        ctx.save_for_backward(kept)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (kept,) = ctx.saved_tensors
        return ctx.scorer.backward(kept, gradient.contiguous()), gradient.new_empty(0), None


def scored(query: Tensor, scorer: ExponentialScorer) -> Tensor:
    """Scores (B, n, S) of queries (B, n, A)."""
    scores: Tensor
    if torch.is_grad_enabled():
        scores = _Scored.apply(query, scorer.anchor, scorer)  # type: ignore[no-untyped-call]
    else:
        scores, _ = scorer.forward(query)
    return scores
