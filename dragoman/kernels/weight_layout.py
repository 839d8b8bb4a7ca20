"""How matrices lie in memory: the same numbers, multiplied faster."""

from __future__ import annotations

import torch
from torch import nn


def lay_out_for_decoding(model: nn.Module) -> None:
    """Lay the matrices of linear layers so that a few rows are multiplied fast; shapes and values stay.

    Decoding multiplies one row a hypothesis. OpenBLAS, which torch has where there is no Intel library, then spends
    most of the time on turning the matrix: turned beforehand, 64 rows take half as long and 16 rows a third.
    """
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.device.type == "cpu" and layer.weight.is_contiguous():
            layer.weight.data = layer.weight.data.t().contiguous().t()
