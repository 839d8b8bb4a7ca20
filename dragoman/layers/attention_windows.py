"""Global, local-m and local-p attention: which source positions a query may see (Luong et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, setting

Position = Tensor | int  # the target position of the first query


@dataclass(frozen=True)
class GlobalConfig:
    """Every position of the source."""

    kind: ClassVar[str] = "global"


@dataclass(frozen=True)
class MonotonicConfig:
    """Source positions around the target position (Luong et al. 2015, local-m)."""

    kind: ClassVar[str] = "monotonic"
    radius: Size = setting(10, help="positions to either side")


@dataclass(frozen=True)
class PredictiveConfig:
    """Source positions around one that the query predicts (Luong et al. 2015, local-p)."""

    kind: ClassVar[str] = "predictive"
    radius: Size = setting(
        10, help="positions to either side; half of it is the deviation of the Gaussian around the centre"
    )


WindowConfig = GlobalConfig | MonotonicConfig | PredictiveConfig


class GlobalWindow(nn.Module):
    """Sees all real positions; the other windows restrict the mask and may scale the weights."""

    def __init__(self, config: Any, query_width: int) -> None:
        super().__init__()
        self.radius = getattr(config, "radius", 0)

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        """Queries (B, k, T, Q), mask (B, 1, 1, S) → mask and factors, each broadcastable to (B, k, T, S)."""
        return mask, None


class MonotonicWindow(GlobalWindow):
    """p_t = t, or the last source position where t lies beyond it."""

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(mask.shape[-1], device=mask.device)
        last = mask.sum(-1, keepdim=True) - 1  # (B, 1, 1, 1)
        centre = (start + torch.arange(query.shape[2], device=mask.device))[:, None].minimum(last)  # (B, 1, T, 1)
        return mask & ((positions - centre).abs() <= self.radius), None


class PredictiveWindow(GlobalWindow):
    """p_t = S · sigmoid(vᵀ tanh(W q)), and a Gaussian of deviation radius / 2 around it (eq. 9 and 10)."""

    def __init__(self, config: PredictiveConfig, query_width: int) -> None:
        super().__init__(config, query_width)
        self.inner = nn.Linear(query_width, query_width, bias=False)
        self.centre = nn.Linear(query_width, 1, bias=False)

    def forward(self, query: Tensor, mask: Tensor, start: Position) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(query.device.type, enabled=False):  # half precision cannot tell positions beyond 256 apart
            query = query.to(torch.promote_types(query.dtype, torch.float32))
            positions = torch.arange(mask.shape[-1], device=mask.device, dtype=query.dtype)
            lengths = mask.sum(-1, keepdim=True).to(query.dtype)  # (B, 1, 1, 1)
            inner = torch.tanh(F.linear(query, self.inner.weight.to(query.dtype)))
            centre = lengths * torch.sigmoid(F.linear(inner, self.centre.weight.to(query.dtype)))  # (B, k, T, 1)
            distance = positions - centre
            return mask & (distance.abs() <= self.radius), torch.exp(-(distance**2) / (2 * (self.radius / 2) ** 2))


WINDOWS: dict[type, type[GlobalWindow]] = {
    GlobalConfig: GlobalWindow,
    MonotonicConfig: MonotonicWindow,
    PredictiveConfig: PredictiveWindow,
}
