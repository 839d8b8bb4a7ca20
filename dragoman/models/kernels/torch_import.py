"""Import torch in two thirds of the time: put off the kernels for tensors without data until something traces a model.

`import torch` registers hundreds of them in Python (`torch._meta_registrations`, and the decompositions behind it).
Eager execution reads none; compilers, exporters, sharded tensors and `torch.device("meta")` do.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

META_KERNELS = "torch._meta_registrations"


class Deferred(MetaPathFinder, Loader):
    """Leaves `META_KERNELS` empty at first. Any module of torch that is imported later may trace, so it loads them."""

    real: Loader | None = None  # once torch asked for the module

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch":
            gc.disable()  # it makes no garbage, but a million objects that collections would look through
        elif name == META_KERNELS or name.startswith("dragoman."):
            gc.enable()
        if name == META_KERNELS and self.real is None:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None:
                self.real, spec.loader = spec.loader, self
            return spec
        if name.startswith("torch.") and not getattr(sys.modules["torch"].__spec__, "_initializing", False):
            self.load()
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""

    def load(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # first: the kernels import further modules of torch
            if self.real is not None:
                self.real.exec_module(sys.modules[META_KERNELS])


_deferred = Deferred()


def defer_meta_kernels() -> None:
    """Call this before torch is imported; afterwards it does nothing."""
    if "torch" not in sys.modules and _deferred not in sys.meta_path:
        sys.meta_path.insert(0, _deferred)
