"""One view of a page: its data, for a browser and for JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class View:
    """One view of a page."""

    kind: str  # the JavaScript module that draws it
    title: str
    about: str  # two sentences beside the figure
    data: Any

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def packed(data: dict[str, Any]) -> dict[str, Any]:
    """Nested values with every tensor as {shape, f32: base64}, which a browser reads at once."""

    def pack(tensor: Tensor) -> dict[str, Any]:
        content = tensor.float().contiguous().numpy().astype("<f4").tobytes()
        return {"shape": list(tensor.shape), "f32": base64.b64encode(content).decode("ascii")}

    return {key: _mapped(value, pack) for key, value in data.items()}


def listed(data: dict[str, Any]) -> dict[str, Any]:
    def numbers(tensor: Tensor) -> Any:
        return np.asarray(tensor.float()).astype(float).round(9).tolist()

    return {key: _mapped(value, numbers) for key, value in data.items()}


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value.detach().cpu())
    if isinstance(value, dict):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value
