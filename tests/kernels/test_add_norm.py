"""A residual sum with its norm in one kernel against the same in torch."""

from __future__ import annotations

import torch
from torch import nn

from dragoman.kernels.add_norm import add_norm
from tests.kernels.helpers import needs_gpu


@needs_gpu
def test_one_kernel_equals_a_sum_and_a_norm() -> None:
    torch.manual_seed(1)
    norm = nn.LayerNorm(96).cuda().bfloat16()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, out = (torch.randn(5, 3, 96, device="cuda").bfloat16() for _ in range(2))
    with torch.no_grad():
        total, normed = add_norm(x, out, norm)
        torch.testing.assert_close(total, x + out, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(normed, norm(x + out), rtol=1e-2, atol=1e-2)


def test_other_norms_and_devices_take_the_plain_path() -> None:
    x, out, norm = torch.randn(2, 8), torch.randn(2, 8), nn.RMSNorm(8)
    total, normed = add_norm(x, out, norm)
    assert torch.equal(total, x + out)
    assert torch.equal(normed, norm(x + out))
