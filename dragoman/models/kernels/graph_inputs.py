"""The memory that captured CUDA graphs read.

A graph keeps the addresses of the tensors that it saw. The contract for everything a captured step reads (weights,
buffers, tables, caches): it is neither freed nor moved while the graph lives, only written in place. What a model
must grow, it adds beside the old memory (`positions.sinusoid_table`). `GraphInputs` guards the contract: it keeps the
tensors of a model alive, and tells when the model reads others by now, so that the graphs are captured again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn


class _Input(NamedTuple):
    owner: dict[str, Any]  # the parameters or buffers of a module
    name: str
    tensor: Tensor | None
    address: int


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class GraphInputs:
    """All parameters and buffers of a model, as they were when its first graph was captured."""

    def __init__(self, model: nn.Module) -> None:
        owners = [owner for module in model.modules() for owner in (module._parameters, module._buffers)]
        self._inputs = [
            _Input(owner, name, tensor, _address(tensor)) for owner in owners for name, tensor in owner.items()
        ]
        self._storages = [one.tensor.untyped_storage() for one in self._inputs if one.tensor is not None]  # kept alive

    def moved(self) -> bool:
        """Whether the model has any other tensor, or a tensor at any other address, than the graphs read."""
        return any(one.owner[one.name] is not one.tensor or _address(one.tensor) != one.address for one in self._inputs)
