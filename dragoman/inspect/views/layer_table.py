"""The layers of a model with their output shapes and numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.classical import FittedModel
from dragoman.data import Batch
from dragoman.inspect.views.layer_row import LayerRow, tensor_table
from dragoman.inspect.views.plain_code import Code
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.layers import Cell, WordDropout


def shape_of(value: Any) -> str:
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return "×".join(str(size) for size in value.shape) if isinstance(value, Tensor) else ""


@torch.no_grad()
def layer_table(
    model: Any, batch: Batch, depth: int = 4, run: Callable[[Any, Batch], object] | None = None
) -> list[LayerRow]:
    """Run one batch through the model, by default with `score`, and list its modules down to a depth."""
    shapes: dict[int, str] = {}
    handles = [
        module.register_forward_hook(lambda module, _, out: shapes.__setitem__(id(module), shape_of(out)))
        for module in model.modules()
    ]
    was_training = model.training
    model.eval()
    try:
        model.score(batch) if run is None else run(model, batch)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        owners.setdefault(id(parameter), name)
    rows = []
    for name, module in model.named_modules():
        if not name or name.count(".") >= depth or isinstance(module, nn.Dropout | nn.Identity | WordDropout):
            continue
        own = (parameter for parameter in module.parameters() if owners[id(parameter)].startswith(f"{name}."))
        count = sum(parameter.numel() for parameter in own)
        if count or shapes.get(id(module)):
            formula = parameter_formula(module) if count else ""
            if formula and sum(parameter.numel() for parameter in module.parameters(recurse=False)) != count:
                formula += " + its parts"
            rows.append(LayerRow(name, type(module).__name__, shapes.get(id(module), ""), count, formula))
    return rows


def parameter_formula(module: nn.Module) -> str:
    """The sizes of the tensors of a module, such as "512×256 + 512"; of a gated cell one gate, times its gates.

    Empty: all its parameters belong to its parts.
    """
    shapes = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
    blocks = len(module.block_names) if isinstance(module, Cell) else 1
    if isinstance(module, Cell) and blocks > 1 and all(shape[0] == blocks * module.width for shape in shapes):
        shapes = [(shape[0] // blocks, *shape[1:]) for shape in shapes]
    else:
        blocks = 1
    terms = " + ".join("×".join(map(str, shape)) for shape in shapes)
    return f"{blocks} · ({terms})" if blocks > 1 else terms


def cell_sizes(model: Any) -> list[dict[str, Any]]:
    """The recurrent cells of a model: name, kind, title, settings, size of inputs, width, and the equations."""
    found = []
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, Cell):
            code = Code(module.equations(), module.symbols())
            kind, settings = getattr(module.config, "kind", ""), asdict(module.config) if module.config else {}
            found.append(
                {
                    "name": name, "kind": kind, "inputs": module.inputs, "width": module.width, "title": module.title,
                    "settings": settings, "text": code.text, "formulas": code.formulas,
                }
            )  # fmt: skip
    return found


def parameter_count(model: nn.Module) -> int:
    """The number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def size_of(model: Any) -> tuple[int, str]:
    """How many parameters a model has, and what they are called."""
    if isinstance(model, FittedModel):
        return tensor_table(model)[1], "numbers"
    return parameter_count(model), "parameters"


def layers_view(subject: Subject) -> View | None:
    fitted = isinstance(subject.model, FittedModel)
    rows = tensor_table(subject.model)[0] if fitted else layer_table(subject.model, subject.batch, run=subject.score)
    total, noun = size_of(subject.model)
    return View(
        "layers",
        "Numbers" if fitted else "Layers",
        "All that the model stores: it was counted from the data, without gradients."
        if fitted
        else "Every part of the model with the shape of its output for this example and its number of parameters. "
        "Shapes are batch × positions × width.",
        {"rows": [row._asdict() for row in rows], "total": total, "noun": noun, "cells": cell_sizes(subject.model)},
    )
