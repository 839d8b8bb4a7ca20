"""Parts of a model that torch compiles for training: their small operations become few kernels.

A whole model takes minutes to compile and must be compiled again when anything changes. Its blocks are alike, so the
code of one serves all of them, for every batch shape (`dynamic`). A module says by `region = True` that it is worth it.
Compiled code runs in training steps alone; validation and search keep the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn


class Regions:
    """The regions of one model, compiled when they are first used."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [module for module in model.modules() if getattr(module, "region", False)]
        kinds = {type(module) for module in self.modules}
        self._compiled: dict[type, Callable[..., Any]] = {
            kind: torch.compile(kind.forward, dynamic=True) for kind in kinds
        }

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the modules run their compiled code inside the block."""
        for module in self.modules:
            module.__dict__["forward"] = MethodType(self._compiled[type(module)], module)
        try:
            yield
        finally:
            for module in self.modules:
                del module.__dict__["forward"]
