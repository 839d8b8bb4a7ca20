"""vᵀ tanh(q + k) by exponentials and by Triton kernels against plain torch."""

from __future__ import annotations

import pytest
import torch

from dragoman.kernels.additive_score import ExponentialScorer, TritonScorer, exp_minus_2, scored
from tests.kernels.helpers import largest_error, on_every_device


@on_every_device
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 8.0, 100.0])  # the last is beyond the range of e^(−2x)
def test_scores_and_gradients_equal_those_of_tanh(queries: int, scale: float, device: str) -> None:
    torch.manual_seed(0)
    keys = (scale * torch.randn(3, 21, 130, device=device)).requires_grad_()
    vector = torch.randn(1, 130, device=device).requires_grad_()
    steps = [(scale * torch.randn(3, queries, 130, device=device)).requires_grad_() for _ in range(3)]
    weights = [torch.randn(3, queries, 21, device=device) for _ in steps]
    if device == "cpu":
        scorer = ExponentialScorer(vector, keys, exp_minus_2(keys.detach()))
    else:
        scorer = TritonScorer(vector, keys)
    scores = tuple(scored(query, scorer) for query in steps)
    expected = tuple(torch.tanh(query[:, :, None] + keys[:, None]) @ vector[0] for query in steps)
    assert largest_error(scores, expected, weights, [keys, vector, *steps]) < (1e-5 if scale == 1.0 else 1e-4)
