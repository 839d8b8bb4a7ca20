"""The position vectors of a model as a picture, with the dot product of positions by their distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.inspect.views.figures import BLUE, CELL, INK, MAX_INCHES, chosen, new_figure, one_line_labels, suptitle
from dragoman.inspect.views.order import added_positions
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.encoders import BertEncoder
from dragoman.models.layers import (
    Learned,
    Relative,
    RelativeBias,
    RelativePositions,
    RelativeSinusoidal,
    Sinusoidal,
    sinusoids,
)

POSITIONS = 64
Values = tuple[Tensor | None, Tensor | None, Tensor | None]  # vectors, dots and bias


@torch.no_grad()
def position_pictures(model: nn.Module) -> list[dict[str, Any]]:
    """Every module of a model that encodes positions: name, kind, and where it has them

    - vectors (positions, D) that are added to the embeddings,
    - dots (positions,) of the middle position with every position, as a share of its own square,
    - bias (H, 2·positions − 1) added to the score of a key at distance −(P−1) … P−1.
    """
    pictures = []
    for name, module in model.named_modules():
        if isinstance(module, Sinusoidal):
            kind, values = "sinusoidal", _absolute(sinusoids(POSITIONS, module.width, module.layout, torch.float32))
        elif isinstance(module, Learned):
            kind, values = "learned", _absolute(module.table[:POSITIONS].detach().float().cpu())
        elif isinstance(module, BertEncoder):
            kind, values = "learned", _absolute(module.positions[:POSITIONS].detach().float().cpu())
        elif isinstance(module, RelativePositions) and type(module) is not RelativePositions:
            kind, values = type(module).__name__, _relative(module, POSITIONS)
        else:
            continue
        pictures.append({"name": name, "kind": kind, **dict(zip(("vectors", "dots", "bias"), values, strict=True))})
    return pictures


def _absolute(vectors: Tensor) -> Values:
    middle = vectors[len(vectors) // 2]
    return vectors, vectors @ middle / (middle @ middle).clamp(min=1e-12), None


def _relative(module: RelativePositions, positions: int) -> Values:
    """The bias of a query of ones for every distance, or the dot product of equal vectors that are rotated apart."""
    heads, depth = 1, 64
    if isinstance(module, RelativeSinusoidal):
        heads, depth = module.heads, module.depth
    elif isinstance(module, RelativeBias):
        heads = module.table.shape[1]
    elif isinstance(module, Relative):
        depth = module.table.shape[1]
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    query = torch.ones(1, heads, 1, depth, device=device) * depth**-0.5
    distances = torch.arange(-positions + 1, positions, device=device)
    bias = module.bias(query, distances[None], 1.0)
    if bias is not None:
        return None, None, bias.reshape(-1, len(distances)).float().cpu()
    at = torch.arange(positions, device=device)
    rotated = module.rotate(query.expand(1, heads, positions, depth), at)[0, 0]  # (positions, depth)
    return rotated.float().cpu(), (rotated @ rotated[positions // 2]).float().cpu(), None


def positions_view(subject: Subject) -> View | None:
    pictures = position_pictures(subject.model)
    if not pictures:
        return None
    encoder, rows = subject.encoder, None
    if isinstance(encoder, BertEncoder) and subject.encoded is not None:
        segments = encoder.segment_of(subject.batch.source.data)[0].tolist()
        rows = {"tokens": subject.encoded.tokens, "segment": segments, "position": list(range(len(segments)))}
    added = None if encoder is None or subject.source is None else added_positions(subject)
    axis = None if added is None else next(
        (one for one in (subject.source, subject.encoded) if one is not None and len(one) == len(added.total)), None
    )  # fmt: skip
    return View(
        "positions",
        "Positions",
        "Position vectors tell equal words at different places apart; each row is a position, each column a dimension. "
        "The curve is the dot product of one position with all others: it falls with the distance.",
        {
            "pictures": pictures,
            "rows": rows,
            "small": sinusoids(8, 4),  # small enough to check by hand
            "added": None if added is None or axis is None else added.parts,
            "source": None if axis is None else axis.as_dict(),
        },
    )


def draw_sum(view: View) -> Any:
    """What the first layer reads: a heat map for each vector that is added, and their sum, with one scale."""
    parts, tokens = view.data["added"], view.data["source"]["tokens"]
    top = max(float(part.abs().max()) for part in parts.values())
    dimensions = next(iter(parts.values())).shape[1]
    drawing = new_figure(min(MAX_INCHES, 2.2 + 2.4 * len(parts)), min(MAX_INCHES, 1.6 + CELL * max(len(tokens), 6)))
    image = None
    for axes, (name, part) in zip(drawing.subplots(1, len(parts), sharey=True), parts.items(), strict=True):
        image = axes.imshow(part.numpy(), cmap="RdBu", aspect="auto", vmin=-top, vmax=top)
        axes.set_title({"embedding": "token", "total": "= sum"}.get(name, f"+ {name}"), fontsize=10, color=INK)
        axes.set_xlabel("dimension", fontsize=9, color=INK)
        axes.set_yticks(range(len(tokens)), one_line_labels(tokens))
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=4)
        axes.tick_params(labelsize=9, colors=INK)
    drawing.colorbar(image, ax=drawing.axes, shrink=0.8)
    suptitle(drawing, f"What the first layer reads: {dimensions} dimensions of each token")
    return drawing


def draw_positions(view: View, layer: str | None) -> Any:
    if layer == "sum" and view.data["added"] is not None:
        return draw_sum(view)
    sums = [{"name": "sum"}] if view.data["added"] is not None else []
    picture = chosen([*view.data["pictures"], *sums], layer or "1")
    drawing = new_figure(11, 4.4)
    values = picture["vectors"] if picture["vectors"] is not None else picture["bias"]
    left, right = drawing.subplots(1, 2)
    top = float(values.abs().max())
    image = left.imshow(values.numpy(), cmap="RdBu", aspect="auto", vmin=-top, vmax=top)
    names = ("dimension", "position") if picture["vectors"] is not None else ("distance", "head")
    left.set(xlabel=names[0], ylabel=names[1])
    drawing.colorbar(image, ax=left, shrink=0.8)
    if picture["dots"] is not None:
        right.plot(torch.arange(len(picture["dots"])) - len(picture["dots"]) // 2, picture["dots"], color=BLUE)
        right.set(xlabel="distance from the middle position", ylabel="dot product, as a share of its own")
        right.grid(alpha=0.3)
    suptitle(drawing, f"{picture['name']} ({picture['kind']})")
    return drawing
