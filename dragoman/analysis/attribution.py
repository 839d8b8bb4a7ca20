"""Which inputs an output depends on: input × gradient and integrated gradients over the embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.analysis.subject import Subject
from dragoman.errors import DataError
from dragoman.kernels.deferred_gradients import immediate_gradients
from dragoman.layers.embeddings import OneHot, TokenEmbedding
from dragoman.models.classifier import SeriesInput
from dragoman.models.encoders.frames import Standardizer

Method = Literal["input-x-gradient", "integrated-gradients"]
INPUTS = (TokenEmbedding, OneHot, SeriesInput, Standardizer)


@dataclass(frozen=True)
class Attribution:
    """How much each input adds to the log-probability of each target (rows), to first order."""

    method: Method
    source: Tensor | None  # (T, S)
    prefix: Tensor | None  # (T, T) the target tokens read before; column 0 is <sos>


@contextmanager
def input_vectors(subject: Subject, scale: float = 1.0) -> Iterator[dict[str, list[Tensor]]]:
    """Make the input vectors of a forward pass leaves of its graph, times `scale`: "source" and "prefix"."""
    found: dict[str, list[Tensor]] = {"source": [], "prefix": []}
    depth = 0

    def enter(module: nn.Module, arguments: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1

    def replace(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        leaf = (output.detach() * scale).requires_grad_()
        is_source = depth > 0 or isinstance(module, SeriesInput | Standardizer)
        found["source" if is_source else "prefix"].append(leaf)
        return leaf

    handles = [
        module.register_forward_hook(replace) for module in subject.model.modules() if isinstance(module, INPUTS)
    ]
    if subject.encoder is not None:
        handles.append(subject.encoder.register_forward_pre_hook(enter))
        handles.append(subject.encoder.register_forward_hook(leave))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def attribute(subject: Subject, method: Method = "input-x-gradient", steps: int = 20) -> Attribution:
    """Attribute the log-probability of every target to the inputs.

    Input × gradient is Σ_d x_d ∂log p/∂x_d for each token. Integrated gradients (Sundararajan et al. 2017) average the
    gradient along the straight line from zero vectors to the inputs, by `steps` midpoints: their sum is the difference
    of log p between the inputs and zeros.
    """
    if method == "input-x-gradient":
        gradients, inputs = _gradients(subject, 1.0)
    else:
        total: list[Tensor] | None = None
        for number in range(steps):
            part, _ = _gradients(subject, (number + 0.5) / steps)
            total = part if total is None else [one + other for one, other in zip(total, part, strict=True)]
        assert total is not None
        gradients, inputs = [one / steps for one in total], _inputs(subject)
    shares = [  # (T, L) for each input tensor (1, L, …)
        (gradient * vector.unsqueeze(0)).flatten(3).sum(-1)[:, 0] if gradient.dim() > 3 else gradient[:, 0]
        for gradient, vector in zip(gradients, inputs, strict=True)
    ]
    sides = dict(zip(_sides(subject), shares, strict=True))
    return Attribution(method, sides.get("source"), sides.get("prefix"))


def _sides(subject: Subject) -> list[str]:
    with torch.no_grad(), input_vectors(subject) as found:
        subject.log_probabilities()
    return [side for side, leaves in found.items() if _usable(leaves)]


def _usable(leaves: list[Tensor]) -> bool:
    """One tensor with a single row of vectors: words made of characters, or two texts apart, have others."""
    return len(leaves) == 1 and leaves[0].shape[0] == 1


def _inputs(subject: Subject) -> list[Tensor]:
    with torch.no_grad(), input_vectors(subject) as found:
        subject.log_probabilities()
    return [leaves[0].detach() for leaves in found.values() if _usable(leaves)]


def _gradients(subject: Subject, scale: float) -> tuple[list[Tensor], list[Tensor]]:
    """∂log p_t/∂x for every target t (T, 1, L, D) of each input tensor, and the tensors."""
    with immediate_gradients(), torch.enable_grad(), input_vectors(subject, scale) as found:
        scores = subject.log_probabilities()
        leaves = [one[0] for one in found.values() if _usable(one)]
        if not leaves or not scores.requires_grad:
            raise DataError("no attribution to show: this model reads no single row of vectors")
        rows: list[list[Tensor]] = [[] for _ in leaves]
        for score in scores:
            gradients = torch.autograd.grad(score, leaves, retain_graph=True, allow_unused=True)
            for own, leaf, gradient in zip(rows, leaves, gradients, strict=True):
                own.append(torch.zeros_like(leaf) if gradient is None else gradient)
    return [torch.stack(own) for own in rows], [leaf.detach() for leaf in leaves]
