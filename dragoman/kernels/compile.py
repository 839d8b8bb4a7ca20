"""torch.compile for the blocks of a model, in training steps only.

Compiling a whole model takes minutes, and again after every change. The blocks of a model share one class, so the
compiled code of one block serves all of them, for every batch shape (`dynamic=True`). A module class sets
`compile_in_training = True` to take part. Validation and decoding run the plain code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn


class CompiledBlocks:
    """The compiled blocks of one model; torch compiles each class at its first call."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [module for module in model.modules() if getattr(module, "compile_in_training", False)]
        classes = {type(module) for module in self.modules}
        self._compiled: dict[type, Callable[..., Any]] = {
            cls: torch.compile(cls.forward, dynamic=True) for cls in classes
        }

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Run the compiled forward of every block inside the context."""
        for module in self.modules:
            module.__dict__["forward"] = MethodType(self._compiled[type(module)], module)
        try:
            yield
        finally:
            for module in self.modules:
                del module.__dict__["forward"]
