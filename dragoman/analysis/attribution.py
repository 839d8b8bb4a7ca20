"""Which inputs an output depends on: input × gradient and integrated gradients over the embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dragoman.analysis.subject import Subject
from dragoman.errors import DataError
from dragoman.kernels.deferred_gradients import immediate_gradients
from dragoman.layers.embeddings import OneHot, TokenEmbedding
from dragoman.models.encoders.frames import Standardizer
from dragoman.models.sources import SeriesInput

Method = Literal["input-x-gradient", "integrated-gradients"]
METHODS: tuple[Method, ...] = get_args(Method)
INPUTS = (TokenEmbedding, OneHot, SeriesInput, Standardizer)


@dataclass(frozen=True)
class Attribution:
    """How much each input adds to the log-probability of each target (rows), to first order."""

    method: Method
    source: Tensor | None  # (T, S)
    prefix: Tensor | None  # (T, T) the target tokens read before; column 0 is <sos>


@contextmanager
def input_vectors(subject: Subject, scales: Tensor) -> Iterator[dict[str, list[Tensor]]]:
    """Make the input vectors of a forward pass leaves of its graph, each row times its scale: "source" and "prefix"."""
    leaves: dict[str, list[Tensor]] = {"source": [], "prefix": []}
    read: list[tuple[nn.Module, Any, Tensor]] = []  # module, its argument and the leaf
    depth = 0

    def enter(module: nn.Module, arguments: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1

    def replace(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        for before, argument, leaf in read:
            if before is module and argument is arguments[0]:
                return leaf  # the same tokens once more, as by the gate of a pointer-generator: one input, not two
        leaf = output.detach()
        if leaf.shape[0] == len(scales):
            leaf = leaf * scales.to(leaf).view(-1, *[1] * (leaf.dim() - 1))
        leaf = leaf.requires_grad_()
        is_source = depth > 0 or isinstance(module, SeriesInput | Standardizer)
        leaves["source" if is_source else "prefix"].append(leaf)
        read.append((module, arguments[0], leaf))
        return leaf

    modules = subject.model.modules()
    handles = [module.register_forward_hook(replace) for module in modules if isinstance(module, INPUTS)]
    if subject.encoder is not None:
        handles.append(subject.encoder.register_forward_pre_hook(enter))
        handles.append(subject.encoder.register_forward_hook(leave))
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


def attribute(subject: Subject, method: Method = "input-x-gradient", steps: int = 16) -> Attribution:
    """Attribute the log-probability of every target to the inputs.

    Input × gradient is Σ_d x_d ∂log p/∂x_d for each token. Integrated gradients (Sundararajan et al. 2017) average the
    gradient along the straight line from zero vectors to the inputs, at `steps` midpoints: their sum is the difference
    of log p between the inputs and zeros.
    """
    if method == "input-x-gradient":
        scales = torch.ones(1)
    else:
        scales = (torch.arange(steps) + 0.5) / steps
    batch = subject.batch.map(lambda part: part.repeat(len(scales), *[1] * (part.dim() - 1)))
    with immediate_gradients(), torch.enable_grad(), input_vectors(subject, scales) as leaves:
        scores = subject.score(subject.model, batch)  # (steps, T)
        # Words made of characters, and two texts that are read apart, have no single row of vectors.
        usable = {
            side: own[0] for side, own in leaves.items() if len(own) == 1 and own[0].shape[0] == len(scales)
        }  # fmt: skip
        if not usable or not scores.requires_grad:
            raise DataError("no attribution to show: this model reads no single row of vectors")
        rows: dict[str, list[Tensor]] = {side: [] for side in usable}
        for total in scores.sum(0):
            gradients = torch.autograd.grad(total, list(usable.values()), retain_graph=True, allow_unused=True)
            for (side, leaf), gradient in zip(usable.items(), gradients, strict=True):
                vectors = leaf.detach() / scales.to(leaf).view(-1, *[1] * (leaf.dim() - 1))  # the inputs, in every row
                share = torch.zeros_like(leaf) if gradient is None else vectors * gradient
                rows[side].append(share.mean(0).flatten(1).sum(-1))
    sides = {side: torch.stack(own).float().cpu() for side, own in rows.items()}
    return Attribution(method, sides.get("source"), sides.get("prefix"))
