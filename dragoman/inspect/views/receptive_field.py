"""The receptive field of every layer: which inputs can change one position of its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data import Tokens
from dragoman.inspect.views.figures import INK, MAX_INCHES, draw_heat, new_figure, suptitle
from dragoman.inspect.views.logit_lens import vectors_of
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.layers import TokenEmbedding


def stack_of(subject: Subject) -> nn.Module | None:
    """The encoder, or the stack of a language model."""
    stack: nn.Module | None = subject.encoder if subject.source is not None else getattr(subject.model, "stack", None)
    return stack


def receptive_fields(subject: Subject) -> tuple[list[str], int, Tensor] | None:
    """Names of the layers (L), the position, and ‖∂(its output of each layer)/∂input‖ (L, S) as a share of the largest.

    An input outside of the field has exactly 0. The position is the middle one, or the last of a language model, whose
    layers see what came before. None: the model has no such layers over tokens.
    """
    stack = stack_of(subject)
    if stack is None or (subject.source is not None and not isinstance(subject.batch.source, Tokens)):
        return None
    inputs: list[Tensor] = []
    outputs: dict[str, Tensor] = {}

    def read(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    def keep(name: str) -> Any:
        return lambda module, given, output: outputs.update({name: vectors_of(output)})

    hooks = [module.register_forward_hook(read) for module in stack.modules() if isinstance(module, TokenEmbedding)]
    for name, layers in stack.named_children():
        if isinstance(layers, nn.ModuleList):
            hooks += [layer.register_forward_hook(keep(f"{name}.{number}")) for number, layer in enumerate(layers)]
    try:
        with torch.enable_grad():
            subject.log_probabilities()
    finally:
        for hook in hooks:
            hook.remove()
    shape = inputs[0].shape if inputs else ()
    found = {name: value for name, value in outputs.items() if value.shape[:2] == shape[:2] and value.requires_grad}
    if not found or len(shape) != 3 or shape[0] != 1:
        return None
    place = shape[1] // 2 if subject.source is not None else shape[1] - 1
    rows = []
    for value in found.values():
        weights = torch.randn(value.shape[2], generator=torch.Generator().manual_seed(1)).to(value)
        (slope,) = torch.autograd.grad((value[0, place] * weights).sum(), inputs[0], retain_graph=True)
        size = slope[0].norm(dim=-1).float().cpu()
        rows.append(size / size.max().clamp(min=1e-30))
    return [*found], place, torch.stack(rows)


def receptive_view(subject: Subject) -> View | None:
    found = receptive_fields(subject)
    if found is None:
        return None
    names, place, influence = found
    axes = (subject.source, subject.encoded, subject.target.shifted(), subject.target)
    axis = next((one for one in axes if one is not None and len(one) == influence.shape[1]), None)
    if axis is None:
        return None
    return View(
        "receptive",
        "Receptive field",
        "Each row is a layer, each column an input; a white cell cannot change the layer's output at the marked "
        "position. Convolutions and attention with a window see farther with every layer, full attention and recurrent "
        "layers see everything at once.",
        {
            "layers": names,
            "position": place,
            "influence": influence,
            "sizes": (influence > 0).sum(1).tolist(),
            "axis": axis.as_dict(),
        },
    )


def draw_receptive(view: View, layer: str | None) -> Any:
    """The first layer below, as in the papers."""
    data, tokens = view.data, view.data["axis"]["tokens"]
    rows = [f"{name}: {size} of {len(tokens)}" for name, size in zip(data["layers"], data["sizes"], strict=True)]
    drawing = new_figure(min(MAX_INCHES, max(5.0, 2.4 + 0.3 * len(tokens))), min(MAX_INCHES, 1.9 + 0.4 * len(rows)))
    axes = drawing.subplots()
    seen = (data["influence"] > 0).float() * (0.2 + 0.8 * data["influence"])
    draw_heat(axes, seen.flip(0), rows[::-1], tokens)
    axes.axvline(data["position"], color=INK, lw=1, ls=":")
    suptitle(drawing, f"Inputs that can change position {data['position'] + 1} ({tokens[data['position']]})")
    return drawing
