"""The loss in chunks is torch's cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dragoman.data.tokenizers.base import PAD
from dragoman.models.config import FullSoftmaxConfig
from dragoman.models.heads.softmax import CrossEntropy, SoftmaxCriterion, full_loss
from dragoman.models.kernels import cpu_cross_entropy as module


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 150, 2**21])
def test_it_is_torchs_cross_entropy(
    dtype: torch.dtype, tolerance: float, smoothing: float, bias: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    torch.manual_seed(1)
    output = nn.Linear(8, 50, bias=bias).to(dtype)
    hidden = torch.randn(4, 6, 8, dtype=dtype, requires_grad=True)
    target = torch.randint(1, 50, (4, 6))
    target[1, 3:] = PAD
    inputs = [hidden, *output.parameters()]
    ours = SoftmaxCriterion(output, CrossEntropy(), smoothing=smoothing)(hidden, target)
    scores = output(hidden).flatten(0, 1)
    plain = F.cross_entropy(scores, target.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
    assert torch.allclose(ours, plain, rtol=tolerance, atol=tolerance)
    assert torch.allclose(ours, full_loss(FullSoftmaxConfig(), hidden, target, output, smoothing).sum(), rtol=tolerance)
    for one, other in zip(
        torch.autograd.grad(ours * 0.5, inputs), torch.autograd.grad(plain * 0.5, inputs), strict=True
    ):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_word_thought_impossible_still_has_a_finite_loss() -> None:
    output = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[0.0], [1000.0], [-1000.0]]))
    hidden = torch.ones(1, 1, 1, requires_grad=True)
    total = SoftmaxCriterion(output, CrossEntropy(), smoothing=0.0)(hidden, torch.tensor([[2]]))
    assert float(total.detach()) == 2000.0


def test_a_batch_without_words_costs_nothing() -> None:
    output = nn.Linear(4, 9)
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    total = SoftmaxCriterion(output, CrossEntropy(), smoothing=0.1)(hidden, torch.full((2, 3), PAD))
    torch.autograd.backward(total)
    assert float(total.detach()) == 0.0
    assert hidden.grad is not None
    assert not hidden.grad.any()
