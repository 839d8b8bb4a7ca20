"""The Transformer layer by layer: how long each part of the residual sum is, and what the model would say so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data.formats import MASK_ID
from dragoman.inspect.views.subject import Axis, Subject
from dragoman.inspect.views.view import View
from dragoman.models import DecoderStack, MaskedLM, Stream, TransformerBlock

COUNT = 5  # tokens of a layer


@dataclass(frozen=True)
class BlockNorms:
    """Lengths of vectors at every position of one block."""

    name: str
    axis: Axis
    parts: dict[str, Tensor]  # input, attention, cross-attention, feed-forward, output → (T,)


@dataclass(frozen=True)
class LogitLens:
    """The most probable tokens if the layers above were left out (nostalgebraist 2020), for every layer and target."""

    layers: list[str]  # the embeddings first
    tokens: Tensor  # (L, T, K) ids, most probable first
    probabilities: Tensor  # (L, T, K)
    chosen: Tensor  # (L, T) of the target


def vectors_of(value: Any) -> Tensor:
    """The vectors (N, T, D) that a module returns; of a residual stream its sum."""
    if isinstance(value, Stream):
        return value.x if value.out is None else value.x + value.out
    return vectors_of(value[0]) if isinstance(value, tuple) else value


@torch.no_grad()
def recorded_blocks(subject: Subject) -> dict[str, dict[str, Tensor]]:
    """The vectors (T, D) that go into every Transformer block, that its sublayers add, and that come out."""
    found: dict[str, dict[str, Tensor]] = {}
    handles = []

    def keep(name: str, part: str, value: Tensor) -> None:
        if value.shape[0] == 1 and part not in found.setdefault(name, {}):
            found[name][part] = value[0].float().cpu()

    for name, block in subject.model.named_modules():
        if not isinstance(block, TransformerBlock):
            continue

        def entered(_: nn.Module, given: Any, name: str = name) -> None:
            keep(name, "input", vectors_of(given[0]))

        handles.append(block.register_forward_pre_hook(entered))
        for part, module in (("cross-attention", getattr(block, "cross", None)), ("feed-forward", block.feedforward)):
            if module is not None:
                handles.append(module.register_forward_hook(_keeper(keep, name, part)))
        # Self-attention is called by `extend` in decoders: its last product is hooked instead.
        handles.append(block.attention.output.register_forward_hook(_keeper(keep, name, "attention")))
        handles.append(block.register_forward_hook(_keeper(keep, name, "output")))
    try:
        subject.log_probabilities()
    finally:
        for handle in handles:
            handle.remove()
    order = ("input", "attention", "cross-attention", "feed-forward", "output")
    return {name: {part: parts[part] for part in order if part in parts} for name, parts in found.items()}


def _keeper(keep: Callable[[str, str, Tensor], None], name: str, part: str) -> Callable[..., None]:
    return lambda module, given, out: keep(name, part, vectors_of(out))


def block_norms(subject: Subject, blocks: dict[str, dict[str, Tensor]]) -> list[BlockNorms]:
    """The lengths of the vectors of every block whose positions are those of a text."""
    norms = []
    for name, parts in blocks.items():
        axes = (subject.encoded, subject.source) if name.startswith("encoder") else (subject.target.shifted(),)
        size = len(next(iter(parts.values())))
        axis = next((axis for axis in axes if axis is not None and len(axis) == size), None)
        if axis is not None:
            norms.append(BlockNorms(name, axis, {part: vectors.norm(dim=-1) for part, vectors in parts.items()}))
    return norms


@torch.no_grad()
def logit_lens(subject: Subject, blocks: dict[str, dict[str, Tensor]]) -> LogitLens | None:
    """What each layer of the decoder, language model or BERT would predict; None: the model is no Transformer."""
    model = subject.model
    found = _head(subject)
    if found is None:
        return None
    stack, read = found
    own = [parts for name, parts in blocks.items() if name.startswith(f"{stack}.blocks.")]
    if not own:
        return None
    device = next(model.parameters()).device
    states = [own[0]["input"], *(parts["output"] for parts in own)]
    logs = torch.stack([read(state[None].to(device))[0].float().log_softmax(-1).cpu() for state in states])  # (L, T, V)
    top, tokens = logs.topk(min(COUNT, logs.shape[2]), -1)
    target = subject.batch.target[0].cpu()
    chosen = logs.gather(2, target.expand(len(logs), -1)[:, :, None])[:, :, 0]
    names = ["embeddings", *(f"layer {number}" for number in range(1, len(own) + 1))]
    return LogitLens(names, tokens, top.exp(), chosen.exp())


def _head(subject: Subject) -> tuple[str, Callable[[Tensor], Tensor]] | None:
    """The name of the stack, and the function from its vectors (1, T, D) to logits (1, targets, V)."""
    model: Any = subject.model
    if isinstance(model, MaskedLM):
        row = subject.batch.source.data[0]
        masks = (row == MASK_ID).nonzero()[:, 0] + len(model.encoder.prepended)

        def fill(x: Tensor) -> Tensor:
            hidden = model.encoder.norm(x)[:, masks]
            return model.output(model.transform_norm(model.activation(model.transform(hidden))))  # type: ignore[no-any-return]

        return "encoder", fill
    for name in ("decoder", "stack"):
        stack = getattr(model, name, None)
        if isinstance(stack, DecoderStack) and isinstance(getattr(model, "output", None), nn.Module):
            logits = getattr(model, "logits_of", model.output)
            return name, lambda x, stack=stack, logits=logits: logits(stack.norm(x))
    return None


def lens_view(subject: Subject) -> View | None:
    blocks = recorded_blocks(subject)
    norms, lens = block_norms(subject, blocks), logit_lens(subject, blocks)
    if not norms and lens is None:
        return None
    pieces = None if lens is None else [[subject.pieces(row) for row in layer] for layer in lens.tokens.tolist()]
    return View(
        "lens",
        "Layer by layer",
        "Every layer adds to the vector of a position. The logit lens reads the vector after each layer with the "
        "output layer, as if the layers above were left out: it shows where the answer appears.",
        {
            "lens": None if lens is None else {**vars(lens), "tokens": pieces},
            "norms": [{"name": one.name, "axis": one.axis.as_dict(), "parts": one.parts} for one in norms],
            "target": subject.target.as_dict(),
        },
    )
