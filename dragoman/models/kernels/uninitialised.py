"""Build a model whose weights are read from a file next: drawing random ones takes longer than reading those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Functions of nn.init that ask for overrides do so before they draw.
DRAWS = {Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}


class Uninitialised(TorchFunctionMode):
    """A context in which parameters are not drawn; every other tensor is, since no file may have it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS and isinstance(tensor := args[0] if args else kwargs["tensor"], nn.Parameter):
            return tensor
        return func(*args, **kwargs)
