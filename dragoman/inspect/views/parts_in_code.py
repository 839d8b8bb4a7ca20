"""What every builder of plain code shares: the recorded run of a model, and a part with its code and its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.inference.align import record_attention
from dragoman.inspect.views.plain_code import TORCH, Code, Library
from dragoman.inspect.views.states import CellSteps, record_cells
from dragoman.inspect.views.subject import Axis, Subject
from dragoman.models.layers import Products, merge, watch_products

TOLERANCE = 1e-5  # of the largest number of a part, at least 1: the run computes in float32


class DisagreementError(AssertionError):
    """The plain code of a part is not what the run computes: a mistake of ours."""


@dataclass(frozen=True)
class Part:
    """One part of a model as plain code, with what the run computed there."""

    name: str  # of the module
    title: str
    about: str
    code: Code
    state: dict[str, Tensor]  # what the run has of the names that the lines set, as `values` gives it
    rows: Axis  # the steps
    inputs: dict[str, Tensor] = field(default_factory=dict)  # (T, …) read step by step; {}: all steps are read at once
    columns: Axis | None = None  # of the names in `over_columns`
    over_columns: tuple[str, ...] = ()
    per_head: tuple[str, ...] = ()  # names of values (H, …)
    whole: tuple[str, ...] = ()  # names of values that do not begin with the steps

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Every name that the lines set, in float64: (T, …), or of a whole sequence (T, …), (H, T, …) or (H, S, …)."""
        return self.computed(TORCH)

    def computed(self, library: Library) -> dict[str, Any]:
        code = self.code.read_by(library)
        if not self.inputs:
            return code.compute({}, library)
        steps = len(next(iter(self.inputs.values())))
        found = [code.compute({name: value[t] for name, value in self.inputs.items()}, library) for t in range(steps)]
        return {name: library.torch.stack([one[name] for one in found]) for name in code.assigned}

    def difference(self) -> float:
        """The largest difference between the plain code and the run; a DisagreementError above the tolerance."""
        largest, scale = 0.0, 1.0
        for value in (*self.values.values(), *self.inputs.values()):
            scale = max(scale, float(value.abs().max()) if value.numel() else 0.0)
        for name, state in self.state.items():
            state, value = state.detach().cpu().double(), self.values[name]
            assert state.shape == value.shape, (self.name, name, state.shape, value.shape)
            differs = float((state - value).abs().max()) if state.numel() else 0.0
            if not differs <= TOLERANCE * scale:
                raise DisagreementError(
                    f"{self.name}: the plain code of {name} and the run differ by {differs:.2g}; please report this"
                )
            largest = max(largest, differs)
        return largest


@dataclass
class Recording:
    """One forward pass of a model."""

    subject: Subject
    cells: dict[str, CellSteps]
    weights: dict[str, list[Tensor]]  # of every attention, each (1, H, T, S)
    products: dict[str, list[Products]]
    calls: dict[str, list[tuple[tuple[Any, ...], Any]]]  # arguments and result of every call of a module

    def module(self, name: str) -> Any:
        return self.subject.model.get_submodule(name)

    def once(self, name: str) -> tuple[tuple[Any, ...], Any] | None:
        """The only call of a module; None: it was called more often, or never."""
        calls = self.calls.get(name, [])
        return calls[0] if len(calls) == 1 else None

    def joined(self, name: str) -> tuple[tuple[Any, ...], Any] | None:
        """The calls of a module step by step as one call with all steps."""
        if not (calls := self.calls.get(name)):
            return None
        return (torch.cat([arguments[0] for arguments, _ in calls], 1),), torch.cat([result for _, result in calls], 1)


@torch.no_grad()
def record(subject: Subject) -> Recording:
    """Score the target once and keep what every module read and gave."""
    names = {id(module): name for name, module in subject.model.named_modules()}
    products: dict[str, list[Products]] = {}
    calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    def watch(module: nn.Module, found: Products) -> None:
        products.setdefault(names.get(id(module), ""), []).append(found)

    model = subject.model
    with (
        record_attention(model) as weights, watch_products(watch), record_cells(model) as cells,
        _record_calls(model, names, calls),
    ):  # fmt: skip
        subject.log_probabilities()
    return Recording(subject, cells, weights, products, calls)


@contextmanager
def _record_calls(
    model: nn.Module, names: dict[int, str], calls: dict[str, list[tuple[tuple[Any, ...], Any]]]
) -> Iterator[None]:
    def keep(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        calls.setdefault(names[id(module)], []).append((arguments, result))

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def weight_of(layer: Any) -> Tensor:
    """The matrix of a linear layer, with its low-rank adapter if it has one."""
    weight: Tensor = layer.weight.detach()
    if hasattr(layer, "lora_A"):
        weight = merge(weight, layer.lora_A.detach(), layer.lora_B.detach(), layer.scale)
    return weight[: layer.out_features]


def plus(symbol: str, bias: Any) -> str:
    """The sum with a bias, which a layer may lack."""
    return "" if bias is None else f" + {symbol}"


def known(**constants: Any) -> dict[str, Any]:
    """The constants that there are."""
    return {name: value for name, value in constants.items() if value is not None}
