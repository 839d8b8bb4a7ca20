"""The tensors of a fitted model: how rows of tokens are stored, and checks, since a run folder may be damaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.classical.rows import Ragged
from dragoman.errors import RunError

Size = int | str  # a name stands for any size, the same in all tensors; "N+1" is one more than "N"


class TensorSpec(NamedTuple):
    """Type, shape and values of one tensor. No number is NaN or ∞; −∞ is the logarithm of 0."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    least: int | None = None  # of all numbers
    below: tuple[Size, ...] = ()  # all numbers are below the product of these
    rising: bool = False  # no number is smaller than the one before
    offsets_of: str | None = None  # borders of rows in this tensor: they rise from 0 to its length


def row_specs(flat: str, offsets: str, count: Size, vocabulary: int | None, least: int = 0) -> dict[str, TensorSpec]:
    """Rows of tokens, `count` of them: a flat tensor and the offsets of its rows."""
    below = () if vocabulary is None else (vocabulary,)
    return {
        flat: TensorSpec(torch.int32, (flat,), least, below),
        offsets: TensorSpec(torch.int64, (f"{count}+1",), offsets_of=flat),
    }


def row_arrays(flat: str, offsets: str, rows: Ragged) -> dict[str, NDArray[Any]]:
    return {flat: rows.flat, offsets: rows.offsets}


def stored_rows(flat: str, offsets: str, tensors: Mapping[str, Tensor]) -> Ragged:
    return Ragged(tensors[flat].numpy(), tensors[offsets].numpy())


def check_tensors(specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor]) -> None:
    """Raise RunError for the first tensor that is not as specified."""
    if missing := set(specs) ^ set(tensors):
        raise RunError(f"the weights do not fit the configuration: {', '.join(sorted(missing))} differ")
    sizes: dict[str, int] = {}
    for name, spec in specs.items():
        shape = tuple(tensors[name].shape)
        if tensors[name].dtype != spec.dtype or len(shape) != len(spec.shape):
            expected = f"{spec.dtype} with {len(spec.shape)} dimensions"
            raise RunError(f"the weights are damaged: {name} is {tensors[name].dtype} {shape}, expected {expected}")
        for size, wanted in zip(shape, spec.shape, strict=True):
            more = isinstance(wanted, str) and wanted.endswith("+1")
            known = wanted if isinstance(wanted, int) else sizes.setdefault(wanted.removesuffix("+1"), size - more)
            if known < 0 or size != known + more:
                raise RunError(f"the weights are damaged: {name} has shape {shape}, which does not fit the others")
    for name, spec in specs.items():
        problem = wrong_values(tensors[name], spec, sizes, tensors)
        if problem:
            raise RunError(f"the weights are damaged: {name} {problem}")


def wrong_values(tensor: Tensor, spec: TensorSpec, sizes: Mapping[str, int], tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the values of a tensor; empty: nothing."""
    if not tensor.numel():
        return ""
    if tensor.is_floating_point():
        return "has NaN or ∞" if bool((~(tensor < math.inf)).any()) else ""
    if (spec.rising or spec.offsets_of) and bool((tensor[1:] < tensor[:-1]).any()):
        return "is not sorted"
    if spec.offsets_of and (int(tensor[0]), int(tensor[-1])) != (0, len(tensors[spec.offsets_of])):
        return f"does not divide {spec.offsets_of}"
    bound = math.prod(sizes[size] if isinstance(size, str) else size for size in spec.below) if spec.below else None
    if (spec.least is not None and int(tensor.min()) < spec.least) or (bound and int(tensor.max()) >= bound):
        return f"has numbers outside of {spec.least} … {'' if bound is None else bound - 1}"
    return ""
