"""A row of the table of layers, and the table of a fitted model, which has tensors in place of layers."""

from __future__ import annotations

from typing import Any, NamedTuple


class LayerRow(NamedTuple):
    """One row of the table."""

    name: str
    kind: str
    shape: str  # of its output for the example batch
    parameters: int  # including its children; a shared parameter counts where it occurs first
    formula: str = ""  # what gives this number, from the sizes of its own tensors


def tensor_table(model: Any) -> tuple[list[LayerRow], int]:
    """The tensors of a fitted model, which has no layers, and how many numbers they hold."""
    rows = [
        LayerRow(name, str(tensor.dtype), "×".join(map(str, tensor.shape)), tensor.size)
        for name, tensor in model.tensors.items()
    ]
    return rows, sum(row.parameters for row in rows)
