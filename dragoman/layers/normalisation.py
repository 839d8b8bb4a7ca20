"""Layer norm and RMS norm."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def layer_norm(width: int, bias: bool = True, epsilon: float = 0.0) -> nn.Module:
    """(x − mean) / deviation, with a gain and a bias (Ba et al. 2016)."""
    return nn.LayerNorm(width, eps=epsilon or 1e-5, bias=bias)


def rms_norm(width: int, bias: bool = True, epsilon: float = 0.0) -> nn.Module:
    """x divided by its root mean square, with a gain (Zhang and Sennrich 2019); it never has a bias."""
    return nn.RMSNorm(width, eps=epsilon or 1e-6)  # as T5 and Llama; torch's default depends on the data type


NORMS: dict[str, Callable[[int, bool, float], nn.Module]] = {"layer": layer_norm, "rms": rms_norm}
