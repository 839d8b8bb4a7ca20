"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.kernels.cpu_dropout import dropout

__all__ = ["Dropout", "dropout"]


class Dropout(nn.Dropout):
    """`nn.Dropout`, faster on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
