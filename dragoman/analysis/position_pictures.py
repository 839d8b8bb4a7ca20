"""The position vectors of a model as a picture, with the dot product of positions by their distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.layers.positions import Learned, Sinusoidal, sinusoids
from dragoman.layers.relative_positions import Relative, RelativeBias, RelativePositions, RelativeSinusoidal
from dragoman.models.encoders.bert import BertEncoder

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
